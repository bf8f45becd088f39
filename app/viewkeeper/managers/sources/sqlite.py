"""A SQLite database as a source: questions become short read transactions, most of them one.

SQLite holds no snapshot for us (a held read lock would stop the writers in journal mode ``delete``). Instead every
answer carries the log's last id as its position, and the log rows past the last delivered one as its ``tail``: they
are read in the same transaction, so answer − tail is the relation as of the delivered position. Long answers are read
in pieces and brought forward to the last of their transactions (``sqlite_pieces``). A connection reads the log forward
only (``sqlite_tail``). Rows that do not fit their declared types are dealt with in ``sqlite_images``.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from viewkeeper.algebra.types import Relation, Type
from viewkeeper.errors import SnapshotLost, SourceError
from viewkeeper.managers.sources import sqlite_log as log
from viewkeeper.managers.sources import sqlite_pieces as pieces
from viewkeeper.managers.sources import sqlite_pruning as pruning
from viewkeeper.managers.sources.sqlite_images import Excused
from viewkeeper.managers.sources.sqlite_pieces import (
    Disturbed,
    Indivisible,
    Look,
    OfKeys,
    Pieces,
    Region,
    TooLong,
    Unkeyed,
    UpToIdentity,
    at_most,
)
from viewkeeper.managers.sources.sqlite_projects import NOBODY, Who
from viewkeeper.managers.sources.sqlite_questions import Question
from viewkeeper.managers.sources.sqlite_schema import Table, read_table, table_names
from viewkeeper.managers.sources.sqlite_tail import Span, TailOf, Tails, counted, gathered
from viewkeeper.managers.sources.sqlite_values import decoded
from viewkeeper.managers.sources.sqlite_watch import used_problems
from viewkeeper.messages import Answer, Ask, Strangers

_ATTEMPTS = 3  # to read a table in pieces that somebody alters, or compacts, again and again
_CACHE_KIB = 32_000
_RELOAD = "run `viewkeeper init --reload`"


@dataclass(frozen=True)
class SqliteSnapshot:
    """Updates up to ``since`` were delivered; ``hold`` names the hold that keeps the log past it.

    Of ``forgiven`` relations, rows that do not fit their types are left out without a word.
    """

    since: int
    hold: str | None = None
    forgiven: frozenset[str] = frozenset()


@dataclass
class _Session:
    """A connection of one thread, with what it knows of the schema it saw last, and the tails it read under it."""

    db: log.Database
    pid: int
    schema: int | None = None
    tables: dict[str, Table] | None = None
    tails: Tails = field(default_factory=Tails)
    snapshots: int = 0  # that its tails were read under


class SqliteSource:
    """The ``Source`` for ``kind: sqlite``; one connection per thread and process, made on first use."""

    readers: int | None = None
    late = False

    def __init__(self, name: str, path: str, who: Callable[[], Who] = lambda: NOBODY):
        self.name = name
        self.path = path
        self._find_who = who
        self._who = NOBODY
        self._watches: dict[str, tuple[str, ...]] = {}
        self._since: dict[tuple[str, str], int] = {}
        self._forgiven: frozenset[str] = frozenset()
        self._local = threading.local()
        self._snapshots = 0  # begun or ended so far
        self._log = ""  # the identity of the log that was read first
        self._pruned = 0  # where it began when it was read last

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "path": self.path, "who": self.who, "log": self._log}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["name"], state["path"])  # type: ignore[misc]
        self._who, self._log = state["who"], state["log"]

    @property
    def who(self) -> Who:
        """Whose source it is; a project has a name only from its first ``init`` on."""
        if not self._who.project:
            self._who = self._find_who()
        return self._who

    @property
    def place(self) -> str:
        return f"source {self.name}"

    def describe(self, relations: Iterable[str] | None = None) -> dict[str, Relation]:
        """The relations as they are declared now: all, or just the named ones that exist."""
        session = self._session()
        with log.reporting(self.place), log.reading(session.db):
            wanted = None if relations is None else set(relations)
            names = [n for n in table_names(session.db) if wanted is None or n in wanted]
            tables = [table for name in names if (table := read_table(session.db, name))]
            return {table.name: table.relation(self.name) for table in tables}

    def freeze(self, delivered: str | None, hold: bool = False) -> SqliteSnapshot:
        """A snapshot at the delivered position; without one, at a boundary written now."""
        db = self._session().db
        self._forget_tails()
        if delivered is not None and not hold:
            return SqliteSnapshot(int(delivered), forgiven=self._forgiven)
        with log.reporting(self.place), log.writing(db):
            state = self._state(db)
            since = log.write_boundary(db) if delivered is None else int(delivered)
            self._require_log(since, log.last_id(db), state)
            return SqliteSnapshot(since, pruning.hold(db, since) if hold else None)

    def forgive(self, relations: Collection[str]) -> None:
        self._forgiven = frozenset(relations)

    def watch(self, relations: Mapping[str, Collection[str]]) -> None:
        self._watches = {relation: tuple(columns) for relation, columns in relations.items()}

    def identity(self) -> dict[str, str]:
        """Which log the database has, as positions mean nothing to another; and where it begins."""
        state = self._log_state()
        return {"log": state.identity, "pruned": str(state.pruned_for(self.who))} if state.identity else {}

    def require_identity(self, known: Mapping[str, str]) -> None:
        db = self._session().db
        with log.reporting(self.place), log.reading(db):
            log.require_known(db, [known["log"]] if "log" in known else [], self.place)
            if "pruned" in known:
                log.require_unreverted(log.read_state(db, self.place), self.who, int(known["pruned"]), self.place)

    def require(self, position: str) -> None:
        session = self._session()
        with log.reporting(self.place), log.reading(session.db):
            state = self._watched(session)
            self._require_log(int(position), log.last_id(session.db), state)
            self._require_captured(state)

    def contains(self, snapshot: SqliteSnapshot) -> None:
        """Every update delivered so far: the log is written by the transaction that it tells of."""

    def shows_all(self, snapshot: SqliteSnapshot) -> bool:
        return True

    def barrier(self, snapshot: SqliteSnapshot) -> None:
        """Not needed: answers carry what no topic has delivered yet."""

    def require_unbroken(self, snapshot: SqliteSnapshot, before: int) -> None:
        """There are no barriers."""

    def require_named(self, strangers: Strangers, relations: Collection[str]) -> None:
        """A log is filled by triggers, each of its own table: there are none."""

    def confirm(self, snapshot: SqliteSnapshot) -> None:
        """Every answer was read in one transaction together with the log it refers to."""

    def position(self, snapshot: SqliteSnapshot) -> str:
        return str(snapshot.since)

    def release(self, snapshot: SqliteSnapshot) -> None:
        self._forget_tails()
        if snapshot.hold:
            db = self._session().db
            with log.reporting(self.place), log.writing(db):
                pruning.release_hold(db, snapshot.hold)

    def reached(self, position: str, target: str) -> bool:
        return int(position) >= int(target)

    def last_change(self) -> str:
        db = self._session().db
        with log.reporting(self.place), log.reading(db):
            return str(log.last_change(db, self._state(db), who=self.who))

    def mark(self) -> str:
        return self.last_change()

    def forgotten(self) -> int:
        """The position up to which the log tells nothing any more."""
        return self._log_state().pruned_for(self.who)

    def logged_since(self) -> int:
        """When the log was made, in milliseconds since 1970; nobody has told of what was done before."""
        return self._log_state().made

    def _log_state(self) -> log.LogState:
        db = self._session().db
        with log.reporting(self.place), log.reading(db):
            return self._state(db)

    def _state(self, db: sqlite3.Connection) -> log.LogState:
        """The log's state; SourceError if it is not the log that was read first."""
        state = log.read_state(db, self.place)
        log.require_identity(state, [self._log] if self._log else [], self.place)
        log.require_needs(state, self.who, self.place)
        log.require_unreverted(state, self.who, self._pruned, self.place)
        self._log, self._pruned = state.identity, state.pruned_for(self.who)
        return state

    def _require_captured(self, state: log.LogState) -> None:
        """Raises SourceError if the capture of something that views use has ended, or was interrupted meanwhile."""
        needs = state.needs(self.who)
        if needs is None:
            return
        for relation, columns in self._watches.items():
            known = needs.relations.get(relation, {})
            for column in columns:
                before, now = self._since.get((relation, column)), known.get(column)
                if before is not None and now != before:
                    what = f"{relation}.{column} was not captured for a while, so changes of it may be missing"
                    raise SourceError.at(self.place, what, _RELOAD)
                if now is not None:
                    self._since[relation, column] = now

    def ask(self, ask: Ask, snapshot: SqliteSnapshot) -> Answer:
        """Answers in one read transaction; raises ``SnapshotLost`` when the log no longer reaches back."""
        session = self._session()
        with log.reporting(self.place):
            try:
                return self._answer(session, ask, snapshot)
            except sqlite3.OperationalError as error:
                if "Could not decode to UTF-8" not in str(error):
                    raise
                session.db.text_factory = decoded  # slower, so only where it is needed
                return self._answer(session, ask, snapshot)

    def _answer(self, session: _Session, ask: Ask, snapshot: SqliteSnapshot) -> Answer:
        """What takes long is read in pieces, if it can be."""
        if ask.keys is not None:
            try:
                return self._in_pieces(session, ask, snapshot, OfKeys)
            except Unkeyed:
                ask = replace(ask, key=(), keys=None)
        with contextlib.suppress(TooLong), at_most(session.db, pieces.SECONDS):
            return self._at_once(session, ask, snapshot)
        return self._in_pieces(session, ask, snapshot, UpToIdentity)

    def _in_pieces(
        self, session: _Session, ask: Ask, snapshot: SqliteSnapshot, region: Callable[[Look], Region]
    ) -> Answer:
        forgiven = ask.relation in snapshot.forgiven
        with contextlib.suppress(Indivisible):
            for _ in range(_ATTEMPTS):
                with contextlib.suppress(Disturbed):
                    return Pieces(session.db, lambda: self._look(session, ask, snapshot), region, forgiven).answer()
        return self._at_once(session, ask, snapshot)

    def _at_once(self, session: _Session, ask: Ask, snapshot: SqliteSnapshot) -> Answer:
        with log.reading(session.db):
            look = self._look(session, ask, snapshot)
            excused = Excused(self.place, ask.relation, look.tail.came, ask.relation in snapshot.forgiven)
            rows = gathered(look.question.rows(session.db), look.question.types, excused.found)
        return Answer(counted(rows), log.LogPosition(look.position), look.tail.table)

    def _look(self, session: _Session, ask: Ask, snapshot: SqliteSnapshot) -> Look:
        """What every read transaction begins with."""
        state = self._watched(session)
        position = log.last_id(session.db)
        self._require_log(snapshot.since, position, state)
        question = Question(ask, self._table(session, ask.relation), self.place)
        captured = self._captured(state, ask)
        of = self._tail_of(session.db, ask, question.types, captured, snapshot.since)
        tail = session.tails.read(session.db, of)
        assert session.schema is not None
        return Look(question, captured.layout.places, session.schema, position, tail.until, tail)

    def close(self) -> None:
        """Lets go of every thread's connection, a later use opens it again.

        A thread that is just using its own keeps it until it is done: closed under it, SQLite would crash the process.
        """
        self._local = threading.local()
        gc.collect()  # a connection and its cached statements hold each other

    # ---- connection and schema

    def _session(self) -> _Session:
        """This thread's connection; a forked child makes its own, because SQLite's must not cross a fork."""
        session: _Session | None = getattr(self._local, "session", None)
        if session is not None and log.is_replaced(session.db, self.path, self.place):
            session = None  # another file stands there now: what it is, its log's identity tells
        if session is None or session.pid != os.getpid():
            db = log.connect(self.path, self.place)
            db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            session = self._local.session = _Session(db, os.getpid())
        if session.snapshots != self._snapshots:
            session.snapshots = self._snapshots
            session.tails.forget()
        return session

    def _forget_tails(self) -> None:
        """A snapshot begins or ends, so the tails of earlier ones are not asked for again, in any thread."""
        self._snapshots += 1

    def _watched(self, session: _Session) -> log.LogState:
        """The log's state; when the schema changed, first a look whether the log can still be trusted."""
        version = session.db.execute("PRAGMA schema_version").fetchone()[0]
        state = self._state(session.db)
        if version != session.schema:
            needs = state.needs(self.who)
            if problems := used_problems(session.db, state, None if needs is None else needs.relations):
                raise SourceError.at(self.place, problems[0])
            session.schema, session.tables = version, {}
            session.tails.forget()
        return state

    def _table(self, session: _Session, relation: str) -> Table:
        assert session.tables is not None
        if relation not in session.tables:
            table = read_table(session.db, relation)
            if table is None:
                raise SourceError.at(self.place, f"there is no table {relation}")
            session.tables[relation] = table
        return session.tables[relation]

    def _require_log(self, since: int, position: int, state: log.LogState) -> None:
        pruned = state.pruned_for(self.who)
        if position < since:
            what = f"its change log ends at {position}, before {since}, which was delivered: is it an older copy?"
            raise SourceError.at(self.place, what, f"put the right database back, or {_RELOAD}")
        if pruned > since:
            raise SnapshotLost.at(self.place, f"its change log begins at {pruned}, past {since}", _RELOAD)

    def _captured(self, state: log.LogState, ask: Ask) -> log.Captured:
        captured = state.tables.get(ask.relation)
        if captured is None or not captured.active:
            raise SourceError.at(self.place, f"table {ask.relation} is not captured", "run `viewkeeper init`")
        if not captured.layout.places.keys() >= set(ask.columns):
            raise SourceError.at(self.place, f"{ask.relation} was altered", "start `viewkeeper capture`")
        return captured

    def _tail_of(
        self, db: sqlite3.Connection, ask: Ask, types: dict[str, Type], captured: log.Captured, since: int
    ) -> TailOf:
        """What to read of the log; its rows past ``since`` may be of several layouts."""
        spans = []
        for begin, end, layout in captured.layouts_since(since):
            stands = layout.places
            if stands.keys() >= set(ask.columns):
                spans.append(Span(tuple(stands[name] for name in ask.columns), begin, end))
            elif log.has_rows(db, ask.relation, begin, end):
                lacking = ", ".join(sorted(set(ask.columns) - stands.keys()))
                what = f"changes past {begin} were logged without {ask.relation}.{lacking}"
                raise SourceError.at(self.place, what, _RELOAD)
        return TailOf(since, ask.relation, tuple(types.items()), tuple(spans))
