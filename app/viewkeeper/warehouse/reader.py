"""Reading a warehouse: cuts, updates, changes, and a view as of any update.

V as of k  =  views/<view> at versions[view]  +  Σ changes/<view> with folded[view] < _update ≤ k
              (for k < folded: minus those with k < _update ≤ folded)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from viewkeeper.algebra.bag import COUNT, UPDATE
from viewkeeper.errors import UsageError, WarehouseError
from viewkeeper.warehouse.cuts import CUT, UPDATE_SCHEMA, Cut
from viewkeeper.warehouse.layout import INEXACT, UNCOMPENSATED, Layout
from viewkeeper.warehouse.log_table import LogTable
from viewkeeper.warehouse.ordered import in_update_order
from viewkeeper.warehouse.overlay import overlaid
from viewkeeper.warehouse.spill import Consolidator
from viewkeeper.warehouse.view_table import ViewTable, load_of, stored

KEEP = timedelta(days=7)


class WarehouseReader:
    """A warehouse as any process may read it, while the job writes. The constructor touches nothing."""

    def __init__(self, root: Path, group: str = "all", keep: timedelta = KEEP):
        self.layout = Layout(Path(root), group)
        self.keep = keep
        self._cuts = LogTable(self.layout.cuts, ("cut",))
        self._updates = LogTable(self.layout.updates, (UPDATE, CUT))
        self._changes: dict[str, LogTable] = {}
        self._views: dict[str, ViewTable] = {}

    def newest(self) -> Cut | None:
        """The newest cut, or None before the first load."""
        if not self._cuts.exists():
            return None
        self._refresh(self._cuts)
        number = self._cuts.largest("cut")
        return None if number is None else self._stored_cuts(number, number)[0]

    def cut(self, number: int) -> Cut:
        """The cut of that number."""
        found = self.cuts(number, number)
        if not found:
            newest = self.newest()
            there = "there is none yet" if newest is None else f"the newest is {newest.cut}"
            raise UsageError.at(str(self.layout.root), f"there is no cut {number}", there)
        return found[0]

    def cuts(self, first: int, last: int) -> list[Cut]:
        """The cuts numbered ``first`` to ``last``, in order."""
        self._refresh(self._cuts)
        return self._stored_cuts(first, last)

    def updates(self, first: int, last: int) -> pa.Table:
        """The committed updates numbered ``first`` to ``last``, in order, as UPDATE_SCHEMA."""
        newest = self.newest()
        if newest is None:
            return UPDATE_SCHEMA.empty_table()
        self._refresh(self._updates)
        last = min(last, newest.last_update)
        tables = list(in_update_order(self._updates, first, last, UPDATE_SCHEMA.names))
        return pa.concat_tables(tables) if tables else UPDATE_SCHEMA.empty_table()

    def changes(self, view: str, first: int, last: int) -> Iterator[pa.Table]:
        """The view's committed changes of updates ``first`` to ``last``, in that order, streaming.

        Tables have the view's columns, ``_count`` and ``_update``; one update may span several tables.
        """
        newest, log = self.newest(), self._log(view)
        self._refresh(log)
        if newest is None or not log.exists():
            return iter(())
        columns = [name for name in log.schema.names if name != CUT]
        return in_update_order(log, first, min(last, newest.last_update), columns)

    def definition(self, view: str) -> str | None:
        """The SQL that the view was loaded with, or None if the newest cut does not hold the view."""
        cut = self.newest()
        if cut is None or view not in cut.versions:
            return None
        return str(self._named(view, cut).metadata().description)

    def loaded(self, view: str) -> int | None:
        """The update that the view's own load stands at, or None if the newest cut does not hold the view."""
        cut = self.newest()
        if cut is None or view not in cut.versions:
            return None
        return load_of(self._named(view, cut)).update

    def inexact(self) -> dict[str, str]:
        """Per view whose exactness is no longer promised, the reason.

        The newest cut decides: a mark means the load it was made for, and is void once a cut names a later one.
        """
        return self._marked(INEXACT)

    def uncompensated(self) -> Collection[str]:
        """The views that were kept, at some time since their load, by an algorithm that compensates nothing."""
        return self._marked(UNCOMPENSATED).keys()

    def _marked(self, kind: str) -> dict[str, str]:
        cut = self.newest()
        return {view: m.reason for view, m in self.layout.marks(kind).items() if m.load == self._load_id(view, cut)}

    def _load_id(self, view: str, cut: Cut | None) -> str:
        """The name of the view's load, empty if the cut does not hold the view."""
        return load_of(self._named(view, cut)).id if cut is not None and view in cut.versions else ""

    def id(self) -> str:
        """A name that no other warehouse has."""
        return self.layout.id()

    def read(self, view: str, cut: Cut | None = None, update: int | None = None) -> pa.RecordBatchReader:
        """The view (its columns and ``_count`` > 0) at a cut, after an update, or as it stands; streaming."""
        newest = self.newest()
        base = cut or newest
        if newest is None or base is None or view not in base.versions:
            raise UsageError.at(f"views.{view}", "it is not in that cut", "load it with viewkeeper init")
        wanted = base.last_update if update is None else update
        if not 0 <= wanted <= newest.last_update:
            raise UsageError.at(f"views.{view}", f"there is no update {wanted}", f"the newest is {newest.last_update}")
        table, folded = self._base(view, base, newest, wanted)
        schema = pa.schema(table.schema().to_arrow())
        batches = self._as_of(view, stored(table), schema, folded, wanted)
        return pa.RecordBatchReader.from_batches(schema, (batch for batch in batches if len(batch)))

    def _base(self, view: str, cut: Cut, newest: Cut, wanted: int) -> tuple[DeltaTable, int]:
        """The stored state to start from, and its update: the cut's own, or the newest if that is gone."""
        current = self._named(view, newest) if view in newest.versions else None
        own = current if cut == newest else self._kept(view, cut)
        folded = cut.folded[view]
        # Changes from before a later load are gone, so an older load's state can only be read as it is.
        if own is not None and wanted != folded and current is not None and load_of(own) != load_of(current):
            own = None
        table, folded = (own, folded) if own is not None else (current, newest.folded.get(view, 0))
        if table is None:
            raise UsageError.at(f"views.{view}", f"cut {cut.cut} cannot be read any more", "read a later one")
        if wanted < (first := load_of(table).update):
            raise UsageError.at(f"views.{view}", f"update {wanted} came before its load", f"the first is {first}")
        return table, folded

    def _as_of(
        self, view: str, base: Iterator[pa.RecordBatch], schema: pa.Schema, folded: int, wanted: int
    ) -> Iterator[pa.RecordBatch]:
        if wanted == folded:
            yield from base
            return
        changes = self.changes(view, min(folded, wanted) + 1, max(folded, wanted))
        with summed(schema, changes, sign=1 if wanted > folded else -1) as bag:
            if not bag.spilled:
                yield from overlaid(base, next(bag.results(), schema.empty_table()))
                return
            for batch in base:
                bag.add(pa.Table.from_batches([batch]))
            for table in bag.results():
                yield from table.to_batches()

    def _kept(self, view: str, cut: Cut) -> DeltaTable | None:
        """The version that the cut names, if it was not deleted since."""
        try:
            table = self._named(view, cut)
        except WarehouseError:
            return None
        return table if all(Path(file).exists() for file in table.file_uris()) else None

    def _named(self, view: str, cut: Cut) -> DeltaTable:
        return self._view(view).at(cut.versions[view])

    def _stored_cuts(self, first: int, last: int) -> list[Cut]:
        if not self._cuts.exists():
            return []
        rows = [row for batch in self._cuts.batches("cut", first, last) for row in batch.to_pylist()]
        return sorted(map(Cut.from_row, rows), key=lambda cut: cut.cut)

    def _refresh(self, log: LogTable) -> None:
        """Sees what the job has written since."""
        if log.exists():
            log.refresh()

    def _log(self, view: str) -> LogTable:
        if view not in self._changes:
            self._changes[view] = LogTable(self.layout.changes(view), (UPDATE, CUT))
        return self._changes[view]

    def _view(self, view: str) -> ViewTable:
        if view not in self._views:
            self._views[view] = ViewTable(self.layout.view(view), self.keep)
        return self._views[view]


def summed(schema: pa.Schema, changes: Iterable[pa.Table], sign: int = 1) -> Consolidator:
    """The sum of changes of many updates (or its negative) as a bag of ``schema``."""
    bag = Consolidator(schema)
    for table in changes:
        counts = table[COUNT] if sign > 0 else pc.negate(table[COUNT])
        bag.add(table.set_column(table.column_names.index(COUNT), COUNT, counts))
    return bag
