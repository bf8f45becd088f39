"""Writing a warehouse: loads, commits and folds of one group of views.

Delta has no transaction over several tables; the cut row alone publishes. Rows of ``changes`` and ``updates``
past the newest cut, and versions of ``views`` that no cut names, were never published: readers ignore them,
and ``open`` clears them away.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import chain
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.algebra.bag import COUNT, UPDATE
from viewkeeper.errors import NegativeCount, WarehouseError
from viewkeeper.warehouse import fault
from viewkeeper.warehouse.as_of import summed
from viewkeeper.warehouse.cuts import CUT, CUT_SCHEMA, UPDATE_SCHEMA, Cut, WarehouseTransaction, cut_rows, now
from viewkeeper.warehouse.durability import SAFE, Disk, Unwritten
from viewkeeper.warehouse.groups import group_of
from viewkeeper.warehouse.layout import INEXACT, UNCOMPENSATED, Mark
from viewkeeper.warehouse.log_table import LogTable
from viewkeeper.warehouse.reader import KEEP, WarehouseReader
from viewkeeper.warehouse.retention import superseded
from viewkeeper.warehouse.torn import HOLDS, UPDATES, changes_of, held, repair
from viewkeeper.warehouse.view_table import Fold, Superseded, load_of

_LONG = pa.int64()
_EARLIER = "earlier"


class Warehouse(WarehouseReader):
    """The warehouse as the one job that holds its ``lock`` has it; ``open`` it before anything is written."""

    def __init__(self, root: Path, group: str = "all", keep: timedelta = KEEP, disk: Disk = SAFE):
        super().__init__(root, group, keep, disk)
        self._opened, self._id = False, ""
        self._newest: Cut | None = None
        self._sealed = -1
        # What the next cut will name. A load also replaces all that the view's tables held before.
        self._folds: dict[str, Fold] = {}
        self._loads: dict[str, Fold] = {}
        self._load_ids: dict[str, str] = {}
        self._pool: ThreadPoolExecutor | None = None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the warehouse for this process; a UsageError names the process that holds it already.

        Cut rows that a power failure has torn are taken back at once: everything begins by reading the newest cuts.
        """
        with self.layout.lock():
            for group in self.layout.cuts.parent.glob("*"):
                repair(group)
            yield

    def open(self) -> Cut | None:
        """Creates what is missing, clears away what no cut published, and returns the newest cut."""
        self.layout.create()
        self._id = self.layout.known_id()
        self._repair()
        self._cuts.create(CUT_SCHEMA)
        self._updates.create(UPDATE_SCHEMA.append(pa.field(CUT, _LONG)))
        self.recover()
        self._opened = True
        return self._newest

    def newest(self) -> Cut | None:
        """The newest cut; an opened warehouse knows it, because nobody else writes."""
        return self._newest if self._opened else super().newest()

    def _counted_on(self, table: str) -> int:
        return -1 if self._opened else super()._counted_on(table)  # ``open`` has looked

    # ---- recovery --------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Brings the tables back to the newest cut, so that the work after it can be done again.

        Loads and folds of this process that no cut names yet stay, to be named by the next one.
        """
        self._opened = False
        newest = super().newest()
        if newest is not None:
            self._cuts.sync()  # it may have been read before it was on the disk
        if newest != self._newest:  # a commit that failed here may have reached the disk
            self._folds, self._loads = {}, {}
        self._newest = newest
        self._updates.refresh()
        self._updates.discard(CUT, self._last_cut)
        if newest is not None:
            self._sealed = max(self._sealed, newest.sealed)
            for view in newest.versions.keys() - self._loads.keys():
                self._standing(view, newest)
                self._log(view).refresh()
                self._clear_older_changes(view)
        for view in set(newest.versions if newest else ()) | set(self._loads):
            self._discard_changes(view)
        self._clear_older_marks()
        self._opened = True

    def _repair(self) -> None:
        """Takes back what a power failure has torn; a cut that it would have to take with it is an error."""
        repair(self.layout.cuts)
        newest, needed = super().newest(), held(self.layout.cuts)
        repair(self.layout.updates, needed.get(UPDATES, -1))
        for view, version in (newest.versions if newest is not None else {}).items():
            repair(self.layout.changes(view), needed.get(changes_of(view), -1))
            repair(self.layout.view(view), version)

    def _holds(self, cut: Cut) -> dict[str, str]:
        """What the commit of a cut says of the tables that it counts on."""
        logs = {changes_of(view): self._log(view) for view in cut.versions}
        found = {name: log.version for name, log in {UPDATES: self._updates, **logs}.items() if log.exists()}
        return {HOLDS: orjson.dumps(found).decode()}

    @property
    def _last_cut(self) -> int:
        return -1 if self._newest is None else self._newest.cut

    def _standing(self, view: str, cut: Cut) -> Fold:
        """Where ``views/<view>`` stands, which is what the next cut names.

        A fold that no cut names yet stays, known or found on disk; a load that none names is taken back.
        """
        table = self.view_table(view)
        known = self._folds.get(view, Fold(cut.versions[view], cut.folded[view]))
        if table.refreshed_version() == known.version:
            return known
        self._folds[view] = table.newest_fold(load_of(self._named(view, cut))) or table.restore(known)
        return self._folds[view]

    def _discard_changes(self, view: str) -> None:
        """Deletes changes past the newest cut; numbers of another load's changes say nothing about that."""
        log = self._log(view)
        log.refresh()
        if log.exists() and log.load in (self._load_id(view, self._newest), self._load_ids.get(view)):
            log.discard(CUT, self._last_cut)

    def _clear_older_changes(self, view: str) -> None:
        """Empties ``changes`` of what the view's earlier loads left behind; does nothing if that is done.

        The table says which load its rows belong to. One from before that was noted holds a single group's
        updates, so their numbers tell.
        """
        assert self._newest is not None
        log, named = self._log(view), self._named(view, self._newest)
        load, schema = load_of(named), _changes_schema(pa.schema(named.schema().to_arrow()))
        if log.exists() and log.load == load.id:
            return
        if log.exists() and log.load is None and log.schema == schema:
            smallest = log.rows().smallest(UPDATE)
            if smallest is None or smallest > load.update:
                log.mark(load.id)
                return
        log.replace(schema, load.id)

    def _clear_older_marks(self) -> None:
        """Removes the marks that mean earlier loads of the newest cut's views; others are other groups' affair."""
        views = self._newest.versions.keys() if self._newest is not None else set()
        for kind in (INEXACT, UNCOMPENSATED):
            valid = self._marked(kind)
            for view in (self.layout.marks(kind).keys() & views) - valid.keys():
                self.layout.unmark(view, kind)

    # ---- load, commit, fold ----------------------------------------------------------------------------

    def load(self, view: str, schema: pa.Schema, sql: str, tables: Iterable[pa.Table], last_update: int) -> None:
        """Writes the whole view as of ``last_update``; the next cut names it.

        ``schema`` has the view's columns; ``tables``, which may be lazy, also ``_count`` > 0, and each row
        once. A view that is there already is replaced; that cut then must not hold changes of it. A view that
        comes from another group has left it before (``leave``).
        """
        assert group_of(self.layout.root, view) in (None, self.layout.group), f"{view} is still in another group"
        state = pa.schema([*(f for f in schema if f.name != COUNT), pa.field(COUNT, _LONG)])
        self._folds.pop(view, None)
        self._repair_unloaded(view)
        self._load_ids[view] = id = uuid.uuid4().hex
        self._prepare_changes(view, state, id)
        self._loads[view] = self.view_table(view).load(state, sql, tables, last_update, id)
        fault.reached("load")

    def _repair_unloaded(self, view: str) -> None:
        """What a load that was cut short has left of a view that is in no cut."""
        if self._newest is None or view not in self._newest.versions:
            repair(self.layout.changes(view))
            repair(self.layout.view(view))

    def _prepare_changes(self, view: str, state: pa.Schema, load: str) -> None:
        """A table for the changes, if there is none. One whose load nobody has noted is from before, so not this one's:
        the newest cut does not hold the view, or ``open`` would have noted it."""
        log = self._log(view)
        log.create(_changes_schema(state), load)
        log.refresh()
        if log.load is None:
            log.mark(_EARLIER)

    def commit(self, transaction: WarehouseTransaction) -> Cut:
        """Publishes the transaction, and the loads and folds since the last cut, as the next cut.

        1. changes, updates   a crash leaves rows that no cut holds: ``open`` deletes them
        2. the cut row        the one atomic publication; a crash after it leaves all of it, also of the power:
                              each step is on the disk before the next begins (see ``durability``)
        3. clearing up        changes and marks from before a load: ``open`` does it again

        A transaction without updates is legal, and repeats ``last_update``. After an error, ``recover``
        first, and see by ``newest`` whether the cut stands all the same.
        """
        assert self._opened, "open the warehouse before writing to it"
        self.layout.require_id(self._id)
        cut = self._next_cut(transaction)
        self._append(transaction, cut.cut)
        self._append_cut(cut)
        loads, self._loads, self._folds, self._newest = self._loads, {}, {}, cut
        fault.reached("cut")
        for view in loads.keys() & cut.versions.keys():
            self._clear_older_changes(view)
        if loads:
            self._clear_older_marks()
        fault.reached("clear")
        return cut

    def leave(self, views: Collection[str], sources: Collection[str] | None = None) -> Cut:
        """A cut that repeats the newest without these views, as they go to other groups or leave the configuration.

        ``sources`` are those that stay (all, unless told): the others' positions are the group's no more.
        """
        newest = self._newest
        assert newest is not None, "there is nothing to leave before the first load"
        positions = {name: text for name, text in newest.positions.items() if sources is None or name in sources}
        offsets = {name: newest.offsets[name] for name in positions}
        staying = [view for view in newest.versions if view not in views]
        return self.commit(WarehouseTransaction(newest.last_update, positions, offsets, newest.level, views=staying))

    def _next_cut(self, transaction: WarehouseTransaction) -> Cut:
        newest = self._newest
        before = 0 if newest is None else newest.last_update
        assert transaction.last_update >= before, "updates are never taken back"
        assert not len(transaction.updates) or pc.min(transaction.updates[UPDATE]).as_py() == before + 1, (
            "the updates of a cut follow those of the cut before"
        )
        named = {} if newest is None else {v: Fold(n, newest.folded[v]) for v, n in newest.versions.items()}
        named |= self._folds | self._loads
        if transaction.views is not None:
            named = {view: fold for view, fold in named.items() if view in transaction.views}
        return Cut(
            cut=0 if newest is None else newest.cut + 1,
            last_update=transaction.last_update,
            positions=dict(transaction.positions),
            offsets=dict(transaction.offsets),
            versions={view: fold.version for view, fold in named.items()},
            folded={view: fold.update for view, fold in named.items()},
            committed_at=now(),
            level=transaction.level,
            sealed=self._sealed,
        )

    def _append_cut(self, cut: Cut) -> None:
        """Step 2. Delta may fail after its commit, at the upkeep of its log; then the cut stands."""
        try:
            self._cuts.append(cut.table(), self._holds(cut))
        except Unwritten:
            raise
        except WarehouseError:
            self._cuts.refresh()
            if super().newest() != cut:
                raise
            self._cuts.sync()

    def _append(self, transaction: WarehouseTransaction, cut: int) -> None:
        """Step 1. The tables do not depend on each other, so they are written side by side."""
        about = {"cut": str(cut), "asked": orjson.dumps(transaction.asked).decode()}
        work: list[Callable[[], None]] = [
            partial(self._append_changes, view, tables, cut, about) for view, tables in transaction.changes.items()
        ]
        if len(transaction.updates):
            work.append(partial(self._append_updates, transaction.updates, cut))
        if len(work) == 1:
            work[0]()
            return
        self._pool = self._pool or ThreadPoolExecutor(4, thread_name_prefix="warehouse")
        running = [self._pool.submit(step) for step in work]
        wait(running)  # all of them, even if one fails: nothing may still be writing when the caller recovers
        for step in running:
            step.result()

    def _append_updates(self, updates: pa.Table, cut: int) -> None:
        self._updates.append(cut_rows(updates, self._updates.schema, cut))
        fault.reached("updates")

    def _append_changes(self, view: str, tables: Iterable[pa.Table], cut: int, about: Mapping[str, str]) -> None:
        filled = (table for table in tables if len(table))
        first, second = next(filled, None), next(filled, None)
        if first is None:
            return
        log = self._log(view)
        if view in self._loads and log.load != self._load_ids[view]:
            assert self._newest is None or view not in self._newest.versions, (
                "a cut that names a view's new load holds no changes of it"
            )
            log.replace(_changes_schema(self.view_table(view).schema), self._load_ids[view])
        schema = log.schema
        if second is None:
            log.append(cut_rows(first, schema, cut), about)
        else:
            rows = (cut_rows(table, schema, cut) for table in chain([first, second], filled))
            log.append_stream(schema, rows, about)
        fault.reached("changes")

    @property
    def has_unnamed_folds(self) -> bool:
        """Whether ``views/<view>`` of some view stands further than the newest cut says."""
        return bool(self._folds)

    def fold(self, views: Iterable[str] | None = None) -> None:
        """Brings ``views/<view>`` of these views (all, unless told) to the newest cut; the next cut names
        them.

        A count below zero marks the view inexact and raises NegativeCount; its table then stays as it was.
        """
        cut = self._newest
        assert cut is not None, "there is nothing to fold before the first load"
        self.layout.require_id(self._id)
        for view in sorted(cut.versions if views is None else views):
            if view not in self._loads:
                self._fold(view, cut)
                fault.reached("fold")

    def _fold(self, view: str, cut: Cut) -> None:
        standing = self._standing(view, cut)
        if standing.update == cut.last_update:
            return
        table = self.view_table(view)
        changes = self.changes(view, standing.update + 1, cut.last_update)
        try:
            with summed(table.schema, changes) as bag:
                if bag.spilled:
                    self._folds[view] = table.rewrite(bag.results(), cut.last_update)
                elif change := next(bag.results(), None):
                    self._folds[view] = table.fold(change, cut.last_update)
                else:
                    self._folds[view] = Fold(standing.version, cut.last_update)
        except NegativeCount as error:
            self.mark_inexact(view, error.problems[0].what)
            raise

    # ---- upkeep ----------------------------------------------------------------------------------------

    def note_sealed(self, cut: int) -> None:
        """Notes that the view topics hold everything up to ``cut``; the next cut row records it."""
        self._sealed = max(self._sealed, cut)

    def mark_inexact(self, view: str, reason: str) -> None:
        """Notes that exactness is no longer promised for the view, until it is loaded again; the first reason stays."""
        if view not in self.inexact():
            self.layout.mark(view, Mark(self._load_id(view, self.newest()), reason))

    def mark_uncompensated(self, view: str) -> None:
        """Notes that the view is kept by an algorithm that compensates nothing; a later load is not concerned."""
        if view not in self.uncompensated():
            mark = Mark(self._load_id(view, self.newest()), "nothing is compensated")
            self.layout.mark(view, mark, UNCOMPENSATED)

    def compact(self) -> None:
        """Puts small files together where enough have gathered; mostly free, so call it after every cut."""
        views = self._newest.versions if self._newest is not None else ()
        for log in (self._cuts, self._updates, *(self._log(view) for view in views)):
            log.tidy()

    def vacuum(self, keep: timedelta | None = None) -> None:
        """Deletes what only cuts superseded longer ago than ``keep`` need; never what the newest cut needs."""
        self.delete(superseded(self, self.keep if keep is None else keep))

    def delete(self, superseded: Mapping[str, Superseded]) -> None:
        """Deletes that much of the group's views, and of its other tables what no reader can need any more."""
        newest = self.newest()
        views = newest.versions if newest is not None else {}
        for log in (self._cuts, self._updates, *(self._log(view) for view in views)):
            if log.exists():
                log.vacuum()
        for view in superseded.keys() & views.keys():
            self.view_table(view).delete(superseded[view])

    def close(self) -> None:
        """Ends the threads that write; a later commit begins new ones."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def _refresh(self, log: LogTable) -> None:
        if not self._opened:
            super()._refresh(log)


def _changes_schema(state: pa.Schema) -> pa.Schema:
    return pa.schema([*state, pa.field(UPDATE, _LONG), pa.field(CUT, _LONG)])
