"""Queries with tuples in the place of relations, and how sources evaluate them (strobe-1996, section 5.1).

The papers write V⟨U⟩ for the view with the tuple U in the place of its relation, Q⟨U⟩ for a query that gets one more.
Such a query is a part: occurrences that hold rows are substituted, the others are open, and a source is still to fill
them. A sum (or union) of queries is a list of parts.

Assumes nothing about what the sources do meanwhile: what is wrong in an answer is the asking algorithm's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from viewkeeper.algebra.tiny import Bag, Part, Row, TinyView, add
from viewkeeper.algebra.view import Hop
from viewkeeper.algorithms.protocol import Process, Query, Term, Update

Filled = frozenset[int]
"""The occurrences that are substituted."""


def filled(part: Part) -> Filled:
    """The occurrences that a part (not empty) holds rows of; they are the same in all its combinations."""
    return frozenset(index for index, row in enumerate(next(iter(part))) if row is not None)


def merged(parts: Iterable[Part]) -> list[Part]:
    """The same sum with one part per set of substituted occurrences; empty ones go."""
    sums: dict[Filled, Part] = {}
    for part in parts:
        if part:
            add(sums.setdefault(filled(part), {}), part)
    return [part for part in sums.values() if part]


@dataclass(frozen=True)
class Expressions:
    """The queries over one view; remembers how its occurrences join."""

    tiny: TinyView
    _hops: dict[tuple[Filled, int], Hop] = field(default_factory=dict)

    def open(self, part: Part) -> Filled:
        """The occurrences of a part that a source is still to fill."""
        return frozenset(range(len(self.tiny.view.occurrences))) - filled(part)

    def changes(self, update: Update) -> dict[int, Bag]:
        """What an update did to each occurrence that it changed, in sum: a row that came and went is not in it.

        An occurrence is the relation with the view's columns and its own selection, so a row that enters the
        selection is inserted there, and a change of other columns is none.
        """
        changes = {o.index: update.change(self.tiny, o) for o in self.tiny.view.occurrences}
        return {index: rows for index, rows in changes.items() if rows}

    def view_with(self, occurrence: int, rows: Mapping[Row, int]) -> Part:
        """V⟨U⟩: rows in the place of one occurrence."""
        return self.tiny.start(occurrence, rows)

    def substitute(self, part: Part, occurrence: int, rows: Mapping[Row, int]) -> Part:
        """Q⟨U⟩: rows in the place of one more occurrence, be it joined with the others already or not."""
        return self.tiny.join(part, self._hop(filled(part), occurrence), rows) if part else {}

    def substitute_by(
        self, part: Part, occurrence: int, matching: Callable[[Hop, Row], Iterable[tuple[Row, int]]]
    ) -> Part:
        """The same, where ``matching`` gives the rows that a hop finds under a key."""
        if not part:
            return {}
        hop = self._hop(filled(part), occurrence)
        return self.tiny.join_by(part, hop, partial(matching, hop))

    def evaluate(self, parts: Iterable[Part]) -> Process:
        """source_evaluate(Q): asks one source after the other until nothing is open; gives the combinations.

        A part that is empty, or becomes so, asks nothing more.
        """
        result: Part = {}
        while working := self._unfinished(parts, result):
            source, hops = self.next_source(working)
            asked = [place for place, mine in enumerate(hops) if mine]
            answers = yield Query(source, tuple(Term(working[place], hops[place]) for place in asked))
            for place, (answer,) in zip(asked, answers, strict=True):
                working[place] = answer
            parts = working
        return result

    def _unfinished(self, parts: Iterable[Part], result: Part) -> list[Part]:
        """The parts that have something open; the others are added to the result."""
        working = []
        for part in merged(parts):
            if self.open(part):
                working.append(part)
            else:
                add(result, part)
        return working

    def next_source(self, parts: Sequence[Part]) -> tuple[str, list[tuple[Hop, ...]]]:
        """The source to contact next, and what can be evaluated there of each part: never without a join edge."""
        occurrences = self.tiny.view.occurrences
        source = occurrences[self._next(filled(parts[0]), self.open(parts[0]))].source
        here = frozenset(o.index for o in occurrences if o.source == source)
        return source, [self._hops_within(filled(part), self.open(part) & here) for part in parts]

    def _hops_within(self, visited: Filled, wanted: Filled) -> tuple[Hop, ...]:
        """As many hops to the wanted occurrences as join edges lead to, one after the other."""
        hops: list[Hop] = []
        while reachable := [index for index in wanted - visited if self._hop(visited, index).key]:
            index = self._next(visited, frozenset(reachable))
            hops.append(self._hop(visited, index))
            visited |= {index}
        return tuple(hops)

    def _next(self, visited: Filled, candidates: Filled) -> int:
        """The candidate with most equalities to what is there, then the leftmost."""
        return max(candidates, key=lambda index: (len(self._hop(visited, index).key), -index))

    def _hop(self, visited: Filled, index: int) -> Hop:
        hop = self._hops.get((visited, index))
        if hop is None:
            hop = self._hops[(visited, index)] = self.tiny.view.hops_in((*sorted(visited), index))[-1]
        return hop
