"""A SQLite database's change log → its topic.

Each read of the log is one read transaction, so what it finds new are whole transactions: it becomes one update, whose
position is the last log id it contains. A boundary row ends an update, and so may a mark (``update_pieces``).
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from viewkeeper.capture.sqlite_triggers import check_schema, install, install_marks, remove
from viewkeeper.capture.update_pieces import UpdatePieces, encode_updates
from viewkeeper.capture.update_topic import Fenced, TooLarge, UpdateTopic
from viewkeeper.errors import KafkaError, Problem, SourceError, SourceUnreachable
from viewkeeper.managers.sources import sqlite_log as log
from viewkeeper.managers.sources.sqlite_values import decoded

_POLL_SECONDS = 0.005
_FETCH_ROWS = 5_000
_MOST_UPDATES, _MOST_BYTES = 1_000, 10_000_000  # of one Kafka transaction: it must end long before its timeout
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0

logger = logging.getLogger(__name__)


class SqliteCapture:
    """The capture of one source. ``client`` are the Kafka client's settings, at least ``bootstrap.servers``.

    ``floor`` gives the position of the newest cut: a topic that retention emptied says no longer what was sent, but all
    that a cut holds was. ``spans`` are the sets of sources that transactions may span.
    """

    def __init__(
        self,
        name: str,
        path: str,
        topic: str,
        client: Mapping[str, Any],
        floor: Callable[[], int] | None = None,
        spans: Sequence[Collection[str]] = (),
    ):
        self.name = name
        self.path = path
        self.place = f"source {name}"
        self.topic = UpdateTopic(name, topic, client)
        self.floor = floor
        self.spans = spans
        self.sent = 0
        self._installed: list[str] = []
        self._alone = 0  # up to here, one of the updates is too large: each is sent by itself, to find it
        self._schema: int | None = None
        self._data: int | None = None
        self._state: log.LogState | None = None

    def install(self, relations: Mapping[str, Collection[str]], reload: bool = False) -> bool:
        """See ``sqlite_triggers.install`` and ``install_marks``."""
        new = install(self.name, self.path, relations, reload)
        self._installed = [f"triggers and change log for {', '.join(sorted(relations))}"] if new else []
        if install_marks(self.name, self.path, self.spans):
            self._installed.append(f"{log.GLOBAL_TXN}, which takes marks of transactions over several sources")
        return new

    def installed(self) -> list[str]:
        return self._installed

    def begun(self, relations: Collection[str]) -> int:
        """The newest change before the capture of these relations began: only past it is their history known."""
        db = log.connect(self.path, self.place)
        try:
            with log.reporting(self.place), log.reading(db):
                state = log.read_state(db, self.place)
                since = max((state.tables[relation].since for relation in relations), default=0)
                return log.last_change(db, state, until=since)
        finally:
            db.close()

    def captured(self) -> dict[str, list[str]]:
        """Per captured relation the columns that views used at the last ``install``."""
        db = log.connect(self.path, self.place)
        try:
            with log.reporting(self.place), log.reading(db):
                tables = log.read_state(db, self.place).tables if log.is_installed(db) else {}
                return {relation: list(captured.used) for relation, captured in tables.items() if captured.active}
        finally:
            db.close()

    def since(self) -> dict[str, int]:
        """Per captured relation the log id where its capture last became active."""
        db = log.connect(self.path, self.place)
        try:
            with log.reporting(self.place), log.reading(db):
                tables = log.read_state(db, self.place).tables
                return {relation: captured.since for relation, captured in tables.items() if captured.active}
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
        """Takes the triggers and the log out of the database."""
        remove(self.name, self.path)
        return ["triggers and change log removed"]

    def prune(self, position: int) -> int:
        """Deletes the log up to ``position``, which a cut holds; see ``sqlite_log.prune``."""
        db = log.connect(self.path, self.place)
        try:
            return log.prune(db, self.place, position)
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
            self._schema = self._data = None
            with log.reporting(self.place):
                self.sent = self._start(db)
            while not stop.is_set():
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
            state = log.read_state(db, self.place)
            end = log.last_id(db)
        last = self.topic.last_position()
        if last is None:
            emptied = self.floor is not None and self.topic.was_emptied()
            last = self.floor() if emptied and self.floor else state.installed
        if last > end:
            what = f"its change log ends at {end}, but the topic holds an update at {last}: is it an older copy?"
            raise SourceError.at(self.place, what, "put the right database back, or run `viewkeeper init --reload`")
        if last < state.pruned:
            self._require_cut(state.pruned)
        return max(last, state.pruned)  # what was pruned is in a cut, so nobody needs it from the topic

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
        schema = db.execute("PRAGMA schema_version").fetchone()[0]
        if schema != self._schema:
            self._state = check_schema(db, self.place, self.sent)
            self._schema = schema
        with log.reading(db):
            if db.execute("PRAGMA schema_version").fetchone()[0] != self._schema:
                return  # altered, perhaps by ourselves: look again before anything is sent
            updates = self._read(db)
        # The lock is given back first: a slow broker must not hold up the database's writers.
        self._send(updates)
        self._data = version

    def _read(self, db: sqlite3.Connection) -> list[UpdatePieces]:
        assert self._state is not None
        (columns,) = db.execute("SELECT count(*) FROM pragma_table_info(?)", (log.LOG,)).fetchone()
        width = (columns - 3) // 2
        return list(encode_updates(self.name, _log_rows(db, self.sent, width), self._state.tables, width))

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
            what = f"the broker refuses a message of update {run[0].position}: it is too large"
            raise TooLarge(Problem(p.place, what, p.remedy) for p in error.problems) from error
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


def _log_rows(db: sqlite3.Connection, since: int, width: int) -> Iterator[tuple[Any, ...]]:
    names = ", ".join(["id", "relation", "op", *(f"{side}{i}" for side in "ba" for i in range(width))])
    cursor = db.execute(f"SELECT {names} FROM {log.LOG} WHERE id > ? ORDER BY id", (since,))
    while rows := cursor.fetchmany(_FETCH_ROWS):
        yield from rows
