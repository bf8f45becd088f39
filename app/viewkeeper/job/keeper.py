"""The keeper: the body of the main loop. One micro-batch of messages in, one cut out.

    messages → queue → freeze → drain → integrator → sweep → merge → commit → publish

A batch reaches as far as its barriers: what a source delivers before its barrier comes out of the topic is handled
with it, so every update that an answer can contain has a number.

Everything the keeper knows is in the newest cut; killed at any moment, it starts again from there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from viewkeeper.algebra.view import View
from viewkeeper.algorithms.sweep import Queue
from viewkeeper.consistency.levels import Level
from viewkeeper.errors import SourceError, ViewkeeperError
from viewkeeper.integrator.integrator import Batch, number
from viewkeeper.job.freezing import Frozen, frozen
from viewkeeper.job.hold import Hold
from viewkeeper.job.patience import FIRST_START, Stopped, patiently
from viewkeeper.managers.keeping import weakest
from viewkeeper.managers.manager import asked_since, copied
from viewkeeper.managers.managers import Managers
from viewkeeper.managers.sources import Source
from viewkeeper.managers.stages import LARGE, Pieces, Stage, Starts
from viewkeeper.merge.merge import merge
from viewkeeper.messages import ActionList, Received, Rejected
from viewkeeper.queue.drain import PATIENCE, BarrierLate, Drain
from viewkeeper.queue.unsettled import Unsettled
from viewkeeper.queue.update_queue import UpdateQueue
from viewkeeper.warehouse.cuts import Cut, WarehouseTransaction
from viewkeeper.warehouse.pace import FoldPace
from viewkeeper.warehouse.topics import ViewTopics
from viewkeeper.warehouse.warehouse import Warehouse

T = TypeVar("T")

log = logging.getLogger("viewkeeper")


@dataclass
class StepTimes:
    """Seconds spent in each step since the start, for `status` and the benchmark."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin


@dataclass
class Pending:
    """What was received and is in no cut yet; it grows with every attempt to commit it."""

    received: Received = field(default_factory=lambda: Received([], {}, []))

    def add(self, more: Received) -> None:
        self.received = self.received.and_then(more)


class _Prepared(NamedTuple):
    """A transaction to commit, and the updates that some snapshot may not include after it."""

    transaction: WarehouseTransaction
    unsettled: Unsettled


