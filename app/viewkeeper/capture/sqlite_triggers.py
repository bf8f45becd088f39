"""Installs the change log and its triggers in a SQLite database, keeps them fitting, and takes them out again."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from viewkeeper.capture.part_marks import OBJECTS, part_marks
from viewkeeper.capture.trigger_sql import TriggerWriter
from viewkeeper.errors import Problem, SourceError
from viewkeeper.managers.sources.sqlite_log import (
    FORMAT,
    LOG,
    STATE,
    Captured,
    Layout,
    LogState,
    connect,
    is_installed,
    last_id,
    put_state,
    read_state,
    reporting,
    write_boundary,
    writing,
)
from viewkeeper.managers.sources.sqlite_schema import OWN, Table, quoted, read_table
from viewkeeper.managers.sources.sqlite_watch import used_problems

_MOST_COLUMNS = 900  # twice that and the log's own stay below SQLite's 2000
_COLLATIONS = {"BINARY", "NOCASE", "RTRIM"}
_RELOAD = "run `viewkeeper init --reload`"


def install(name: str, path: str, relations: Mapping[str, Collection[str]], reload: bool = False) -> bool:
    """Makes exactly these relations captured (relation → columns that views use); is one captured only from now on?

    One transaction; doing it twice changes nothing. A relation whose capture was interrupted (triggers dropped, a used
    column altered) is refused, because changes may be missing, unless the caller is about to ``reload`` its views.
    """
    place = f"source {name}"
    db = connect(path, place)
    try:
        with reporting(place), writing(db):
            return install_on(db, place, relations, reload)
    finally:
        db.close()


def install_marks(name: str, path: str, spans: Iterable[Collection[str]]) -> bool:
    """Lets programs mark their transactions as parts of ones over these sets of sources (``part_marks``), or no longer.

    For a database with a change log. Doing it twice changes nothing; tells whether programs can do it from now on.
    """
    place = f"source {name}"
    db = connect(path, place)
    try:
        with reporting(place), writing(db):
            return _install_marks_on(db, part_marks(name, spans))
    finally:
        db.close()


def remove(name: str, path: str) -> None:
    """Takes out everything that was ever installed: triggers, log, state.

    Only the log's sequence stays, a row in SQLite's own ``sqlite_sequence``: positions must never be used twice.
    """
    place = f"source {name}"
    db = connect(path, place)
    try:
        with reporting(place), writing(db):
            rows = db.execute(
                "SELECT type, name FROM main.sqlite_schema WHERE type IN ('view', 'trigger', 'table') "
                f"AND name LIKE '{OWN.replace('_', '!_')}%' ESCAPE '!' ORDER BY type DESC"
            ).fetchall()
            last = last_id(db) if is_installed(db) else None
            for kind, own in rows:
                db.execute(f"DROP {kind.upper()} IF EXISTS {quoted(own)}")  # a view's triggers go with it
            if last is not None:
                db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (LOG, last))
    finally:
        db.close()


def check_schema(db: sqlite3.Connection, place: str, sent: int) -> LogState:
    """Called when the schema changed: refits the triggers where that loses nothing, else a source error.

    ``sent`` is the position up to which the log was read while the schema was still the old one.
    """
    with reporting(place):
        state = read_state(db, place)
        _raise_problems(place, used_problems(db, state))
        stale = [n for n, c in state.tables.items() if c.active and _is_stale(db, n, c)]
        if not stale:
            return state
        with writing(db):
            for relation in stale:
                _refit(db, place, relation, state.tables[relation], sent)
            return read_state(db, place)


# ---- installing


def install_on(db: sqlite3.Connection, place: str, relations: Mapping[str, Collection[str]], reload: bool) -> bool:
    first = not is_installed(db)
    if first:
        _create_log(db)
    state = read_state(db, place)
    problems = [] if reload else used_problems(db, state, relations)
    _raise_problems(place, [*problems, *_unfit(db, relations)])
    new = first
    for relation in state.tables:
        if relation not in relations and state.tables[relation].active:
            _retire(db, relation, state.tables[relation])
    for relation, used in relations.items():
        new |= _capture(db, place, relation, tuple(sorted(used)), state, reload)
        state = read_state(db, place)
    return new


def _create_log(db: sqlite3.Connection) -> None:
    db.execute(f"CREATE TABLE {LOG} (id INTEGER PRIMARY KEY AUTOINCREMENT, relation TEXT, op TEXT)")
    db.execute(f"CREATE TABLE {STATE} (key TEXT PRIMARY KEY, value)")
    boundary = write_boundary(db)
    made = int(time.time() * 1000)
    for key, value in {"format": FORMAT, "installed": boundary, "pruned": boundary, "made": made}.items():
        put_state(db, key, value)


def _install_marks_on(db: sqlite3.Connection, wanted: Mapping[str, str]) -> bool:
    names = ", ".join(f"'{name}'" for name in OBJECTS)
    there = dict(db.execute(f"SELECT name, sql FROM main.sqlite_schema WHERE name IN ({names})"))
    if there == wanted:
        return False
    for name, kind in OBJECTS.items():
        db.execute(f"DROP {kind} IF EXISTS {name}")
    _widen_log(db, 1)
    for statement in wanted.values():
        db.execute(statement)
    return bool(wanted)


def _unfit(db: sqlite3.Connection, relations: Mapping[str, Collection[str]]) -> list[str]:
    """Why relations cannot be captured."""
    found = [(relation, read_table(db, relation)) for relation in relations]
    return [why for relation, table in found for why in _unfit_table(relation, table)]


def _unfit_table(relation: str, table: Table | None) -> list[str]:
    if table is None or relation.startswith(OWN):
        return [f"there is no table {relation}"]
    if table.kind != "table":
        return [
            f"{relation} is a {table.kind} table, only ordinary tables can be captured".replace("view table", "view")
        ]
    problems = [f"{relation}: unique index {name} is on an expression" for name in table.unique_expressions]
    if table.rowid_name is None and not table.without_rowid:
        problems.append(f"{relation}: columns named rowid, oid and _rowid_ hide the row's identity")
    foreign = {c for key in table.unique_keys for c in key.collations} - _COLLATIONS
    problems += [f"{relation}: a unique key has the collation {c}, which only its own programs know" for c in foreign]
    if len(table.columns) > _MOST_COLUMNS:
        problems.append(f"{relation} has more than {_MOST_COLUMNS} columns")
    for name, sql in table.user_triggers:
        if re.search(r"\bAFTER\b.*\bBEGIN\b.*\bRAISE\s*\(\s*IGNORE", sql, re.IGNORECASE | re.DOTALL):
            problems.append(f"{relation}: trigger {name} may RAISE(IGNORE) after a change and so hide it from capture")
    return problems


def _capture(
    db: sqlite3.Connection, place: str, relation: str, used: tuple[str, ...], state: LogState, reload: bool
) -> bool:
    """Makes one relation captured with these used columns; was it not before?"""
    captured = state.tables.get(relation)
    if captured is None:
        number = 1 + max((c.number for c in state.tables.values()), default=0)
        captured = Captured(number, used, (), active=False)
    interrupted = reload and bool(used_problems(db, state, {relation: used}))
    if captured.active and not interrupted:
        if captured.used != used:
            put_state(db, f"table:{relation}", replace(captured, used=used).dump())
        if not _is_stale(db, relation, captured):
            return False
        since = last_id(db) if reload else state.pruned
        _refit(db, place, relation, replace(captured, used=used), since)
        return False
    began = replace(captured, used=used, active=True, since=write_boundary(db))
    _write_triggers(db, relation, began, new_layout=True)
    return True


def _refit(db: sqlite3.Connection, place: str, relation: str, captured: Captured, sent: int) -> None:
    """Writes the triggers anew for a table that was altered while it was captured."""
    table = read_table(db, relation)
    _raise_problems(place, _unfit_table(relation, table))
    assert table is not None
    if not _unique_keys(table) <= set(captured.keys) and _has_rows(db, relation, sent):
        what = f"{relation}: a unique index was added while changes were made; REPLACE may have deleted rows unseen"
        raise SourceError.at(place, what, _RELOAD)
    layout = tuple((c.name, c.declared) for c in table.columns)
    _write_triggers(db, relation, captured, new_layout=layout != captured.layout.columns)


def _write_triggers(db: sqlite3.Connection, relation: str, captured: Captured, new_layout: bool) -> None:
    table = read_table(db, relation)
    assert table is not None
    _drop_triggers(db, captured)
    _widen_log(db, len(table.columns))
    writer = TriggerWriter(table, captured.number)
    for statement in writer.statements():
        db.execute(statement)
    layouts = captured.layouts
    if new_layout:
        layout = Layout(write_boundary(db), tuple((c.name, c.declared) for c in table.columns))
        layouts = (*layouts, layout)
    keys = tuple(sorted(_unique_keys(table)))
    written = replace(captured, layouts=layouts, active=True, fingerprint=_fingerprint(writer), keys=keys)
    put_state(db, f"table:{relation}", written.dump())


def _retire(db: sqlite3.Connection, relation: str, captured: Captured) -> None:
    """No view uses the relation any more: no triggers, but what it logged can still be read."""
    _drop_triggers(db, captured)
    put_state(db, f"table:{relation}", replace(captured, used=(), active=False).dump())


def _drop_triggers(db: sqlite3.Connection, captured: Captured) -> None:
    names = db.execute(
        "SELECT name FROM main.sqlite_schema WHERE type = 'trigger' AND substr(name, 1, ?) = ?",
        (len(f"{OWN}{captured.number}_"), f"{OWN}{captured.number}_"),
    ).fetchall()
    for (name,) in names:
        db.execute(f"DROP TRIGGER {quoted(name)}")
    for kind in ("notes", "pending"):
        db.execute(f"DROP TABLE IF EXISTS {OWN}{kind}_{captured.number}")


def _widen_log(db: sqlite3.Connection, columns: int) -> None:
    there = db.execute("SELECT count(*) FROM pragma_table_info(?)", (LOG,)).fetchone()[0]
    for i in range((there - 3) // 2, columns):
        db.execute(f"ALTER TABLE {LOG} ADD COLUMN b{i}")
        db.execute(f"ALTER TABLE {LOG} ADD COLUMN a{i}")


# ---- noticing


def _is_stale(db: sqlite3.Connection, relation: str, captured: Captured) -> bool:
    """Must the triggers be written anew? Also when a user's trigger is newer: ours must be the first to fire."""
    table = read_table(db, relation)
    assert table is not None, "used_problems names missing tables"
    own_newest = table.triggers[-1][0].startswith(OWN)
    layout = tuple((c.name, c.declared) for c in table.columns)
    fits = _fingerprint(TriggerWriter(table, captured.number)) == captured.fingerprint
    return not (own_newest and fits and layout == captured.layout.columns)


def _fingerprint(writer: TriggerWriter) -> str:
    return hashlib.sha256("\n".join(writer.statements()).encode()).hexdigest()[:16]


def _unique_keys(table: Table) -> set[str]:
    return {repr((key.positions, key.collations, key.where)) for key in table.unique_keys}


def _has_rows(db: sqlite3.Connection, relation: str, since: int) -> bool:
    row = db.execute(f"SELECT 1 FROM {LOG} WHERE id > ? AND relation = ? LIMIT 1", (since, relation)).fetchone()
    return row is not None


def _raise_problems(place: str, problems: Collection[str]) -> None:
    if problems:
        raise SourceError([Problem(place, what) for what in problems])
