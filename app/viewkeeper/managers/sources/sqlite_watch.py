"""Notices when a captured table was altered so that its change log can no longer be trusted."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Container

from viewkeeper.managers.sources.sqlite_log import LOG, Captured, LogState, notes_table
from viewkeeper.managers.sources.sqlite_schema import OWN, read_table

_EVENTS = ("before_insert", "before_update", "before_delete", "after_delete", "after_insert", "after_update")
_NEW = re.compile(r'NEW\.("(?:[^"]|"")*")')
_REMEDY = "undo that, or run `viewkeeper init --reload`"


def used_problems(db: sqlite3.Connection, state: LogState, wanted: Container[str] | None = None) -> list[str]:
    """What happened to captured tables that views depend on: each problem with its remedy; usually none."""
    watched = {n: c for n, c in state.tables.items() if c.active and (wanted is None or n in wanted)}
    return [f"{why}; {_REMEDY}" for name, captured in watched.items() for why in _table_problems(db, name, captured)]


def _table_problems(db: sqlite3.Connection, name: str, captured: Captured) -> list[str]:
    table = read_table(db, name)
    if table is None:
        return [f"table {name} is gone"]
    own = dict(table.triggers)
    if any(f"{OWN}{captured.number}_{event}" not in own for event in _EVENTS):
        return [f"table {name} has lost its capture triggers"]
    if _is_younger(db, name, captured):
        return [f"table {name} was made anew"]
    renamed = _renamed(captured, own[f"{OWN}{captured.number}_after_insert"])
    if renamed:
        return [f"column {name}.{before} was renamed to {now}" for before, now in renamed.items()]
    declared = {c.name: c.declared for c in table.columns}
    return [
        f"column {name}.{column} was dropped or renamed"
        if column not in declared
        else f"column {name}.{column} is now {declared[column] or 'untyped'}, it was {before or 'untyped'}"
        for column, before in captured.layout.columns
        if column in captured.used and declared.get(column) != before
    ]


def _is_younger(db: sqlite3.Connection, name: str, captured: Captured) -> bool:
    """Is the table younger than what was made for its triggers?

    Then it was made anew, its rows perhaps other ones, and the triggers were put back, as tools do that alter tables.
    The order of tables in the schema is that of their making; renaming and VACUUM keep it.
    """
    order = "SELECT rowid FROM main.sqlite_schema WHERE type = 'table' AND name = ?"
    (younger,) = db.execute(f"SELECT ({order}) > ({order})", (name, notes_table(captured.number))).fetchone()
    return bool(younger)


def _renamed(captured: Captured, trigger: str) -> dict[str, str]:
    """The used columns whose place in the log another column has now, by their names at the time of the layout.

    SQLite rewrites triggers when a column is renamed: what was read from a column goes on being read from it, under
    its new name, whatever has the old name by now.
    """
    insert = trigger[trigger.index(f"INSERT INTO {LOG} (relation, op, a0") :]
    values = insert[insert.index(" VALUES (") :]
    now = [name[1:-1].replace('""', '"') for name in _NEW.findall(values)]
    pairs = zip((name for name, _ in captured.layout.columns), now, strict=False)
    return {before: name for before, name in pairs if before in captured.used and before != name}
