"""Notices when a captured table was altered so that its change log can no longer be trusted."""

from __future__ import annotations

import sqlite3
from collections.abc import Container

from viewkeeper.managers.sources.sqlite_log import Captured, LogState
from viewkeeper.managers.sources.sqlite_schema import OWN, read_table

_EVENTS = ("before_insert", "before_update", "before_delete", "after_delete", "after_insert", "after_update")
_REMEDY = "undo that, or run `viewkeeper init --reload`"


def used_problems(db: sqlite3.Connection, state: LogState, wanted: Container[str] | None = None) -> list[str]:
    """What happened to captured tables that views depend on: each problem with its remedy; usually none."""
    watched = {n: c for n, c in state.tables.items() if c.active and (wanted is None or n in wanted)}
    return [f"{why}; {_REMEDY}" for name, captured in watched.items() for why in _table_problems(db, name, captured)]


def _table_problems(db: sqlite3.Connection, name: str, captured: Captured) -> list[str]:
    table = read_table(db, name)
    if table is None:
        return [f"table {name} is gone"]
    own = {trigger for trigger, _ in table.triggers}
    if any(f"{OWN}{captured.number}_{event}" not in own for event in _EVENTS):
        return [f"table {name} has lost its capture triggers"]
    declared = {c.name: c.declared for c in table.columns}
    return [
        f"column {name}.{column} was dropped or renamed"
        if column not in declared
        else f"column {name}.{column} is now {declared[column] or 'untyped'}, it was {before or 'untyped'}"
        for column, before in captured.layout.columns
        if column in captured.used and declared.get(column) != before
    ]
