"""Reading a warehouse: cuts, updates, changes, and a view as of any update.

V as of k  =  views/<view> at versions[view]  +  Σ changes/<view> with folded[view] < _update ≤ k
              (for k < folded: minus those with k < _update ≤ folded)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from viewkeeper.algebra.bag import UPDATE
from viewkeeper.errors import UsageError, WarehouseError
from viewkeeper.warehouse.as_of import AsOf
from viewkeeper.warehouse.cuts import CUT, UPDATE_SCHEMA, Cut
from viewkeeper.warehouse.durability import SAFE, Disk
from viewkeeper.warehouse.layout import INEXACT, UNCOMPENSATED, Layout
from viewkeeper.warehouse.log_rows import LogRows
from viewkeeper.warehouse.log_table import LogTable
from viewkeeper.warehouse.ordered import in_update_order
from viewkeeper.warehouse.torn import UPDATES, changes_of, held, require
from viewkeeper.warehouse.view_table import Load, ViewTable, data_files, load_of

KEEP = timedelta(days=7)


class WarehouseReader:
    """A warehouse as any process may read it, while the job writes. The constructor touches nothing."""

    def __init__(self, root: Path, group: str = "all", keep: timedelta = KEEP, disk: Disk = SAFE):
        self.layout = Layout(Path(root), group)
        self.keep = keep
        self._disk = disk
        self._cuts = LogTable(self.layout.cuts, ("cut",), disk)
        self._updates = LogTable(self.layout.updates, (UPDATE, CUT), disk)
        self._changes: dict[str, LogTable] = {}
        self._views: dict[str, ViewTable] = {}

    def newest(self) -> Cut | None:
        """The newest cut, or None before the first load."""
        if not self._cuts.exists():
            return None
        self._refresh(self._cuts)
        number = self._cuts.rows().largest("cut")
        return None if number is None else self._stored_cuts(number, number)[0]

    def lasting_cut(self) -> Cut | None:
        """The newest cut, which is on the disk by then: another process or thread may just be writing it."""
        cut = self.newest()
        if cut is not None:
            self._cuts.sync()
        return cut

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
        tables = list(in_update_order(self._updates.rows(), first, last, UPDATE_SCHEMA.names))
        return pa.concat_tables(tables) if tables else UPDATE_SCHEMA.empty_table()

    def changes(self, view: str, first: int, last: int) -> Iterator[pa.Table]:
        """The view's committed changes of updates ``first`` to ``last``, in that order, streaming.

        Those of the load that the newest cut names: the view may have been in another group before, whose
        numbers mean nothing here. Tables have the view's columns, ``_count`` and ``_update``; one update may
        span several tables.
        """
        newest = self.newest()
        while newest is not None and view in newest.versions:
            rows = self._changes_since(view, load_of(self._named(view, newest)))
            if rows is not None:
                return _ordered(rows, first, min(last, newest.last_update))
            if (now := self.newest()) == newest:  # what an earlier load left goes before any change of this one comes
                break
            newest = now  # it was loaded again meanwhile
        return iter(())

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

    def require_own_number(self, view: str, update: int) -> None:
        """Raises UsageError where the number is that of the view's load, and was that of an older state before.

        A load of everything takes the sources as they are by then, and repeats the number of the newest update: the
        state that this update has left is gone.
        """
        newest = self.newest()
        if newest is None or view not in newest.versions:
            return
        load = load_of(self._named(view, newest))
        cuts = self.cuts(0, newest.cut) if update == load.update else []
        pairs = ((a, b) for a, b in pairwise(cuts) if a.versions.get(view, -1) <= load.after < b.versions.get(view, -1))
        for before, loaded in pairs:
            going_on = before.versions.items() & loaded.versions.items()
            moved = [s for s, position in before.positions.items() if loaded.positions.get(s, position) != position]
            if before.last_update == update and moved and not going_on:
                what = f"all was loaded again after update {update}, from sources that may have gone on"
                raise UsageError.at(f"views.{view}", what, "read it without --update, or after a later one")

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
        return self.as_of(view, cut, update).reader()

    def as_of(self, view: str, cut: Cut | None = None, update: int | None = None) -> AsOf:
        """Where the view lies at a cut, after an update, or as it stands, for whoever reads it."""
        newest = self.newest()
        try:
            return self._as_of(view, newest, cut or newest, update)
        except UsageError:
            if cut is not None or self.newest() == newest:
                raise
            return self.as_of(view, cut, update)  # it was loaded again meanwhile

    def _as_of(self, view: str, newest: Cut | None, base: Cut | None, update: int | None) -> AsOf:
        if newest is None or base is None or view not in base.versions:
            raise UsageError.at(f"views.{view}", "it is not in that cut", "load it with viewkeeper init")
        wanted = base.last_update if update is None else update
        if not 0 <= wanted <= newest.last_update:
            raise UsageError.at(f"views.{view}", f"there is no update {wanted}", f"the newest is {newest.last_update}")
        if view in newest.versions:
            require(self.layout.view(view), newest.versions[view])
        table, folded = self._base(view, base, newest, wanted)
        changes = self._changes_between(view, table, folded, wanted)
        found = AsOf(self.layout.view(view), table, folded, wanted, changes)
        found.require_whole()
        return found

    def require_view(self, view: str) -> None:
        """Raises a WarehouseError if something of a view is lost that the newest cut counts on."""
        require(self.layout.changes(view), self._counted_on(changes_of(view)))
        self.as_of(view)

    def require_updates(self) -> None:
        """The same of the group's updates."""
        require(self.layout.updates, self._counted_on(UPDATES))

    def _counted_on(self, table: str) -> int:
        """The version of a table that the newest cut counts on, -1 if it does not say."""
        return held(self.layout.cuts).get(table, -1)

    def holds_changes(self, view: str, load: Load) -> bool:
        """Whether ``changes`` holds what changed the view since that load, and not since another."""
        return self._changes_since(view, load) is not None

    def _changes_between(self, view: str, table: DeltaTable, folded: int, wanted: int) -> LogRows | None:
        """What lies between a stored state and the update wanted, as it is now; None if nothing does."""
        if folded == wanted:
            return None
        rows = self._changes_since(view, load_of(table))
        if rows is None:
            raise UsageError.at(
                f"views.{view}", f"it was loaded again, and update {wanted} was before that", "read a later one"
            )
        return rows

    def _changes_since(self, view: str, load: Load) -> LogRows | None:
        """The changes of that load as they are now, or None if the table holds those of another."""
        log, needed = self._log(view), self._counted_on(changes_of(view))
        self._refresh(log)
        if needed >= 0:  # a log that ends before it is whole, and shows an earlier state
            require(log.path, needed)
        if not log.exists():
            return None
        rows = log.rows()
        return rows if rows.load in (None, load.id) else None

    def _base(self, view: str, cut: Cut, newest: Cut, wanted: int) -> tuple[DeltaTable, int]:
        """The stored state to start from, and its update: the cut's own, or the newest if that is gone."""
        current = self._named(view, newest) if view in newest.versions else None
        own = current if cut == newest else self._kept(view, cut)
        folded = cut.folded[view]
        # Changes from before a later load are gone, so an older load's state can only be read as it is.
        if own is not None and wanted != folded and current is not None and load_of(own) != load_of(current):
            own = None
        table, folded = (own, folded) if own is not None else (current, newest.folded.get(view, 0))
        if table is None or cut.versions[view] <= load_of(table).after:
            raise UsageError.at(f"views.{view}", f"cut {cut.cut} cannot be read any more", "read a later one")
        if wanted < (first := load_of(table).update):
            raise UsageError.at(f"views.{view}", f"update {wanted} came before its load", f"the first is {first}")
        return table, folded

    def _kept(self, view: str, cut: Cut) -> DeltaTable | None:
        """The version that the cut names, if it was not deleted since."""
        try:
            table = self._named(view, cut)
        except WarehouseError:
            return None
        return table if all(file.exists() for file in data_files(self.layout.view(view), table)) else None

    def _named(self, view: str, cut: Cut) -> DeltaTable:
        return self.view_table(view).at(cut.versions[view])

    def _stored_cuts(self, first: int, last: int) -> list[Cut]:
        if not self._cuts.exists():
            return []
        rows = [row for batch in self._cuts.rows().batches("cut", first, last) for row in batch.to_pylist()]
        return sorted(map(Cut.from_row, rows), key=lambda cut: cut.cut)

    def _refresh(self, log: LogTable) -> None:
        """Sees what the job has written since."""
        if log.exists():
            log.refresh()

    def _log(self, view: str) -> LogTable:
        if view not in self._changes:
            self._changes[view] = LogTable(self.layout.changes(view), (UPDATE, CUT), self._disk)
        return self._changes[view]

    def view_table(self, view: str) -> ViewTable:
        """The table that holds the view's versions."""
        if view not in self._views:
            self._views[view] = ViewTable(self.layout.view(view), self.keep, self._disk)
        return self._views[view]


def _ordered(rows: LogRows, first: int, last: int) -> Iterator[pa.Table]:
    return in_update_order(rows, first, last, [name for name in rows.schema.names if name != CUT])
