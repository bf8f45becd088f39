"""A large bag plus a small one, touching only the rows that may meet.

Rows of the large bag whose hash no row of the small one has cannot be the same row, so they pass through as
they are; the others are few, and are summed with the small bag exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.bag import COUNT, consolidate
from viewkeeper.algebra.hashing import row_hashes


class Overlay:
    """Splits a large, consolidated bag against a small one and sums what may meet."""

    def __init__(self, small: pa.Table):
        self._small = small
        self._names = [name for name in small.column_names if name != COUNT]
        self._hashes = np.unique(row_hashes(small, self._names))
        self._met: list[pa.Table] = []

    def meets(self, rows: pa.Table) -> np.ndarray:
        """Per row: may it be a row of the small bag? Those that may are remembered for ``total``."""
        if len(self._hashes) == 0:
            return np.zeros(len(rows), bool)
        hashes = row_hashes(rows, self._names)
        near = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        mask = self._hashes[near] == hashes
        if mask.any():
            self._met.append(rows.filter(pa.array(mask)))
        return mask

    def total(self) -> pa.Table:
        """The small bag plus every row that met it, consolidated."""
        schema = self._small.schema
        return consolidate(pa.concat_tables([self._small, *(t.select(schema.names).cast(schema) for t in self._met)]))


def overlaid(large: Iterable[pa.RecordBatch], small: pa.Table) -> Iterator[pa.RecordBatch]:
    """``large + small``, streaming; ``large`` is consolidated and so is the result."""
    overlay = Overlay(small)
    for batch in large:
        rows = pa.Table.from_batches([batch]).select(small.column_names).cast(small.schema)
        mask = overlay.meets(rows)
        yield from (rows.filter(pa.array(~mask)) if mask.any() else rows).to_batches()
    yield from overlay.total().to_batches()
