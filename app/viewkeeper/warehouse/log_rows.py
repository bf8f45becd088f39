"""The rows of one version of an append-only table: found by the statistics of its files, read straight from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from viewkeeper.warehouse.streams import storage

BATCH_ROWS = 65_536
BATCH_BYTES = 16 << 20

_BUFFER = 1 << 20


def bytes_a_row(*files: str | Path) -> int:
    """About how many bytes a row of these parquet files takes, as they tell themselves."""
    rows = size = 0
    for file in files:
        told = pq.read_metadata(file)
        rows += told.num_rows
        size += sum(told.row_group(group).total_byte_size for group in range(told.num_row_groups))
    return size // max(rows, 1) + 1


def batch_rows(*files: str | Path) -> int:
    """So many rows of these files are read at a time."""
    return max(1, min(BATCH_ROWS, BATCH_BYTES // bytes_a_row(*files)))


def file_batches(path: str | Path, groups: list[int] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of one file (or of these row groups), always in the same order, in batches of bounded bytes.

    A dataset would hold whole row groups, decoded, and the bytes of the whole file.
    """
    with pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER) as file:
        yield from file.iter_batches(batch_rows(path), row_groups=groups)


def _row_groups(path: str, key: str, first: int, last: int) -> list[int]:
    """The row groups of a file that may hold rows with ``first ≤ key ≤ last``."""
    told = pq.read_metadata(path)
    place = told.schema.to_arrow_schema().names.index(key)
    found = [(group, told.row_group(group).column(place).statistics) for group in range(told.num_row_groups)]
    return [g for g, s in found if s is None or not s.has_min_max or (s.min <= last and s.max >= first)]


@dataclass(frozen=True)
class LogRows:
    """``files`` has one row per data file: ``path``, ``num_records``, and per key column its ``min.`` and ``max.``.

    ``load`` names the load that the rows belong to, None where nobody has noted it.
    """

    path: Path
    schema: pa.Schema
    files: pa.Table
    load: str | None

    def largest(self, key: str) -> int | None:
        """The largest value of a key column, by the files' statistics alone."""
        return self._extreme(pc.max, f"max.{key}")

    def smallest(self, key: str) -> int | None:
        return self._extreme(pc.min, f"min.{key}")

    def _extreme(self, choose: object, column: str) -> int | None:
        if self.files.num_rows == 0 or column not in self.files.column_names:
            return None
        value = choose(self.files[column]).as_py()  # type: ignore[operator]
        return None if value is None else int(value)

    def between(self, key: str, first: int, last: int) -> pa.Table:
        """The data files that may hold rows with ``first ≤ key ≤ last``, as ``files`` describes them."""
        files = self.files
        if files.num_rows == 0:
            return files
        overlaps = pc.and_(pc.less_equal(files[f"min.{key}"], last), pc.greater_equal(files[f"max.{key}"], first))
        return files.filter(pc.fill_null(overlaps, True))

    def paths_between(self, key: str, first: int, last: int) -> list[str]:
        """The same files by their paths."""
        files = self.between(key, first, last)
        return [str(self.path / path) for path in files["path"].to_pylist()] if files.num_rows else []

    def sizes_between(self, key: str, first: int, last: int) -> dict[str, int]:
        """The same files with their bytes, by their paths in the table's folder."""
        files = self.between(key, first, last)
        return dict(zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True))

    def rows_at_most(self, key: str, first: int, last: int) -> int:
        """No fewer rows than have ``first ≤ key ≤ last``, by the files' statistics alone."""
        files = self.between(key, first, last)
        return int(pc.sum(files["num_records"]).as_py() or 0) if files.num_rows else 0

    def bytes_a_row(self, key: str, first: int, last: int) -> int:
        """About how many bytes a row with ``first ≤ key ≤ last`` takes."""
        paths = self.paths_between(key, first, last)
        with storage(self.path):
            return bytes_a_row(*paths[:8]) if paths else 1

    def batches(self, key: str, first: int, last: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows with ``first ≤ key ≤ last``, streaming, in no promised order."""
        wanted = (ds.field(key) >= first) & (ds.field(key) <= last)
        paths = self.paths_between(key, first, last)
        if not paths:
            return
        with storage(self.path):
            at_once = batch_rows(paths[0], paths[-1]) if columns != [key] else BATCH_ROWS
            if at_once < BATCH_ROWS:
                yield from self._sparingly(paths, key, first, last, columns)
                return
            dataset = ds.dataset(paths, schema=self.schema, format="parquet")
            ahead = {"batch_readahead": 2, "fragment_readahead": 4}
            batches = dataset.to_batches(columns=columns, filter=wanted, batch_size=at_once, **ahead)
            yield from (batch for batch in batches if len(batch))

    def _sparingly(
        self, paths: list[str], key: str, first: int, last: int, columns: list[str] | None
    ) -> Iterator[pa.RecordBatch]:
        """The same of files of wide rows, a little at a time."""
        names = columns or self.schema.names
        schema = pa.schema([self.schema.field(name) for name in names])
        for path in paths:
            for batch in file_batches(path, _row_groups(path, key, first, last)):
                keys = batch.column(key)
                wanted = pc.and_(pc.greater_equal(keys, first), pc.less_equal(keys, last))
                yield from pa.Table.from_batches([batch]).filter(wanted).select(names).cast(schema).to_batches()
