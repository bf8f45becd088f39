"""Tables of any size in bounded memory: past a limit, record batches go through a file that only its readers keep.

What is mapped from a file takes memory only while there is some to spare.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.sizes import pieces
from viewkeeper.warehouse.streams import storage

SPOOL_ROWS = 200_000
SPOOL_BYTES = 32 << 20

_KEPT = "_kept"
K = TypeVar("K", bound=Hashable)


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


def only(rows: pa.Table, kept: np.ndarray) -> pa.Table:
    """The rows that are marked; many or large ones are mapped from a file again."""
    if kept.all():
        return rows
    some = pieces(rows.append_column(_KEPT, pa.array(kept)), max(1, len(rows)))
    return gather((batch for piece in some for batch in _marked(piece)), rows.schema)


def _marked(piece: pa.Table) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = piece.filter(piece[_KEPT]).drop_columns([_KEPT]).to_batches()
    return found


class Ends:
    """Which rows at the ends of growing tables are in memory: past a number of bytes all of them go to files."""

    def __init__(self) -> None:
        self._rows: dict[Hashable, int] = {}

    def grown(self, tables: Mapping[K, pa.Table], by: Mapping[K, pa.Table]) -> dict[K, pa.Table]:
        """The tables, to whose ends these have been added: the same rows in the same order."""
        for name, table in by.items():
            before = self._rows.get(name, 0)
            # What is large was mapped from a file by whoever made it.
            self._rows[name] = before + len(table) if before or is_small(table) else 0
        ends = {name: table.slice(len(table) - self._rows.get(name, 0)) for name, table in tables.items()}
        if sum(end.nbytes for end in ends.values()) <= SPOOL_BYTES:
            return dict(tables)
        whole = {name: _on_disk(table, len(ends[name])) for name, table in tables.items()}
        self._rows = {}
        return whole

    def kept(self, tables: Mapping[K, pa.Table], before: Mapping[K, pa.Table]) -> None:
        """Of the tables that there were ``before``, these rows (``only`` them) are left."""
        self._rows = {
            name: self._rows.get(name, 0) if len(table) == len(before[name]) else len(table) * is_small(table)
            for name, table in tables.items()
        }


def _on_disk(table: pa.Table, rows: int) -> pa.Table:
    """The table, the last so many rows of it in a file."""
    first = len(table) - rows
    if not rows:
        return table
    end = table.slice(first)
    end = end.combine_chunks() if end.nbytes <= 2 * SPOOL_BYTES else end
    end = _spooled(iter(end.to_batches()), table.schema)
    return pa.concat_tables([table.slice(0, first), end]) if first else end


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
            # By this name, which the file has for us alone, no descriptor stays open: there may be many tables.
            return pa.ipc.open_file(pa.memory_map(f"/dev/fd/{self._file.fileno()}")).read_all()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk; what is mapped is there
            self._file.close()
