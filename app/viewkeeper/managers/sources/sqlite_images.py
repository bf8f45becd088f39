"""Row images as Arrow, and what becomes of those that do not fit their declared types.

A change with a misfit value is refused when its message is read, so it must not be found in an answer either. Law: if
every image that does not fit is left out of answer and tail alike, answer − tail still is the relation as of the
delivered position, without the rows that did not fit then. A misfit row of the answer that the tail does not show was
there before; nobody would ever be told of it, so it is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from viewkeeper.algebra.types import Type
from viewkeeper.errors import SourceError
from viewkeeper.managers.sources.sqlite_values import Misfit, arrow_column, misfits

Row = tuple[Any, ...]
OnMisfit = Callable[[Row, str, Misfit], None]
"""Hears of each row that is left out: the row, one column that does not fit, and why."""


class Excused:
    """The misfit rows that an answer may hold: as many of each as the tail shows to have come."""

    def __init__(self, place: str, relation: str, came: Counter[Row], forgiven: bool = False):
        self.place = place
        self.relation = relation
        self.forgiven = forgiven  # the views that use the relation promise no exactness: leave out any
        self._came = came  # the tail's, which goes with other answers too
        self._found: Counter[Row] = Counter()

    def found(self, row: Row, column: str, misfit: Misfit) -> None:
        """The answer holds the row; raises SourceError unless the tail showed it."""
        if self.forgiven:
            return
        self._found[row] += 1
        if self._found[row] > self._came[row]:
            place = f"{self.place}: {self.relation}.{column}"
            raise SourceError.at(place, str(misfit), "correct the row, or the column's declared type") from misfit


def row_batches(
    chunks: Iterable[Sequence[Row]], types: Mapping[str, Type], on_misfit: OnMisfit
) -> Iterator[pa.RecordBatch]:
    """The rows whose values all fit, as batches of these columns."""
    schema = pa.schema([(name, type.arrow) for name, type in types.items()])
    for rows in chunks:
        if not types:
            yield pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
            continue
        try:
            arrays = _arrays(rows, types)
        except Misfit:
            arrays = _arrays(_fitting(rows, types, on_misfit), types)
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _arrays(rows: Sequence[Row], types: Mapping[str, Type]) -> list[pa.Array]:
    columns: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [()] * len(types)
    return [arrow_column(values, type) for values, type in zip(columns, types.values(), strict=True)]


def _fitting(rows: Sequence[Row], types: Mapping[str, Type], on_misfit: OnMisfit) -> list[Row]:
    """The rows without those that do not fit, each of which is told of once."""
    wrong: dict[int, tuple[str, Misfit]] = {}
    for values, (name, type) in zip(zip(*rows, strict=True), types.items(), strict=True):
        for index, misfit in misfits(values, type).items():
            wrong.setdefault(index, (name, misfit))
    for index, (name, misfit) in sorted(wrong.items()):
        on_misfit(rows[index], name, misfit)
    return [row for index, row in enumerate(rows) if index not in wrong]
