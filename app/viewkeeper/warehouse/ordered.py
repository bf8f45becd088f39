"""A view's changes in the order of the updates, however they lie in files, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.algebra.bag import UPDATE
from viewkeeper.algebra.sizes import rows_at
from viewkeeper.warehouse.log_rows import LogRows
from viewkeeper.warehouse.spill import LIMIT_BYTES, LIMIT_ROWS


def in_update_order(
    log: LogRows, first: int, last: int, columns: list[str], limit_rows: int = LIMIT_ROWS
) -> Iterator[pa.Table]:
    """Rows with ``first ≤ _update ≤ last``, by update, in tables of about ``limit_rows`` at most, fewer if large."""
    if last < first:
        return
    limit_rows = max(1, min(limit_rows, LIMIT_BYTES // log.bytes_a_row(UPDATE, first, last)))
    if log.rows_at_most(UPDATE, first, last) <= limit_rows:
        yield from _sorted(log, first, last, columns)
        return
    for low, high, rows in _ranges(log, first, last, limit_rows):
        if low == high and rows > limit_rows:  # one update that is larger than memory needs no sorting
            yield from (pa.Table.from_batches([b]) for b in log.batches(UPDATE, low, high, columns))
        else:
            yield from _sorted(log, low, high, columns)


def _sorted(log: LogRows, first: int, last: int, columns: list[str]) -> Iterator[pa.Table]:
    batches = list(log.batches(UPDATE, first, last, columns))
    if not batches:
        return
    table = pa.Table.from_batches(batches)
    numbers = table[UPDATE].to_numpy()
    if (np.diff(numbers) < 0).any():
        table = rows_at(table, np.argsort(numbers, kind="stable"))
    yield table


def _ranges(log: LogRows, first: int, last: int, limit_rows: int) -> Iterator[tuple[int, int, int]]:
    """Ranges of update numbers (low, high, rows) of at most ``limit_rows`` rows, or of a single update."""
    updates, rows = _rows_per_update(log, first, last)
    low: int | None = None
    high = held = 0
    for update, count in zip(updates.tolist(), rows.tolist(), strict=True):
        if low is not None and held + count > limit_rows:
            yield low, high, held
            low, held = None, 0
        low = update if low is None else low
        high, held = update, held + count
    if low is not None:
        yield low, high, held


def _rows_per_update(log: LogRows, first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    counted = [pc.value_counts(b.column(0)) for b in log.batches(UPDATE, first, last, [UPDATE])]
    numbers = np.concatenate([c.field("values").to_numpy() for c in counted])
    counts = np.concatenate([c.field("counts").to_numpy() for c in counted])
    updates, where = np.unique(numbers, return_inverse=True)
    return updates, np.bincount(where, weights=counts).astype(np.int64)
