"""Installs the change log and its triggers in a SQLite database, keeps them fitting, and takes them out again."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from viewkeeper.capture.part_marks import OBJECTS, part_marks
from viewkeeper.capture.sqlite_missed import is_outrun, missed, note_missed, unique_keys
from viewkeeper.capture.sqlite_needs import agreed_marks, is_outlived, note_beginnings, note_needs
from viewkeeper.capture.trigger_sql import TriggerWriter
from viewkeeper.errors import Problem, SourceError
from viewkeeper.managers.sources.sqlite_log import (
    FORMAT,
    LOG,
    ROWID,
    STATE,
    Captured,
    Layout,
    LogState,
    connect,
    is_installed,
    last_id,
    put_state,
    read_state,
    reading,
    reporting,
    require_identity,
    require_known,
    write_boundary,
    writing,
)
from viewkeeper.managers.sources.sqlite_projects import NOBODY, Who, needed
from viewkeeper.managers.sources.sqlite_pruning import forget_unneeded, guard
from viewkeeper.managers.sources.sqlite_schema import OWN, Table, quoted, read_table
from viewkeeper.managers.sources.sqlite_watch import renamed_columns, used_problems

_MOST_COLUMNS = 900  # twice that and the log's own stay below SQLite's 2000
_COLLATIONS = {"BINARY", "NOCASE", "RTRIM"}


def install(
    name: str,
    path: str,
    relations: Mapping[str, Collection[str]],
    reload: bool = False,
    known: Collection[str] = (),
    who: Who = NOBODY,
) -> bool:
    """Notes that ``who`` needs exactly these relations (relation → columns that views use) and has them captured.

    Is something captured for it only from now on? One transaction; doing it twice changes nothing. A relation whose
    capture was interrupted (triggers dropped, a used column altered) is refused, because changes may be missing, unless
    the caller is about to ``reload`` its views. So is a database whose log is none of the ``known`` ones: nothing is
    put into it.
    """
    place = f"source {name}"
    db = connect(path, place)
    try:
        with reporting(place), writing(db):
            require_known(db, () if reload else known, place)
            if reload or not note_missed(db, place, relations):
                return install_on(db, place, relations, reload, who)
        _raise_problems(place, used_problems(db, read_state(db, place), relations))
        raise AssertionError("what was noted is a problem")
    finally:
        db.close()


def install_marks(name: str, path: str, spans: Iterable[Collection[str]], who: Who = NOBODY) -> bool:
    """Lets programs mark their transactions as parts of ones over these sets of sources (``part_marks``), or no longer.

    For a database with a change log. Doing it twice changes nothing; tells whether programs can do it from now on.
    """
    place = f"source {name}"
    db = connect(path, place)
    try:
        with reporting(place), writing(db):
            return _install_marks_on(db, agreed_marks(db, name, spans, who))
    finally:
        db.close()


def remove(name: str, path: str, who: Who = NOBODY) -> list[str]:
    """Takes out what was installed for ``who``; tells which others, by their warehouses, still use the log.

    Without others, everything goes: triggers, log, state. Only the log's sequence stays, a row in SQLite's own
    ``sqlite_sequence``: positions must never be used twice.
    """
    place = f"source {name}"
    db = connect(path, place)
    try:
        with reporting(place), writing(db):
            others = _leave(db, place, who) if is_installed(db) else []
            if not others:
                _drop_all(db)
            return others
    finally:
        db.close()


def _leave(db: sqlite3.Connection, place: str, who: Who) -> list[str]:
    """Forgets what ``who`` needs, and takes out what only it needed."""
    records = read_state(db, place).projects
    for key in [who.key, *(key for key, needs in records.items() if is_outlived(needs.who, who))]:
        db.execute(f"DELETE FROM {STATE} WHERE key = ?", (key,))
    state = read_state(db, place)
    if not state.projects:
        return []
    _narrow(db, place, state.tables)
    _retire_unneeded(db, state)
    spans = next((needs for needs in state.projects.values() if needs.spans), None)
    _install_marks_on(db, {} if spans is None else part_marks(spans.who.source, spans.spans))
    forget_unneeded(db, state)
    return sorted({needs.who.where for needs in state.projects.values()})


def _drop_all(db: sqlite3.Connection) -> None:
    rows = db.execute(
        "SELECT type, name FROM main.sqlite_schema WHERE type IN ('view', 'trigger', 'table') "
        f"AND name LIKE '{OWN.replace('_', '!_')}%' ESCAPE '!' ORDER BY type DESC"
    ).fetchall()
    last = last_id(db) if is_installed(db) else None
    for kind, own in rows:
        db.execute(f"DROP {kind.upper()} IF EXISTS {quoted(own)}")  # a view's triggers go with it
    if last is not None:
        db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (LOG, last))


def unfit(name: str, path: str, relations: Mapping[str, Collection[str]]) -> list[str]:
    """Why ``install`` would refuse these relations; changes nothing."""
    place = f"source {name}"
    db = connect(path, place)
    try:
        with reporting(place), reading(db):
            return _unfit(db, relations)
    finally:
        db.close()


def check_schema(
    db: sqlite3.Connection, place: str, sent: int, known: Collection[str] = (), who: Who = NOBODY
) -> LogState:
    """Called when the schema changed: refits the triggers where that loses nothing, else a source error.

    Of what ``who`` needs; without a record of that, of all that is captured.
    ``sent`` is the position up to which the log, one of the ``known``, was read while the schema was still the old one.
    """
    with reporting(place):
        with reading(db):
            state = read_state(db, place)
            if not _stale(db, place, state, who):
                return state
        with writing(db):
            state = read_state(db, place)  # another project's capture may have been the first
            require_identity(state, known, place)
            stale = _stale(db, place, state, who)
            note_missed(db, place, stale, sent)
            state = read_state(db, place)
            for relation in stale:
                if not state.tables[relation].missed:
                    _refit(db, place, relation, state.tables[relation])
            state = read_state(db, place)
        with reading(db):
            _stale(db, place, state, who)
        return state


def _stale(db: sqlite3.Connection, place: str, state: LogState, who: Who) -> list[str]:
    """The relations whose triggers must be written anew; SourceError if one can no longer be trusted."""
    needs = state.needs(who)
    wanted = None if needs is None else needs.relations
    _raise_problems(place, used_problems(db, state, wanted))
    return [n for n, c in state.tables.items() if (wanted is None or n in wanted) and c.active and _is_stale(db, n, c)]


# ---- installing


def install_on(
    db: sqlite3.Connection, place: str, relations: Mapping[str, Collection[str]], reload: bool, who: Who = NOBODY
) -> bool:
    first = not is_installed(db)
    if first:
        _create_log(db)
    guard(db)
    state = read_state(db, place)
    if not state.identity:
        put_state(db, "identity", uuid.uuid4().hex)  # also for a log from before logs had one
        state = read_state(db, place)
    problems = [] if reload else used_problems(db, state, relations)
    _raise_problems(place, [*problems, *_unfit(db, relations)])
    outlived = [key for key, needs in state.projects.items() if key != who.key and is_outlived(needs.who, who)]
    for key in outlived:
        db.execute(f"DELETE FROM {STATE} WHERE key = ?", (key,))
    before = note_needs(db, state, relations, who)
    for relation in relations:
        _capture(db, place, relation, read_state(db, place), reload)
    _narrow(db, place, before.relations.keys() - relations.keys())
    state = read_state(db, place)
    _retire_unneeded(db, state)
    if outlived:
        forget_unneeded(db, state)
    return first | note_beginnings(db, state, before, who)


def _narrow(db: sqlite3.Connection, place: str, relations: Iterable[str]) -> None:
    """Somebody needs nothing of these relations any more: only what others need is logged, unless that is broken."""
    for relation in relations:
        state = read_state(db, place)
        wanted = {relation: needed(state.projects.values(), relation)}
        if wanted[relation] and state.tables[relation].active and not _is_broken(db, state, relation, wanted[relation]):
            _capture(db, place, relation, state, reload=False)


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
    foreign = {c for key in table.unique_keys for c in key.collations if c.upper() not in _COLLATIONS}
    problems += [f"{relation}: a unique key has the collation {c}, which only its own programs know" for c in foreign]
    if len(table.columns) > _MOST_COLUMNS:
        problems.append(f"{relation} has more than {_MOST_COLUMNS} columns")
    for name, sql in table.user_triggers:
        if re.search(r"\bAFTER\b.*\bBEGIN\b.*\bRAISE\s*\(\s*IGNORE", sql, re.IGNORECASE | re.DOTALL):
            problems.append(f"{relation}: trigger {name} may RAISE(IGNORE) after a change and so hide it from capture")
    return problems


def _capture(db: sqlite3.Connection, place: str, relation: str, state: LogState, reload: bool) -> None:
    """Makes one relation captured, with the columns that anybody needs; those who did before learn of interruptions."""
    captured = state.tables.get(relation)
    used = needed(state.projects.values(), relation)
    if captured is None:
        number = 1 + max((c.number for c in state.tables.values()), default=0)
        captured = Captured(number, used, (), active=False)
    interrupted = captured.active and reload and _is_broken(db, state, relation, used)
    if captured.active and not interrupted:
        captured = replace(captured, used=used)
        put_state(db, f"table:{relation}", captured.dump())
        if _is_stale(db, relation, captured):
            _refit(db, place, relation, captured)
        return
    began = replace(captured, used=used, active=True, since=write_boundary(db), missed="")
    _write_triggers(db, relation, began, new_layout=True)
    for key, needs in state.projects.items():
        put_state(db, key, needs.recaptured(relation, began.since).dump())


def _is_broken(db: sqlite3.Connection, state: LogState, relation: str, used: Collection[str]) -> bool:
    """May changes of an active relation be in no log?"""
    if used_problems(db, state, {relation: used}):
        return True
    table = read_table(db, relation)
    return table is not None and bool(missed(db, relation, state.tables[relation], table, state.pruned_of(relation)))


def _refit(db: sqlite3.Connection, place: str, relation: str, captured: Captured) -> None:
    """Writes the triggers anew for a table that was altered while it was captured."""
    table = read_table(db, relation)
    _raise_problems(place, _unfit_table(relation, table))
    assert table is not None
    if renamed := renamed_columns(captured, table):
        what = f"{relation} was altered, and its column {next(iter(renamed))}, which another project uses, was renamed"
        raise SourceError.at(place, what, "rename it back, or run `viewkeeper init --reload` for that project first")
    _write_triggers(db, relation, captured, new_layout=_layout(_writer(table, captured)) != captured.layout.columns)


def _writer(table: Table, captured: Captured) -> TriggerWriter:
    return TriggerWriter(table.narrowed(captured.used), captured.number)


def _layout(writer: TriggerWriter) -> tuple[tuple[str, str], ...]:
    """What stands in which place of the log."""
    columns = tuple((c.name, c.declared) for c in writer.table.columns)
    return (*columns, (ROWID, "INTEGER")) if writer.logs_rowid else columns


def _write_triggers(db: sqlite3.Connection, relation: str, captured: Captured, new_layout: bool) -> None:
    table = read_table(db, relation)
    assert table is not None
    _drop_triggers(db, captured)
    writer = _writer(table, captured)
    _widen_log(db, len(writer.places))
    for statement in writer.statements():
        db.execute(statement)
    layouts = captured.layouts
    if new_layout:
        layouts = (*layouts, Layout(write_boundary(db), _layout(writer)))
    keys = tuple(sorted(unique_keys(table)))
    known = replace(captured, fingerprint=_fingerprint(writer), keys=keys, referenced=table.referenced)
    written = replace(known, layouts=layouts, active=True)
    put_state(db, f"table:{relation}", written.dump())


def _retire_unneeded(db: sqlite3.Connection, state: LogState) -> None:
    for relation, captured in state.tables.items():
        if captured.active and not any(relation in needs.relations for needs in state.projects.values()):
            _retire(db, relation, captured)


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
    for kind in ("notes", "pending", "order"):
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
    own_newest = not is_outrun(table)
    # A column that was renamed is logged as before, and stops only those who use it.
    table = table.called({now: before for before, now in renamed_columns(captured, table).items()})
    writer = _writer(table, captured)
    fits = _fingerprint(writer) == captured.fingerprint
    return not (own_newest and fits and _layout(writer) == captured.layout.columns)


def _fingerprint(writer: TriggerWriter) -> str:
    return hashlib.sha256("\n".join(writer.statements()).encode()).hexdigest()[:16]


def _raise_problems(place: str, problems: Collection[str]) -> None:
    if problems:
        raise SourceError([Problem(place, what) for what in problems])
