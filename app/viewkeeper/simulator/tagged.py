"""The world of answers that state their position: updates and answers come on channels of their own.

A Kafka topic and a database connection are two channels, so order of arrival proves nothing. This world is as bad as
real ones get: a commit is logged before it becomes visible, so that a snapshot may lack an update that was delivered
long ago and hold one that was not, and what it holds need not be a prefix of the log. The columnar SWEEP
(``algorithms.sweep``) keeps its view here just as it does in the job: freeze, drain to the barrier, sweep, install.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.bag import COUNT, UPDATE
from viewkeeper.algebra.timeline import POSITION
from viewkeeper.algebra.tiny import Bag, Name, Row, TinyView, add
from viewkeeper.algebra.types import INTEGER, Column, Relation
from viewkeeper.algorithms.protocol import Change, Install, Op, Update
from viewkeeper.algorithms.sweep import Queue, Steps, Sweep
from viewkeeper.messages import Answer, Ask, SnapshotPosition
from viewkeeper.simulator.base import BaseWorld, Message
from viewkeeper.simulator.history import Deliver, Evaluate, Event, Return, Show, Transaction, Workload


@dataclass(frozen=True)
class Visible:
    """A snapshot's position: exactly these updates of its source (by ordinal) are in it."""

    ordinals: frozenset[int]

    def includes(self, positions: np.ndarray) -> np.ndarray:
        return np.isin(positions, list(self.ordinals))


@dataclass(frozen=True)
class Barrier:
    """Comes out of the topic after every update that a snapshot can contain."""

    batch: int


@dataclass(frozen=True)
class Freeze:
    """The manager wants a snapshot."""

    batch: int


@dataclass(frozen=True)
class Frozen:
    """A source has taken its snapshot."""

    batch: int


Positions = Callable[[frozenset[int]], SnapshotPosition]
"""How a source says what its snapshot contains."""


@dataclass
class TaggedSource:
    """A source whose snapshots hold what is visible, which is not what is logged."""

    name: str
    workload: Workload
    position: Positions
    inbox: deque[Freeze | Ask] = field(default_factory=deque)
    channel: deque[Message | Barrier] = field(default_factory=deque)
    answers: deque[Frozen | Answer] = field(default_factory=deque)
    committed: list[Transaction] = field(default_factory=list)
    visible: set[int] = field(default_factory=set)
    hidden: dict[int, frozenset[tuple[str, Row]]] = field(default_factory=dict)  # not visible yet: what each locks
    frozen: frozenset[int] = frozenset()

    def execute(self, transaction: Transaction) -> None:
        """Logs a transaction; it is not visible yet."""
        ordinal = len(self.committed)
        ops = transaction.parts[self.name]
        self.hidden[ordinal] = frozenset((op.relation, row) for op in ops for row in _locks(self.workload, op, self))
        self.channel.append(Message(self.name, ordinal, transaction))
        self.committed.append(transaction)

    def show(self, ordinal: int) -> None:
        """An update becomes visible."""
        del self.hidden[ordinal]
        self.visible.add(ordinal)

    def can_show(self) -> Iterator[int]:
        """The updates that may become visible: a row that two of them touch was locked by the earlier one."""
        locked: set[tuple[str, Row]] = set()
        for ordinal, rows in self.hidden.items():
            if not rows & locked:
                yield ordinal
            locked |= rows

    def evaluate(self) -> Frozen | Answer:
        asked = self.inbox.popleft()
        if isinstance(asked, Freeze):
            self.frozen = frozenset(self.visible)
            self.channel.append(Barrier(asked.batch))
            done: Frozen | Answer = Frozen(asked.batch)
        else:
            done = Answer(self._rows(asked), self.position(self.frozen))
        self.answers.append(done)
        return done

    def _rows(self, ask: Ask) -> pa.Table:
        """The rows of the frozen state that the question asks for (the asker drops what it did not ask for)."""
        name = (self.name, ask.relation)
        relation = self.workload.catalog[name]
        places = [[c.name for c in relation.columns].index(column) for column in ask.columns]
        wanted = None if ask.keys is None else set(zip(*(c.to_pylist() for c in ask.keys.columns), strict=True))
        key = [ask.columns.index(column) for column in ask.key]
        rows: list[Row] = []
        for row, count in self._state(name).items():
            shown = tuple(row[place] for place in places)
            if wanted is None or tuple(shown[place] for place in key) in wanted:
                rows.append((*shown, count))
        columns = [relation.columns[place] for place in places]
        return _arrow([*columns, Column(COUNT, INTEGER)], rows)

    def _state(self, name: Name) -> Bag:
        bag: Bag = {}
        for row in self.workload.initial.get(name, ()):
            add(bag, {row: 1})
        for ordinal in self.frozen:
            for op in self.committed[ordinal].parts[self.name]:
                if op.relation == name[1]:
                    add(bag, {op.row: op.count})
        return bag


def _locks(workload: Workload, op: Op, source: TaggedSource) -> Iterator[Row]:
    """What a change locks: its row, and its key where there is one."""
    relation: Relation = workload.catalog[(source.name, op.relation)]
    yield op.row
    if relation.key:
        names = [c.name for c in relation.columns]
        yield tuple(op.row[names.index(k)] for k in relation.key)