@dataclass
class Keeper:
    """Keeps the views of one group in step with their sources."""

    views: Mapping[str, View]
    sources: Mapping[str, Source]
    queue: UpdateQueue
    warehouse: Warehouse
    topics: ViewTopics
    managers: Managers  # of the views that are not swept
    stage: Stage  # sweeps small batches, here
    drain: Drain
    pace: FoldPace
    cut: Cut
    set_aside: Callable[[Sequence[Rejected]], None]
    large_stage: Stage | None = None  # sweeps large batches, in Spark
    hold: Hold | None = None  # keeps batches back while views are only refreshed now and then
    stop: threading.Event = field(default_factory=threading.Event)
    waiting: str | None = None  # what the job waits for at the moment, in words
    times: StepTimes = field(default_factory=StepTimes)
    updates_handled: int = 0
    batches: int = 0
    unsettled: Unsettled = field(default_factory=Unsettled)
    busy: threading.Lock = field(default_factory=threading.Lock)
    gives_up: bool = False  # on a barrier that does not come out: nobody sends what the sources log
    _late: int = 0  # barriers that did not come out, one after the other
    _failed: bool = False  # the last commit did not get through: the warehouse may hold part of it
    _unsent: bool = False  # the last cut may be missing from a view topic

    @property
    def level(self) -> str:
        """What the cuts promise: the weakest level among the views."""
        return str(weakest(self.managers.keeping))

    @property
    def held(self) -> str | None:
        """What is held back at the moment, in words."""
        return f"{self.hold.count} messages wait for the next refresh" if self.hold and self.hold.count else None

    def behind(self, targets: Mapping[str, str]) -> list[str]:
        """The sources whose updates have not been handled up to the target position."""
        reached = self.queue.passed()
        return [name for name, target in targets.items() if not self.sources[name].reached(reached[name], target)]

    def maintain(self, messages: pa.Table, ends: Mapping[str, int] | None = None) -> bool:
        """Brings every view past these messages; tells whether that took a cut.

        Afterwards a cut holds every update among them, or an error names the message the job stops at, and a cut
        holds every update before it (unless answers of that message's source were needed: what they contain cannot be
        known then). A batch without updates leaves no trace. ``ends`` says per topic up to which
        offset there are no messages besides these. While ``hold`` keeps messages back, they wait for later ones.
        """
        with self.busy:
            if self.hold is None:
                return self._maintain(messages, ends or {})
            self.hold.add(messages, ends or {})
            return self._release()

    def release(self) -> bool:
        """Handles the messages that were held back, if it is time and no batch is being handled."""
        if self.hold is None or not self.busy.acquire(blocking=False):
            return False
        try:
            return self._release()
        finally:
            self.busy.release()

    def _release(self) -> bool:
        assert self.hold is not None
        return self._maintain(*self.hold.take()) if self.hold.due else False

    def rewind(self) -> None:
        """Goes back to the newest cut: what came after it is received again."""
        self.queue.rewind(self.cut.positions, self.cut.offsets)
        self.unsettled = Unsettled()

    def _maintain(self, messages: pa.Table, ends: Mapping[str, int]) -> bool:
        if self.stop.is_set():
            return False
        with self.times.step("parse"):
            received = self.queue.receive(messages)
            self.queue.skip_to(ends)
        handled = bool(received.updates or (received.rejected and self.queue.quarantine))
        if handled:
            pending = Pending()
            self._take(pending, received)
            self._finish_batch(self._patiently(lambda: self._commit(pending)))
        else:
            self.unsettled = self.unsettled.and_again(received.again, self.cut.last_update)
        if received.rejected and not self.queue.quarantine:
            raise received.rejected[0].error()
        return handled

    def _take(self, pending: Pending, received: Received) -> None:
        """Adds what was received; bad messages are set aside, if that is wanted."""
        pending.add(received)
        if received.rejected and self.queue.quarantine:
            self._patiently(lambda: self.set_aside(received.rejected))

    def _finish_batch(self, transaction: WarehouseTransaction) -> None:
        """What follows a cut."""
        self.updates_handled += len(transaction.updates)
        self.batches += 1
        self._patiently(lambda: self._publish(transaction))
        with self.times.step("compact"):
            self._patiently(self.warehouse.compact)
        self.fold_if_due()

    def _commit(self, pending: Pending) -> WarehouseTransaction:
        """Freeze, drain, sweep, merge, commit. Fails without a cut, or leaves one."""
        if self._failed:
            self.warehouse.recover()
            newest = self.warehouse.newest()
            if newest is not None and newest.cut != self.cut.cut:
                # The cut row had reached the disk before the error: all of the batch is in it.
                self.unsettled = self._older(pending).plus(
                    pending.received.updates, self._numbered(pending).queue.changes
                )
                self.cut, self._failed, self._unsent = newest, False, True
                return self._nothing_more()
        with self._frozen(self.queue.positions()) as at:
            batch = self._complete(pending, at)
            prepared = self._prepare(pending, batch, at)
        return self._committed(prepared)

    @contextmanager
    def standstill(self, positions: Mapping[str, str]) -> Iterator[tuple[Frozen, Queue]]:
        """The sources frozen where the newest cut stands, and what answers are to be compensated for.

        Updates that the snapshots may contain are brought into a cut first. ``positions`` replaces where sources
        stand whose snapshots are to be taken from there. What failed before may be tried again.
        """
        if self._failed:
            self.warehouse.recover()
            self.cut, self._failed, self._unsent = self.warehouse.newest() or self.cut, False, True
            self.rewind()
        with self._frozen({**self.queue.positions(), **positions}, hold=True) as at:
            try:
                self._bring_up(at)
            except BaseException:
                self.rewind()  # what was drained is in no cut: it must be received again
                raise
            yield at, Queue(self.unsettled.changes)

    def _bring_up(self, at: Frozen) -> None:
        """A cut holds every update that these snapshots contain."""
        pending = Pending()
        batch = self._complete(pending, at, asked=self.sources)
        if pending.received.updates:
            self._finish_batch(self._committed(self._prepare(pending, batch, at)))
        else:
            self.unsettled = self._older(pending).settled(at.contains())

    @contextmanager
    def _frozen(self, positions: Mapping[str, str], hold: bool = False) -> Iterator[Frozen]:
        with ExitStack() as until_released:
            with self.times.step("freeze"):
                at = until_released.enter_context(frozen(self.sources, positions, hold))
            yield at

    def _complete(self, pending: Pending, at: Frozen, asked: Collection[str] = ()) -> Batch:
        """The batch with everything that answers of the sources it asks can contain; ``asked`` are asked anyway."""
        batch = self._numbered(pending)
        reached: set[str] = set()
        while missing := (self._asks(batch) | set(asked)) - reached:
            with self.times.step("freeze"):
                tokens = at.barriers(missing)
            reached |= missing
            if tokens and self._drained(pending, tokens):
                batch = self._numbered(pending)
            at.require_unbroken(self.queue, tokens)
        at.require_visible(pending.received)
        return batch

    def _numbered(self, pending: Pending) -> Batch:
        with self.times.step("number"):
            return number(pending.received, self.cut.last_update, list(self.views.values()))

    def _asks(self, batch: Batch) -> set[str]:
        """The sources that the batch's sweeps ask."""
        hops = {
            hop.occurrence.source
            for name in batch.starts.keys() & self.managers.swept
            for start in batch.starts[name]
            for hop in self.views[name].hops(start)
        }
        managed = {name for name, rows in batch.starts.items() if rows} - self.managers.swept
        return hops.union(*(self.views[name].sources for name in managed.union(batch.emptied)))

    def _drained(self, pending: Pending, tokens: Mapping[str, str]) -> bool:
        """Reads on to these barriers; tells whether updates came before them."""
        before = len(pending.received.updates)
        try:
            with self.times.step("drain"):
                for received in self.drain.to_barriers(self.queue, tokens, self.stop):
                    self._take(pending, received)
        except BarrierLate as late:
            self._late += 1
            if self.gives_up and self._late * PATIENCE >= FIRST_START:
                raise SourceError(late.problems) from late
            raise
        self._late = 0
        if self.stop.is_set():
            raise Stopped
        stopped = {inlet.source for inlet in self.queue.inlets.values() if inlet.stopped} & tokens.keys()
        if stopped:
            raise next(r for r in pending.received.rejected if r.source in stopped).error()
        return len(pending.received.updates) > before

    def _older(self, pending: Pending) -> Unsettled:
        """The updates in cuts that a snapshot may not include."""
        return self.unsettled.and_again(pending.received.again, self.cut.last_update)

    def _prepare(self, pending: Pending, batch: Batch, at: Frozen) -> _Prepared:
        """Sweep and merge, against snapshots whose updates are all in the batch or in cuts."""
        older = self._older(pending)
        unsettled = older.plus(batch.received, batch.queue.changes).settled(at.contains())
        positions, offsets = self.queue.positions(), unsettled.offsets(self.queue.offsets())
        before = copied(self.stage.tallies)
        with self.times.step("sweep"):
            pieces = self._changes(batch, batch.queue.and_older(older.changes), at.snapshots)
            actions = [ActionList(view, tables) for view, tables in pieces.items()]
            level = self._level(batch)
            transaction = merge(batch.updates, actions, batch.last, positions, offsets, self.views, level)
            at.confirm()
        transaction.asked = asked_since(before, self.stage.tallies)
        return _Prepared(transaction, unsettled)

    def _committed(self, prepared: _Prepared) -> WarehouseTransaction:
        self._failed = True
        with self.times.step("commit"):
            self.cut = self.warehouse.commit(prepared.transaction)
        self._failed, self.unsettled = False, prepared.unsettled
        return prepared.transaction

    def _level(self, batch: Batch) -> str:
        """What the cut promises: states between its updates are skipped where a relation was emptied."""
        promised = weakest(self.managers.keeping)
        return str(min(promised, Level.STRONG) if batch.emptied else promised)

    def _changes(self, batch: Batch, queue: Queue, snapshots: Mapping[str, Any]) -> dict[str, Pieces]:
        """Per view that the batch concerns its change, lazily: swept in columns, or by a manager of its own."""
        starts = {view: rows for view, rows in batch.starts.items() if view in self.managers.swept}
        swept = self._stage(starts).sweep(queue, starts, self.views, snapshots)
        concerned = {view for view, rows in batch.starts.items() if rows}
        managed = self.managers.changes(concerned, queue, batch.received, batch.numbers.start, snapshots)
        anew = {
            view: self.managers.anew(view, start, queue, batch.last, snapshots)
            for view, start in batch.emptied.items()
        }  # fmt: skip
        return swept | managed | anew

    def _stage(self, starts: Starts) -> Stage:
        rows = sum(len(table) for view in starts.values() for table in view.values())
        return self.large_stage if self.large_stage is not None and rows >= LARGE else self.stage

    def _publish(self, transaction: WarehouseTransaction) -> None:
        """Sends the newest cut to the view topics: from memory, or from the tables if it was too large to keep."""
        with self.times.step("topics"):
            if self._unsent:
                self.topics.catch_up(self.warehouse)
            else:
                self._unsent = True
                changes = {view: transaction.changes.get(view, []) for view in self.views}
                if all(isinstance(tables, list) for tables in changes.values()):
                    self.topics.publish(self.cut, transaction.updates, changes)
                else:
                    self.topics.publish_stored(self.warehouse, self.cut)
            self.warehouse.note_sealed(self.cut.cut)
            self._unsent = False

    def fold_if_due(self) -> None:
        """Brings the view tables forward if it is time; the next cut names the new versions."""
        if not self.pace.due(time.monotonic()):
            return
        begin = time.monotonic()
        with self.times.step("fold"):
            self._patiently(lambda: self.warehouse.fold(list(self.views)))
        self.pace.spent(time.monotonic() - begin)

    def finish(self) -> None:
        """Folds, and writes a cut that names the folded versions: what `--until-idle` ends with."""
        with self.busy, self.times.step("fold"):
            self.warehouse.fold(list(self.views))
            transaction = self._nothing_more()
            self.cut = self.warehouse.commit(transaction)
            # Not given up because the job is to stop: it stops by this.
            patiently(lambda: self._publish(transaction), seconds=FIRST_START)

    def _nothing_more(self) -> WarehouseTransaction:
        cut = self.cut
        return WarehouseTransaction(cut.last_update, cut.positions, cut.offsets, self.level, views=self.views)

    def _patiently(self, work: Callable[[], T]) -> T:
        def note(error: ViewkeeperError | None) -> None:
            self.waiting = None if error is None else str(error)

        return patiently(work, stop=self.stop, waiting=note)
