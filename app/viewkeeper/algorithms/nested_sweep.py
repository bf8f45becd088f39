"""Nested SWEEP (sweep-1997, Figure 6): updates that get in the way of a sweep are taken into it.

Promises strong consistency. The rest of a sweep is shared by all updates it took in, so that concurrent updates cost
fewer questions than one sweep each. Updates that keep interfering with each other would nest for ever; as section 6.2
suggests, ``bound`` forces an end: past so many updates a sweep compensates for new ones instead of taking them in.

The figure is written for a chain of relations. Said for any set A of visited occurrences, with T the updates that a
call starts from and S those taken in by now, the invariant is

    part  =  V_A(S) − V_A(T)

A hop to j that takes in new updates, with S' those taken in before them, keeps it for B = A ∪ j:

    V_B(S) − V_B(T)  =  part ⋈ R_j(T)  +  (V_B(S) − V_B(S'))

The first term is the compensated answer, the second a nested call that starts at j and stays within B.

An update that changes several occurrences is never nested (the invariant's hop would have to change A as well): it
waits for a sweep of its own, which takes in nothing until all its terms are done.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from viewkeeper.algebra.tiny import Bag, add, plus
from viewkeeper.algebra.view import Hop
from viewkeeper.algorithms.protocol import Change, Install, Process, Query, Term, Update
from viewkeeper.algorithms.sweep_sequential import SequentialSweep

BOUND = 16


@dataclass
class NestedSweep(SequentialSweep):
    """``taken`` are the updates that the current sweep has taken in."""

    bound: int = BOUND
    taken: set[int] = field(default_factory=set, init=False)

    def receive(self, update: Update) -> Process:
        self.received.append(update)
        if self.active:
            return
        self.active = 1
        while self.received:
            yield from self._next()
        self.active = 0

    def _next(self) -> Process:
        """UpdateView: one sweep, and the change of everything it took in."""
        update = self.received.first
        self.taken = {update.number}
        touched = self._touched(update)
        if len(touched) == 1:
            (at,) = touched
            rows = update.change(self.tiny, self.tiny.view.occurrences[at])
            everything = frozenset(range(len(self.tiny.view.occurrences)))
            part = yield from self.nested(update, at, rows, frozenset(), everything)
            change = self.tiny.output(part)
        else:
            change = yield from self.view_change(update)
        yield Install(frozenset(self.taken), (Change(change),))
        for number in self.taken:
            self.received.remove(number)

    def nested(self, update: Update, start: int, rows: Bag, base: frozenset[int], scope: frozenset[int]) -> Process:
        """ViewChange: V_scope(taken in at the end) − V_scope(base); ``rows`` was taken in right after the base."""
        part = self.tiny.start(start, rows)
        visited = {start}
        for hop in self.tiny.view.hops(start, scope):
            at = hop.occurrence.index
            visited.add(at)
            if part:
                ((answer,),) = yield Query(hop.occurrence.source, (Term(part, (hop,)),))
                part = self.corrected(update, part, hop, answer, lambda number: number not in base)
            new = self._to_take(hop)
            if new:
                before = frozenset(self.taken)
                self.taken |= {other.number for other in new}
                inner = yield from self.nested(new[-1], at, self._change(new, hop), before, frozenset(visited))
                part = plus(part, inner)
        return part

    def _to_take(self, hop: Hop) -> list[Update]:
        """The next updates of the hop's source that change this occurrence alone, or nothing of the view."""
        new: list[Update] = []
        for other in self.received:
            if hop.occurrence.source not in other.sources or other.number in self.taken:
                continue
            # One of several sources would come before what those others sent earlier.
            alone = len(other.sources) == 1 and self._touched(other) <= {hop.occurrence.index}
            if not alone or len(self.taken) + len(new) >= self.bound:
                break
            new.append(other)
        return new

    def _change(self, updates: Iterable[Update], hop: Hop) -> Bag:
        total: Bag = {}
        for update in updates:
            add(total, update.change(self.tiny, hop.occurrence))
        return total

    def _touched(self, update: Update) -> set[int]:
        return {o.index for o in self.tiny.view.occurrences if update.change(self.tiny, o)}
