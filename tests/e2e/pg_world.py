"""PostgreSQL databases captured by real Debezium, and a keeper of views over them in this process, without Spark.

What happens at an exact moment of a batch is put there by hooks (``when``). What views must hold is found without
Viewkeeper: by their SQL over the databases, and by replaying the topics' transactions, as numbered, from the load on.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from tests.conftest import SharedBroker, eventually, unique
from tests.e2e.debezium_topic import Transaction, transactions
from tests.e2e.postgres import Captured, Database, Debezium
from viewkeeper.config import load_config
from viewkeeper.job.assembly import Project, assemble, used_by
from viewkeeper.job.group_job import GroupJob
from viewkeeper.job.keeper import Keeper
from viewkeeper.job.opening import Opening
from viewkeeper.job.patience import patiently
from viewkeeper.job.status import StatusFile
from viewkeeper.managers.sources.postgres import PostgresSource
from viewkeeper.queue.consumer import MESSAGES
from viewkeeper.warehouse.cuts import Cut
from viewkeeper.warehouse.warehouse import Warehouse

PATIENCE = 90.0
"""Seconds for what a busy machine may be slow at."""

Row = tuple[Any, ...]
Bag = Counter[Row]
Tables = dict[tuple[str, str], Bag]
"""By source and table its rows; values are numbers and text, which messages and answers tell alike."""


class World:
    """Databases as the sources of one configuration; ``open`` loads their views, or goes on where the last cut is."""

    def __init__(
        self,
        folder: Path,
        broker: SharedBroker,
        databases: Mapping[str, Database],
        views: Mapping[str, str],
        **sections: Any,
    ):
        self.folder, self.broker, self.databases, self.views = folder, broker, dict(databases), dict(views)
        self.topics = {name: broker.new_topic(name) for name in databases}
        self._unique = next(iter(self.topics.values()))  # others may come to share the topics of its sources, not these
        self.sections = sections
        self._ends = ExitStack()
        self.project: Project
        self.keeper: Keeper
        self.start: Tables  # as of update ``_since``
        self.columns: dict[tuple[str, str], list[str]]
        self._since = 0
        self._read: dict[str, _Topic] = {}
        self.failures: int | None = None  # how many tests had failed when it was last loaded

    @property
    def conf(self) -> Path:
        return self.folder / "conf.yaml"

    def configure(self) -> None:
        """Writes the configuration; views and sections may have changed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        sources = {
            name: database.section(topic=self.topics[name], **self.sections)
            for name, database in self.databases.items()
        }
        names = {view: {"sql": sql, "topic": f"view.{view}.{self._unique}"} for view, sql in self.views.items()}
        content = {"kafka": {"bootstrap": self.broker.bootstrap}, "warehouse": "warehouse", "sources": sources}
        self.conf.write_text(json.dumps({**content, "views": names}))

    def captured(self) -> list[Captured]:
        """What Debezium is to capture for these views."""
        self.configure()
        views = assemble(load_config(str(self.conf))).views
        return [Captured(n, d, self.topics[n], used_by(views, n)) for n, d in self.databases.items()]

    # ---- the keeper

    def open(self, *reload: str) -> Keeper:
        """A keeper as a new process would make it; the one before is as if killed."""
        self.close()
        self.configure()
        project = assemble(load_config(str(self.conf)))
        for source in project.sources.values():
            assert isinstance(source, PostgresSource)
            self._ends.callback(source.close)
        warehouse = Warehouse(project.config.warehouse)
        self._ends.enter_context(warehouse.lock())
        self.project, loads = project, bool(reload) or warehouse.newest() is None
        if loads:
            self.columns = {(s, table): names for s in project.sources for table, names in project.used(s).items()}
            self.start = self.tables()
        self.keeper = Opening(project, warehouse, reload).open()
        if loads:
            self._since = self.keeper.cut.last_update
        self._ends.callback(self.keeper.rounds.drain.close)
        return self.keeper

    def close(self) -> None:
        """Lets go of everything, as a kill does; the warehouse stays."""
        self._ends.close()

    def end(self) -> None:
        """Ends what it has open."""
        self.close()
        for topic in self._read.values():
            topic.close()

    @property
    def cut(self) -> Cut:
        return self.keeper.cut

    @property
    def job(self) -> GroupJob:
        """The job around the keeper, for what it does between batches."""
        status = StatusFile.of(self.project.config.warehouse)
        return GroupJob(self.project, self.keeper, status, self.keeper.stop, lambda: None, _looked=float("-inf"))

    def source(self, name: str) -> PostgresSource:
        source = self.project.sources[name]
        assert isinstance(source, PostgresSource)
        return source

    def unread(self) -> pa.Table:
        """Everything that was committed by now and no batch has taken, once Debezium has sent it."""
        rows: list[dict[str, Any]] = []
        marks = {name: int(patiently(self.source(name).mark, seconds=PATIENCE)) for name in self.project.sources}
        for name, mark in marks.items():
            offset = self.keeper.queue.inlets[self.topics[name]].offset
            rows += [_row(m) for m in self._topic(name).past(mark) if m.offset() >= offset]
        return pa.Table.from_pylist(rows, MESSAGES)

    def _topic(self, source: str) -> _Topic:
        topic = self.topics[source]
        if topic not in self._read:
            self._read[topic] = _Topic(self.broker, topic)
        return self._read[topic]

    def sent(self, source: str) -> list[Transaction]:
        """The transactions in the source's topic."""
        return transactions(self._topic(source).messages())

    def batch(self) -> None:
        """One batch of everything committed by now; managers that fail try again, as the job lets them."""
        self.maintain(self.unread())

    def maintain(self, messages: pa.Table) -> None:
        """Brings every view past these messages."""
        self.keeper.maintain(messages)
        done = lambda: not self.keeper.rounds.pending.batches or (self.keeper.release() and False)  # noqa: E731
        eventually(done, PATIENCE, "every update is in a cut")

    def write(self, source: str, *statements: str) -> None:
        """One transaction."""
        self.databases[source].execute(*statements)

    # ---- what must hold

    def tables(self) -> Tables:
        """The used columns of used tables as the databases show them now."""
        found: Tables = {}
        for (source, table), columns in self.columns.items():
            found[source, table] = Counter(self.databases[source].execute(f"SELECT {', '.join(columns)} FROM {table}"))
        return found

    def read(self, view: str, update: int | None = None) -> Bag:
        """The view as the warehouse gives it."""
        bag: Bag = Counter()
        for row in self.keeper.warehouse.read(view, update=update).read_all().to_pylist():
            count = row.pop("_count")
            bag[tuple(row.values())] += count
        return bag

    def check(self, ends: bool = True) -> None:
        """Every state of every view since the load, or the last check, is right, at the level that its cut promises.

        ``ends``: the newest is that of the databases as they show themselves now.
        """
        with closing(_Copy(self.columns)) as copy:
            states = {view: {self._since: copy.evaluate(self.start, self.views[view])} for view in self.views}
            emptied: dict[int, set[tuple[str, str]]] = {}
            for k, source, transaction in self._numbered():
                _apply(self.start, source, transaction, self.columns)
                emptied[k] = {(source, table) for table in transaction.emptied}
                for view in self.views:
                    states[view][k] = copy.evaluate(self.start, self.views[view])
            self._check_cuts(states, emptied)
            self._since = self.cut.last_update
            if ends:
                shown = self.tables()
                for view in self.views:
                    assert states[view][self._since] == copy.evaluate(shown, self.views[view]), f"{view} lacks updates"

    def _numbered(self) -> Iterator[tuple[int, str, Transaction]]:
        sent = {name: {t.offset: t for t in self.sent(name)} for name in self.databases}
        for row in self.keeper.warehouse.updates(self._since + 1, self.cut.last_update).to_pylist():
            yield row["_update"], row["source"], sent[row["source"]].pop(row["offset"])

    def _check_cuts(
        self, states: Mapping[str, Mapping[int, Bag]], emptied: Mapping[int, Collection[tuple[str, str]]]
    ) -> None:
        for before, after in itertools.pairwise(self.keeper.warehouse.cuts(0, self.cut.cut)):
            numbers = [k for k in range(before.last_update + 1, after.last_update + 1) if k > self._since]
            gone = {name for k in numbers for name in emptied[k]}
            anew = {view for view, parsed in self.project.views.items() if parsed.relations & gone}
            assert not numbers or after.level == ("strong" if anew else "complete"), f"cut {after.cut}"
            for view in self.views:
                for k in numbers[-1:] if view in anew else numbers:
                    assert self.read(view, k) == states[view][k], f"{view} after update {k}"


