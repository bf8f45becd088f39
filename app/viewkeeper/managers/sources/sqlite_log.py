"""The change log that triggers fill inside a SQLite database: its layout, and how to read it.

``_viewkeeper_log`` has one row per changed row: ``id`` (AUTOINCREMENT: a position in the source's history), the
relation, the op, and by position of the column the value before (``b0, b1, …``) and after (``a0, a1, …``). Its
columns have no type, so that every value keeps its storage class. ``_viewkeeper_state`` says what is captured, since
when, and how far the log was pruned.

Two kinds of rows change no relation. A ``boundary`` is written by this program in a transaction of its own, so no
update spans it, and it belongs to none. A ``part`` is written by the program whose transaction is a part of one over
several sources (``_viewkeeper_global_txn``): ``b0`` is that one's id, ``a0`` its sources, separated by commas. It
belongs to an update and counts as a change of it in every position: the update is told even if it has no other.

Law: within a log no id ever means two things; ``sqlite_sequence`` outlives even the log, and the newest row is never
deleted, should somebody empty that. Two logs may well use the same ids: so each has an *identity*, made at random with
it, and a position counts only with the log of that identity. An older copy of a database has the same identity, and is
told by its log's end, which lies before what was delivered, or by its beginning, which only moves forward.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson

from viewkeeper.algebra.types import Type
from viewkeeper.errors import SourceError, SourceUnreachable
from viewkeeper.managers.sources.sqlite_projects import KEY, NOBODY, Needs, Who
from viewkeeper.managers.sources.sqlite_schema import OWN
from viewkeeper.managers.sources.sqlite_values import declared_type

LOG = f"{OWN}log"
STATE = f"{OWN}state"
GLOBAL_TXN = f"{OWN}global_txn"
ROWID = "\0rowid"  # what no column can be named
FORMAT = 1
BUSY_SECONDS = 10.0
OTHER_DATABASE = "put the right database back, or run `viewkeeper init --reload`"
LAST = 2**63 - 1
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


class Database(sqlite3.Connection):
    """A connection that knows which file it has open: another one may come to stand under the same name."""

    file: tuple[int, int] | None = None  # device and inode


def connect(path: str, place: str) -> Database:
    """A connection in autocommit mode that waits for a busy database and never creates one."""
    file = _file(path, place)
    with reporting(place):
        db = sqlite3.connect(
            f"{Path(path).resolve().as_uri()}?mode=rw",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            factory=Database,
        )
        db.file = file  # if it was replaced just now, the next look sees that
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute("PRAGMA schema_version").fetchone()
    return db


def is_replaced(db: Database, path: str, place: str) -> bool:
    """Does the path lead to another file by now? SQLite would read and write the old one for ever."""
    return _file(path, place) != db.file


def _file(path: str, place: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        remedy = "create it, or correct sources.<name>.path"
        raise SourceUnreachable.at(place, f"there is no database {path}", remedy) from None
    except OSError as error:
        raise SourceUnreachable.at(place, f"{path}: {error.strerror}", "correct sources.<name>.path") from None
    return found.st_dev, found.st_ino


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

    @property
    def places(self) -> dict[str, int]:
        """Where the log has each column; and the rowid, under ``ROWID``, where no column is the rowid."""
        return {name: place for place, (name, _) in enumerate(self.columns)}


@dataclass(frozen=True)
class Captured:
    """A table with triggers: its number, the columns that anybody's views use, and its layouts, oldest first."""

    number: int
    used: tuple[str, ...]
    layouts: tuple[Layout, ...]
    active: bool = True
    fingerprint: str = ""  # of the triggers as they were written
    keys: tuple[str, ...] = ()  # the unique keys they know of
    since: int = 0  # the log id where capture last became active: changes before it may be in no log
    referenced: bool = True  # do they know of foreign keys that refer to the table? Before this was noted, nobody knows
    missed: str = ""  # why changes past ``since`` may be in no log; stays, even if what brought it about is undone

    @property
    def layout(self) -> Layout:
        return self.layouts[-1]

    def layout_at(self, id: int) -> Layout:
        """The layout of the log row with that id."""
        return next((layout for layout in reversed(self.layouts) if layout.since < id), self.layouts[0])

    def layouts_since(self, id: int) -> list[tuple[int, int, Layout]]:
        """The layouts of the log's rows past that id: past which id each begins, and with which it ends."""
        begins = [id, *(max(id, layout.since) for layout in self.layouts[1:])]
        ends = [*(layout.since for layout in self.layouts[1:]), LAST]
        spans = zip(begins, ends, self.layouts, strict=True)
        return [(begin, end, layout) for begin, end, layout in spans if begin < end]

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
            referenced=raw.get("referenced", True),
            missed=raw.get("missed", ""),
        )

    def dump(self) -> str:
        return orjson.dumps(self).decode()


