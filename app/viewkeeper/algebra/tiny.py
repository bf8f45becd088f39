"""Tiny bags: the algebra on plain Python rows, for algorithms that handle one update at a time.

A second evaluator beside the columnar one. A bag of three rows costs microseconds here and a millisecond in Arrow, so
a laboratory can run thousands of histories; tests keep both evaluators equal.

    relation, change, answer   Bag    row → signed count, never zero
    partial row                Part   one row (or None) per occurrence of the view → signed count
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from viewkeeper.algebra.expressions import ColumnRef, Expr
from viewkeeper.algebra.rows import evaluate_row
from viewkeeper.algebra.types import Catalog, Kind, Type
from viewkeeper.algebra.view import Hop, Occurrence, View

Row = tuple[Any, ...]
Bag = dict[Row, int]
Combination = tuple[Row | None, ...]
"""A row per occurrence, None where the occurrence was not visited."""
Part = dict[Combination, int]
Name = tuple[str, str]
"""(source, relation)"""


def add(bag: dict[Any, int], other: Mapping[Any, int], sign: int = 1) -> None:
    """Adds (or subtracts) in place; zero counts go."""
    for row, count in other.items():
        total = bag.get(row, 0) + sign * count
        if total:
            bag[row] = total
        else:
            bag.pop(row, None)


def plus(bag: Mapping[Any, int], other: Mapping[Any, int], sign: int = 1) -> dict[Any, int]:
    """The sum (or difference) of two bags."""
    total = dict(bag)
    add(total, other, sign)
    return total


def plain(row: Iterable[Any]) -> Row:
    """The row with the one NaN there is: to Python, two of them are two values."""
    return tuple(math.nan if isinstance(value, float) and math.isnan(value) else value for value in row)


def size(bags: Iterable[Mapping[Any, int]]) -> int:
    """Bytes that the rows would take on a wire: eight a number and a count, the letters of a text."""
    return sum(8 + sum(map(_bytes, row)) for bag in bags for row in bag)


def _bytes(value: Any) -> int:
    if isinstance(value, tuple):
        return sum(map(_bytes, value))
    return len(value) if isinstance(value, str | bytes) else 8 if value is not None else 0


@dataclass(frozen=True)
class TinyView:
    """A view over rows whose columns stand in the order of the catalogue; ``keys`` are those that relations declare.

    Where a key has ``nullable`` or ``blurred`` columns, it may not tell all rows apart (see ``Relation``).
    """

    view: View
    columns: Mapping[Name, tuple[str, ...]]
    keys: Mapping[Name, tuple[str, ...]]
    nullable: Mapping[Name, frozenset[str]] = field(default_factory=dict)
    blurred: Mapping[Name, Mapping[str, Type]] = field(default_factory=dict)

    @classmethod
    def of(cls, view: View, catalog: Catalog) -> TinyView:
        used = {name: catalog[name] for name in view.relations}
        return cls(
            view,
            columns={name: tuple(c.name for c in relation.columns) for name, relation in used.items()},
            keys={name: relation.key for name, relation in used.items()},
            nullable={name: relation.nullable for name, relation in used.items()},
            blurred={name: {c.name: c.type for c in r.columns if c.name in r.blurred} for name, r in used.items()},
        )

    @property
    def nothing(self) -> Combination:
        return (None,) * len(self.view.occurrences)

    def rows(self, occurrence: Occurrence, relation: Mapping[Row, int]) -> Bag:
        """A bag of the relation's rows as the occurrence sees it: its columns, its selection applied."""
        pick, selection = self._picks[occurrence.index], self._selections[occurrence.index]
        bag: Bag = {}
        for row, count in relation.items():
            mine = pick(row)
            if selection is None or selection(mine):
                add(bag, {mine: count})
        return bag

    def start(self, occurrence: int, rows: Mapping[Row, int]) -> Part:
        """Partial rows that hold these rows (as the occurrence sees them) and nothing else yet."""
        part = {self._with(self.nothing, occurrence, row): count for row, count in rows.items()}
        return self.where(part, self.view.decided_at_start(occurrence))

    def probes(self, part: Part, hop: Hop) -> set[Row]:
        """The distinct keys that a hop asks for; NULL joins nothing."""
        probe = self._probe(hop)
        return {key for combination in part if None not in (key := probe(combination))}

    def join(self, part: Part, hop: Hop, rows: Mapping[Row, int]) -> Part:
        """part ⋈ rows (as the hop's occurrence sees them), with every condition that can be decided now."""
        key = self.key_of(hop)
        index: dict[Row, list[tuple[Row, int]]] = {}
        for row, count in rows.items():
            index.setdefault(key(row), []).append((row, count))
        return self.join_by(part, hop, lambda wanted: index.get(wanted, ()))

    def join_by(self, part: Part, hop: Hop, matching: Callable[[Row], Iterable[tuple[Row, int]]]) -> Part:
        """The same, where ``matching`` gives the rows of a key."""
        probe, at = self._probe(hop), hop.occurrence.index
        joined: Part = {}
        for combination, count in part.items():
            wanted = probe(combination)
            if None in wanted:
                continue
            for row, times in matching(wanted):
                add(joined, {self._with(combination, at, row): count * times})
        return self.where(joined, hop.residuals)

    def output(self, part: Part) -> Bag:
        """The view's rows that complete combinations make."""
        bag: Bag = {}
        for combination, count in part.items():
            row = tuple(value(combination) for value in self._outputs)
            add(bag, {plain(row) if self._floats else row: count})
        return bag

    @cached_property
    def _floats(self) -> bool:
        """Whether the view can show NaN."""
        return any(output.expr.type.kind is Kind.FLOAT for output in self.view.outputs)

    def where(self, part: Part, conditions: tuple[Expr, ...]) -> Part:
        """The partial rows for which every condition holds."""
        if not conditions:
            return part
        tests = [self._value(condition) for condition in conditions]
        return {c: count for c, count in part.items() if all(test(c) is True for test in tests)}

    @staticmethod
    def _with(combination: Combination, at: int, row: Row) -> Combination:
        return (*combination[:at], row, *combination[at + 1 :])

    @cached_property
    def _positions(self) -> tuple[dict[str, int], ...]:
        return tuple({c.name: i for i, c in enumerate(o.columns)} for o in self.view.occurrences)

    @cached_property
    def _picks(self) -> tuple[Callable[[Row], Row], ...]:
        picks = []
        for o in self.view.occurrences:
            names = self.columns[(o.source, o.relation)]
            picks.append(_picker([names.index(c.name) for c in o.columns]))
        return tuple(picks)

    @cached_property
    def _selections(self) -> tuple[Callable[[Row], bool] | None, ...]:
        return tuple(
            None if o.selection is None else partial(self._selected, o.index, o.selection)
            for o in self.view.occurrences
        )

    def _selected(self, occurrence: int, selection: Expr, row: Row) -> bool:
        positions = self._positions[occurrence]
        return evaluate_row(selection, lambda _, name: row[positions[name]]) is True

    @cached_property
    def _outputs(self) -> tuple[Callable[[Combination], Any], ...]:
        return tuple(self._value(output.expr) for output in self.view.outputs)

    def _value(self, expr: Expr) -> Callable[[Combination], Any]:
        if isinstance(expr, ColumnRef):
            return self._column(expr.occurrence, expr.column)

        def value(combination: Combination) -> Any:
            return evaluate_row(expr, lambda o, name: self._column(o, name)(combination))

        return value

    def _column(self, occurrence: int, name: str) -> Callable[[Combination], Any]:
        at = self._positions[occurrence][name]
        return lambda combination: combination[occurrence][at]  # type: ignore[index]  # visited, by the order of hops

    def _probe(self, hop: Hop) -> Callable[[Combination], Row]:
        columns = [self._column(*probe) for probe in hop.probe]
        return lambda combination: tuple(column(combination) for column in columns)

    def key_of(self, hop: Hop) -> Callable[[Row], Row]:
        """What a row of the hop's occurrence is looked up by."""
        positions = self._positions[hop.occurrence.index]
        return _picker([positions[name] for name in hop.key])


