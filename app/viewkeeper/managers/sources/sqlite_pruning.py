"""How a SQLite change log is shortened: who still needs what, and for how long."""

from __future__ import annotations

import sqlite3
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import orjson

from viewkeeper.managers.sources.sqlite_log import (
    LOG,
    STATE,
    LogState,
    last_id,
    notes_table,
    pending_table,
    put_state,
    raise_sequence,
    read_state,
    reporting,
    require_identity,
    writing,
)
from viewkeeper.managers.sources.sqlite_projects import NOBODY, Who, unprotected

HOLD_SECONDS = 3600
_PRUNE_ROWS = 5000
_PRUNING = "pruning"  # in the state while rows may be deleted


def hold(db: sqlite3.Connection, since: int) -> str:
    """Keeps the log past ``since`` for an hour, or until ``release_hold``."""
    token = f"hold:{uuid.uuid4().hex}"
    put_state(db, token, orjson.dumps({"since": since, "until": time.time() + HOLD_SECONDS}).decode())
    return token


def release_hold(db: sqlite3.Connection, token: str) -> None:
    db.execute(f"DELETE FROM {STATE} WHERE key = ?", (token,))


def prune(db: sqlite3.Connection, place: str, position: int, known: Collection[str] = (), who: Who = NOBODY) -> int:
    """Deletes log rows up to ``position`` that no hold and nobody else needs; how far it is pruned now for ``who``.

    In short transactions. Of a log that is not ``known`` nothing is deleted: the position means nothing there.

    Holding the write lock means that no statement is under way, so every note the triggers left is stale: they go too.
    """
    with reporting(place):
        while True:
            with writing(db):
                state = read_state(db, place)
                require_identity(state, known, place)
                target = min(position, last_id(db), *_active_holds(db))
                pruned = state.pruned_for(who)
                first = db.execute(f"SELECT min(id) FROM {LOG} WHERE id > ?", (pruned,)).fetchone()[0]
                step = min(target, (first if first is not None else target) + _PRUNE_ROWS)
                wipe_notes(db, state)
                if step <= pruned:
                    return pruned
                raise_sequence(db, place, 0)
                _forget(db, state, who, step)
            if step >= target:
                return step


def _forget(db: sqlite3.Connection, state: LogState, who: Who, until: int) -> None:
    """Somebody needs nothing up to ``until`` any more: what nobody else needs either is deleted."""
    others, parameters = unprotected([needs for key, needs in state.projects.items() if key != who.key])
    lowest = state.pruned_for(who) if who.key in state.projects else 0
    _delete(db, f"id >= ? AND id <= ? AND {others}", (lowest, until, *parameters))
    put_state(db, "pruned", max(state.pruned, until))
    if (needs := state.needs(who)) is not None:
        put_state(db, who.key, replace(needs, pruned=until, moved=int(time.time() * 1000)).dump())


def forget_unneeded(db: sqlite3.Connection, state: LogState) -> None:
    """Deletes what no record needs, for after one has gone or needs less; the caller holds the write lock."""
    nobody, parameters = unprotected(list(state.projects.values()))
    raise_sequence(db, "", 0)
    _delete(db, nobody, parameters)


def guard(db: sqlite3.Connection) -> None:
    """Lets nobody but this module delete or alter what the log holds; the caller holds the write lock."""
    refuse = "SELECT RAISE(ABORT, 'viewkeeper: views depend on this change log; see viewkeeper capture --remove')"
    allowed = f"EXISTS (SELECT 1 FROM {STATE} WHERE key = '{_PRUNING}')"
    for event, condition in (("DELETE", f"WHEN NOT {allowed} "), ("UPDATE", "")):
        name = f"{LOG}_{event}".lower()
        db.execute(f"CREATE TRIGGER IF NOT EXISTS {name} BEFORE {event} ON {LOG} {condition}BEGIN {refuse}; END")


def _delete(db: sqlite3.Connection, condition: str, parameters: Sequence[Any]) -> None:
    """Deletes rows, but never the newest: as long as it is there, SQLite gives no id a second time."""
    put_state(db, _PRUNING, 1)
    db.execute(f"DELETE FROM {LOG} WHERE {condition} AND id < (SELECT max(id) FROM {LOG})", parameters)
    db.execute(f"DELETE FROM {STATE} WHERE key = ?", (_PRUNING,))


def _active_holds(db: sqlite3.Connection) -> list[int]:
    """Where the active holds stand; expired ones are removed."""
    rows = db.execute(f"SELECT key, value FROM {STATE} WHERE key LIKE 'hold:%'").fetchall()
    holds: dict[str, Any] = {key: orjson.loads(value) for key, value in rows}
    for key, value in holds.items():
        if value["until"] < time.time():
            release_hold(db, key)
    return [value["since"] for value in holds.values() if value["until"] >= time.time()]


def wipe_notes(db: sqlite3.Connection, state: LogState) -> None:
    """Empties the triggers' scratch tables; the caller holds the write lock."""
    for captured in state.tables.values():
        if captured.active:
            for name in (notes_table(captured.number), pending_table(captured.number)):
                db.execute(f"DELETE FROM {name}")
