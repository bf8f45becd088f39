"""The papers' world: one FIFO channel a source, which carries updates and answers alike.

A source executes transactions and answers questions, each in one step; its messages reach the warehouse in the order
in which they were sent, however slow it is against other sources (strobe-1996, section 3.3; sweep-1997, section 2).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from viewkeeper.algebra.tiny import Bag, Name, Row, TinyView, add, size
from viewkeeper.algebra.view import Hop
from viewkeeper.algorithms.protocol import Algorithm, Answer, Compensation, Op, Query, Update, evaluate
from viewkeeper.algorithms.runner import Asked, Emitted, Runner
from viewkeeper.simulator.base import BaseWorld, Message
from viewkeeper.simulator.history import Deliver, Evaluate, Event, Transaction


@dataclass(frozen=True)
class Reply:
    """An answer on its way to the warehouse."""

    id: int
    query: Query
    answer: Answer


@dataclass
class Source:
    """A simulated source: its relations, the questions it has not answered, its channel to the warehouse."""

    name: str
    tiny: TinyView
    relations: dict[Name, Bag]
    inbox: deque[Asked] = field(default_factory=deque)
    channel: deque[Message | Reply] = field(default_factory=deque)
    committed: int = 0
    _indexes: dict[tuple[int, tuple[str, ...]], dict[Row, Bag]] = field(default_factory=dict)

    def execute(self, transaction: Transaction) -> None:
        ops = transaction.parts[self.name]
        for op in ops:
            add(self.relations[(self.name, op.relation)], {op.row: op.count})
        self._maintain(ops)
        self.channel.append(Message(self.name, self.committed, transaction))
        self.committed += 1

    def evaluate(self) -> Reply:
        asked = self.inbox.popleft()
        reply = Reply(asked.id, asked.query, evaluate(self.tiny, asked.query, self._matching))
        self.channel.append(reply)
        return reply

    def _matching(self, hop: Hop, key: Row) -> Iterable[tuple[Row, int]]:
        index = self._indexes.get((hop.occurrence.index, hop.key))
        if index is None:
            index = self._indexes[(hop.occurrence.index, hop.key)] = {}
            _enter(index, self.tiny, hop, self.relations[(self.name, hop.occurrence.relation)])
        return index.get(key, {}).items()

    def _maintain(self, ops: Iterable[Op]) -> None:
        """Brings the indexes past these changes."""
        for (at, names), index in self._indexes.items():
            occurrence = self.tiny.view.occurrences[at]
            changed: Bag = {}
            for op in ops:
                if op.relation == occurrence.relation:
                    add(changed, {op.row: op.count})
            if changed:
                _enter(index, self.tiny, Hop(occurrence, (), names, False, ()), changed)


def _enter(index: dict[Row, Bag], tiny: TinyView, hop: Hop, rows: Bag) -> None:
    key = tiny.key_of(hop)
    for row, count in tiny.rows(hop.occurrence, rows).items():
        add(index.setdefault(key(row), {}), {row: count})


@dataclass
class World(BaseWorld):
    """Sources with FIFO channels, and a manager that runs an algorithm; ``make`` gives a new one for the view."""

    make: Callable[[TinyView], Algorithm]

    def _begin(self) -> None:
        self.sources = {
            name: Source(name, self.tiny, {n: dict(bag) for n, bag in self.initial.items() if n[0] == name})
            for name in self.workload.sources
        }
        self._start()

    def _start(self) -> None:
        algorithm = self.make(self.tiny)
        algorithm.on_compensation = self._compensated
        self.runner = Runner(algorithm)

    def _open(self) -> Iterator[Event]:
        yield from self._uncommitted.commits()
        for name, source in self.sources.items():
            if source.inbox:
                yield Evaluate(name)
            if source.channel:
                yield Deliver(name)

    def settle(self) -> None:
        while True:
            while event := next(iter(self.enabled()), None):
                self.take(event)
            self._emitted(self.runner.flush())
            if not any(True for _ in self.enabled()):
                return

    def _execute(self, name: str, transaction: Transaction) -> None:
        self.sources[name].execute(transaction)

    def _evaluate(self, name: str) -> None:
        reply = self.sources[name].evaluate()
        self.costs.bytes += size(part for parts in reply.answer for part in parts)
        self._note("evaluate", name, reply)

    def _deliver(self, name: str) -> None:
        message = self.sources[name].channel.popleft()
        if isinstance(message, Message):
            self._receive(message)
        else:
            self._note("answer", name, message)
            self._emitted(self.runner.answer(message.id, message.answer))

    def _accept(self, update: Update) -> None:
        self._emitted(self.runner.receive(update))

    def _emitted(self, emitted: list[Emitted]) -> None:
        for item in emitted:
            if isinstance(item, Asked):
                self._note("send", item.query.source, item)
                self.costs.questions += 1
                self.costs.bytes += size(term.part for term in item.query.terms)
                self.sources[item.query.source].inbox.append(item)
            else:
                self._install(item)

    def _restart(self, lost: dict[str, list[Message]]) -> None:
        for name, source in self.sources.items():
            source.inbox.clear()
            source.channel = deque(lost[name])
        self._start()

    def _compensated(self, compensation: Compensation) -> None:
        self._note("compensate", self.tiny.view.occurrences[compensation.occurrence].source, compensation)


W = TypeVar("W", bound=BaseWorld)


def run(world: W, events: Iterable[Event]) -> W:
    """Lets these events happen (those that are possible), and then everything else."""
    for event in events:
        if world.possible(event):
            world.take(event)
    world.settle()
    return world
