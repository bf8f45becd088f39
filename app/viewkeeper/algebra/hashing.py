"""A 64-bit hash per row, computed column by column.

Law: rows that are equal in the sense of ``algebra.bag.row_codes`` have equal hashes. The reverse is not
promised, so a hash only narrows the rows down; ``consolidate`` decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.algebra.sizes import pieces

_CHUNK = 65_536
_CHUNK_BYTES = 1 << 20  # a byte of short text takes some thirty while it is hashed
_LONG = 200  # bytes of a text from which it is quicker to call for each one
_NULL = np.uint64(0x9E3779B97F4A7C15)
_PRIME = np.uint64(0x100000001B3)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def row_hashes(table: pa.Table, names: Sequence[str], salt: int = 0) -> np.ndarray:
    """One unsigned integer per row; another ``salt`` spreads the same rows differently."""
    some = pieces(table.select(names), _CHUNK, _CHUNK_BYTES)
    chunks = [_batch_hashes(batch, names, salt) for piece in some for batch in piece.to_batches()]
    return np.concatenate(chunks) if chunks else np.zeros(0, np.uint64)


def _batch_hashes(batch: pa.RecordBatch, names: Sequence[str], salt: int) -> np.ndarray:
    hashes = np.full(len(batch), np.uint64(salt), np.uint64)
    for name in names:
        hashes = _mixed(hashes * _PRIME + _column_hashes(batch.column(name)))
    return hashes


def _mixed(h: np.ndarray) -> np.ndarray:
    """The finalizer of splitmix64: every input bit reaches every output bit."""
    h = (h ^ (h >> np.uint64(30))) * _MIX[0]
    h = (h ^ (h >> np.uint64(27))) * _MIX[1]
    return h ^ (h >> np.uint64(31))


def _column_hashes(column: pa.Array) -> np.ndarray:
    values = _values(column)
    if column.null_count:
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        values = np.where(nulls, _NULL, values)
    return values


def _values(column: pa.Array) -> np.ndarray:
    """Some 64-bit value per row; what it is for a NULL does not matter."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _bytes_hashes(column, np.int32)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return _bytes_hashes(column, np.int64)
    if pa.types.is_decimal128(kind):
        words = np.frombuffer(column.buffers()[1], np.uint64)
        words = words[2 * column.offset : 2 * (column.offset + len(column))].reshape(-1, 2)
        return words[:, 0] + _mixed(words[:, 1])
    if pa.types.is_floating(kind):
        return _float_bits(column)
    if pa.types.is_boolean(kind):
        return pc.fill_null(column, False).to_numpy(zero_copy_only=False).astype(np.uint64)
    width = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    integers = pc.fill_null(column.view(width) if kind != width else column, 0)
    return integers.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)


def _float_bits(column: pa.Array) -> np.ndarray:
    numbers = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False) + 0.0  # −0.0 becomes 0.0
    numbers[np.isnan(numbers)] = np.nan
    return numbers.view(np.uint64)


def _bytes_hashes(column: pa.Array, offset_type: type) -> np.ndarray:
    """Per value Σ byte · prime^position, over all short ones at once; the digest of a long one, by itself."""
    _, offset_buffer, data = column.buffers()
    if len(column) == 0:
        return np.zeros(0, np.uint64)
    offsets: np.ndarray = np.frombuffer(offset_buffer, offset_type)[column.offset : column.offset + len(column) + 1]
    lengths = np.diff(offsets).astype(np.int64)
    total = int(offsets[-1] - offsets[0])
    if total == 0:
        return np.zeros(len(column), np.uint64)
    content = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    begins = offsets[:-1].astype(np.int64) - int(offsets[0])
    long = np.flatnonzero(lengths > _LONG)
    if len(long):
        hashes = np.empty(len(column), np.uint64)
        hashes[long] = [_digest(content[b : b + n]) for b, n in zip(begins[long], lengths[long], strict=True)]
        short = np.flatnonzero(lengths <= _LONG)
        hashes[short] = _bytes_hashes(column.take(pa.array(short)), offset_type)
        return hashes
    position = np.arange(total) - np.repeat(begins, lengths)
    powers = np.cumprod(np.full(int(lengths.max()), _PRIME, np.uint64))
    terms = np.append((content.astype(np.uint64) + np.uint64(1)) * powers[position], np.uint64(0))
    sums = np.add.reduceat(terms, begins)
    return np.where(lengths == 0, np.uint64(0), sums)


def _digest(content: np.ndarray) -> int:
    return int.from_bytes(hashlib.blake2b(content.data, digest_size=8).digest(), "little")
