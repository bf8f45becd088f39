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
    unsent: bool = False

    def follow(self, cut: Cut, transaction: WarehouseTransaction, times: StepTimes, patiently: Patiently) -> None:
        """Everything that follows a cut, which this transaction led to."""
        patiently(lambda: self._publish(cut, transaction, times))
        with times.step("compact"):
            patiently(self.warehouse.compact)
        self.fold_if_due(times, patiently)

    def fold_if_due(self, times: StepTimes, patiently: Patiently) -> None:
        """Brings the view tables forward if it is time; the next cut names the new versions."""
        if not self.pace.due(time.monotonic()):
            return
        begin = time.monotonic()
        with times.step("fold"):
            patiently(lambda: self.warehouse.fold(list(self.views)))
        self.pace.spent(time.monotonic() - begin)

    def finish(self, cut: Cut, level: str, times: StepTimes) -> Cut:
        """Folds, and gives a cut that names the folded versions and repeats all else."""
        with times.step("fold"):
            self.warehouse.fold(list(self.views))
            transaction = WarehouseTransaction(cut.last_update, cut.positions, cut.offsets, level, views=self.views)
            newest = self.warehouse.commit(transaction)
            # Not given up because the job is to stop: it stops by this.
            patiently(lambda: self._publish(newest, transaction, times), seconds=FIRST_START)
        return newest

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
