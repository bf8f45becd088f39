"""The rows of one version of an append-only table: found by the statistics of its files, read straight from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from viewkeeper.warehouse.streams import storage

BATCH_ROWS = 65_536


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

    def rows_at_most(self, key: str, first: int, last: int) -> int:
        """No fewer rows than have ``first ≤ key ≤ last``, by the files' statistics alone."""
        files = self.between(key, first, last)
        return int(pc.sum(files["num_records"]).as_py() or 0) if files.num_rows else 0

    def batches(self, key: str, first: int, last: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows with ``first ≤ key ≤ last``, streaming, in no promised order."""
        wanted = (ds.field(key) >= first) & (ds.field(key) <= last)
        paths = self.paths_between(key, first, last)
        if not paths:
            return
        dataset = ds.dataset(paths, schema=self.schema, format="parquet")
        batches = dataset.to_batches(
            columns=columns, filter=wanted, batch_size=BATCH_ROWS, batch_readahead=2, fragment_readahead=4
        )
        with storage(self.path):
            yield from (batch for batch in batches if len(batch))
