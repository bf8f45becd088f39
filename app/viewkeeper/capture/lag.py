"""How far a source's topic is behind the source's own log, and whether somebody is at work on it; changes nothing."""

from __future__ import annotations

import shlex
import sqlite3
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from viewkeeper.capture.postgres_state import Connection, connected
from viewkeeper.config_sources import PostgresConfig
from viewkeeper.counts import some
from viewkeeper.managers.sources import sqlite_log as log
from viewkeeper.managers.sources.sqlite_projects import NOBODY, Who, claims

PATIENCE = 2.0
"""Seconds within which a reader that is at work passes what was logged before."""

IDLE = 600.0
"""Seconds after which a project that reads nothing of what is kept for it is worth a word."""

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
    kept_for: Sequence[str] = ()  # what neighbours keep a log that is shared from being shortened, in words


def sqlite_lag(name: str, path: str, position: int, running: bool, who: Who = NOBODY) -> Lag:
    """``position`` is that of the topic's last update, or of the newest cut."""
    place = f"source {name}"
    db = log.connect(path, place)
    try:
        with log.reporting(place), log.reading(db):
            kept = kept_for(db, log.read_state(db, place), who)
            counted = f"SELECT coalesce(relation, ''), count(*) FROM {log.LOG} WHERE id > ? AND op <> 'boundary'"
            return Lag(running, dict(db.execute(f"{counted} GROUP BY 1", (position,)).fetchall()), kept_for=kept)
    finally:
        db.close()


def kept_for(db: sqlite3.Connection, state: log.LogState, who: Who) -> list[str]:
    """For which projects that have not moved for a while the log keeps rows: each with the way to be rid of it."""
    found = []
    for claim in claims(db, log.LOG, state.projects, who.key):
        if time.time() * 1000 - claim.moved > IDLE * 1000:
            since = (
                datetime.fromtimestamp(claim.moved / 1000, UTC).isoformat()[:16] + "Z" if claim.moved else "long ago"
            )
            what = f"its change log keeps {some(claim.rows, 'row')} for the project of {claim.who.where} alone"
            remedy = f"if that was given up, run `viewkeeper capture --forget {shlex.quote(claim.who.where)}`"
            found.append(f"{what}, which has read nothing since {since}; {remedy}")
    return found


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
