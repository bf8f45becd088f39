"""How far a source's topic is behind the source's own log, and whether somebody is at work on it; changes nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from viewkeeper.capture.postgres_state import Connection, connected
from viewkeeper.config_sources import PostgresConfig
from viewkeeper.managers.sources import sqlite_log as log

PATIENCE = 2.0
"""Seconds within which a reader that is at work passes what was logged before."""

_POLL = 0.02
_PADDING = 64  # bytes between two records of PostgreSQL's log that hold nothing: no change is so small


@dataclass(frozen=True)
class Lag:
    """What of a source's log is in no topic: how many ``changes`` by relation, or else how many ``bytes``.

    Of bytes nobody can say whether they hold a change of interest; None: not even how many there are.
    """

    running: bool
    changes: Mapping[str, int] = field(default_factory=dict)
    bytes: int | None = 0


def sqlite_lag(name: str, path: str, position: int, running: bool) -> Lag:
    """``position`` is that of the topic's last update, or of the newest cut."""
    place = f"source {name}"
    db = log.connect(path, place)
    try:
        with log.reporting(place), log.reading(db):
            log.read_state(db, place)
            counted = f"SELECT coalesce(relation, ''), count(*) FROM {log.LOG} WHERE id > ? AND op <> 'boundary'"
            return Lag(running, dict(db.execute(f"{counted} GROUP BY 1", (position,)).fetchall()))
    finally:
        db.close()


_READER = """
    SELECT s.active_pid IS NOT NULL,
        (CASE WHEN s.active_pid IS NULL THEN s.confirmed_flush_lsn ELSE r.sent_lsn END - '0/0')::int8
    FROM pg_replication_slots s LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid WHERE s.slot_name = %s
"""


def postgres_lag(name: str, section: PostgresConfig) -> Lag:
    """How much of the log that is there now its reader was not sent; a moment is given to one that is at work.

    A server sends all that concerns the publication, and knows how far it has looked: past other tables' changes too.
    """
    with connected(f"source {name}", section) as db:
        (end,) = db.execute("SELECT (pg_current_wal_flush_lsn() - '0/0')::int8").fetchone() or (0,)
        deadline = time.monotonic() + PATIENCE
        while True:
            found = _read_to(db, section, end)
            if not found.running or found.bytes in (0, None) or time.monotonic() > deadline:
                return found
            time.sleep(_POLL)


def _read_to(db: Connection, section: PostgresConfig, end: int) -> Lag:
    row = db.execute(_READER.encode(), (section.slot,)).fetchone()
    if row is None:
        return Lag(False, bytes=None)
    running, reached = row
    if reached is None:
        return Lag(running, bytes=None)
    return Lag(running, bytes=0 if end - reached <= _PADDING else end - reached)
