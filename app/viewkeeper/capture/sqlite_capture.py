"""A SQLite database's change log → its topic.

Each look at the log is one read transaction, so what it finds new are whole transactions: it becomes one update, whose
position is the last log id it contains; its rows, which never change, are then read in pieces. A boundary row ends an
update, and so may a mark (``update_pieces``).
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from viewkeeper.capture.lag import kept_for
from viewkeeper.capture.sqlite_triggers import check_schema, install, install_marks, remove, unfit
from viewkeeper.capture.update_pieces import UpdatePieces, encode_updates
from viewkeeper.capture.update_topic import Fenced, TooLarge, UpdateTopic
from viewkeeper.errors import KafkaError, Problem, SourceError, SourceUnreachable, UsageError
from viewkeeper.managers.sources import sqlite_log as log
from viewkeeper.managers.sources.sqlite_pieces import SECONDS
from viewkeeper.managers.sources.sqlite_projects import NOBODY, Needs, Who
from viewkeeper.managers.sources.sqlite_pruning import prune
from viewkeeper.managers.sources.sqlite_schema import read_table
from viewkeeper.managers.sources.sqlite_tail import chunks
from viewkeeper.managers.sources.sqlite_values import decoded

_POLL_SECONDS = 0.005
LARGE = 100_000_000
"""Bytes of a database that may take longer to read than its writers wait."""
_MOST_UPDATES, _MOST_BYTES = 1_000, 10_000_000  # of one Kafka transaction: it must end long before its timeout
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0

_UNDIVIDED = (
    "table {0}: in journal mode {1} nobody can write while it is read, and its descending key keeps it in one piece; "
    "set PRAGMA journal_mode = WAL if that takes longer than writers wait"
)
_REFUSED = (
    "table {0}: REPLACE with a row that breaks the table's foreign key to itself (ON DELETE SET NULL) is accepted by "
    "SQLite only while the table has no trigger; once it is captured, SQLite refuses it"
)

logger = logging.getLogger(__name__)


class SqliteCapture:
    """The capture of one source. ``client`` are the Kafka client's settings, at least ``bootstrap.servers``.

    ``floor`` gives the position of the newest cut: a topic that retention emptied says no longer what was sent, but all
    that a cut holds was. ``spans`` are the sets of sources that transactions may span. ``known`` gives the identities
    of the logs that cuts were made from: another log is refused, for its positions mean something else; ``pruned`` is
    where it began at the last look. ``who`` names the project: others may use the same database, each with a topic of
    its own.
    """

    def __init__(
        self,
        name: str,
        path: str,
        topic: str,
        client: Mapping[str, Any],
        floor: Callable[[], int] | None = None,
        spans: Sequence[Collection[str]] = (),
        known: Callable[[], Collection[str]] = frozenset,
        who: Callable[[], Who] | None = None,
        pruned: Callable[[], int] = lambda: 0,
    ):
        self.name = name
        self.path = path
        self.place = f"source {name}"
        self.topic = UpdateTopic(name, topic, client)
        self.floor = floor
        self.spans = spans
        self.known = known
        self.who = who or (lambda: Who("", name, "", topic))
        self.pruned = pruned
        self._began = 0  # where the log began when it was read last
        self._seen: str | None = None  # the identity of the log that was read first
        self.sent = 0
        self._installed: list[str] = []
        self._alone = 0  # up to here, one of the updates is too large: each is sent by itself, to find it
        self._schema: int | None = None
        self._data: int | None = None
        self._me = NOBODY
        self._state: log.LogState | None = None

    def install(self, relations: Mapping[str, Collection[str]], reload: bool = False) -> bool:
        """See ``sqlite_triggers.install`` and ``install_marks``."""
        who = self.who()
        new = install(self.name, self.path, relations, reload, () if reload else self.known(), who)
        self._installed = [f"triggers and change log for {', '.join(sorted(relations))}"] if new else []
        if install_marks(self.name, self.path, self.spans, who):
            self._installed.append(f"{log.GLOBAL_TXN}, which takes marks of transactions over several sources")
        return new

    def problems(self, relations: Mapping[str, Collection[str]]) -> list[Problem]:
        """Why these relations cannot be captured; changes nothing."""
        return [Problem(self.place, what) for what in unfit(self.name, self.path, relations)]

    def warnings(self, relations: Mapping[str, Collection[str]]) -> list[str]:
        """What the database's programs may suffer from these relations being captured; changes nothing."""
        db = log.connect(self.path, self.place)
        try:
            with log.reporting(self.place), log.reading(db):
                (mode,) = db.execute("PRAGMA journal_mode").fetchone()
                tables = [table for relation in relations if (table := read_table(db, relation))]
                kept = kept_for(db, log.read_state(db, self.place), self.who()) if log.is_installed(db) else []
        finally:
            db.close()
        large = mode != "wal" and os.path.getsize(self.path) >= LARGE
        undivided = [_UNDIVIDED.format(table.name, mode) for table in tables if large and not table.is_divisible]
        return [*kept, *undivided, *(_REFUSED.format(table.name) for table in tables if table.nulls_itself)]

    def installed(self) -> list[str]:
        return self._installed

    def begun(self, relations: Mapping[str, Collection[str]]) -> int:
        """The newest change before the capture of these columns began: only past it is their history known."""
        who = self.who()
        db = log.connect(self.path, self.place)
        try:
            with log.reporting(self.place), log.reading(db):
                state = log.read_state(db, self.place)
                needs = state.projects[who.key]
                since = max((needs.since(relation, columns) for relation, columns in relations.items()), default=0)
                return log.last_change(db, state, until=since, who=who)
        finally:
            db.close()

    def captured(self) -> dict[str, list[str]]:
        """Per captured relation the columns that the project's views used at the last ``install``."""
        needs = self._needs()
        return {} if needs is None else {relation: sorted(columns) for relation, columns in needs.relations.items()}

    def since(self) -> dict[str, dict[str, int]]:
        """Per captured relation and column the log id past which its changes are known."""
        needs = self._needs()
        return {} if needs is None else {relation: dict(columns) for relation, columns in needs.relations.items()}

    def _needs(self) -> Needs | None:
        """What is recorded of this project; of a log from before there were records, all that it captures."""
        db = log.connect(self.path, self.place)
        try:
            with log.reporting(self.place), log.reading(db):
                if not log.is_installed(db):
                    return None
                return log.read_state(db, self.place).needs_or_all(self.who())
        finally:
            db.close()

    def pass_topic(self) -> bool:
        """Makes every later change's position larger than all in the topic, which tells nothing that cannot be seen.

        An older copy of the database would otherwise use positions again that the topic already holds; for a caller
        that is about to load every view that uses the source.
        """
        last = self.topic.last_position()
        if last is None:
            return True
        db = log.connect(self.path, self.place)
        try:
            with log.reporting(self.place), log.writing(db):
                if last > log.last_id(db):
                    log.raise_sequence(db, self.place, last)
        finally:
            db.close()
        return True

    def remove(self) -> list[str]:
        """Takes the triggers and the log out of the database, or what of them only this project needed."""
        others = remove(self.name, self.path, self.who())
        if others:
            return [f"no longer captured for this project; the change log stays for {', '.join(others)}"]
        return ["triggers and change log removed"]

    def forget(self, where: str) -> list[str]:
        """Takes out what was installed for the project of another warehouse, which was given up; tells what it did."""
        db = log.connect(self.path, self.place)
        try:
            with log.reporting(self.place), log.reading(db):
                records = log.read_state(db, self.place).projects if log.is_installed(db) else {}
        finally:
            db.close()
        given_up = [needs.who for needs in records.values() if needs.who.where == where]
        if self.who().where == where:
            raise UsageError.at("capture", f"--forget {where} is this project", "use --remove")
        for who in given_up:
            remove(self.name, self.path, who)
        return [f"no longer captured for the project of {where}"] if given_up else []

    def prune(self, position: int) -> int:
        """Deletes the log up to ``position``, which a cut holds; see ``sqlite_pruning.prune``."""
        db = log.connect(self.path, self.place)
        try:
            return prune(db, self.place, position, self.known(), self.who())
        finally:
            db.close()

    def run(self, stop: threading.Event) -> None:
        """Sends every change until ``stop``; waits for a broker or database that is away, raises the rest."""
        pause = _FIRST_PAUSE
        while not stop.is_set():
            try:
                for _ in self._follow(stop):
                    pause = _FIRST_PAUSE
            except (Fenced, TooLarge):
                raise
            except (KafkaError, SourceUnreachable) as error:
                logger.warning("%s; trying again in %.1f s", error, pause)
                stop.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    # ---- the loop

    def _follow(self, stop: threading.Event) -> Iterator[None]:
        """One life of the connections; yields after each look at the log that went well."""
        db = log.connect(self.path, self.place)
        db.text_factory = decoded
        try:
            self.topic.open()
            self._me = self.who()
            self._schema = self._data = None
            self._began = max(self._began, self.pruned())
            with log.reporting(self.place):
                self.sent = self._start(db)
            while not stop.is_set() and not log.is_replaced(db, self.path, self.place):
                with log.reporting(self.place):
                    self._step(db)
                yield
                stop.wait(_POLL_SECONDS)
        finally:
            self.topic.close()
            db.close()

    def _start(self, db: sqlite3.Connection) -> int:
        """The position to go on after: the topic's last, or where the log begins for a topic that never had one."""
        with log.reading(db):
            state = self._require_log(db)
            end = log.last_id(db)
        last = self.topic.last_position()
        if last is None:
            emptied = self.floor is not None and self.topic.was_emptied()
            last = self.floor() if emptied and self.floor else state.installed
        self._require_reached(last, end)
        pruned = state.pruned_for(self._me)
        if last < pruned:
            self._require_cut(pruned)
        return max(last, pruned)  # what was pruned is in a cut, so nobody needs it from the topic

    def _require_log(self, db: sqlite3.Connection) -> log.LogState:
        """The state of the log; SourceError if it is not the one that cuts were made from, or that was read before."""
        state = log.read_state(db, self.place)
        log.require_identity(state, self._known, self.place)
        log.require_needs(state, self._me, self.place)
        log.require_unreverted(state, self._me, self._began, self.place)
        self._seen, self._began = state.identity or None, state.pruned_for(self._me)
        return state

    @property
    def _known(self) -> Collection[str]:
        return self.known() if self._seen is None else [self._seen]

    def _require_same(self, db: sqlite3.Connection) -> None:
        """What a program restores into the file (SQLite's backup) may be another database, or an older copy."""
        self._require_log(db)
        self._require_reached(self.sent, log.last_id(db))

    def _require_reached(self, sent: int, end: int) -> None:
        if sent > end:
            what = f"its change log ends at {end}, but the topic holds an update at {sent}: is it an older copy?"
            raise SourceError.at(self.place, what, log.OTHER_DATABASE)

    def _require_cut(self, pruned: int) -> None:
        """What the log no longer holds must be in a cut, or else changes are missing: the log was made anew."""
        position = 0 if self.floor is None else self.floor()
        if 0 < position < pruned:
            what = f"its change log begins at {pruned}, but the views stand at {position}: was it removed?"
            raise SourceError.at(self.place, what, "run `viewkeeper init --reload`")

    def _step(self, db: sqlite3.Connection) -> None:
        """Sends what is new, if anything is."""
        version = db.execute("PRAGMA data_version").fetchone()[0]
        if version == self._data:
            return
        with log.reading(db):
            self._require_same(db)
            schema = db.execute("PRAGMA schema_version").fetchone()[0]
        if schema != self._schema:
            self._state = check_schema(db, self.place, self.sent, self._known, self._me)
            self._schema = schema
        with log.reading(db):
            self._require_same(db)
            if db.execute("PRAGMA schema_version").fetchone()[0] != self._schema:
                return  # altered, perhaps by ourselves: look again before anything is sent
            found = self._found(db)
        # The lock is given back first: neither much to tell nor a slow broker may hold up the database's writers.
        assert self._state is not None
        self._send(list(encode_updates(self.name, self._read(db, found), self._state.tables, found.width)))
        self._data = version

    def _found(self, db: sqlite3.Connection) -> _Found:
        (columns,) = db.execute("SELECT count(*) FROM pragma_table_info(?)", (log.LOG,)).fetchone()
        (newest,) = db.execute(f"SELECT max(id) FROM {log.LOG}").fetchone()
        return _Found(newest or 0, (columns - 3) // 2, log.read_state(db, self.place).told_to(self._me))

    def _read(self, db: sqlite3.Connection, found: _Found) -> Iterator[tuple[Any, ...]]:
        """What is new, in short transactions: rows of a log never change, and stay until they were sent."""
        last = self.sent
        while last < found.until:
            with log.reading(db):
                self._require_same(db)
                self._require_there(db, found.until)
                rows, last = found.piece(db, last)
            yield from rows

    def _require_there(self, db: sqlite3.Connection, id: int) -> None:
        """An older copy that is restored meanwhile would tear a transaction."""
        if log.last_id(db) < id:
            raise SourceUnreachable.at(self.place, f"its change log ends before {id}, which was there just now")

    def _send(self, updates: list[UpdatePieces]) -> None:
        with contextlib.ExitStack() as files:
            for update in updates:
                files.enter_context(update.file)
            for run in _runs(updates, self._alone):
                self._send_run(run)

    def _send_run(self, run: list[UpdatePieces]) -> None:
        """Sends updates in one Kafka transaction; if one of them is too large for the broker, ``run`` finds it."""
        try:
            self.topic.send(message for update in run for message in update.messages())
        except TooLarge as error:
            if len(run) > 1:
                self._alone = run[-1].position
                raise KafkaError(error.problems) from error
            named = (Problem(p.place, f"update {run[0].position}: {p.what}", p.remedy) for p in error.problems)
            raise TooLarge(named) from error
        self.sent = run[-1].position


def _runs(updates: Iterable[UpdatePieces], alone: int) -> Iterator[list[UpdatePieces]]:
    """The updates, a list for each Kafka transaction: not too many and not too large, but at least one.

    Each update up to the position ``alone`` is one by itself.
    """
    run: list[UpdatePieces] = []
    size = 0
    for update in updates:
        bytes = sum(update.sizes)
        is_full = len(run) == _MOST_UPDATES or size + bytes > _MOST_BYTES
        if run and (is_full or run[-1].position <= alone):
            yield run
            run, size = [], 0
        run.append(update)
        size += bytes
    if run:
        yield run


@dataclass(frozen=True)
class _Found:
    """What a look at the log found: whole transactions up to ``until``, of which some rows are to be told."""

    until: int
    width: int
    told: tuple[str, list[str]]

    def piece(self, db: sqlite3.Connection, since: int) -> tuple[list[tuple[Any, ...]], int]:
        """Some of the rows past ``since``, in order, and up to where these are all."""
        names = ", ".join(["id", "relation", "op", *(f"{side}{i}" for side in "ba" for i in range(self.width))])
        condition, parameters = self.told
        query = f"SELECT {names} FROM {log.LOG} WHERE id > ? AND id <= ? AND {condition} ORDER BY id"
        begin, found = time.monotonic(), []
        with contextlib.closing(chunks(db.execute(query, (since, self.until, *parameters)))) as read:
            for rows in read:
                found += rows
                if time.monotonic() - begin > SECONDS:
                    return found, rows[-1][0]
        return found, self.until
