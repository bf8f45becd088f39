"""What every simulated world has: sources that commit, an integrator that numbers, a warehouse that holds one view.

How messages travel, and what keeps the view, is the business of the worlds made from it: ``world`` (one FIFO channel a
source) and ``tagged`` (separate channels, answers that state their position).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from viewkeeper.algebra.tiny import Bag, add, recompute
from viewkeeper.algorithms.protocol import Install, Update, apply
from viewkeeper.consistency.history import SourceHistory, Vector
from viewkeeper.simulator.history import (
    Commit,
    Crash,
    Delay,
    Deliver,
    Duplicate,
    Evaluate,
    Event,
    Return,
    Transaction,
    Workload,
)
from viewkeeper.simulator.uncommitted import Uncommitted


@dataclass(frozen=True)
class Message:
    """An update on its way to the warehouse: the ``ordinal``-th of its source (from 0)."""

    source: str
    ordinal: int
    transaction: Transaction


@dataclass(frozen=True)
class Happened:
    """One line of what happened: when, where, what, and the thing itself."""

    time: float
    kind: str  # commit, send, evaluate, update, answer, compensate, install, duplicate, crash, …
    source: str | None
    what: Any


@dataclass
class Costs:
    """What a run cost: questions asked, and bytes carried by questions and answers."""

    questions: int = 0
    bytes: int = 0


@dataclass
class BaseWorld(ABC):
    """Everything there is; ``take`` makes one event happen."""

    workload: Workload
    time: float = field(default=0.0, kw_only=True)
    log: list[Happened] = field(default_factory=list, kw_only=True)
    costs: Costs = field(default_factory=Costs, kw_only=True)

    def __post_init__(self) -> None:
        self.tiny = self.workload.tiny
        self.initial = self.workload.state((0,) * len(self.workload.sources))
        self.view = recompute(self.tiny, self.initial)
        self.states: list[Bag] = [dict(self.view)]
        names = self.workload.sources
        self._uncommitted = Uncommitted(self.workload)
        self.order: list[tuple[str, int]] = []  # updates (source, ordinal) in delivery order
        self.installed: list[tuple[float, Install]] = []
        self._delivered: dict[str, int] = dict.fromkeys(names, 0)  # updates received by this incarnation
        self._reflected: dict[str, int] = dict.fromkeys(names, 0)  # updates the view reflects
        self._numbers: dict[int, Message] = {}  # received, not reflected
        self._next = 1
        self._delayed: dict[str, float] = {}  # source → until when
        self._begin()

    @abstractmethod
    def _begin(self) -> None:
        """Makes the sources and the manager."""

    @abstractmethod
    def _execute(self, name: str, transaction: Transaction) -> None:
        """A source executes its part of a transaction and sends it."""

    @abstractmethod
    def _evaluate(self, name: str) -> None:
        """A source does the oldest thing it was asked."""

    @abstractmethod
    def _deliver(self, name: str) -> None:
        """The next message of a source's topic reaches the warehouse."""

    @abstractmethod
    def _accept(self, update: Update) -> None:
        """The manager hears of an update."""

    @abstractmethod
    def _restart(self, lost: dict[str, list[Message]]) -> None:
        """A new manager; the topics are read again from these messages on, and nothing else is under way."""

    @abstractmethod
    def _open(self) -> Iterator[Event]:
        """The events that are possible now if no source is delayed, faults aside."""

    @abstractmethod
    def settle(self) -> None:
        """Lets everything that is still to happen happen, in a fixed order; then the view reflects every update."""

    def enabled(self) -> Iterator[Event]:
        """The events that are possible now, faults aside."""
        self._delayed = {name: until for name, until in self._delayed.items() if self.time < until}
        if not self._delayed:
            return self._open()
        events = list(self._open())
        return iter([e for e in events if not self._held(e)] or events)

    def _held(self, event: Event) -> bool:
        return isinstance(event, Deliver | Return) and event.source in self._delayed

    def possible(self, event: Event) -> bool:
        if isinstance(event, Crash):
            return True
        if isinstance(event, Delay):
            return event.source in self.workload.sources
        if isinstance(event, Duplicate):
            return self._delivered.get(event.source, 0) > 0
        return event in self.enabled()

    def take(self, event: Event) -> None:
        """Makes a possible event happen."""
        self.time += 1
        if isinstance(event, Commit):
            self._commit(event.index)
        elif isinstance(event, Evaluate):
            self._evaluate(event.source)
        elif isinstance(event, Deliver):
            self._deliver(event.source)
        elif isinstance(event, Duplicate):
            self._duplicate(event.source)
        elif isinstance(event, Delay):
            self._delayed[event.source] = self.time + event.events
            self._note("delay", event.source, event.events)
        else:
            self._crash()

    def judged_by(self) -> SourceHistory:
        """The source states that the checkers hold the view's states against."""
        names = self.workload.sources
        lengths = tuple(sum(1 for _ in self.workload.at(name)) for name in names)
        places = {name: place for place, name in enumerate(names)}
        together = []
        ordinals = dict.fromkeys(names, 0)
        for transaction in self.workload.transactions:
            if len(transaction.parts) > 1:
                together.append(frozenset((places[name], ordinals[name]) for name in transaction.parts))
            for name in transaction.parts:
                ordinals[name] += 1
        order = tuple(places[name] for name, _ in self.order)
        return SourceHistory(names, lengths, self._view_at, order, tuple(together))

    def _view_at(self, vector: Vector) -> Bag:
        return recompute(self.tiny, self.workload.state(vector))

    def _commit(self, index: int) -> None:
        transaction = self._uncommitted.take(index)
        for name in transaction.parts:
            self._execute(name, transaction)
            self._note("commit", name, transaction)

    def _receive(self, message: Message) -> None:
        """The integrator: a repetition is dropped, everything else gets the next number."""
        if message.ordinal < self._delivered[message.source]:
            self._note("duplicate", message.source, message)
            return
        self._delivered[message.source] = message.ordinal + 1
        self.order.append((message.source, message.ordinal))
        transaction = message.transaction
        global_parts = frozenset(transaction.parts) if len(transaction.parts) > 1 else frozenset[str]()
        update = Update(self._next, message.source, transaction.id, transaction.parts[message.source], global_parts)
        self._next += 1
        self._numbers[update.number] = message
        self._note("update", message.source, update)
        self._accept(update)

    def _duplicate(self, name: str) -> None:
        ordinal = self._delivered[name] - 1
        transaction = list(self.workload.at(name))[ordinal][0]
        self._receive(Message(name, ordinal, transaction))

    def _install(self, install: Install) -> None:
        delta = apply(self.view, install.actions)
        add(self.view, delta)
        self.states.append(dict(self.view))
        self.installed.append((self.time, install))
        for number in sorted(install.updates):
            message = self._numbers.pop(number)
            assert message.ordinal == self._reflected[message.source], "an update of a source was passed over"
            self._reflected[message.source] += 1
        self._note("install", None, (install, dict(self.view)))

    def _crash(self) -> None:
        """The manager forgets; its topics are read again from the first update that the view does not reflect."""
        self._note("crash", None, None)
        names = self.workload.sources
        committed = {name: sum(1 for _ in self.workload.at(name)) - self._uncommitted.at(name) for name in names}
        lost = {
            name: [
                Message(name, ordinal, transaction)
                for ordinal, (transaction, _) in enumerate(self.workload.at(name))
                if self._reflected[name] <= ordinal < committed[name]
            ]
            for name in names
        }
        self._delivered = dict(self._reflected)
        self.order = [(name, ordinal) for name, ordinal in self.order if ordinal < self._reflected[name]]
        self._numbers.clear()
        self._next = 1 + max((max(install.updates, default=0) for _, install in self.installed), default=0)
        self._restart(lost)

    def _note(self, kind: str, source: str | None, what: Any) -> None:
        self.log.append(Happened(self.time, kind, source, what))
