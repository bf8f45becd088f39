"""The change log that triggers fill inside a SQLite database: its layout, and how to read and prune it.

``_viewkeeper_log`` has one row per changed row: ``id`` (AUTOINCREMENT: a position in the source's history), the
relation, the op, and by position of the column the value before (``b0, b1, …``) and after (``a0, a1, …``). Its
columns have no type, so that every value keeps its storage class. ``_viewkeeper_state`` says what is captured, since
when, and how far the log was pruned.

Two kinds of rows change no relation. A ``boundary`` is written by this program in a transaction of its own, so no
update spans it, and it belongs to none. A ``part`` is written by the program whose transaction is a part of one over
several sources (``_viewkeeper_global_txn``): ``b0`` is that one's id, ``a0`` its sources, separated by commas. It
belongs to an update and counts as a change of it in every position: the update is told even if it has no other.

Law: no id ever means two things. A new log begins at the clock (microseconds since 1970), so its ids lie past those of
any log that was in the database before; pruning brings them to the clock again, so that a copy of the database falls
behind the original and is told from it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from viewkeeper.algebra.types import Type
from viewkeeper.errors import SourceError, SourceUnreachable
from viewkeeper.managers.sources.sqlite_schema import OWN
from viewkeeper.managers.sources.sqlite_values import declared_type

LOG = f"{OWN}log"
STATE = f"{OWN}state"
GLOBAL_TXN = f"{OWN}global_txn"
FORMAT = 1
BUSY_SECONDS = 10.0
HOLD_SECONDS = 3600
_PRUNE_ROWS = 5000
_LARGEST = 2**62  # an id near SQLite's last would end all writing
_PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR}


# ---- connecting


@contextlib.contextmanager
def reporting(place: str) -> Iterator[None]:
    """Turns SQLite's errors into ours: busy, locked or missing is unreachable, the rest is an error of the source."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _PASSING:
            raise SourceUnreachable.at(place, str(error), "is another program holding it locked?") from error
        raise SourceError.at(place, str(error)) from error


def connect(path: str, place: str) -> sqlite3.Connection:
    """A connection in autocommit mode that waits for a busy database and never creates one."""
    if not os.path.exists(path):
        raise SourceUnreachable.at(place, f"there is no database {path}", "create it, or correct sources.<name>.path")
    with reporting(place):
        db = sqlite3.connect(
            f"{Path(path).resolve().as_uri()}?mode=rw",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute("PRAGMA schema_version").fetchone()
    return db


@contextlib.contextmanager
def reading(db: sqlite3.Connection) -> Iterator[None]:
    """One read transaction: everything read inside is one state."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


@contextlib.contextmanager
def writing(db: sqlite3.Connection) -> Iterator[None]:
    """One write transaction, with the write lock from the start; rolled back if the body raises."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


# ---- state


@dataclass(frozen=True)
class Layout:
    """Which column stood at which position of the log, for rows with an id past ``since``."""

    since: int
    columns: tuple[tuple[str, str], ...]  # (name, declared type)

    def type(self, position: int) -> Type:
        return declared_type(self.columns[position][1])


@dataclass(frozen=True)
class Captured:
    """A table with triggers: its number, the columns that views use, and its layouts, oldest first."""

    number: int
    used: tuple[str, ...]
    layouts: tuple[Layout, ...]
    active: bool = True
    fingerprint: str = ""  # of the triggers as they were written
    keys: tuple[str, ...] = ()  # the unique keys they know of
    since: int = 0  # the log id where capture last became active: changes before it may be in no log

    @property
    def layout(self) -> Layout:
        return self.layouts[-1]

    def layout_at(self, id: int) -> Layout:
        """The layout of the log row with that id."""
        return next((layout for layout in reversed(self.layouts) if layout.since < id), self.layouts[0])

    @classmethod
    def load(cls, text: str) -> Captured:
        raw = orjson.loads(text)
        layouts = tuple(
            Layout(layout["since"], tuple((name, declared) for name, declared in layout["columns"]))
            for layout in raw["layouts"]
        )
        return cls(
            number=raw["number"],
            used=tuple(raw["used"]),
            layouts=layouts,
            active=raw["active"],
            fingerprint=raw["fingerprint"],
            keys=tuple(raw["keys"]),
            since=raw.get("since", layouts[-1].since),
        )

    def dump(self) -> str:
        return orjson.dumps(self).decode()


@dataclass(frozen=True)
class LogState:
    """What ``_viewkeeper_state`` says."""

    installed: int  # the boundary row of the first installation
    pruned: int  # rows up to here are gone
    made: int = 0  # when, in milliseconds since 1970; 0 where nobody noted it
    tables: dict[str, Captured] = field(default_factory=dict)


def is_installed(db: sqlite3.Connection) -> bool:
    return db.execute("SELECT 1 FROM main.sqlite_schema WHERE name = ?", (STATE,)).fetchone() is not None


def read_state(db: sqlite3.Connection, place: str) -> LogState:
    """The state; a source error when the database was never prepared."""
    if not is_installed(db):
        raise SourceError.at(place, "the database has no change log", "run `viewkeeper init`")
    values = dict(db.execute(f"SELECT key, value FROM {STATE}"))
    if int(values.get("format", 0)) != FORMAT:
        raise SourceError.at(
            place,
            f"its change log has format {values.get('format')}, not {FORMAT}",
            "run `viewkeeper capture --remove`, then `viewkeeper init --reload`",
        )
    tables = {key[6:]: Captured.load(value) for key, value in values.items() if key.startswith("table:")}
    return LogState(int(values["installed"]), int(values["pruned"]), int(values.get("made", 0)), tables)


def put_state(db: sqlite3.Connection, key: str, value: str | int) -> None:
    db.execute(f"DELETE FROM {STATE} WHERE key = ?", (key,))
    db.execute(f"INSERT INTO {STATE} (key, value) VALUES (?, ?)", (key, value))


# ---- positions


def last_id(db: sqlite3.Connection) -> int:
    """The id of the last row the log ever had, pruned or not.

    ``sqlite_sequence`` alone is not enough: a statement that stops half-way by OR FAIL keeps its rows, but SQLite does
    not bring the sequence forward for it. ``raise_sequence`` does, before rows are deleted.
    """
    newest = f"SELECT max(id) FROM {LOG}"
    sequence = f"SELECT seq FROM sqlite_sequence WHERE name = '{LOG}'"
    (id,) = db.execute(f"SELECT max(coalesce(({newest}), 0), coalesce(({sequence}), 0))").fetchone()
    return int(id)


def raise_sequence(db: sqlite3.Connection, place: str, least: int) -> None:
    """Makes every later id larger than ``least`` and than any id before; the caller holds the write lock."""
    if least >= _LARGEST:
        what = f"{least} is no position of a change log"
        raise SourceError.at(place, what, "give the source a topic that only its own capture writes")
    last = max(least, last_id(db))
    if db.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = ?", (last, LOG)).rowcount == 0:
        db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (LOG, last))


