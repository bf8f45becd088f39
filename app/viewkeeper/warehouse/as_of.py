"""A view as of one update: a stored state, and the changes that lie between.

V as of k  =  stored state  +  Σ changes with folded < _update ≤ k
              (for k < folded: minus those with k < _update ≤ folded)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from viewkeeper.algebra.bag import COUNT, UPDATE
from viewkeeper.warehouse.log_rows import LogRows
from viewkeeper.warehouse.overlay import overlaid
from viewkeeper.warehouse.spill import Consolidator
from viewkeeper.warehouse.torn import require_files
from viewkeeper.warehouse.view_table import stored


@dataclass(frozen=True)
class AsOf:
    """``table`` stands at update ``folded``; ``changes`` lead from there to ``wanted``, None if that is the same.

    Both are versions that stay as they are, whatever the job does next. ``folder`` is where the table lies.
    """

    folder: Path
    table: DeltaTable
    folded: int
    wanted: int
    changes: LogRows | None

    @property
    def schema(self) -> pa.Schema:
        """The view's columns and ``_count``."""
        return pa.schema(self.table.schema().to_arrow())

    @property
    def between(self) -> tuple[int, int]:
        """The first and the last update that lie between."""
        return min(self.folded, self.wanted) + 1, max(self.folded, self.wanted)

    @property
    def sign(self) -> int:
        """Whether the changes between are to be added, or taken back."""
        return 1 if self.wanted > self.folded else -1

    def reader(self) -> pa.RecordBatchReader:
        """The rows, each once and with ``_count`` > 0, streaming."""
        return pa.RecordBatchReader.from_batches(self.schema, (batch for batch in self._batches() if len(batch)))

    def require_whole(self) -> None:
        """Raises a WarehouseError if a file is missing or torn: before a row is told, not in their midst."""
        files = pa.table(self.table.get_add_actions())
        require_files(self.folder, dict(zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True)))
        if self.changes is not None:
            require_files(self.changes.path, self.changes.sizes_between(UPDATE, *self.between))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        base, schema = stored(self.folder, self.table), self.schema
        if self.changes is None:
            yield from base
            return
        batches = self.changes.batches(UPDATE, *self.between, columns=schema.names)
        with summed(schema, (pa.Table.from_batches([batch]) for batch in batches), self.sign) as bag:
            if not bag.spilled:
                yield from overlaid(base, next(bag.results(), schema.empty_table()))
                return
            for batch in base:
                bag.add(pa.Table.from_batches([batch]))
            for table in bag.results():
                yield from table.to_batches()


def summed(schema: pa.Schema, changes: Iterable[pa.Table], sign: int = 1) -> Consolidator:
    """The sum of changes of many updates (or its negative) as a bag of ``schema``."""
    bag = Consolidator(schema)
    for table in changes:
        counts = table[COUNT] if sign > 0 else pc.negate(table[COUNT])
        bag.add(table.set_column(table.column_names.index(COUNT), COUNT, counts))
    return bag
