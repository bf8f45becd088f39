"""Keys of relations in a view (strobe-1996, section 5.1): what lets a deletion be done without asking anybody.

Assumes that every relation has a key and that the view shows it; ``undeclared`` and ``hidden`` say where that fails.
A key column also counts as shown if the view shows a column that one of its join conditions makes equal to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from viewkeeper.algebra.expressions import ColumnRef
from viewkeeper.algebra.tiny import Part, Row, TinyView
from viewkeeper.algebra.view import Occurrence
from viewkeeper.algorithms.protocol import KeyDelete, Op


@dataclass(frozen=True)
class Deleted:
    """A row that an update took from an occurrence, known by its key."""

    update: int
    occurrence: int
    key: Row


@dataclass(frozen=True)
class Keys:
    """Per occurrence: where its rows hold its key, and where the view's rows do."""

    in_row: tuple[tuple[int, ...], ...]
    in_view: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, tiny: TinyView) -> Keys:
        in_row, in_view = [], []
        for occurrence in tiny.view.occurrences:
            names = [column.name for column in occurrence.columns]
            shown = [place for _, place in _places(tiny, occurrence) if place is not None]
            key = tiny.keys[(occurrence.source, occurrence.relation)]
            assert key and len(shown) == len(key), "the view shows the key of every occurrence"
            in_row.append(tuple(names.index(name) for name in key))
            in_view.append(tuple(shown))
        return cls(tuple(in_row), tuple(in_view))

    def key(self, occurrence: int, row: Row) -> Row:
        """The key of an occurrence's row."""
        return tuple(row[place] for place in self.in_row[occurrence])

    def action(self, deleted: Deleted) -> KeyDelete:
        """key_delete(MV, U)."""
        return KeyDelete(self.in_view[deleted.occurrence], deleted.key)

    def matching(self, part: Part, deleted: Deleted) -> Part:
        """The complete combinations that key_delete(A, U) takes out of an answer."""
        at = deleted.occurrence
        return {c: n for c, n in part.items() if (row := c[at]) is not None and self.key(at, row) == deleted.key}


def key_deletes(tiny: TinyView, source: str, op: Op) -> Iterator[KeyDelete]:
    """key_delete(MV, U) for each occurrence of the relation that a deletion at a source concerns."""
    keys = Keys.of(tiny)
    for occurrence in tiny.view.occurrences:
        if (occurrence.source, occurrence.relation) == (source, op.relation):
            names = tiny.columns[(source, op.relation)]
            key = tuple(op.row[names.index(name)] for name in tiny.keys[(source, op.relation)])
            yield KeyDelete(keys.in_view[occurrence.index], key)


def undeclared(tiny: TinyView) -> str | None:
    """Which relations of a view have no key, in words."""
    without = sorted({f"{source}.{name}" for (source, name), key in tiny.keys.items() if not key})
    return f"{_and(without)} {'has' if len(without) == 1 else 'have'} no primary key" if without else None


def hidden(tiny: TinyView) -> str | None:
    """Which keys a view does not show, in words."""
    columns = list(_hidden(tiny))
    return f"it does not show {_and(columns)}, part of a key" if columns else None


def show_hidden(tiny: TinyView) -> str:
    """What makes a view show every key."""
    return f"add {', '.join(_hidden(tiny))} to the SELECT list"


def _hidden(tiny: TinyView) -> Iterator[str]:
    for occurrence in tiny.view.occurrences:
        for column, place in _places(tiny, occurrence):
            if place is None:
                yield f"{occurrence.alias}.{column}"


def _places(tiny: TinyView, occurrence: Occurrence) -> Iterator[tuple[str, int | None]]:
    """Each key column of an occurrence, and the view's column that shows it."""
    for column in tiny.keys[(occurrence.source, occurrence.relation)]:
        equal = _equal(tiny, occurrence.index, column)
        shown = (
            place
            for place, output in enumerate(tiny.view.outputs)
            if isinstance(output.expr, ColumnRef) and (output.expr.occurrence, output.expr.column) in equal
        )
        yield column, next(shown, None)


def _equal(tiny: TinyView, occurrence: int, column: str) -> set[tuple[int, str]]:
    """The columns that every row of the view has the same value in; edges are closed under transitivity."""
    mine = (occurrence, column)
    equal = {mine}
    for edge in tiny.view.edges:
        ends = ((edge.left, edge.left_column), (edge.right, edge.right_column))
        if mine in ends:
            equal.update(ends)
    return equal


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
