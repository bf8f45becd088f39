"""Answers of any size in bounded memory: past a limit, record batches go through a file that only its readers keep."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator

import pyarrow as pa

SPOOL_ROWS = 200_000


def gather(batches: Iterable[pa.RecordBatch], schema: pa.Schema, most: int = SPOOL_ROWS) -> pa.Table:
    """The batches as one table; with more than ``most`` rows it is memory-mapped from an unlinked file."""
    kept: list[pa.RecordBatch] = []
    rows = 0
    rest = iter(batches)
    for batch in rest:
        kept.append(batch)
        rows += len(batch)
        if rows > most:
            return _spooled(_chained(kept, rest), schema)
    if not schema.names:
        # A table without columns forgets how many rows it has; a bag of empty rows must not.
        return pa.Table.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    return pa.Table.from_batches(kept, schema)


def _chained(kept: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while kept:
        yield kept.pop(0)
    yield from rest


def _spooled(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    handle, path = tempfile.mkstemp(prefix="viewkeeper-answer-", suffix=".arrow")
    os.close(handle)
    try:
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        return pa.ipc.open_file(pa.memory_map(path)).read_all()
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
