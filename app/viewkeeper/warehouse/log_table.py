"""Append-only Delta tables that grow by thousands of small appends a day: changes, updates and cuts.

Their cost must not grow with their age. Small files are compacted in two tiers, so that a row is rewritten a
few times at most; the Delta log is checkpointed often and cut off behind the checkpoint before the last,
because old versions of these tables are promised to nobody, and a commit costs what the log's folder holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError

from viewkeeper.warehouse.streams import storage, write_stream

CHECKPOINT_EVERY = 20
COMPACT_EVERY = 40
MANY_FILES = 120
SMALL_FILE, SMALL_GROUP = 1 << 20, 2_048  # bytes of a file, rows of a row group: the least a reader reads
LARGE_FILE, LARGE_GROUP = 64 << 20, 65_536
BATCH_ROWS = 65_536
_VACUUM_HOURS = 1


class LogTable:
    """One such table. ``keys`` are its columns that only grow: files are found by their statistics."""

    def __init__(self, path: Path, keys: tuple[str, ...]):
        self.path = path
        self._keys = keys
        self._table: DeltaTable | None = None
        self._files: pa.Table | None = None
        self._since_cut_off = 0
        self._since_compaction = 0

    def exists(self) -> bool:
        return self._table is not None or DeltaTable.is_deltatable(str(self.path))

    def create(self, schema: pa.Schema) -> None:
        """Creates the table if it is missing."""
        if self.exists():
            return
        configuration = {
            "delta.checkpointInterval": str(CHECKPOINT_EVERY),
            "delta.enableExpiredLogCleanup": "false",
            # Every checkpoint lists the files compacted away within this time, and every reader reads that.
            "delta.deletedFileRetentionDuration": "interval 2 minutes",
            # Statistics of these columns even if the view has more than the 32 columns Delta looks at.
            "delta.dataSkippingStatsColumns": ",".join(self._keys),
        }
        with storage(self.path):
            self._table = DeltaTable.create(str(self.path), schema, configuration=configuration)

    @property
    def table(self) -> DeltaTable:
        if self._table is None:
            with storage(self.path):
                self._table = DeltaTable(str(self.path))
        return self._table

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self.table.schema().to_arrow())

    def refresh(self) -> None:
        """Sees what other processes committed since."""
        self._files = None
        if self._table is None:
            return
        try:
            self._table.update_incremental()
        except (DeltaError, OSError):  # the log behind the version we knew is gone, or the disk; opening it anew tells
            self._table = None

    def append(self, rows: pa.Table, about: Mapping[str, str] | None = None) -> None:
        """Adds the rows in one Delta commit; ``about`` is what its history says of it."""
        with storage(self.path):
            write_deltalake(self.table, rows, mode="append", commit_properties=_told(about))
        self._appended()

    def append_stream(
        self, schema: pa.Schema, tables: Iterable[pa.Table], about: Mapping[str, str] | None = None
    ) -> None:  # fmt: skip
        """Adds the rows of all tables in one Delta commit, however many they are."""
        write_stream(self.table, schema, tables, self.path, mode="append", commit_properties=_told(about))
        self._appended()

    def _appended(self) -> None:
        self._files = None
        self._since_cut_off += 1
        self._since_compaction += 1

    def replace(self, schema: pa.Schema) -> None:
        """Empties the table and gives it that schema, in one commit."""
        with storage(self.path):
            write_deltalake(self.table, schema.empty_table(), mode="overwrite", schema_mode="overwrite")
        self._files = None

    def files(self) -> pa.Table:
        """One row per data file: ``path``, ``num_records``, and per key column its ``min.`` and ``max.``."""
        if self._files is None:
            self._files = pa.table(self.table.get_add_actions(flatten=True))
        return self._files

    def largest(self, key: str) -> int | None:
        """The largest value of a key column, by the files' statistics alone."""
        return self._extreme(pc.max, f"max.{key}")

    def smallest(self, key: str) -> int | None:
        return self._extreme(pc.min, f"min.{key}")

    def _extreme(self, choose: object, column: str) -> int | None:
        files = self.files()
        if files.num_rows == 0 or column not in files.column_names:
            return None
        value = choose(files[column]).as_py()  # type: ignore[operator]
        return None if value is None else int(value)

    def between(self, key: str, first: int, last: int) -> pa.Table:
        """The data files that may hold rows with ``first ≤ key ≤ last``, as ``files`` describes them."""
        files = self.files()
        if files.num_rows == 0:
            return files
        overlaps = pc.and_(pc.less_equal(files[f"min.{key}"], last), pc.greater_equal(files[f"max.{key}"], first))
        return files.filter(pc.fill_null(overlaps, True))

    def rows_at_most(self, key: str, first: int, last: int) -> int:
        """No fewer rows than have ``first ≤ key ≤ last``, by the files' statistics alone."""
        files = self.between(key, first, last)
        return int(pc.sum(files["num_records"]).as_py() or 0) if files.num_rows else 0

    def batches(self, key: str, first: int, last: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows with ``first ≤ key ≤ last``, streaming, in no promised order."""
        wanted = (ds.field(key) >= first) & (ds.field(key) <= last)
        files = self.between(key, first, last)
        if files.num_rows == 0:
            return
        paths = [str(self.path / path) for path in files["path"].to_pylist()]
        dataset = ds.dataset(paths, schema=self.schema, format="parquet")
        batches = dataset.to_batches(
            columns=columns, filter=wanted, batch_size=BATCH_ROWS, batch_readahead=2, fragment_readahead=4
        )
        with storage(self.path):
            yield from (batch for batch in batches if len(batch))

    def discard(self, key: str, past: int) -> None:
        """Deletes the rows whose key is greater than ``past``."""
        largest = self.largest(key)
        if largest is not None and largest > past:
            with storage(self.path):
                self.table.delete(f"{key} > {past}")
            self._files = None

    def tidy(self) -> None:
        """Compacts and cuts the log off when enough was appended; most calls cost nothing."""
        if self._since_cut_off >= CHECKPOINT_EVERY:
            self.cut_log_off()
        if self._since_compaction >= COMPACT_EVERY:
            self.compact()

    def compact(self) -> None:
        """Puts small files together into middling ones, and those into large ones once they are many."""
        self._since_compaction = 0
        self._optimize(SMALL_FILE, SMALL_GROUP)
        if self.files().num_rows > MANY_FILES:
            self._optimize(LARGE_FILE, LARGE_GROUP)

    def _optimize(self, size: int, group: int) -> None:
        properties = WriterProperties(max_row_group_size=group, compression="SNAPPY")
        with storage(self.path):
            self.table.optimize.compact(target_size=size, writer_properties=properties)
        self._files = None

    def cut_log_off(self) -> None:
        """Deletes the log behind the checkpoint before the last, oldest first: what is left is whole."""
        self._since_cut_off = 0
        if len(known := checkpoints(self.path)) >= 2:
            forget_before(self.path, known[-2])

    def vacuum(self) -> None:
        """Deletes files that no reader can need any more."""
        with storage(self.path):
            self.table.vacuum(retention_hours=_VACUUM_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
        self._files = None


def _told(about: Mapping[str, str] | None) -> CommitProperties | None:
    return CommitProperties(custom_metadata=dict(about)) if about else None


def checkpoints(table: Path) -> list[int]:
    """The versions that a Delta table's log can be read from."""
    return sorted({_version(file) for file in _log(table) if ".checkpoint" in file.name})


def forget_before(table: Path, version: int) -> None:
    """Deletes the log behind the last checkpoint that ``version`` can still be read from, oldest first."""
    bases = [base for base in checkpoints(table) if base <= version]
    for file in _log(table) if bases else ():
        if _version(file) < bases[-1]:
            with storage(table):
                file.unlink(missing_ok=True)


def _log(table: Path) -> list[Path]:
    return sorted((table / "_delta_log").glob("[0-9]*"))


def _version(file: Path) -> int:
    return int(file.name.split(".")[0])