def write_boundary(db: sqlite3.Connection) -> int:
    """Appends a boundary row; its id."""
    cursor = db.execute(f"INSERT INTO {LOG} (op) VALUES ('boundary')")
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def last_change(db: sqlite3.Connection, state: LogState, until: int = 2**63 - 1) -> int:
    """The id of the newest row (up to ``until``) that is no boundary; how far the log was pruned if there is none."""
    query = f"SELECT id FROM {LOG} WHERE op <> 'boundary' AND id <= ? ORDER BY id DESC LIMIT 1"
    row = db.execute(query, (until,)).fetchone()
    return int(row[0]) if row else state.pruned


# ---- holds and pruning


def hold(db: sqlite3.Connection, since: int) -> str:
    """Keeps the log past ``since`` for an hour, or until ``release_hold``."""
    token = f"hold:{uuid.uuid4().hex}"
    put_state(db, token, orjson.dumps({"since": since, "until": time.time() + HOLD_SECONDS}).decode())
    return token


def release_hold(db: sqlite3.Connection, token: str) -> None:
    db.execute(f"DELETE FROM {STATE} WHERE key = ?", (token,))


def prune(db: sqlite3.Connection, place: str, position: int) -> int:
    """Deletes log rows up to ``position`` that no hold needs, in short transactions; how far the log is pruned now.

    Holding the write lock means that no statement is under way, so every note the triggers left is stale: they go too.
    """
    with reporting(place):
        while True:
            with writing(db):
                state = read_state(db, place)
                target = min(position, last_id(db), *_active_holds(db))
                first = db.execute(f"SELECT min(id) FROM {LOG}").fetchone()[0]
                step = min(target, (first if first is not None else target) + _PRUNE_ROWS)
                wipe_notes(db, state)
                if step <= state.pruned:
                    return state.pruned
                raise_sequence(db, place, 0)
                db.execute(f"DELETE FROM {LOG} WHERE id <= ?", (step,))
                put_state(db, "pruned", step)
            if step >= target:
                return step


def _active_holds(db: sqlite3.Connection) -> list[int]:
    """Where the active holds stand; expired ones are removed."""
    rows = db.execute(f"SELECT key, value FROM {STATE} WHERE key LIKE 'hold:%'").fetchall()
    holds: dict[str, Any] = {key: orjson.loads(value) for key, value in rows}
    for key, value in holds.items():
        if value["until"] < time.time():
            release_hold(db, key)
    return [value["since"] for value in holds.values() if value["until"] >= time.time()]


def notes_table(number: int) -> str:
    return f"{OWN}notes_{number}"


def pending_table(number: int) -> str:
    return f"{OWN}pending_{number}"


def wipe_notes(db: sqlite3.Connection, state: LogState) -> None:
    """Empties the triggers' scratch tables; the caller holds the write lock."""
    for captured in state.tables.values():
        if captured.active:
            for name in (notes_table(captured.number), pending_table(captured.number)):
                db.execute(f"DELETE FROM {name}")