@dataclass(frozen=True)
class LogState:
    """What ``_viewkeeper_state`` says."""

    installed: int  # the boundary row of the first installation
    pruned: int  # rows up to here are gone
    made: int = 0  # when, in milliseconds since 1970; 0 where nobody noted it
    identity: str = ""  # which log this is; empty in one that was made before logs had identities
    tables: dict[str, Captured] = field(default_factory=dict)
    projects: dict[str, Needs] = field(default_factory=dict)

    def needs(self, who: Who) -> Needs | None:
        """What it needs; None if nobody noted that, as in a log from before several projects could share one."""
        return self.projects.get(who.key)

    def needs_or_all(self, who: Who) -> Needs | None:
        """What it needs; in a log from before there were records, all that is captured."""
        if self.projects:
            return self.needs(who)
        active = {n: c for n, c in self.tables.items() if c.active}
        columns = {
            n: {column: c.since for column, _ in c.layout.columns if column in c.used} for n, c in active.items()
        }
        return Needs(who, self.pruned, columns)

    def told_to(self, who: Who) -> tuple[str, list[str]]:
        """A condition on a row of the log, with its parameters: does it belong into somebody's topic?

        A topic may serve several projects: then what one needs must come, whoever's capture runs.
        """
        sharing = [needs for key, needs in self.projects.items() if key == who.key or needs.who.topic == who.topic]
        if not sharing:
            return "1", []
        names = sorted({relation for needs in sharing for relation in needs.relations})
        parts = "" if any(self._marks(needs) for needs in sharing) else "op <> 'part' AND "
        return f"{parts}(relation IS NULL OR relation IN ({', '.join('?' * len(names))}))", names

    def _marks(self, needs: Needs) -> bool:
        """Are the marks of transactions over several sources meant for it? They are if no other project has any."""
        return bool(needs.spans) or not any(other.spans for other in self.projects.values())

    def concerns(self, who: Who) -> tuple[str, list[str]]:
        """A condition on a row of the log, with its parameters: is it a change that somebody will be told of?"""
        if (needs := self.needs(who)) is None:
            return "op <> 'boundary'", []
        names = list(needs.relations)
        text = f"relation IN ({', '.join('?' * len(names))})"
        return (f"({text} OR op = 'part')" if self._marks(needs) else text), names

    def pruned_for(self, who: Who) -> int:
        """Up to where rows may be gone that it would need."""
        needs = self.needs(who)
        return self.pruned if needs is None else needs.pruned

    def pruned_of(self, relation: str) -> int:
        """Up to where rows of a relation may be gone; past it they are there for somebody."""
        using = [needs.pruned for needs in self.projects.values() if relation in needs.relations]
        return min(using, default=self.pruned)


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
    made, identity = int(values.get("made", 0)), values.get("identity", "")
    projects = {key: Needs.load(value) for key, value in values.items() if key.startswith(KEY)}
    return LogState(int(values["installed"]), int(values["pruned"]), made, identity, tables, projects)


def put_state(db: sqlite3.Connection, key: str, value: str | int) -> None:
    db.execute(f"DELETE FROM {STATE} WHERE key = ?", (key,))
    db.execute(f"INSERT INTO {STATE} (key, value) VALUES (?, ?)", (key, value))


def require_identity(state: LogState, known: Collection[str], place: str) -> None:
    """Raises SourceError if the log is none of those that are known; without any, every log will do."""
    if known and state.identity not in known:
        what = "is another database than the one that was captured, or its change log was removed and made anew"
        raise SourceError.at(place, what, OTHER_DATABASE)


def require_unreverted(state: LogState, who: Who, known: int, place: str) -> None:
    """Raises SourceError if the log begins before ``known``, from where on it was kept once: it is an older copy's."""
    pruned = state.pruned_for(who)
    if pruned < known:
        what = f"its change log begins at {pruned}, but began at {known} before: is it an older copy?"
        raise SourceError.at(place, what, OTHER_DATABASE)


def require_needs(state: LogState, who: Who, place: str) -> None:
    """Raises SourceError if others use the log, but nothing is recorded of ``who`` any more."""
    if who.project and state.projects and state.needs(who) is None:
        if any((n.who.where, n.who.source) == (who.where, who.source) for n in state.projects.values()):
            what = f"is captured for a warehouse that was made anew in {who.where} since this began"
            raise SourceError.at(place, what, "start this command again")
        what = "is no longer captured for this project, only for others"
        raise SourceError.at(place, what, "run `viewkeeper init --reload`")


def require_known(db: sqlite3.Connection, known: Collection[str], place: str) -> None:
    """Raises SourceError unless the database has one of these logs; without any, it need not have one."""
    if known and not is_installed(db):
        what = "has no change log any more: is it another database, or was capture removed?"
        raise SourceError.at(place, what, OTHER_DATABASE)
    if known:
        require_identity(read_state(db, place), known, place)


# ---- positions


@dataclass(frozen=True)
class LogPosition:
    """An answer contains exactly the updates up to this log id."""

    id: int

    def includes(self, positions: np.ndarray) -> np.ndarray:
        return np.asarray(positions <= self.id)


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


def has_rows(db: sqlite3.Connection, relation: str, since: int, until: int = LAST) -> bool:
    """Has the log a row of the relation past ``since`` and up to ``until``?"""
    query = f"SELECT 1 FROM {LOG} WHERE id > ? AND id <= ? AND relation = ? LIMIT 1"
    return db.execute(query, (since, until, relation)).fetchone() is not None


def last_change(db: sqlite3.Connection, state: LogState, until: int = LAST, who: Who = NOBODY) -> int:
    """The id of the newest row (up to ``until``) that somebody needs and that is no boundary.

    How far the log was pruned if there is none.
    """
    condition, parameters = state.concerns(who)
    query = f"SELECT id FROM {LOG} WHERE {condition} AND id <= ? ORDER BY id DESC LIMIT 1"
    row = db.execute(query, (*parameters, until)).fetchone()
    return int(row[0]) if row else state.pruned_for(who)


# ---- the triggers' scratch tables


def notes_table(number: int) -> str:
    return f"{OWN}notes_{number}"


def pending_table(number: int) -> str:
    return f"{OWN}pending_{number}"


def order_table(number: int) -> str:
    return f"{OWN}order_{number}"
