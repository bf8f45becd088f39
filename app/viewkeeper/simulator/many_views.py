"""A simulated warehouse of many views (multiple-view-consistency-1997, Figure 1), every station with its own pace.

    sources → integrator → a view manager for each view → merge process → warehouse
                    └──────────── REL ──────────────────────┘

All channels are FIFO and as slow as the scheduler likes: from each source to the integrator (updates and answers
alike), from the integrator to each manager, from the integrator and each manager to the merge process. Transactions
that the merge process submits commit in any order that ``many_views_transactions`` allows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from viewkeeper.algebra.tiny import Bag, Name, TinyView, add, recompute
from viewkeeper.algorithms.protocol import Action, apply
from viewkeeper.algorithms.registry import ALGORITHMS, Entry, Scenario
from viewkeeper.algorithms.runner import Asked
from viewkeeper.consistency.levels import Level
from viewkeeper.merge.painting import Applied, painter_for
from viewkeeper.merge.view_update_table import Told
from viewkeeper.simulator.history import Commit, Deliver, Evaluate, Workload
from viewkeeper.simulator.many_views_stations import Actions, Addressed, Integrator, Manager, NumberedRow, SharedSource
from viewkeeper.simulator.many_views_transactions import Sequencer, Submitted
from viewkeeper.simulator.uncommitted import Uncommitted

INTEGRATOR = "(integrator)"
"""The sender of RELs."""


@dataclass(frozen=True)
class ManagedView:
    """A view, and the algorithm that its manager runs."""

    name: str
    sql: str
    algorithm: str
    options: Mapping[str, int | bool] = field(default_factory=dict)

    @property
    def entry(self) -> Entry:
        return ALGORITHMS[self.algorithm]

    @property
    def promise(self) -> Level:
        """What its manager promises where whole transactions are its updates."""
        return self.entry.promise[Scenario.LOCAL]


@dataclass(frozen=True)
class Group:
    """What happens at the sources, and the views that are kept of it; the workload's own view plays no part."""

    workload: Workload
    views: tuple[ManagedView, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(view.name for view in self.views)

    @property
    def level(self) -> Level:
        """The weakest manager's promise, which decides how action lists are merged (section 6.3)."""
        return min(view.promise for view in self.views)

    @cached_property
    def tiny(self) -> dict[str, TinyView]:
        """The parsed views by name."""
        return {view.name: replace(self.workload, sql=view.sql).tiny for view in self.views}

    @property
    def initial(self) -> dict[Name, Bag]:
        """The relations before all transactions."""
        return self.workload.state((0,) * len(self.workload.sources))

    def contents(self) -> dict[str, Bag]:
        """The views before all transactions, by name."""
        return {name: recompute(tiny, self.initial) for name, tiny in self.tiny.items()}

    @cached_property
    def uses(self) -> dict[str, frozenset[Name]]:
        """The relations of each view."""
        return {
            name: frozenset((o.source, o.relation) for o in tiny.view.occurrences) for name, tiny in self.tiny.items()
        }


@dataclass(frozen=True)
class Receive:
    """The next message of the integrator reaches a view's manager."""

    view: str


@dataclass(frozen=True)
class Hear:
    """The next message of a sender (a view's manager, or the integrator) reaches the merge process."""

    sender: str


@dataclass(frozen=True)
class Finish:
    """Of the warehouse transactions under way, the one at this place commits."""

    place: int


@dataclass(frozen=True)
class Flush:
    """A manager brings its view up to date, though its algorithm would wait for more updates."""

    view: str


ManyEvent = Commit | Evaluate | Deliver | Receive | Hear | Finish | Flush


class Merging(Protocol):
    """What the world wants of a merge process."""

    @property
    def applied_prefix(self) -> int: ...
    def relevant(self, number: int, views: Collection[str]) -> list[Applied[Actions]]: ...
    def actions(self, view: str, number: int, actions: Actions) -> list[Applied[Actions]]: ...


def _painter(group: Group) -> Merging:
    return painter_for(group.level, group.names)


@dataclass
class ManyViews:
    """Everything there is; ``take`` makes one event happen. With ``batch``, that many transactions commit as one."""

    group: Group
    painter: Callable[[Group], Merging] = field(default=_painter, kw_only=True)
    sequencer: Callable[[], Sequencer[Actions]] = field(default=Sequencer, kw_only=True)
    integrator: Callable[[Group], Integrator] = field(
        default=lambda group: Integrator(group.workload.sources, group.uses), kw_only=True
    )
    batch: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        workload = self.group.workload
        self.sources = {name: SharedSource.of(name, self.group.initial, self.group.tiny) for name in workload.sources}
        self.numbering = self.integrator(self.group)
        self.managers = {v.name: Manager.of(v.entry, self.group.tiny[v.name], v.options) for v in self.group.views}
        self.merging = self.painter(self.group)
        self.sequencing = self.sequencer()
        self.to_managers: dict[str, deque[NumberedRow | Addressed]] = {name: deque() for name in self.group.names}
        self.to_merge: dict[str, deque[NumberedRow | Told[Actions]]] = {
            name: deque() for name in (INTEGRATOR, *self.group.names)
        }
        self.contents = self.group.contents()
        self.states = [self._state()]
        self.rows: dict[int, NumberedRow] = {}
        self.reflected: list[int] = []  # the rows in the order of commit
        self.told: list[Told[Actions]] = []  # everything that the managers sent
        self.prefixes = [0]  # how far the merge process had come after each message
        self._uncommitted = Uncommitted(workload)

    def enabled(self) -> Iterator[ManyEvent]:
        """The events that are possible now, in the order in which ``settle`` takes them."""
        yield from self._uncommitted.commits()
        for name, source in self.sources.items():
            if source.inbox:
                yield Evaluate(name)
            if source.channel:
                yield Deliver(name)
        yield from (Receive(view) for view, channel in self.to_managers.items() if channel)
        yield from (Hear(sender) for sender, channel in self.to_merge.items() if channel)
        yield from (Finish(place) for place in range(len(self.sequencing.under_way)))

    def flushes(self) -> Iterator[ManyEvent]:
        """The managers that could bring their views up to date at this moment."""
        return (Flush(name) for name, manager in self.managers.items() if manager.may_flush)

    def take(self, event: ManyEvent) -> None:
        """Makes a possible event happen."""
        match event:
            case Commit(index):
                self._commit(index)
            case Evaluate(source):
                self.sources[source].evaluate()
            case Deliver(source):
                self._integrate(source)
            case Receive(view):
                self._emitted(view, self.managers[view].receive(self.to_managers[view].popleft()))
            case Flush(view):
                self._emitted(view, self.managers[view].flush())
            case Hear(sender):
                self._merge(self.to_merge[sender].popleft())
            case Finish(place):
                self._finish(self.sequencing.under_way[place])

    def settle(self) -> None:
        """Lets everything happen that is still to happen; then every view reflects every update."""
        while True:
            while (event := next(self.enabled(), None)) is not None:
                self.take(event)
            flush = next(self.flushes(), None)
            if flush is None:
                return
            self.take(flush)

    def hear_what_was_told_in(self, other: ManyViews) -> None:
        """Makes this new world one in which sources and managers did what they did in another, where none heard it."""
        self._uncommitted.clear()
        self.rows, self.told = other.rows, other.told
        self.to_merge = {sender: deque(channel) for sender, channel in other.to_merge.items()}

    def _commit(self, index: int) -> None:
        transaction = self._uncommitted.take(index)
        for name in transaction.parts:
            self.sources[name].execute(transaction)

    def _integrate(self, source: str) -> None:
        """Section 3.2, steps 1–4; an answer goes to its manager by the same channel as the updates before it."""
        for item in self.numbering.receive(source, self.sources[source].channel.popleft()):
            if not isinstance(item, NumberedRow):
                self.to_managers[item.view].append(item)
                continue
            self.rows[item.number] = item
            self.to_merge[INTEGRATOR].append(item)
            for view in item.views:
                self.to_managers[view].append(item)

    def _emitted(self, view: str, emitted: Iterable[Asked | tuple[int, Actions]]) -> None:
        for item in emitted:
            if isinstance(item, Asked):
                self.sources[item.query.source].inbox.append((view, item))
            else:
                told = Told(view, *item)
                self.told.append(told)
                self.to_merge[view].append(told)

    def _merge(self, message: NumberedRow | Told[Actions]) -> None:
        if isinstance(message, Told):
            submitted = self.merging.actions(*message)
        else:
            submitted = self.merging.relevant(message.number, message.views)
        for transaction in submitted:
            self.sequencing.submit(transaction)
        self.prefixes.append(self.merging.applied_prefix)
        self._start()

    def _start(self) -> None:
        if self.batch is None:
            self.sequencing.start()
        elif len(self.sequencing) >= self.batch or not self.sequencing.under_way:
            self.sequencing.start_batch(self.batch)

    def _finish(self, submitted: Submitted[Actions]) -> None:
        for told in submitted.transaction.actions:
            _install(self.contents[told.view], told.actions)
        self.reflected += submitted.transaction.rows
        self.states.append(self._state())
        self.sequencing.committed(submitted)
        self._start()

    def _state(self) -> tuple[Bag, ...]:
        return tuple(dict(self.contents[name]) for name in self.group.names)

    def cuts(self) -> Iterator[tuple[int, tuple[Bag, ...]]]:
        """The cuts that the merge process could publish: how far, and the views made of the action lists up to it."""
        contents = self.group.contents()
        done = 0
        for prefix in sorted(set(self.prefixes)):
            for told in self.told:
                if done < told.number <= prefix:
                    _install(contents[told.view], told.actions)
            done = prefix
            yield prefix, tuple(dict(contents[name]) for name in self.group.names)


def _install(view: Bag, actions: tuple[Action, ...]) -> None:
    add(view, apply(view, actions))


def replayed(world: ManyViews, events: Iterable[ManyEvent]) -> ManyViews:
    """Lets these events happen, those that are possible, and then everything else."""
    for event in events:
        if event in world.enabled() or event in world.flushes():
            world.take(event)
    world.settle()
    return world
