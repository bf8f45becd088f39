"""How large rows are, and tables cut so that each piece is small: what is held at a time is bounded in bytes.

Rows alone bound nothing: a thousand of them may be a hundred kilobytes or a gigabyte, and an Arrow array of text ends
at 2 GiB.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PIECE_BYTES = 32 << 20
"""What is worked on at a time; several copies of it may be needed."""

_TOGETHER = 16 << 20  # so much may as well be put together
_ARRAY = 1 << 30  # no array gets near the limit of its 32-bit offsets
_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def row_bytes(table: pa.Table) -> np.ndarray:
    """About how many bytes each row takes."""
    fixed = sum(_width(column.type) for column in table.columns if not varies(column.type))
    size = np.full(len(table), fixed, np.int64)
    for column in table.columns:
        if varies(column.type):
            size += pc.fill_null(pc.binary_length(column), 0).to_numpy() + 4
    return size


def spans(size: np.ndarray, rows: int, limit: int | None = None) -> Iterator[tuple[int, int]]:
    """Cuts rows of these sizes into runs [low, high), each of at most so many rows and bytes, or of one row."""
    limit = limit or PIECE_BYTES
    ends = np.cumsum(size)
    low = 0
    while low < len(size):
        before = int(ends[low - 1]) if low else 0
        high = int(np.searchsorted(ends, before + limit, side="right"))
        high = max(low + 1, min(high, low + rows))
        yield low, min(high, len(size))
        low = high


def pieces(table: pa.Table, rows: int, limit: int | None = None) -> Iterator[pa.Table]:
    """The table as such runs, without copying."""
    if table.nbytes <= (limit or PIECE_BYTES):
        yield from (table.slice(low, rows) for low in range(0, len(table), rows))
        return
    yield from (table.slice(low, high - low) for low, high in spans(row_bytes(table), rows, limit))


def taken(column: pa.ChunkedArray, places: np.ndarray) -> pa.ChunkedArray:
    """The values at these places. Arrow's own ``take`` would put all chunks of the column together first."""
    if column.num_chunks <= 1 or not varies(column.type) or column.nbytes <= _TOGETHER:
        return column.take(pa.array(places))
    lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)[places]
    parts = [_from_chunks(column, places[low:high]) for low, high in spans(lengths, len(places), _ARRAY)]
    return pa.chunked_array([array for part in parts for array in part], column.type)


def rows_at(table: pa.Table, places: np.ndarray) -> pa.Table:
    """The rows at these places, likewise."""
    if table.nbytes <= _TOGETHER or not table.column_names:
        return table.take(pa.array(places))
    return pa.table([taken(column, places) for column in table.columns], schema=table.schema)


def without_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column, or the lengths of its texts."""
    return pc.binary_length(column).cast(pa.int64()) if varies(column.type) else column


def together(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array; of large text or binary, one with 64-bit offsets."""
    if column.nbytes > _ARRAY and column.type in _LARGE:
        column = column.cast(_LARGE[column.type])
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        return pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return array


def _from_chunks(column: pa.ChunkedArray, places: np.ndarray) -> list[pa.Array]:
    """The values at these places, which one array can hold; in order, each chunk asked once."""
    begins = np.cumsum([0, *(len(chunk) for chunk in column.chunks)])
    chunk = np.searchsorted(begins[1:], places, side="right")
    order = np.argsort(chunk, kind="stable")
    which, starts = np.unique(chunk[order], return_index=True)
    found = [
        column.chunk(int(of)).take(pa.array(places[mine] - begins[of]))
        for of, mine in zip(which, np.split(order, starts[1:]), strict=True)
    ]
    if bool((order[1:] > order[:-1]).all()):
        return found
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return [pa.concat_arrays(found).take(pa.array(back))]


def varies(kind: pa.DataType) -> bool:
    """Whether values of a type are of any length: text or binary."""
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return is_text or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _width(kind: pa.DataType) -> int:
    try:
        return max(1, kind.bit_width // 8)
    except ValueError:  # lists; no relation has them
        return 64
