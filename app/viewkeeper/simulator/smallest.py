"""Every small workload, smallest first: what anomalies are looked for in, one size after the other.

The relations are those of strobe-1996, Example 1: a chain r1(A,B), r2(B,C), … over sources x, y, …, each with the one
row that joins with the others, (1,2), (2,3), …; r1 has a second row, under another key. Each is there at first or not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise, product

from viewkeeper.algebra.tiny import Row
from viewkeeper.algebra.types import INTEGER, Column, Relation
from viewkeeper.algorithms.protocol import Op
from viewkeeper.algorithms.registry import Scenario
from viewkeeper.simulator.history import Transaction, Workload

_SOURCES = "xyzuvw"
_COLUMNS = "ABCDEFG"


@dataclass(frozen=True, order=True)
class Size:
    """How large a workload is: row changes in all its transactions, relations of its view."""

    changes: int
    relations: int


SIZES = tuple(Size(changes, relations) for changes in (1, 2, 3, 4) for relations in (1, 2, 3))
"""From small to large."""

Place = tuple[int, Row]
"""A relation, by its number from 0, and a row of it."""
Live = frozenset[Place]
"""The rows that are there."""


def small_workloads(size: Size, scenario: Scenario, one_source: bool = False) -> Iterator[Workload]:
    """Every workload of that size in that scenario, those with fewer rows at first before the others."""
    relations = tuple(_relation(i, one_source) for i in range(size.relations))
    maker = _Maker(relations, scenario)
    for filled in sorted(product((False, True), repeat=len(maker.places)), key=sum):
        live = frozenset(place for place, there in zip(maker.places, filled, strict=True) if there)
        initial = {(r.source, r.name): tuple(sorted(row for i, row in live if relations[i] is r)) for r in relations}
        for transactions in maker.sequences(live, size.changes):
            numbered = tuple(Transaction(f"t{i}", parts) for i, parts in enumerate(transactions, 1))
            yield Workload(relations, chain(relations), initial, numbered)


def chain(relations: tuple[Relation, ...]) -> str:
    """The natural join of a chain of relations, each of which shares its first column with the one before."""
    shown = [f"{r.name}.{r.columns[0].name}" for r in relations] + [f"{relations[-1].name}.{_last(relations)}"]
    tables = ", ".join(f"{r.source}.{r.name}" for r in relations)
    joins = [
        f"{left.name}.{left.columns[1].name} = {right.name}.{right.columns[0].name}"
        for left, right in pairwise(relations)
    ]
    return f"SELECT {', '.join(shown)} FROM {tables}" + (f" WHERE {' AND '.join(joins)}" if joins else "")


def _last(relations: tuple[Relation, ...]) -> str:
    return relations[-1].columns[1].name


def _relation(index: int, one_source: bool) -> Relation:
    columns = tuple(Column(name, INTEGER) for name in _COLUMNS[index : index + 2])
    return Relation(_SOURCES[0 if one_source else index], f"r{index + 1}", columns, (columns[0].name,))


def _row(index: int) -> Row:
    return (index + 1, index + 2)


Parts = dict[str, tuple[Op, ...]]


class _Maker:
    """Makes the transactions that are possible from a state."""

    def __init__(self, relations: tuple[Relation, ...], scenario: Scenario) -> None:
        self.relations, self.scenario = relations, scenario
        other = (0, (len(relations) + 2, 2))
        self.places: list[Place] = [*((i, _row(i)) for i in range(len(relations))), other]

    def sequences(self, live: Live, changes: int) -> Iterator[tuple[Parts, ...]]:
        """Every sequence of transactions that together change that many rows."""
        if changes == 0:
            yield ()
            return
        for places in self._transactions(changes):
            after = live.symmetric_difference(places)
            for rest in self.sequences(after, changes - len(places)):
                yield (self._parts(live, places), *rest)

    def _transactions(self, changes: int) -> Iterator[tuple[Place, ...]]:
        """The places that one transaction may change: one, or two as the scenario has it."""
        yield from ((place,) for place in self.places)
        if changes < 2 or self.scenario is Scenario.SINGLE:
            return
        for pair in combinations(self.places, 2):
            one, other = (self.relations[index].source for index, _ in pair)
            if (one == other) is (self.scenario is Scenario.LOCAL):
                yield pair

    def _parts(self, live: Live, places: tuple[Place, ...]) -> Parts:
        parts: Parts = {}
        # Deletions first, as a modification does it.
        for index, row in sorted(places, key=lambda place: place not in live):
            relation = self.relations[index]
            op = Op(relation.name, row, -1 if (index, row) in live else 1)
            parts[relation.source] = (*parts.get(relation.source, ()), op)
        return parts
