"""The keeper: the body of the main loop. One micro-batch of messages in, one cut out.

    messages → queue → integrator → freeze → sweep → merge → commit → publish

Everything the keeper knows is in the newest cut; killed at any moment, it starts again from there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from viewkeeper.algebra.view import View
from viewkeeper.errors import ViewkeeperError
from viewkeeper.integrator.integrator import Batch, number
from viewkeeper.job.hold import Hold
from viewkeeper.job.patience import FIRST_START, patiently
from viewkeeper.managers.keeping import weakest
from viewkeeper.managers.managers import Managers
from viewkeeper.managers.sources import Source
from viewkeeper.managers.stages import LARGE, Pieces, Stage, Starts
from viewkeeper.merge.merge import merge
from viewkeeper.messages import ActionList, Rejected
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
class Keeper:
    """Keeps the views of one group in step with their sources."""

    views: Mapping[str, View]
    sources: Mapping[str, Source]
    queue: UpdateQueue
    warehouse: Warehouse
    topics: ViewTopics
    managers: Managers  # of the views that are not swept
    stage: Stage  # sweeps small batches, here
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
    busy: threading.Lock = field(default_factory=threading.Lock)
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
        holds every update before it. A batch without updates leaves no trace. ``ends`` says per topic up to which
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

    def _maintain(self, messages: pa.Table, ends: Mapping[str, int]) -> bool:
        if self.stop.is_set():
            return False
        with self.times.step("parse"):
            received = self.queue.receive(messages)
            self.queue.skip_to(ends)
        set_aside = received.rejected if self.queue.quarantine else ()
        if set_aside:
            self._patiently(lambda: self.set_aside(set_aside))
        if received.updates or set_aside:
            with self.times.step("number"):
                batch = number(received, self.cut.last_update, list(self.views.values()))
            transaction = self._patiently(lambda: self._commit(batch))
            self.updates_handled += len(batch.numbers)
            self.batches += 1
            self._patiently(lambda: self._publish(transaction))
            with self.times.step("compact"):
                self._patiently(self.warehouse.compact)
            self.fold_if_due()
        if received.rejected and not self.queue.quarantine:
            raise received.rejected[0].error()
        return bool(received.updates or set_aside)

    def _commit(self, batch: Batch) -> WarehouseTransaction:
        """Freeze, sweep, merge, commit. Fails without a cut, or leaves one."""
        if self._failed:
            self.warehouse.recover()
            newest = self.warehouse.newest()
            if newest is not None and newest.cut != self.cut.cut:
                # The cut row had reached the disk before the error: all of the batch is in it.
                self.cut, self._failed, self._unsent = newest, False, True
                return self._nothing_more()
        self._failed = True
        positions, offsets = self.queue.positions(), self.queue.offsets()
        with self.times.step("freeze"):
            snapshots = self._freeze(positions)
        try:
            with self.times.step("sweep"):
                pieces = self._changes(batch, snapshots)
                actions = [ActionList(view, tables) for view, tables in pieces.items()]
                last_update = self.cut.last_update + len(batch.numbers)
                transaction = merge(batch.updates, actions, last_update, positions, offsets, self.views, self.level)
        finally:
            for name, snapshot in snapshots.items():
                self.sources[name].release(snapshot)
        with self.times.step("commit"):
            self.cut = self.warehouse.commit(transaction)
        self._failed = False
        return transaction

    def _changes(self, batch: Batch, snapshots: Mapping[str, Any]) -> dict[str, Pieces]:
        """Per view that the batch concerns its change, lazily: swept in columns, or by a manager of its own."""
        starts = {view: rows for view, rows in batch.starts.items() if view in self.managers.swept}
        swept = self._stage(starts).sweep(batch.queue, starts, self.views, snapshots)
        concerned = {view for view, rows in batch.starts.items() if rows}
        return swept | self.managers.changes(
            concerned, batch.queue, batch.received, batch.numbers.start, snapshots
        )  # fmt: skip

    def _stage(self, starts: Starts) -> Stage:
        rows = sum(len(table) for view in starts.values() for table in view.values())
        return self.large_stage if self.large_stage is not None and rows >= LARGE else self.stage

    def _freeze(self, positions: Mapping[str, str]) -> dict[str, Any]:
        return {name: source.freeze(positions[name]) for name, source in self.sources.items()}

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
