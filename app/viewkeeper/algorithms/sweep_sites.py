"""SWEEP over sites (revisit-2001): several relations in a source, several occurrences of a relation, fewest visits.

A source is asked for all its relations in one visit and tells what it found after each. Promises complete consistency;
assumes only FIFO channels.

The paper shows that one visit is not always enough (Theorem 1), and gives rules for repeated relations that are wrong
as printed: Lemma 1 puts ΔR in the place of every copy of R, Theorem 2 takes a second copy's rows from the partial
result. R = {(1,2)}, ΔR = +(2,3), V = R(a,b) ⋈ R(b,c) must gain (1,2,3), and gains nothing by Lemma 1;
S(x,y) ⋈ R(y,z) ⋈ R(z,w) with R = {(1,2),(2,3)}, ΔS = +(0,1) needs (2,3), which the partial result does not hold.
So copies are ordinary occurrences here (see ``sweep``), and a visit counts as far as it is certain:

    after the first hop    the answer, compensated locally as in SWEEP
    after each later hop   the same, if what the source had before that hop is what we wanted it to have;
                           if that was contaminated, the source is visited again from there
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from viewkeeper.algebra.tiny import Bag, Part
from viewkeeper.algebra.view import Hop, View
from viewkeeper.algorithms.protocol import Process, Query, Term, Update
from viewkeeper.algorithms.sweep_sequential import SequentialSweep


@dataclass
class SiteSweep(SequentialSweep):
    """SWEEP that visits sites instead of relations."""

    def sweep_from(self, update: Update, start: int, rows: Bag) -> Process:
        part = self.tiny.start(start, rows)
        return (yield from self.sweep_along(update, part, by_site(self.tiny.view, start)))

    def sweep_along(self, update: Update, part: Part, hops: tuple[Hop, ...]) -> Process:
        while hops and part:
            visit = _at_once(hops)
            (answers,) = yield Query(hops[0].occurrence.source, (Term(part, visit, each=True),))
            part, done = self._certain(update, part, visit, answers)
            hops = hops[done:]
        return part

    def _certain(
        self, update: Update, part: Part, visit: tuple[Hop, ...], answers: tuple[Part, ...]
    ) -> tuple[Part, int]:
        """As far as a visit's answers are certain: the part after that many hops."""
        for done, (hop, answer) in enumerate(zip(visit, answers, strict=True), start=1):
            part = self.compensated(update, part, hop, answer)
            if part != answer:
                return part, done
        return part, len(visit)


def _at_once(hops: tuple[Hop, ...]) -> tuple[Hop, ...]:
    """The hops at the beginning that stay in one site."""
    site = hops[0].occurrence.source
    return tuple(takewhile(lambda hop: hop.occurrence.source == site, hops))


def by_site(view: View, start: int) -> tuple[Hop, ...]:
    """The hops from ``start``, ordered so that a site once reached is finished first."""
    order = [start]
    everything = frozenset(range(len(view.occurrences)))
    while len(order) < len(everything):
        visited = frozenset(order)
        reachable = [i for i in sorted(everything - visited) if _joined(view, visited, i)]
        here = view.occurrences[order[-1]].source
        order.append(
            next((i for i in reachable if view.occurrences[i].source == here and len(order) > 1), reachable[0])
        )
    return view.hops_in(order)


def _joined(view: View, visited: frozenset[int], index: int) -> bool:
    return any({e.left, e.right} - visited == {index} for e in view.edges if {e.left, e.right} & visited)
