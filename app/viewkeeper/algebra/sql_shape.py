"""From conditions to a join graph: which select within one occurrence, which join two, which remain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from viewkeeper.algebra.expressions import Cast, ColumnRef, Compare, Expr, Literal, conjuncts
from viewkeeper.algebra.view import Edge


@dataclass(frozen=True)
class Shape:
    """The conditions of a view, by what they concern."""

    selections: dict[int, list[Expr]]
    edges: tuple[Edge, ...]
    residuals: tuple[Expr, ...]


def shape(conditions: Iterable[Expr], occurrences: int) -> Shape:
    """Sorts the conjuncts of all conditions; edges are closed under transitivity."""
    selections: dict[int, list[Expr]] = {i: [] for i in range(occurrences)}
    equalities: list[tuple[ColumnRef, ColumnRef]] = []
    residuals: list[Expr] = []
    for condition in (c for whole in conditions for c in conjuncts(whole)):
        concerned = {ref.occurrence for ref in condition.columns}
        pair = joined(condition)
        if pair:
            equalities.append(pair)
        elif len(concerned) == 1:
            selections[concerned.pop()].append(condition)
        elif not (isinstance(condition, Literal) and condition.value is True):
            residuals.append(condition)
    edges = _closed(equalities, selections)
    return Shape(selections, edges, tuple(dict.fromkeys(residuals)))


def joined(condition: Expr) -> tuple[ColumnRef, ColumnRef] | None:
    """The two columns that the condition joins: of one type, in different occurrences."""
    if not (isinstance(condition, Compare) and condition.op == "="):
        return None
    match _plain(condition.left), _plain(condition.right):
        case ColumnRef() as left, ColumnRef() as right:
            if left.occurrence != right.occurrence and left.type == right.type:
                return left, right
    return None


def _plain(side: Expr) -> Expr:
    """The side without a cast that changes nothing (see ``sql_natures``)."""
    return side.arg if isinstance(side, Cast) and side.arg.type == side.type else side


def _closed(equalities: Sequence[tuple[ColumnRef, ColumnRef]], selections: dict[int, list[Expr]]) -> tuple[Edge, ...]:
    """All equalities that follow; those within one occurrence go to its selection."""
    edges: set[tuple[int, str, int, str]] = set()
    for members in _classes(equalities):
        ordered = sorted(members, key=lambda ref: (ref.occurrence, ref.column))
        for left, right in combinations(ordered, 2):
            if left.occurrence == right.occurrence:
                selections[left.occurrence].append(Compare("=", left, right))
            else:
                edges.add((left.occurrence, left.column, right.occurrence, right.column))
    return tuple(Edge(*edge) for edge in sorted(edges))


def _classes(equalities: Sequence[tuple[ColumnRef, ColumnRef]]) -> list[set[ColumnRef]]:
    """The columns that must be equal, in groups."""
    group: dict[ColumnRef, set[ColumnRef]] = {}
    for left, right in equalities:
        together = group.get(left, {left}) | group.get(right, {right})
        group.update(dict.fromkeys(together, together))
    return [set(members) for members in {frozenset(g) for g in group.values()}]


def components(occurrences: int, edges: Iterable[Edge]) -> list[set[int]]:
    """The occurrences that edges tie together, in groups, the group of the first occurrence first."""
    groups = [{i} for i in range(occurrences)]
    for edge in edges:
        left = next(g for g in groups if edge.left in g)
        right = next(g for g in groups if edge.right in g)
        if left is not right:
            left |= right
            groups.remove(right)
    return sorted(groups, key=min)