@dataclass
class TaggedWorld(BaseWorld):
    """A world for the columnar SWEEP. ``sweep`` and ``position`` may be replaced, to see mistakes caught."""

    sweep: Callable[[TinyView, Queue], Sweep] = lambda tiny, queue: Sweep(tiny.view, queue)
    position: Positions = Visible

    def _begin(self) -> None:
        self.sources = {name: TaggedSource(name, self.workload, self.position) for name in self.workload.sources}
        self._kept: dict[int, Message] = {}  # numbered, and not sure to be in every later snapshot
        self._batch = 0
        self._start()

    def _start(self) -> None:
        """A manager without work: it waits for updates."""
        self._steps: Steps | None = None
        self._missing: set[tuple[str, str]] = set()  # snapshots and barriers that the batch still waits for
        self._numbered = range(0)

    def _open(self) -> Iterator[Event]:
        yield from self._uncommitted.commits()
        for name, source in self.sources.items():
            if source.inbox:
                yield Evaluate(name)
            if source.channel:
                yield Deliver(name)
            if source.answers:
                yield Return(name)
            for ordinal in source.can_show():
                yield Show(name, ordinal)

    def take(self, event: Event) -> None:
        if isinstance(event, Show):
            self.time += 1
            self.sources[event.source].show(event.ordinal)
            self._note("show", event.source, event.ordinal)
        elif isinstance(event, Return):
            self.time += 1
            self._returned(event.source)
        else:
            super().take(event)

    def settle(self) -> None:
        while event := next(iter(self.enabled()), None):
            self.take(event)

    # The manager: freeze, drain, sweep, install --------------------------------------------------------------------

    def _execute(self, name: str, transaction: Transaction) -> None:
        self.sources[name].execute(transaction)

    def _evaluate(self, name: str) -> None:
        done = self.sources[name].evaluate()
        if isinstance(done, Answer):
            self.costs.bytes += 8 * done.rows.num_columns * done.rows.num_rows
        self._note("evaluate", name, done)

    def _deliver(self, name: str) -> None:
        message = self.sources[name].channel.popleft()
        if isinstance(message, Message):
            self._receive(message)
        else:
            self._note("barrier", name, message)
            if message.batch == self._batch:
                self._missing.discard((name, "barrier"))
                self._go_on()

    def _accept(self, update: Update) -> None:
        self._kept[update.number] = self._numbers[update.number]
        if self._steps is None and not self._missing:
            self._freeze()

    def _freeze(self) -> None:
        self._batch += 1
        self._numbered = range(min(self._numbers), max(self._numbers) + 1)
        for name, source in self.sources.items():
            source.inbox.append(Freeze(self._batch))
            self._missing |= {(name, "snapshot"), (name, "barrier")}
            # A snapshot is asked for and waited for like any question; it carries the number of its batch.
            self.costs.questions += 1
            self.costs.bytes += 8
        self._note("freeze", None, self._numbered)

    def _returned(self, name: str) -> None:
        done = self.sources[name].answers.popleft()
        self._note("answer", name, done)
        if isinstance(done, Frozen):
            if done.batch == self._batch:
                self._missing.discard((name, "snapshot"))
                self._go_on()
        elif self._steps is not None:
            self._step(done)

    def _go_on(self) -> None:
        """The queue is complete once every snapshot is taken and every barrier came out of its topic."""
        if self._missing or self._steps is not None or not self._numbered:
            return
        sweep = self.sweep(self.tiny, self._queue())
        sweep.on_compensated = lambda source: self._note("compensate", source, self._numbered)
        self._steps = sweep.changes(self._numbered)
        self._changes: dict[int, Bag] = {number: {} for number in self._numbered}
        self._step(None)

    def _step(self, answer: Answer | None) -> None:
        assert self._steps is not None
        while True:
            try:
                step = self._steps.send(answer)
            except StopIteration:
                break
            answer = None
            if isinstance(step, Ask):
                self._note("send", step.source, step)
                self.costs.questions += 1
                self.costs.bytes += 0 if step.keys is None else 8 * len(step.keys)
                self.sources[step.source].inbox.append(step)
                return
            self._collect(step)
        self._installs()

    def _collect(self, piece: pa.Table) -> None:
        names = [output.name for output in self.tiny.view.outputs]
        columns = [piece[name].to_pylist() for name in (*names, COUNT, UPDATE)]
        for *row, count, number in zip(*columns, strict=True):
            add(self._changes[number], {tuple(row): count})

    def _installs(self) -> None:
        for number, change in self._changes.items():
            self._install(Install(frozenset({number}), (Change(change),)))
        self._kept = {
            number: m for number, m in self._kept.items()
            if number in self._numbers or m.ordinal not in self.sources[m.source].frozen
        }  # fmt: skip
        self._steps, self._numbered = None, range(0)
        if self._numbers:
            self._freeze()

    def _queue(self) -> Queue:
        """Every change that an answer may contain or lack, with its update number and position."""
        tables = {}
        for name, relation in self.workload.catalog.items():
            rows = [
                (*op.row, op.count, number, message.ordinal)
                for number, message in self._kept.items()
                if message.source == relation.source
                for op in message.transaction.parts[message.source]
                if op.relation == relation.name
            ]
            extra = [Column(each, INTEGER) for each in (COUNT, UPDATE, POSITION)]
            tables[name] = _arrow([*relation.columns, *extra], rows)
        return Queue(tables)

    def _restart(self, lost: dict[str, list[Message]]) -> None:
        """Updates that a snapshot may still lack are read again too; they keep their numbers."""
        self._kept = {n: m for n, m in self._kept.items() if m.ordinal < self._reflected[m.source]}
        for name, source in self.sources.items():
            source.inbox.clear()
            source.answers.clear()
            source.channel = deque(lost[name])
        self._start()


def _arrow(columns: Iterable[Column], rows: list[Row]) -> pa.Table:
    return pa.table({c.name: pa.array([row[i] for row in rows], c.type.arrow) for i, c in enumerate(columns)})
