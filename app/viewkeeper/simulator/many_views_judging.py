"""What a warehouse of many views is held against: the states that its sources may have gone through.

Updates of different relations do not conflict, so any order of them that keeps each relation's own is an equivalent
schedule (multiple-view-consistency-1997, section 2.1), also where the relations are in one source: a merge process
knows no more than the views that an update concerns. So the lattice of source states has one dimension for each
relation that a view uses, and a transaction over several relations is one step in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from viewkeeper.algebra.tiny import Bag, Name, add, recompute
from viewkeeper.consistency.history import SourceHistory, Vector
from viewkeeper.consistency.levels import Judgement
from viewkeeper.consistency.mutual import judge_together
from viewkeeper.simulator.history import Transaction
from viewkeeper.simulator.laboratory import FrozenBag, frozen
from viewkeeper.simulator.many_views import Group, ManyViews

JUDGED = 5_000
"""Source states that are looked at for a level before it stays undecided."""


@dataclass
class Truth:
    """The views of a group over any state of its relations, by recomputation; worlds of one group share it."""

    group: Group
    _known: dict[tuple[str, Vector], FrozenBag] = field(default_factory=dict)

    def __post_init__(self) -> None:
        used = frozenset().union(*self.group.uses.values())
        self.relations: tuple[Name, ...] = tuple(sorted(used))
        self._places = {name: place for place, name in enumerate(self.relations)}
        self._changes: dict[Name, list[Bag]] = {name: [] for name in self.relations}
        together = []
        for transaction in self.group.workload.transactions:
            touched = self.touched(transaction)
            if len(touched) > 1:
                together.append(frozenset((self._places[name], len(self._changes[name])) for name in touched))
            for name in touched:
                self._changes[name].append(_change(transaction, name))
        self.together = tuple(together)
        self.lengths = tuple(len(self._changes[name]) for name in self.relations)

    def touched(self, transaction: Transaction) -> tuple[Name, ...]:
        """The relations that the transaction changes and some view uses."""
        changed = {(source, op.relation) for source, ops in transaction.parts.items() for op in ops}
        return tuple(name for name in self.relations if name in changed)

    def history(self, order: Iterable[Transaction]) -> SourceHistory:
        """The lattice; ``order`` is the schedule that is tried first."""
        places = tuple(self._places[name] for transaction in order for name in self.touched(transaction))
        names = tuple(".".join(name) for name in self.relations)
        known = tuple(places.count(place) for place in range(len(names))) == self.lengths
        return SourceHistory(names, self.lengths, self, places if known else (), self.together)

    def after(self, transactions: Iterable[Transaction]) -> tuple[FrozenBag, ...]:
        """The views after exactly these transactions, which are the first ones of every relation."""
        vector = [0] * len(self.relations)
        for transaction in transactions:
            for name in self.touched(transaction):
                vector[self._places[name]] += 1
        return self(tuple(vector))

    def __call__(self, vector: Vector) -> tuple[FrozenBag, ...]:
        return tuple(self._view(name, vector) for name in self.group.names)

    def _view(self, view: str, vector: Vector) -> FrozenBag:
        used = self.group.uses[view]
        counts = tuple(n if name in used else 0 for name, n in zip(self.relations, vector, strict=True))
        known = self._known.get((view, counts))
        if known is None:
            state = {name: self._relation(name, n) for name, n in zip(self.relations, counts, strict=True)}
            known = self._known[(view, counts)] = frozen(recompute(self.group.tiny[view], state))
        return known

    def _relation(self, name: Name, count: int) -> Bag:
        bag: Bag = {}
        for row in self.group.workload.initial.get(name, ()):
            add(bag, {row: 1})
        for change in self._changes[name][:count]:
            add(bag, change)
        return bag


def _change(transaction: Transaction, name: Name) -> Bag:
    bag: Bag = {}
    for op in transaction.parts[name[0]]:
        if op.relation == name[1]:
            add(bag, {op.row: op.count})
    return bag


def judged_together(world: ManyViews, truth: Truth) -> Judgement:
    """The levels that all views of a finished world reached together."""
    order = (world.rows[number].transaction for number in world.reflected)
    states = [tuple(map(frozen, state)) for state in world.states]
    return judge_together(world.group.names, states, truth.history(order), limit=JUDGED)


def wrong_cut(world: ManyViews, truth: Truth) -> int | None:
    """The first cut in which some view is not what it is after exactly the updates up to it, or None."""
    for prefix, state in world.cuts():
        transactions = [world.rows[number].transaction for number in range(1, prefix + 1)]
        if tuple(map(frozen, state)) != truth.after(transactions):
            return prefix
    return None
