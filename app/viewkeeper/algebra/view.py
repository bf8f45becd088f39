"""A view as the sweep sees it: occurrences of relations, the equalities that join them, what is kept and shown.

    V = π_outputs σ_residuals ( σ_1 R_1 ⋈ σ_2 R_2 ⋈ … ⋈ σ_n R_n )

The same relation may occur several times. Occurrences are numbered from 0 in the order the SQL names them; the
telescoped change of a view (see ``algorithms.sweep``) depends on that order, the order of hops does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from viewkeeper.algebra.expressions import ColumnRef, Expr
from viewkeeper.algebra.types import Column, Type


@dataclass(frozen=True)
class Occurrence:
    """One appearance of a relation in a view, with the columns the view uses of it."""

    index: int
    alias: str
    source: str
    relation: str
    columns: tuple[Column, ...]
    selection: Expr | None = None  # the conditions that concern this occurrence alone

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(c.name, c.type.arrow) for c in self.columns])


@dataclass(frozen=True)
class Edge:
    """``left.left_column = right.right_column``, two columns of one type in two different occurrences.

    A view's edges are closed under transitivity: with a.x = b.y and b.y = c.z they also hold a.x = c.z.
    """

    left: int
    left_column: str
    right: int
    right_column: str


@dataclass(frozen=True)
class Output:
    name: str
    expr: Expr


@dataclass(frozen=True)
class Computed(Expr):
    """A value that only a view's ``query`` can tell; of itself it has a type and nothing else."""

    type: Type


@dataclass(frozen=True)
class Hop:
    """One step of a sweep: join ``occurrence`` to what is already there.

    ``probe`` are columns of occurrences visited before, ``key`` the equal columns of this one; ``inclusive`` says
    whether the occurrence is wanted as of the update itself (left of the start) or just before it (right of it).
    ``residuals`` are the conditions that can be decided once this hop is made.
    """

    occurrence: Occurrence
    probe: tuple[tuple[int, str], ...]
    key: tuple[str, ...]
    inclusive: bool
    residuals: tuple[Expr, ...]


@dataclass(frozen=True)
class View:
    """A view; if it has a ``query``, it can only be recomputed, by running that statement over its relations in full.

    Such a view has one occurrence for each relation that it uses, without selections, no edges, no hops, and
    ``Computed`` outputs.
    """

    name: str
    occurrences: tuple[Occurrence, ...]
    edges: tuple[Edge, ...]
    residuals: tuple[Expr, ...]
    outputs: tuple[Output, ...]
    sql: str  # canonical text: two views with the same text are the same view
    query: str | None = None

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.schema([(o.name, o.expr.type.arrow) for o in self.outputs])

    @property
    def relations(self) -> frozenset[tuple[str, str]]:
        return frozenset((o.source, o.relation) for o in self.occurrences)

    @property
    def sources(self) -> frozenset[str]:
        return frozenset(o.source for o in self.occurrences)

    def decided_at_start(self, start: int) -> tuple[Expr, ...]:
        """Residuals that need no occurrence but ``start`` (conditions on constants)."""
        return tuple(r for r in self.residuals if {c.occurrence for c in r.columns} <= {start})

    def hops(self, start: int, within: frozenset[int] | None = None) -> tuple[Hop, ...]:
        """The order in which a sweep from ``start`` visits the others: always along an open join edge.

        ``within`` limits it to these occurrences, which must be joined with each other. A view that can only be
        recomputed is not swept.
        """
        if self.query is not None:
            return ()
        wanted = frozenset(range(len(self.occurrences))) if within is None else within
        plan = self._plans.get((start, wanted))
        if plan is None:
            order = [start]
            while len(order) < len(wanted):
                order.append(self._next(set(order), wanted))
            plan = self._plans[(start, wanted)] = self.hops_in(order)
        return plan

    @cached_property
    def _plans(self) -> dict[tuple[int, frozenset[int]], tuple[Hop, ...]]:
        return {}

    def hops_in(self, order: Sequence[int]) -> tuple[Hop, ...]:
        """The hops that visit occurrences in this order, from the first; each must be joined with those before it."""
        start, *others = order
        visited = {start}
        open_residuals = [r for r in self.residuals if r not in self.decided_at_start(start)]
        hops: list[Hop] = []
        for index in others:
            pairs = sorted(self._pairs(visited, index))
            visited.add(index)
            decided = [r for r in open_residuals if {c.occurrence for c in r.columns} <= visited]
            open_residuals = [r for r in open_residuals if r not in decided]
            hops.append(
                Hop(
                    occurrence=self.occurrences[index],
                    probe=tuple(probe for _, probe in pairs),
                    key=tuple(key for key, _ in pairs),
                    inclusive=index < start,
                    residuals=tuple(decided),
                )
            )
        return tuple(hops)

    def _next(self, visited: set[int], wanted: frozenset[int]) -> int:
        """The occurrence to visit next: the one with most equalities to the visited ones, then the leftmost."""
        reachable = {i: len(self._pairs(visited, i)) for i in wanted - visited}
        index = max(reachable, key=lambda i: (reachable[i], -i))
        assert reachable[index], "a view's join graph is connected; the parser refuses others"
        return index

    def _pairs(self, visited: set[int], index: int) -> set[tuple[str, tuple[int, str]]]:
        """Per key column of ``index`` that an edge ties to a visited occurrence: (key, (occurrence, column))."""
        probes: dict[str, tuple[int, str]] = {}
        for e in (*self.edges, *(Edge(e.right, e.right_column, e.left, e.left_column) for e in self.edges)):
            if e.left in visited and e.right == index:
                # Edges are closed under transitivity, so the visited probes of one key column are equal already.
                probe = (e.left, e.left_column)
                probes[e.right_column] = min(probe, probes.get(e.right_column, probe))
        return set(probes.items())


def in_full(source: str, relation: str, columns: Sequence[Column]) -> View:
    """The view that shows these columns of one relation, and all of its rows."""
    itself = Occurrence(0, relation, source, relation, tuple(columns))
    outputs = tuple(Output(c.name, ColumnRef(0, c.name, c.type)) for c in columns)
    return View(relation, (itself,), (), (), outputs, "")