@contextmanager
def when(
    owner: object, method: str, action: Callable[[], object], call: int = 1, after: bool = False
) -> Iterator[list[int]]:
    """Does something once, just before (or after) a method is called for that time; gives a list of its calls."""
    real, calls = getattr(owner, method), list[int]()

    def hooked(*args: Any, **kwargs: Any) -> Any:
        calls.append(len(calls) + 1)
        mine = len(calls) == call
        if mine and not after:
            action()
        result = real(*args, **kwargs)
        if mine and after:
            action()
        return result

    with mock.patch.object(owner, method, hooked):
        yield calls
    assert len(calls) >= call, f"{method} was called {len(calls)} times"


@contextmanager
def asked_by_workers(source: PostgresSource) -> Iterator[None]:
    """Questions are asked as Spark's workers do it: each imports the snapshot, and holds nothing afterwards."""
    real = source.ask

    def ask(*args: Any) -> Any:
        answers: list[Any] = []
        failures: list[BaseException] = []

        def work() -> None:
            try:
                answers.append(real(*args))
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if failures:
            raise failures[0]
        return answers[0]

    with mock.patch.object(source, "ask", ask):
        yield


class _Copy:
    """An in-memory SQLite in which a view's own SQL runs over given tables."""

    def __init__(self, columns: Mapping[tuple[str, str], Sequence[str]]):
        self._db = sqlite3.connect(":memory:")
        self._columns = columns
        self._held: Tables = {}
        for source in sorted({source for source, _ in columns}):
            self._db.execute(f"ATTACH ':memory:' AS {source}")
        for (source, table), names in columns.items():
            self._db.execute(f'CREATE TABLE {source}."{table}" ({", ".join(names)})')

    def evaluate(self, tables: Tables, sql: str) -> Bag:
        for (source, table), names in self._columns.items():
            rows = tables.get((source, table), Counter())
            if self._held.get((source, table)) != rows:
                self._db.execute(f'DELETE FROM {source}."{table}"')
                marks = ", ".join("?" * len(names))
                self._db.executemany(f'INSERT INTO {source}."{table}" VALUES ({marks})', list(rows.elements()))
                self._held[source, table] = Counter(rows)
        return Counter(self._db.execute(sql))

    def close(self) -> None:
        self._db.close()