def _picker(indexes: list[int]) -> Callable[[Row], Row]:
    """A function that gives these places of a row, as a row."""
    if len(indexes) > 1:
        return operator.itemgetter(*indexes)
    if indexes:
        (only,) = indexes
        return lambda row: (row[only],)
    return lambda row: ()


def recompute(tiny: TinyView, relations: Mapping[Name, Mapping[Row, int]]) -> Bag:
    """The view over a state of its relations, by trying combinations of rows: the oracle, which shares no join code."""
    view = tiny.view
    rows = [list(tiny.rows(o, relations.get((o.source, o.relation), {})).items()) for o in view.occurrences]
    result: Bag = {}
    for combination, count in _combinations(tiny, rows, ()):
        column = partial(_value_in, tiny, combination)
        if all(evaluate_row(residual, column) is True for residual in view.residuals):
            add(result, {plain(evaluate_row(output.expr, column) for output in view.outputs): count})
    return result


def _value_in(tiny: TinyView, combination: tuple[Row, ...], occurrence: int, name: str) -> Any:
    return combination[occurrence][tiny._positions[occurrence][name]]


def _combinations(
    tiny: TinyView, rows: list[list[tuple[Row, int]]], chosen: tuple[Row, ...]
) -> Iterator[tuple[tuple[Row, ...], int]]:
    """Every choice of one row per occurrence whose equalities hold; an equality is tried as soon as it can be."""
    here = len(chosen)
    if here == len(rows):
        yield chosen, 1
        return
    edges = [e for e in tiny.view.edges if max(e.left, e.right) == here]
    for row, count in rows[here]:
        longer = (*chosen, row)
        pairs = (
            (_value_in(tiny, longer, e.left, e.left_column), _value_in(tiny, longer, e.right, e.right_column))
            for e in edges
        )
        if all(left is not None and left == right for left, right in pairs):
            for combination, times in _combinations(tiny, rows, longer):
                yield combination, count * times
