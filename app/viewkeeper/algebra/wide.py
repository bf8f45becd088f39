"""Codes of wide texts: equal exactly where the texts are, found without a second copy of them all.

Arrow's dictionary of a column holds every text once more, and so does its table of hashes. Here texts are told apart by
their hashes alone, and those that share one are compared, a few at a time.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.algebra.sizes import spans, taken, varies

WIDE_BYTES = 8 << 20
"""So much text is worth it, if it is also wide: hashing a value here takes longer than Arrow takes for a short one."""

_WIDTH = 256
_AT_ONCE = 4 << 20


def is_wide(column: pa.ChunkedArray, rows: int) -> bool:
    """Whether so many rows of a column are better coded here."""
    if not varies(column.type) or len(column) == 0:
        return False
    width = column.nbytes / len(column)
    return width > _WIDTH and width * rows > WIDE_BYTES


def text_codes(column: pa.ChunkedArray, places: np.ndarray) -> np.ndarray | None:
    """A code for the text at each of these places; NULL is one, too. None if two texts of one hash differ."""
    size = pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)[places]
    runs = list(spans(size, len(places), _AT_ONCE))
    hashes = np.concatenate([_hashes(taken(column, places[low:high])) for low, high in runs])
    _, first, codes = np.unique(hashes, return_index=True, return_inverse=True)
    for low, high in runs:
        firsts = first[codes[low:high]]
        if not np.array_equal(size[low:high], size[firsts]):  # or the first ones could be longer than what is held here
            return None
        again = places[low:high] != places[firsts]
        if not taken(column, places[low:high][again]).equals(taken(column, places[firsts][again])):
            return None
    return codes


def _hashes(texts: pa.ChunkedArray) -> np.ndarray:
    large = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    values = texts.cast(pa.large_binary() if large else pa.binary()).to_pylist()
    return np.fromiter(map(hash, values), np.int64, len(values))
