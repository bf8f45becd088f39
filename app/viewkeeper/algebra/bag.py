"""Signed bags: rows with signed counts, as Arrow tables.

A relation, a change and an answer are all signed bags, so one addition serves them all.
Law: a *consolidated* bag holds every row once and never with count zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.algebra.sizes import rows_at, taken, together
from viewkeeper.algebra.wide import is_wide, text_codes

COUNT = "_count"
UPDATE = "_update"


@dataclass(frozen=True)
class SignedBag:
    """An Arrow table whose column ``_count`` says how often each row is meant; consolidated or not."""

    table: pa.Table

    def __post_init__(self) -> None:
        assert COUNT in self.table.column_names, "a signed bag needs its counts"

    @classmethod
    def empty(cls, schema: pa.Schema) -> SignedBag:
        return cls(schema.append(pa.field(COUNT, pa.int64())).empty_table())

    @property
    def columns(self) -> list[str]:
        return [name for name in self.table.column_names if name != COUNT]

    def __add__(self, other: SignedBag) -> SignedBag:
        return SignedBag(consolidate(pa.concat_tables([self.table, other.table.select(self.table.column_names)])))

    def __neg__(self) -> SignedBag:
        i = self.table.column_names.index(COUNT)
        return SignedBag(self.table.set_column(i, COUNT, pc.negate(self.table[COUNT])))

    def __sub__(self, other: SignedBag) -> SignedBag:
        return self + (-other)

    def counts(self) -> Counter[tuple[Any, ...]]:
        """The bag as a plain counter of rows; zero counts left out."""
        bag: Counter[tuple[Any, ...]] = Counter()
        columns = [self.table[name].to_pylist() for name in self.columns]
        for *row, count in zip(*columns, self.table[COUNT].to_pylist(), strict=True):
            bag[tuple(row)] += count
        return Counter({row: count for row, count in bag.items() if count})


def bag(names: str, *rows: Sequence[Any], counts: Iterable[int] | None = None) -> SignedBag:
    """A bag from literal rows, as the papers write them: ``bag("A B", (1, 3), (2, 3))``."""
    columns = names.split()
    arrays = {name: [row[i] for row in rows] for i, name in enumerate(columns)}
    return SignedBag(pa.table({**arrays, COUNT: pa.array(list(counts or [1] * len(rows)), pa.int64())}))


def row_codes(table: pa.Table, names: Sequence[str], places: np.ndarray | None = None) -> np.ndarray:
    """One integer per row, equal exactly where the rows are equal in ``names``; NULL equals NULL here.

    With ``places``, of the rows at these places alone.
    """
    if not names:
        return np.zeros(len(table) if places is None else len(places), np.int64)
    codes: np.ndarray | None = None
    cardinality = 1
    for name in names:
        code, size = _column_codes(table[name], places)
        if codes is None:
            codes, cardinality = code, size
            continue
        if cardinality * size >= 2**62:
            distinct, codes = np.unique(codes, return_inverse=True)
            cardinality = len(distinct)
        codes, cardinality = codes * size + code, cardinality * size
    assert codes is not None
    return codes


def _column_codes(column: pa.ChunkedArray, places: np.ndarray | None) -> tuple[np.ndarray, int]:
    """One of so many integers per value."""
    rows = len(column) if places is None else len(places)
    if is_wide(column, rows):
        code = text_codes(column, np.arange(rows) if places is None else places)
        if code is not None:
            return code, int(code.max()) + 1
    values = together(column if places is None else taken(column, places))
    if pa.types.is_floating(values.type):
        # Arrow tells −0.0 from 0.0 and one NaN from another; equal numbers are equal rows here.
        values = pc.if_else(pc.is_nan(values), float("nan"), pc.add(values, 0.0))
    encoded = pc.dictionary_encode(values, null_encoding="encode")
    code = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return code, max(len(encoded.dictionary), 1)


def consolidate(table: pa.Table, by: Sequence[str] | None = None) -> pa.Table:
    """The same bag with each row (all columns but ``_count``) once and no zero counts."""
    if len(table) == 0:
        return table
    names = list(by) if by is not None else [name for name in table.column_names if name != COUNT]
    codes = row_codes(table, names)
    count = table[COUNT].to_numpy()
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    total = np.zeros(len(first), np.int64)
    np.add.at(total, inverse, count)
    keep = total != 0
    if len(first) == len(table) and keep.all():
        return table
    # Rows stay in the order in which they first appeared, so that results are stable to read.
    rows, total = first[keep], total[keep]
    order = np.argsort(rows, kind="stable")
    kept = rows_at(table, rows[order])
    return kept.set_column(table.column_names.index(COUNT), COUNT, pa.array(total[order]))
