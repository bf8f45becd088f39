"""What follows a cut: the view topics hear of it, small files are put together, view tables are brought forward."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from viewkeeper.job.patience import FIRST_START, patiently
from viewkeeper.warehouse.cuts import Cut, WarehouseTransaction
from viewkeeper.warehouse.pace import FoldPace
from viewkeeper.warehouse.topics import ViewTopics
from viewkeeper.warehouse.warehouse import Warehouse


@dataclass
class StepTimes:
    """Seconds spent in each step since the start, for `status` and the benchmark."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin


NAMED_WITHIN = 1.0
"""Seconds that a fold waits to be named by a cut that may come anyway; while nothing arrives, one is made for it."""


class Patiently(Protocol):
    """Does some work, again after each error that may pass."""

    def __call__(self, work: Callable[[], Any]) -> Any: ...


@dataclass
class Publishing:
    """Publishes the cuts of a group. ``unsent`` says that the newest may be missing from a view topic."""

    views: Collection[str]
    warehouse: Warehouse
    topics: ViewTopics
    pace: FoldPace
    cut_interval: float = 0.0  # the least seconds between two cuts that hold updates: the next may be that far off
    unsent: bool = False
    _folded: float = float("-inf")  # when the last fold ended
    _folded_to: int | None = None  # the update that all views were folded to then

    def follow(self, cut: Cut, transaction: WarehouseTransaction, times: StepTimes, patiently: Patiently) -> None:
        """Everything that follows a cut, which this transaction led to."""
        patiently(lambda: self._publish(cut, transaction, times))
        with times.step("compact"):
            patiently(self.warehouse.compact)
        self.fold_if_due(times, patiently)

    def fold_if_due(self, times: StepTimes, patiently: Patiently) -> None:
        """Brings the view tables forward if it is time; the next cut names the new versions."""
        newest = self.warehouse.newest()
        if not self.pace.due(time.monotonic()) or newest is None or newest.last_update == self._folded_to:
            return
        begin = time.monotonic()
        with times.step("fold"):
            patiently(lambda: self.warehouse.fold(list(self.views)))
        self._folded, self._folded_to = time.monotonic(), newest.last_update
        self.pace.spent(self._folded - begin)

    def name_folds(self, cut: Cut, level: str, times: StepTimes, patiently: Patiently) -> Cut:
        """A cut that names what was folded, if no other has come to do it; the newest one otherwise.

        Without it, readers who take the versions that the newest cut names would wait for the next change. It repeats
        all else, so that it leaves nothing to be folded or named: nothing follows from it.
        """
        if not self.warehouse.has_unnamed_folds or time.monotonic() - self._folded < self.cut_interval + NAMED_WITHIN:
            return cut
        transaction = self._repeating(cut, level)
        newest = patiently(_Commit(self.warehouse, transaction, cut.cut))
        patiently(lambda: self._publish(newest, transaction, times))
        return newest

    def finish(self, cut: Cut, level: str, times: StepTimes) -> Cut:
        """Folds, and gives a cut that names the folded versions and repeats all else."""
        with times.step("fold"):
            self.warehouse.fold(list(self.views))
            transaction = self._repeating(cut, level)
            newest = self.warehouse.commit(transaction)
            # Not given up because the job is to stop: it stops by this.
            patiently(lambda: self._publish(newest, transaction, times), seconds=FIRST_START)
        return newest

    def _repeating(self, cut: Cut, level: str) -> WarehouseTransaction:
        return WarehouseTransaction(cut.last_update, cut.positions, cut.offsets, level, views=self.views)

    def close(self) -> None:
        """Closes what is open; it can be used again."""
        self.topics.close()
        self.warehouse.close()

    def _publish(self, cut: Cut, transaction: WarehouseTransaction, times: StepTimes) -> None:
        """Sends the newest cut to the view topics: from memory, or from the tables if it was too large to keep."""
        with times.step("topics"):
            if self.unsent:
                self.topics.catch_up(self.warehouse)
            else:
                self.unsent = True
                changes = {view: transaction.changes.get(view, []) for view in self.views}
                if all(isinstance(tables, list) for tables in changes.values()):
                    self.topics.publish(cut, transaction.updates, changes)
                else:
                    self.topics.publish_stored(self.warehouse, cut)
            self.warehouse.note_sealed(cut.cut)
            self.unsent = False
            self.topics.require_alone()


@dataclass
class _Commit:
    """Commits a transaction; called again after an error, it looks first whether the cut stands all the same."""

    warehouse: Warehouse
    transaction: WarehouseTransaction
    last: int  # the newest cut so far
    tried: bool = False

    def __call__(self) -> Cut:
        if self.tried:
            self.warehouse.recover()
            newest = self.warehouse.newest()
            if newest is not None and newest.cut > self.last:
                return newest
        self.tried = True
        return self.warehouse.commit(self.transaction)
