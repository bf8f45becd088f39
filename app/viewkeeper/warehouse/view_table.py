"""``views/<view>``: the view itself as a Delta table for any reader. Every version is a consistent state.

A fold rewrites only the files that hold a row it changes, and commits new and removed files at once. Each
commit says in its metadata which update the version stands at, so that a version that no cut names can be
recognized. The view's SQL and the update it was loaded at are table metadata.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from viewkeeper.algebra.bag import COUNT
from viewkeeper.algebra.sizes import pieces
from viewkeeper.errors import NegativeCount, WarehouseError
from viewkeeper.warehouse.durability import SAFE, Disk, DurableLog, added, entry, sync_new_folder
from viewkeeper.warehouse.log_rows import BATCH_ROWS, batch_rows, file_batches
from viewkeeper.warehouse.log_table import LOAD, checkpoints, forget_before
from viewkeeper.warehouse.overlay import Overlay
from viewkeeper.warehouse.spill import Consolidator
from viewkeeper.warehouse.streams import storage, write_stream

_LOADED, _AFTER = "viewkeeper.loaded", "viewkeeper.after"
FILE_ROWS = 500_000
SMALL_ROWS = FILE_ROWS // 8
FILE_BYTES = 64 << 20  # of its rows in memory, which take less on disk
_SMALL_BYTES = 1 << 20
MANY_SMALL_FILES = 16
_KIND, _STANDS_AT = "viewkeeperKind", "viewkeeperUpdate"


@dataclass(frozen=True)
class Fold:
    """A version of the table, and the update it stands at."""

    version: int
    update: int


@dataclass(frozen=True)
class Load:
    """A load of a view: the update it stands at, a name that no other load has, and the last version before it."""

    update: int
    id: str
    after: int


@dataclass(frozen=True)
class Superseded:
    """What can be deleted of a view's table: data files, and the log of the versions before one."""

    files: frozenset[str]
    before: int


def load_of(table: DeltaTable) -> Load:
    """The load that an opened version descends from."""
    configuration = table.metadata().configuration
    # Tables from before that was noted: by the numbers of updates alone, every version may be the load's.
    return Load(int(configuration[_LOADED]), configuration[LOAD], int(configuration.get(_AFTER, -1)))


