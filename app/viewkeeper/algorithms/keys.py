"""Keys of relations in a view (strobe-1996, section 5.1): what lets a deletion be done without asking anybody.

Assumes that every relation has a key, that the key tells apart all rows that can be in the view, and that the view
shows it; ``undeclared``, ``blurred``, ``nullable`` and ``hidden`` say where that fails. A key column also counts as
shown if the view shows a column that one of its join conditions makes equal to it. It may be NULL, and then belong to
several rows, if the view's conditions keep such rows out: key_delete with NULL finds nothing then, which is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from viewkeeper.algebra.expressions import ColumnRef, Expr, IsNull, Not, conjuncts
from viewkeeper.algebra.tiny import Part, Row, TinyView
from viewkeeper.algebra.types import Kind
from viewkeeper.algebra.view import Occurrence
from viewkeeper.algorithms.protocol import KeyDelete


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


def undeclared(tiny: TinyView) -> str | None:
    """Which relations of a view have no key, in words."""
    without = sorted({f"{source}.{name}" for (source, name), key in tiny.keys.items() if not key})
    return f"{_and(without)} {'has' if len(without) == 1 else 'have'} no primary key" if without else None


def blurred(tiny: TinyView) -> str | None:
    """Which columns of keys have types that do not tell all of the source's values apart, in words."""
    columns = sorted(
        f"{source}.{name}.{column}, part of a key, has {_type(kind)}"
        for (source, name), types in tiny.blurred.items()
        for column, kind in ((c, t.kind) for c, t in types.items() if c in tiny.keys[(source, name)])
    )
    return _and(columns) if columns else None


def _type(kind: Kind) -> str:
    if kind is Kind.UNKNOWN:
        return "no type that a view can show"
    return f"type {kind.upper()}, which does not tell all its values apart"


def nullable(tiny: TinyView) -> str | None:
    """Which columns of keys may be NULL in rows that the view shows, in words."""
    columns = sorted({f"{o.source}.{o.relation}.{column}" for o, column in _nullable(tiny)})
    return f"{_and(columns)}, part of a key, may be NULL in several rows" if columns else None


def exclude_null(tiny: TinyView) -> str:
    """What keeps rows with NULL in a key out of a view."""
    columns = sorted({f"{o.source}.{o.relation}.{column}" for o, column in _nullable(tiny)})
    conditions = " AND ".join(f"{o.alias}.{column} IS NOT NULL" for o, column in _nullable(tiny))
    return f"declare {_and(columns)} NOT NULL, or add {conditions} to the view's WHERE"


def _nullable(tiny: TinyView) -> Iterator[tuple[Occurrence, str]]:
    for occurrence in tiny.view.occurrences:
        name = (occurrence.source, occurrence.relation)
        for column in tiny.keys[name]:
            doubtful = column in tiny.nullable.get(name, ()) and column not in tiny.blurred.get(name, ())
            if doubtful and not _excludes_null(tiny, occurrence, column):
                yield occurrence, column


def _excludes_null(tiny: TinyView, occurrence: Occurrence, column: str) -> bool:
    """Whether no row with NULL in that column of the occurrence can be in the view; NULL joins nothing."""
    if _equal(tiny, occurrence.index, column) != {(occurrence.index, column)}:
        return True
    return any(_is_not_null(condition, column) for condition in conjuncts(occurrence.selection))


def _is_not_null(condition: Expr, column: str) -> bool:
    match condition:
        case Not(IsNull(ColumnRef(_, name, _))):
            return name == column
    return False


def hidden(tiny: TinyView) -> str | None:
    """Which keys a view does not show, in words."""
    columns = list(_hidden(tiny))
    return f"it does not show {_and(columns)}, part of a key" if columns else None


def show_hidden(tiny: TinyView) -> str:
    """What makes a view show every key."""
    return f"add {', '.join(_hidden(tiny))} to the SELECT list"


def _hidden(tiny: TinyView) -> Iterator[str]:
    """The key columns that the view does not show; one that is blurred would not help if it were shown."""
    for occurrence in tiny.view.occurrences:
        useless = tiny.blurred.get((occurrence.source, occurrence.relation), {})
        for column, place in _places(tiny, occurrence):
            if place is None and column not in useless:
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
