"""Notices when a captured table was altered so that its change log can no longer be trusted."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Mapping

from viewkeeper.managers.sources.sqlite_log import LOG, Captured, LogState, notes_table
from viewkeeper.managers.sources.sqlite_schema import OWN, Table, read_table

_EVENTS = ("before_insert", "before_update", "before_delete", "after_delete", "after_insert", "after_update")
_NEW = re.compile(r'NEW\.("(?:[^"]|"")*")')
_RELOAD = "run `viewkeeper init --reload`"
_REMEDY = f"undo that, or {_RELOAD}"


def used_problems(
    db: sqlite3.Connection, state: LogState, wanted: Mapping[str, Collection[str]] | None = None
) -> list[str]:
    """What happened to captured tables and columns that views depend on: each with its remedy; usually nothing.

    Only those ``wanted`` are looked at, if not all are: what happens to others stops others.
    """
    watched = {n: c for n, c in state.tables.items() if c.active and (wanted is None or n in wanted)}
    found = []
    for name, captured in watched.items():
        if captured.missed:
            found.append(f"{captured.missed}; {_RELOAD}")
            continue
        used = [column for column in captured.used if wanted is None or column in wanted[name]]
        found += [f"{why}; {_REMEDY}" for why in _table_problems(db, name, captured, used)]
    return found


def _table_problems(db: sqlite3.Connection, name: str, captured: Captured, used: Collection[str]) -> list[str]:
    table = read_table(db, name)
    if table is None:
        return [f"table {name} is gone"]
    own = dict(table.triggers)
    if any(f"{OWN}{captured.number}_{event}" not in own for event in _EVENTS):
        return [f"table {name} has lost its capture triggers"]
    if _is_younger(db, name, captured):
        return [f"table {name} was made anew"]
    if not _are_first(db, captured):
        return [f"capture triggers of table {name} were dropped and made anew"]
    renamed = {before: now for before, now in renamed_columns(captured, table).items() if before in used}
    if renamed:
        return [f"column {name}.{before} was renamed to {now}" for before, now in renamed.items()]
    declared = {c.name: c.declared for c in table.columns}
    layout = dict(captured.layout.columns)
    if [c for c in declared if c in layout] != [c for c in layout if c in declared]:
        return [f"columns of table {name} have changed places"]
    return [
        f"column {name}.{column} was dropped or renamed"
        if column not in declared
        else f"column {name}.{column} is now {declared[column] or 'untyped'}, it was {before or 'untyped'}"
        for column, before in layout.items()
        if column in used and declared.get(column) != before
    ]


def _are_first(db: sqlite3.Connection, captured: Captured) -> bool:
    """Are the triggers those that were made first?

    The order of triggers in the schema is that of their making, and VACUUM keeps it; one that is made anew is the last,
    even behind the one that seals the others (which an older log does not have).
    """
    names = [f"{OWN}{captured.number}_{event}" for event in (*_EVENTS, "seal")]
    query = f"SELECT name FROM main.sqlite_schema WHERE name IN ({', '.join('?' * len(names))}) ORDER BY rowid"
    found = [name for (name,) in db.execute(query, names)]
    return found in (names, names[:-1])


def _is_younger(db: sqlite3.Connection, name: str, captured: Captured) -> bool:
    """Is the table younger than what was made for its triggers?

    Then it was made anew, its rows perhaps other ones, and the triggers were put back, as tools do that alter tables.
    The order of tables in the schema is that of their making; renaming and VACUUM keep it.
    """
    order = "SELECT rowid FROM main.sqlite_schema WHERE type = 'table' AND name = ?"
    (younger,) = db.execute(f"SELECT ({order}) > ({order})", (name, notes_table(captured.number))).fetchone()
    return bool(younger)


def renamed_columns(captured: Captured, table: Table) -> dict[str, str]:
    """The used columns whose place in the log another column has now, by their names at the time of the layout.

    SQLite rewrites triggers when a column is renamed: what was read from a column goes on being read from it, under
    its new name, whatever has the old name by now.
    """
    trigger = dict(table.triggers)[f"{OWN}{captured.number}_after_insert"]
    insert = trigger[trigger.index(f"INSERT INTO {LOG} (relation, op, a0") :]
    values = insert[insert.index(" VALUES (") :]
    now = [name[1:-1].replace('""', '"') for name in _NEW.findall(values)]
    pairs = zip((name for name, _ in captured.layout.columns), now, strict=False)
    return {before: name for before, name in pairs if before in captured.used and before != name}