class ViewTable:
    """The table of one view. Versions stay readable for ``keep`` after they were superseded."""

    def __init__(self, path: Path, keep: timedelta, disk: Disk = SAFE):
        self.path = path
        self._disk = disk
        self._durable = DurableLog(path, disk)
        self._keep = keep
        self._table: DeltaTable | None = None
        self._brought: dict[int, frozenset[str]] = {}  # per version

    def exists(self) -> bool:
        return self._table is not None or DeltaTable.is_deltatable(str(self.path))

    @property
    def table(self) -> DeltaTable:
        if self._table is None:
            with storage(self.path):
                self._table = DeltaTable(str(self.path))
            self._durable.opened_at(self._table.version())
        return self._table

    def sync(self) -> None:
        """Everything that was committed stays."""
        self._durable.sync(self.version)

    @property
    def version(self) -> int:
        return int(self.table.version())

    @property
    def schema(self) -> pa.Schema:
        """The view's columns and ``_count``, as the newest version has them."""
        return pa.schema(self.table.schema().to_arrow())

    def at(self, version: int) -> DeltaTable:
        """That version, opened for reading."""
        with storage(self.path):
            return DeltaTable(str(self.path), version=version)

    def load(
        self, schema: pa.Schema, sql: str, tables: Iterable[pa.Table], update: int, id: str | None = None
    ) -> Fold:  # fmt: skip
        """Replaces the whole content, schema and definition by a load that stands at ``update``; ``id`` is its name."""
        self._table = None  # another group may have written to it since
        after = self.version if self.exists() else -1
        configuration = {_LOADED: str(update), LOAD: id or uuid.uuid4().hex, _AFTER: str(after)}
        if self.exists():
            with storage(self.path):
                self.table.alter.set_table_description(sql)
                self.table.alter.set_table_properties(configuration, raise_if_not_exists=False)
        else:
            self._create(schema, sql, configuration)
        write_stream(
            self.table,
            schema,
            (table.select(schema.names).cast(schema) for table in tables),
            self.path,
            mode="overwrite",
            schema_mode="overwrite",
            commit_properties=_stands_at("load", update),
        )
        self.sync()
        return Fold(self.version, update)

    def _create(self, schema: pa.Schema, sql: str, configuration: dict[str, str]) -> None:
        with storage(self.path):
            self._table = DeltaTable.create(
                str(self.path),
                schema,
                description=sql,
                configuration={**configuration, **_retention(self._keep)},
                raise_if_key_not_exists=False,
                commit_properties=_stands_at("load", int(configuration[_LOADED])),
            )
        sync_new_folder(self._disk, self.path)
        self.sync()

    def refreshed_version(self) -> int:
        """The newest version on disk."""
        with storage(self.path):
            self.table.update_incremental()
        return self.version

    def newest_fold(self, load: Load) -> Fold | None:
        """The newest version if a fold of that load made it (or kept its content), None if another load did."""
        with storage(self.path):
            commit = self.table.history(1)[0]
        if commit.get(_KIND) != "fold" or load_of(self.table) != load:
            return None
        return Fold(self.version, int(commit[_STANDS_AT]))

    def restore(self, fold: Fold) -> Fold:
        """Goes back to a version that a cut names, as a new version; what came after was never published."""
        with storage(self.path):
            self.table.restore(fold.version, commit_properties=_stands_at("fold", fold.update))
        self.sync()
        return Fold(self.version, fold.update)

    def fold(self, change: pa.Table, update: int) -> Fold:
        """Adds a small consolidated change; raises NegativeCount, with no version left, if a count goes below 0."""
        overlay = Overlay(change)
        files = self._files()
        hits = {path: mask for path in files if (mask := self._hits(path, overlay)).any()}
        total = overlay.total()
        self._check(total)
        small = [path for path, rows in files.items() if rows < SMALL_ROWS]
        if len(small) > MANY_SMALL_FILES:
            small = [path for path in small if (self.path / path).stat().st_size < _SMALL_BYTES]
        if len(small) > MANY_SMALL_FILES:
            hits.update({path: np.zeros(files[path], bool) for path in small if path not in hits})
        return self._replace(hits, self._survivors(hits, total), update)

    def rewrite(self, changes: Iterable[pa.Table], update: int) -> Fold:
        """Adds a change of any size in bounded memory, by summing the whole view anew."""
        schema = self.schema
        with Consolidator(schema) as bag:
            for path in self._files():
                for batch in self._batches(path):
                    bag.add(pa.Table.from_batches([batch]))
            for change in changes:
                bag.add(change)
            return self._replace(self._files(), self._checked(bag.results()), update)

    def superseded(self, oldest: int) -> Superseded:
        """What no version from ``oldest`` on needs. Nobody may be writing meanwhile."""
        oldest = max(oldest, self.first_version())
        with storage(self.path):
            needed = {file.name for file in data_files(self.path, self.at(oldest))}
            needed |= self._added(oldest + 1, self.refreshed_version())
            files = {file.name for file in self.path.glob("*.parquet")} - needed
        bases = [base for base in checkpoints(self.path) if base <= oldest]
        return Superseded(frozenset(files), bases[-1] if bases else 0)

    def delete(self, superseded: Superseded) -> None:
        """Deletes the files, then the log behind them; every other version stays as it was."""
        with storage(self.path):
            for file in superseded.files:
                (self.path / file).unlink(missing_ok=True)
            self._note_retention()
        forget_before(self.path, superseded.before)

    def first_version(self) -> int:
        """The first version that the log still reaches back to."""
        if (self.path / "_delta_log" / f"{0:020}.json").exists():
            return 0
        return min(checkpoints(self.path), default=0)

    def whole(self, version: int, without: Superseded | None = None) -> bool:
        """Whether the version can be read; with ``without``, whether it still could once that is deleted."""
        if version < self.first_version() or (without is not None and version < without.before):
            return False
        try:
            files = data_files(self.path, self.at(version))
        except WarehouseError:
            return False
        gone: frozenset[str] = frozenset() if without is None else without.files
        return all(file.name not in gone and file.exists() for file in files)

    def _added(self, first: int, last: int) -> set[str]:
        """The data files that these versions brought; a week has ten thousand, so what was read is remembered."""
        known, self._brought = self._brought, {}
        for version in range(first, last + 1):
            self._brought[version] = known[version] if version in known else self._added_by(version)
        return set().union(*self._brought.values())

    def _added_by(self, version: int) -> frozenset[str]:
        return frozenset(Path(path).name for path in added(entry(self.path, version)))

    def _note_retention(self) -> None:
        """Tells other tools how long versions stay, if that has changed; the content keeps what it says of itself."""
        wanted = _retention(self._keep)
        if not wanted.items() <= self.table.metadata().configuration.items():
            newest = self.table.history(1)[0]
            same = CommitProperties(custom_metadata={k: newest[k] for k in (_KIND, _STANDS_AT) if k in newest})
            self.table.alter.set_table_properties(wanted, commit_properties=same)
            self.sync()

    def _files(self) -> dict[str, int]:
        """The data files of the newest version, with their rows."""
        files = pa.table(self.table.get_add_actions())
        return dict(zip(files["path"].to_pylist(), files["num_records"].to_pylist(), strict=True))

    def _batches(self, path: str) -> Iterator[pa.RecordBatch]:
        """The rows of one file, always in the same order."""
        with storage(self.path):
            yield from file_batches(self.path / path)

    def _hits(self, path: str, overlay: Overlay) -> np.ndarray:
        masks = [overlay.meets(pa.Table.from_batches([batch])) for batch in self._batches(path)]
        return np.concatenate(masks) if masks else np.zeros(0, bool)

    def _survivors(self, hits: dict[str, np.ndarray], total: pa.Table) -> Iterator[pa.Table]:
        """What the rewritten files hold afterwards: rows that no change met, and the sum of the others."""
        for path, mask in hits.items():
            start = 0
            for batch in self._batches(path):
                kept = pa.array(~mask[start : start + len(batch)])
                start += len(batch)
                yield pa.Table.from_batches([batch]).filter(kept)
        yield total

    def _checked(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for table in tables:
            self._check(table)
            yield table

    def _check(self, table: pa.Table) -> None:
        negative = table.filter(pc.less(table[COUNT], 0))
        if len(negative):
            row = {name: str(value) for name, value in negative.slice(0, 1).to_pylist()[0].items()}
            raise NegativeCount.at(
                f"views.{self.path.name}",
                f"{len(negative)} row(s) would be there less than zero times, among them {row}",
                "load the view again (viewkeeper init --reload)",
            )

    def _replace(self, old: Iterable[str], tables: Iterable[pa.Table], update: int) -> Fold:
        """Commits files ``old`` out and the rows of ``tables`` in, at once; an error leaves nothing behind."""
        schema = self.schema
        removes = [RemoveAction(path, True, int(time.time() * 1000)) for path in old]
        adds: list[AddAction] = []
        try:
            with storage(self.path):
                adds.extend(_write_file(self.path, rows) for rows in _file_sized(tables, schema))
                self.table.create_write_transaction(
                    [*adds, *removes], "append", schema, commit_properties=_stands_at("fold", update)
                )
        except BaseException:
            self._discard(adds)
            raise
        version = self.refreshed_version()
        self.sync()
        return Fold(version, update)

    def _discard(self, adds: list[AddAction]) -> None:
        """Deletes the files of a commit that failed, unless it only failed after it was made, at the log's upkeep."""
        with suppress(DeltaError, OSError):  # then they stay until a vacuum finds them
            committed = set(pa.table(DeltaTable(str(self.path)).get_add_actions())["path"].to_pylist())
            for add in adds:
                if add.path not in committed:
                    (self.path / add.path).unlink(missing_ok=True)


def data_files(folder: Path, table: DeltaTable) -> list[Path]:
    """The data files of an opened version of the table in that folder.

    delta-rs gives them as addresses, in which a space of the folder's name is %20; their own names hold nothing odd.
    """
    return [folder / uri.rpartition("/")[2] for uri in table.file_uris()]


def stored(folder: Path, table: DeltaTable) -> Iterator[pa.RecordBatch]:
    """The rows of an opened version of the table in that folder, streaming."""
    files = [str(file) for file in data_files(folder, table)]
    if files:
        with storage(folder):
            schema = pa.schema(table.schema().to_arrow())
            if batch_rows(files[0], files[-1]) < BATCH_ROWS:
                for batch in chain.from_iterable(map(file_batches, files)):
                    yield from pa.Table.from_batches([batch]).select(schema.names).cast(schema).to_batches()
                return
            dataset = ds.dataset(files, schema=schema, format="parquet")
            yield from dataset.to_batches(batch_size=BATCH_ROWS, batch_readahead=2, fragment_readahead=1)


def _stands_at(kind: str, update: int) -> CommitProperties:
    return CommitProperties(custom_metadata={_KIND: kind, _STANDS_AT: str(update)})


def _retention(keep: timedelta) -> dict[str, str]:
    return {
        # A commit would clean up by its clock alone, and take away the version that the newest cut names.
        "delta.enableExpiredLogCleanup": "false",
        "delta.deletedFileRetentionDuration": f"interval {int(keep.total_seconds())} seconds",
        "delta.checkpointInterval": "10",
    }


def _file_sized(tables: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    """The same rows in tables for one file each, of ``FILE_ROWS`` rows or ``FILE_BYTES``; the last may be smaller."""
    held: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        for piece in pieces(table.select(schema.names).cast(schema), FILE_ROWS, FILE_BYTES):
            if held and (rows + len(piece) > FILE_ROWS or size + piece.nbytes > FILE_BYTES):
                yield pa.concat_tables(held)
                held, rows, size = [], 0, 0
            held.append(piece)
            rows += len(piece)
            size += piece.nbytes
    if rows:
        yield pa.concat_tables(held)


def _write_file(folder: Path, table: pa.Table) -> AddAction:
    name = f"part-{uuid.uuid4()}.snappy.parquet"
    try:
        pq.write_table(table, folder / name)
    except BaseException:
        (folder / name).unlink(missing_ok=True)
        raise
    return AddAction(
        path=name,
        size=os.path.getsize(folder / name),
        partition_values={},
        modification_time=int(time.time() * 1000),
        data_change=True,
        stats=json.dumps(_statistics(table)),
    )


def _statistics(table: pa.Table) -> dict[str, object]:
    """Delta's file statistics, for the columns whose order every reader agrees on."""
    plain = [f.name for f in table.schema if pa.types.is_int64(f.type)]
    extremes = {name: pc.min_max(table[name]).as_py() for name in plain}
    known = {name: e for name, e in extremes.items() if e["min"] is not None}
    return {
        "numRecords": len(table),
        "minValues": {name: e["min"] for name, e in known.items()},
        "maxValues": {name: e["max"] for name, e in known.items()},
        "nullCount": {name: table[name].null_count for name in plain},
    }
