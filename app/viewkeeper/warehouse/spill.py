"""Consolidation of bags larger than memory: rows go to parts on disk by hash; parts are summed one by one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.bag import COUNT, consolidate
from viewkeeper.algebra.hashing import row_hashes
from viewkeeper.algebra.sizes import pieces, rows_at
from viewkeeper.warehouse.streams import storage

LIMIT_ROWS = 500_000
LIMIT_BYTES = 64 << 20
"""What is held in memory, and summed at a time, which takes several copies of it."""

_PARTS = 32


class Consolidator:
    """Sums a stream of bags into one consolidated bag, in memory at most about ``limit_rows`` and ``limit_bytes``.

    ``schema`` names every column, ``_count`` among them; two rows are the same row if they agree ``by`` those
    columns (all but ``_count`` unless told). Use it as a context, so that its files, which have no name, go away.
    """

    def __init__(
        self,
        schema: pa.Schema,
        by: Sequence[str] | None = None,
        limit_rows: int = LIMIT_ROWS,
        limit_bytes: int = LIMIT_BYTES,
        _depth: int = 0,
    ):
        assert COUNT in schema.names, "a bag needs its counts"
        self.schema = schema
        self.by = list(by) if by is not None else [name for name in schema.names if name != COUNT]
        self.limit_rows = limit_rows
        self.limit_bytes = limit_bytes
        self._depth = _depth
        self._held: list[pa.Table] = []
        self._rows = self._bytes = 0
        self._parts: _Parts | None = None

    @property
    def spilled(self) -> bool:
        """Whether rows went to disk; until then ``results`` is one table."""
        return self._parts is not None

    def add(self, table: pa.Table) -> None:
        """Adds a bag: more rows, or the same rows with other counts."""
        for piece in pieces(table.select(self.schema.names).cast(self.schema), self.limit_rows, self.limit_bytes):
            self._held.append(piece)
            self._rows += len(piece)
            self._bytes += piece.nbytes
            if self._rows > self.limit_rows or self._bytes > self.limit_bytes:
                self._make_room()

    def results(self) -> Iterator[pa.Table]:
        """The sum of all that was added, in tables of bounded size, each row in one of them; empties this."""
        if self._parts is None:
            table = self._take()
            if len(table):
                yield table
            return
        self._parts.write(self._take())
        parts, self._parts = self._parts, None
        with parts:
            for part in range(_PARTS):
                yield from self._part_results(parts, part)

    def close(self) -> None:
        self._held, self._rows, self._bytes = [], 0, 0
        if self._parts is not None:
            self._parts.close()
            self._parts = None

    def __enter__(self) -> Consolidator:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _take(self) -> pa.Table:
        held, self._held, self._rows, self._bytes = self._held, [], 0, 0
        table = pa.concat_tables(held) if held else self.schema.empty_table()
        return consolidate(table, self.by)

    def _make_room(self) -> None:
        table = self._take()
        # What mostly cancelled may stay; otherwise summing again and again would cost more than the disk.
        if self._parts is None and len(table) <= self.limit_rows // 2 and table.nbytes <= self.limit_bytes // 2:
            self._held, self._rows, self._bytes = [table], len(table), table.nbytes
            return
        if self._parts is None:
            self._parts = _Parts(self.schema, self.by, self._depth)
        self._parts.write(table)

    def _part_results(self, parts: _Parts, part: int) -> Iterator[pa.Table]:
        too_large = parts.rows[part] > 2 * self.limit_rows or parts.bytes[part] > 2 * self.limit_bytes
        # A part that is still too large is split by another hash; equal hashes cannot be split, so not for
        # ever.
        if too_large and self._depth < 3:
            with Consolidator(self.schema, self.by, self.limit_rows, self.limit_bytes, self._depth + 1) as smaller:
                for table in parts.read(part):
                    smaller.add(table)
                yield from smaller.results()
            return
        tables = list(parts.read(part))
        if tables:
            table = consolidate(pa.concat_tables(tables), self.by)
            if len(table):
                yield table


class _Parts:
    """Rows on disk, in files without a name, by the hash of the row."""

    def __init__(self, schema: pa.Schema, by: Sequence[str], depth: int):
        self._schema, self._by, self._depth = schema, by, depth
        self.rows = [0] * _PARTS
        self.bytes = [0] * _PARTS
        self._place = Path(tempfile.gettempdir())
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with storage(self._place):
            self._files = [tempfile.TemporaryFile(prefix="viewkeeper-") for _ in range(_PARTS)]  # noqa: SIM115
            self._writers = [pa.ipc.new_stream(pa.PythonFile(f, "w"), schema, options=options) for f in self._files]

    def write(self, table: pa.Table) -> None:
        if len(table) == 0:
            return
        part_of = (row_hashes(table, self._by, self._depth) % np.uint64(_PARTS)).astype(np.int64)
        order = np.argsort(part_of, kind="stable")
        table = rows_at(table, order)
        ends = np.cumsum(np.bincount(part_of, minlength=_PARTS))
        start = 0
        for part, end in enumerate(ends):
            if end > start:
                rows = table.slice(start, end - start)
                with storage(self._place):
                    self._writers[part].write_table(rows)
                self.rows[part] += len(rows)
                self.bytes[part] += rows.nbytes
            start = end

    def read(self, part: int) -> Iterator[pa.Table]:
        with storage(self._place):
            self._writers[part].close()
            self._files[part].seek(0)
        with storage(self._place), pa.ipc.open_stream(pa.PythonFile(self._files[part], "r")) as stream:
            for batch in stream:
                yield pa.Table.from_batches([batch])

    def close(self) -> None:
        for file in self._files:
            with suppress(OSError):  # a full disk; what is written here is not needed any more
                file.close()

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