def _apply(now: Tables, source: str, transaction: Transaction, columns: Mapping[tuple[str, str], list[str]]) -> None:
    for table, before, after in transaction.changes:
        if (source, table) not in now:
            continue
        rows, names = now[source, table], columns[source, table]
        if before is None and after is None:
            rows.clear()
        for image, sign in ((before, -1), (after, 1)):
            if image is not None:
                row = tuple(image.get(name) for name in names)
                rows[row] += sign
                assert rows[row] >= 0, f"{source}.{table}: {row} was not there"
                rows += Counter()  # keeps no zeros


def _row(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic(),
        "offset": message.offset(),
        "value": message.value(),
        "timestamp": message.timestamp()[1],
    }


def _end(message: Message) -> int:
    """The position of an END; 0 for any other message."""
    content = orjson.loads(message.value()) if message.value() else {}
    return int(content["id"].partition(":")[2]) if content.get("status") == "END" else 0


class _Topic:
    """A topic that is read as it grows."""

    def __init__(self, broker: SharedBroker, name: str):
        self._consumer = Consumer(broker.client(group_id=unique("reader"), fetch_wait_max_ms=10))
        self._consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
        self._name = name
        self._found: list[Message] = []

    def messages(self) -> list[Message]:
        """Everything that it holds now."""
        _, end = self._consumer.get_watermark_offsets(TopicPartition(self._name, 0), timeout=30)
        eventually(lambda: self._poll() or self._next >= end, PATIENCE, f"{self._name} was read to its end")
        return list(self._found)

    def past(self, mark: int) -> list[Message]:
        """Everything that it holds, once an END past this position has come."""
        what = f"{self._name} goes on"
        eventually(lambda: self._poll() or any(_end(m) > mark for m in self._found[-50:]), PATIENCE, what)
        return list(self._found)

    @property
    def _next(self) -> int:
        return self._found[-1].offset() + 1 if self._found else 0

    def _poll(self) -> None:
        for message in self._consumer.consume(10_000, timeout=0.02):
            assert not message.error(), message.error()
            self._found.append(message)

    def close(self) -> None:
        self._consumer.close()


class Worlds:
    """Makes worlds; what they have started ends with ``end``."""

    def __init__(self, folder: Path, broker: SharedBroker, debezium: Debezium):
        self._folder, self._broker, self._debezium = folder, broker, debezium
        self._made: list[World] = []

    def __call__(
        self, databases: Mapping[str, Database], views: Mapping[str, str], guarded: bool = True, **sections: Any
    ) -> World:
        """A world whose databases are captured; nothing is loaded yet."""
        world = World(self._folder / unique("world"), self._broker, databases, views, **sections)
        self._made.append(world)
        self.capture(world, guarded)
        return world

    def capture(self, world: World, guarded: bool = True) -> None:
        """Debezium captures the world's databases (again). Not ``guarded``, it is a user's own Kafka Connect."""
        for each in world.captured():
            self._debezium.add(world.folder / "warehouse" / "captures", each, guarded)

    def stop_capture(self, world: World) -> None:
        for name, made in world.databases.items():
            self._debezium.remove(Captured(name, made, world.topics[name], {}))

    def end(self) -> None:
        while self._made:
            world = self._made.pop()
            world.end()
            self.stop_capture(world)
