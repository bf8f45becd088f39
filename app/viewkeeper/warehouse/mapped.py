"""Tables of any size in bounded memory: past a limit, record batches go through a file that only its readers keep.

What is mapped from a file takes memory only while there is some to spare.
"""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from viewkeeper.warehouse.streams import storage

SPOOL_ROWS = 200_000
SPOOL_BYTES = 32 << 20


def gather(batches: Iterable[pa.RecordBatch], schema: pa.Schema, most: int = SPOOL_ROWS) -> pa.Table:
    """The batches as one table; with more than ``most`` rows, or when large, it is mapped from an unlinked file."""
    kept: list[pa.RecordBatch] = []
    rows = size = 0
    rest = iter(batches)
    for batch in rest:
        kept.append(batch)
        rows += len(batch)
        size += batch.nbytes
        if rows > most or size > SPOOL_BYTES:
            return _spooled(_chained(kept, rest), schema)
    if not schema.names:
        # A table without columns forgets how many rows it has; a bag of empty rows must not.
        return pa.Table.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    return pa.Table.from_batches(kept, schema)


def is_small(table: pa.Table) -> bool:
    """Whether a table is kept in memory."""
    return len(table) <= SPOOL_ROWS and table.nbytes <= SPOOL_BYTES


def _chained(kept: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while kept:
        yield kept.pop(0)
    yield from rest


def _spooled(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    spool = Spool(schema)
    try:
        for batch in batches:
            spool.write(batch)
        return spool.table()
    finally:
        spool.close()


class Spool:
    """A file that record batches are written to, to be mapped as one table; it has gone once nobody uses the table.

    It has no name: whatever ends this process, nothing of it stays.
    """

    def __init__(self, schema: pa.Schema):
        self._place = Path(tempfile.gettempdir())
        with storage(self._place):
            self._file = tempfile.TemporaryFile(prefix="viewkeeper-")  # noqa: SIM115 (it outlives this call)
            self._writer = pa.ipc.new_file(pa.PythonFile(self._file, "w"), schema)

    def write(self, batch: pa.RecordBatch) -> None:
        with storage(self._place):
            self._writer.write_batch(batch)

    def table(self) -> pa.Table:
        """All that was written; no more may be."""
        with storage(self._place):
            self._writer.close()
            self._file.flush()
            mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            return pa.ipc.open_file(pa.py_buffer(mapped)).read_all()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk; what is mapped is there
            self._file.close()
