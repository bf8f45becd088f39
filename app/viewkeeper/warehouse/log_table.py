"""Append-only Delta tables that grow by thousands of small appends a day: changes, updates and cuts.

Their cost must not grow with their age. Small files are compacted in two tiers, so that a row is rewritten a
few times at most; the Delta log is checkpointed often and cut off behind the checkpoint before the last,
because old versions of these tables are promised to nobody, and a commit costs what the log's folder holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError

from viewkeeper.warehouse.durability import SAFE, Disk, DurableLog, sync_new_folder
from viewkeeper.warehouse.log_rows import LogRows
from viewkeeper.warehouse.streams import storage, write_stream

CHECKPOINT_EVERY = 20
COMPACT_EVERY = 40
MANY_FILES = 120
SMALL_FILE, SMALL_GROUP = 1 << 20, 2_048  # bytes of a file, rows of a row group: the least a reader reads
LARGE_FILE, LARGE_GROUP = 64 << 20, 65_536
_VACUUM_HOURS = 1

LOAD = "viewkeeper.load"
"""The table property that names a load: of a view, the one it descends from; of changes, the one they change."""


class LogTable:
    """One such table. ``keys`` are its columns that only grow: files are found by their statistics."""

    def __init__(self, path: Path, keys: tuple[str, ...], disk: Disk = SAFE):
        self.path = path
        self._disk = disk
        self._durable = DurableLog(path, disk)
        self._keys = keys
        self._table: DeltaTable | None = None
        self._rows: LogRows | None = None
        self._since_cut_off = 0
        self._since_compaction = 0

    def exists(self) -> bool:
        return self._table is not None or DeltaTable.is_deltatable(str(self.path))

    def create(self, schema: pa.Schema, load: str | None = None) -> None:
        """Creates the table if it is missing; its rows then belong to that load."""
        if not self.exists():
            self._create(schema, load, "error")

    def replace(self, schema: pa.Schema, load: str) -> None:
        """Empties the table, gives it that schema, and makes it that load's, in one commit."""
        self._create(schema, load, "overwrite")

    def _create(self, schema: pa.Schema, load: str | None, mode: Literal["error", "overwrite"]) -> None:
        configuration = {
            "delta.checkpointInterval": str(CHECKPOINT_EVERY),
            "delta.enableExpiredLogCleanup": "false",
            # Every checkpoint lists the files compacted away within this time, and every reader reads that.
            "delta.deletedFileRetentionDuration": "interval 2 minutes",
            # Statistics of these columns even if the view has more than the 32 columns Delta looks at.
            "delta.dataSkippingStatsColumns": ",".join(self._keys),
            **({LOAD: load} if load is not None else {}),
        }
        with storage(self.path):
            self._table = DeltaTable.create(
                str(self.path), schema, mode=mode, configuration=configuration, raise_if_key_not_exists=False
            )
        if mode == "error":
            sync_new_folder(self._disk, self.path)
        self._committed()

    @property
    def table(self) -> DeltaTable:
        if self._table is None:
            with storage(self.path):
                self._table = DeltaTable(str(self.path))
            self._durable.opened_at(self._table.version())
        return self._table

    @property
    def version(self) -> int:
        return int(self.table.version())

    def sync(self) -> None:
        """Everything that was committed stays."""
        self._durable.sync(self.version)

    def _committed(self) -> None:
        self._rows = None
        self.sync()

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self.table.schema().to_arrow())

    @property
    def load(self) -> str | None:
        """The load whose changes these are; None in tables from before loads were noted."""
        return self.table.metadata().configuration.get(LOAD)

    def mark(self, load: str) -> None:
        """Notes that all rows belong to that load."""
        with storage(self.path):
            self.table.alter.set_table_properties({LOAD: load}, raise_if_not_exists=False)
        self._committed()

    def refresh(self) -> None:
        """Sees what other processes committed since."""
        self._rows = None
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
        self._committed()
        self._since_cut_off += 1
        self._since_compaction += 1

    def rows(self) -> LogRows:
        """The rows as this version has them; they stay the same whatever is written later."""
        if self._rows is None:
            with storage(self.path):
                files = pa.table(self.table.get_add_actions(flatten=True))
            self._rows = LogRows(self.path, self.schema, files, self.load)
        return self._rows

    def discard(self, key: str, past: int) -> None:
        """Deletes the rows whose key is greater than ``past``."""
        largest = self.rows().largest(key)
        if largest is not None and largest > past:
            with storage(self.path):
                self.table.delete(f"{key} > {past}")
            self._committed()

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
        if self.rows().files.num_rows > MANY_FILES:
            self._optimize(LARGE_FILE, LARGE_GROUP)

    def _optimize(self, size: int, group: int) -> None:
        properties = WriterProperties(max_row_group_size=group, compression="SNAPPY")
        with storage(self.path):
            self.table.optimize.compact(target_size=size, writer_properties=properties)
        self._committed()

    def cut_log_off(self) -> None:
        """Deletes the log behind the checkpoint before the last, oldest first: what is left is whole."""
        self._since_cut_off = 0
        if len(known := checkpoints(self.path)) >= 2:
            forget_before(self.path, known[-2])

    def vacuum(self) -> None:
        """Deletes files that no reader can need any more."""
        with storage(self.path):
            self.table.vacuum(retention_hours=_VACUUM_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
        self._committed()


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
