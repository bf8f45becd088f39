"""The stations of the simulated warehouse of many views, up to the merge process: sources, integrator, managers."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from viewkeeper.algebra.tiny import Bag, Name, Row, TinyView, add
from viewkeeper.algebra.view import Hop
from viewkeeper.algorithms.protocol import Action, Answer, Op, Update, evaluate
from viewkeeper.algorithms.registry import Entry, Options
from viewkeeper.algorithms.runner import Asked, Emitted, Runner
from viewkeeper.simulator.base import Message
from viewkeeper.simulator.history import Transaction

Actions = tuple[Action, ...]


@dataclass(frozen=True)
class Addressed:
    """An answer on its way to a view's manager."""

    view: str
    id: int
    answer: Answer


@dataclass
class SharedSource:
    """A source that is asked by many managers. Its channel carries updates and answers in the order sent."""

    name: str
    relations: dict[Name, Bag]
    views: Mapping[str, TinyView]
    inbox: deque[tuple[str, Asked]] = field(default_factory=deque)
    channel: deque[Message | Addressed] = field(default_factory=deque)
    committed: int = 0

    @classmethod
    def of(cls, name: str, state: Mapping[Name, Bag], views: Mapping[str, TinyView]) -> SharedSource:
        return cls(name, {at: dict(bag) for at, bag in state.items() if at[0] == name}, views)

    def execute(self, transaction: Transaction) -> None:
        for op in transaction.parts[self.name]:
            add(self.relations[(self.name, op.relation)], {op.row: op.count})
        self.channel.append(Message(self.name, self.committed, transaction))
        self.committed += 1

    def evaluate(self) -> None:
        view, asked = self.inbox.popleft()
        tiny = self.views[view]

        def matching(hop: Hop, key: Row) -> Iterable[tuple[Row, int]]:
            rows = tiny.rows(hop.occurrence, self.relations[(self.name, hop.occurrence.relation)])
            key_of = tiny.key_of(hop)
            return [(row, count) for row, count in rows.items() if key_of(row) == key]

        self.channel.append(Addressed(view, asked.id, evaluate(tiny, asked.query, matching)))


@dataclass(frozen=True)
class NumberedRow:
    """U_i: a whole transaction, with what it did at each source, and REL_i."""

    number: int
    transaction: Transaction
    parts: Mapping[str, tuple[Op, ...]]
    views: tuple[str, ...]


@dataclass
class Integrator:
    """Numbers transactions in the order in which they are whole, and knows by relation whom they concern.

    A part of a global transaction waits for the others; whatever its source sends after it waits behind it, answers
    as well, since they contain it.
    """

    sources: Collection[str]
    uses: Mapping[str, Collection[Name]]  # the relations of each view
    _arrived: dict[str, deque[Message | Addressed]] = field(init=False)
    _numbered: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._arrived = {name: deque() for name in self.sources}

    def receive(self, source: str, message: Message | Addressed) -> Iterator[NumberedRow | Addressed]:
        """What can be sent on when this has arrived."""
        self._arrived[source].append(message)
        while (ready := self._ready()) is not None:
            heads = [self._arrived[name].popleft() for name in ready]
            yield self._sent_on(heads)

    def waits_for(self, message: Message) -> Iterable[str]:
        """The sources whose parts make the transaction whole."""
        return message.transaction.parts

    def _ready(self) -> list[str] | None:
        """The sources whose oldest messages make up the next thing to send on."""
        for name, arrived in self._arrived.items():
            if not arrived:
                continue
            head = arrived[0]
            if isinstance(head, Addressed):
                return [name]
            needed = list(self.waits_for(head))
            if all(self._has_part(other, head.transaction) for other in needed):
                return needed
        return None

    def _has_part(self, source: str, transaction: Transaction) -> bool:
        head = next(iter(self._arrived[source]), None)
        return isinstance(head, Message) and head.transaction is transaction

    def _sent_on(self, heads: list[Message | Addressed]) -> NumberedRow | Addressed:
        first = heads[0]
        if isinstance(first, Addressed):
            return first
        parts = {each.source: first.transaction.parts[each.source] for each in heads if isinstance(each, Message)}
        changed = {(source, op.relation) for source, ops in parts.items() for op in ops}
        self._numbered += 1
        relevant = tuple(view for view, used in self.uses.items() if not changed.isdisjoint(used))
        return NumberedRow(self._numbered, first.transaction, parts, relevant)


@dataclass
class Manager:
    """A view manager around an algorithm of one view, which knows neither rows of many parts nor others' updates.

    The algorithm gets every part that concerns the view as an update, in a numbering of the view's own without gaps.
    What it installs is sent on as an action list as soon as the view then reflects whole rows.
    """

    tiny: TinyView
    runner: Runner
    _ends: dict[int, int] = field(default_factory=dict)  # the last own number of a row → the row
    _received: int = 0  # own numbers
    _reflected: set[int] = field(default_factory=set)  # own numbers past the last action list
    _sent: int = 0  # the own number that the last action list ended at
    _actions: list[Action] = field(default_factory=list)

    @classmethod
    def of(cls, entry: Entry, tiny: TinyView, options: Options) -> Manager:
        assert entry.make is not None, f"{entry.name} does not handle one update at a time"
        return cls(tiny, Runner(entry.make(tiny, **options)))

    @property
    def may_flush(self) -> bool:
        """Whether the view lags and no question is open: then its algorithm waits for more updates."""
        return self.runner.idle and self._sent < self._received

    def receive(self, message: NumberedRow | Addressed) -> Iterator[Asked | tuple[int, Actions]]:
        if isinstance(message, Addressed):
            yield from self._emitted(self.runner.answer(message.id, message.answer))
            return
        updates = list(self._updates(message))
        self._ends[updates[-1].number] = message.number
        for update in updates:
            yield from self._emitted(self.runner.receive(update))

    def flush(self) -> Iterator[Asked | tuple[int, Actions]]:
        return self._emitted(self.runner.flush())

    def _updates(self, row: NumberedRow) -> Iterator[Update]:
        used = {(o.source, o.relation) for o in self.tiny.view.occurrences}
        for source, ops in row.parts.items():
            mine = tuple(op for op in ops if (source, op.relation) in used)
            if mine:
                self._received += 1
                yield Update(self._received, source, row.transaction.id, mine)

    def _emitted(self, emitted: Iterable[Emitted]) -> Iterator[Asked | tuple[int, Actions]]:
        for item in emitted:
            if isinstance(item, Asked):
                yield item
                continue
            self._reflected |= item.updates
            self._actions += item.actions
            last = self._sent + len(self._reflected)
            if max(self._reflected) == last and last in self._ends:
                actions, self._actions = tuple(self._actions), []
                self._reflected.clear()
                self._sent = last
                yield self._ends.pop(last), actions
