"""The view managers of a group: side by side, each drives its view's algorithm and hands over an action list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.algebra.bag import COUNT, UPDATE
from viewkeeper.algebra.types import Catalog
from viewkeeper.algebra.view import View
from viewkeeper.algorithms.registry import SWEEP
from viewkeeper.algorithms.sweep import Queue
from viewkeeper.consistency.levels import Level
from viewkeeper.errors import SourceUnreachable
from viewkeeper.managers import readers
from viewkeeper.managers.contents import Stored
from viewkeeper.managers.keeping import REFRESH, Keeping
from viewkeeper.managers.manager import Asker, Tallies, ViewManager
from viewkeeper.managers.shared_answers import Place, Shape, SharedAnswers, shapes
from viewkeeper.managers.sources import Source
from viewkeeper.managers.spark_stage import LARGE, Pieces, Stage
from viewkeeper.managers.stepwise import RUN, StepwiseManager
from viewkeeper.merge.action_list import ActionList, consolidated
from viewkeeper.messages import Answer, Ask, Update


@dataclass(frozen=True)
class Task:
    """What a manager is to answer for: the updates after ``after``, up to ``until``.

    ``starts`` is ΔR of its occurrences. With ``anew``, the view is computed anew from that occurrence on, because a
    relation was emptied and nobody says of what.
    """

    view: str
    after: int
    until: int
    starts: Mapping[int, pa.Table]
    anew: int | None = None


@dataclass(frozen=True)
class Work:
    """What all tasks of a round refer to: the queue, the updates it holds with their numbers, and the snapshots."""

    queue: Queue
    updates: Sequence[Update]
    numbers: np.ndarray
    snapshots: Mapping[str, Any]

    def between(self, after: int, until: int) -> tuple[list[Update], np.ndarray]:
        """The updates after one number, up to another, and their numbers."""
        inside = np.flatnonzero((self.numbers > after) & (self.numbers <= until))
        return [self.updates[i] for i in inside.tolist()], self.numbers[inside]


Outcome = ActionList | SourceUnreachable
"""What came of a task: a manager that could not reach a source tries again, and leaves the others alone."""


@dataclass
class Managers:
    """One manager a view; ``stored`` gives a view as of the last cut."""

    views: Mapping[str, View]
    keeping: Mapping[str, Keeping]
    catalog: Catalog
    sources: Mapping[str, Source]
    stored: Callable[[str], Iterable[pa.RecordBatch]]
    tallies: Tallies = field(default_factory=dict)
    run: int = RUN  # changed rows that an algorithm receives at a time
    large_stage: Stage | None = None  # sweeps large batches, in Spark
    done: set[str] = field(default_factory=set)  # the views whose managers have answered in this round

    @property
    def swept(self) -> frozenset[str]:
        """The views that are swept in columns."""
        return frozenset(name for name in self.views if self.keeping[name].algorithm == SWEEP)

    def asks(self, task: Task) -> frozenset[str]:
        """The sources that a task asks."""
        view = self.views[task.view]
        if task.anew is not None or task.view not in self.swept:
            return view.sources
        return frozenset(hop.occurrence.source for start in task.starts for hop in view.hops(start))

    def builds(self, task: Task) -> bool:
        """Whether a task looks at what the view holds."""
        return not self._is_swept(task)

    def answer(self, tasks: Sequence[Task], work: Work) -> dict[str, Outcome]:
        """Does the tasks at the same time; per view what came of it."""
        self.done.clear()
        asker = Asker(self.sources, work.snapshots, self.tallies)
        shared = SharedAnswers(self._shapes, asker)
        large = [task for task in tasks if self._is_large(tasks, task)]
        small = [task for task in tasks if task not in large]
        if not self._threads or (len(small) < 2 and not large):
            outcomes = self._swept_in_spark(large, work) if large else {}
            return outcomes | {task.view: self._outcome(task, work, asker, shared.ask) for task in small}
        running = {task.view: self._pool.submit(self._outcome, task, work, asker, shared.ask) for task in small}
        try:
            outcomes = self._swept_in_spark(large, work) if large else {}
        finally:
            wait(running.values())  # all of them, even if one fails: nobody may ask once snapshots are released
        return outcomes | {view: done.result() for view, done in running.items()}

    def close(self) -> None:
        """Ends the threads; a later answer begins new ones."""
        pool = self.__dict__.pop("_pool", None)
        if pool is not None:
            pool.shutdown()

    @cached_property
    def _shapes(self) -> dict[Place, Shape]:
        return shapes(self.views.values())

    @cached_property
    def _threads(self) -> int:
        return readers.threads(self.sources.values())

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads, thread_name_prefix="manager")

    def _is_large(self, tasks: Sequence[Task], task: Task) -> bool:
        """Whether Spark is worth starting for it: for all that is swept, or not at all."""
        if self.large_stage is None or not self._is_swept(task):
            return False
        rows = sum(len(table) for each in tasks if self._is_swept(each) for table in each.starts.values())
        return rows >= LARGE

    def _is_swept(self, task: Task) -> bool:
        return task.view in self.swept and task.anew is None

    def _swept_in_spark(self, tasks: Sequence[Task], work: Work) -> dict[str, Outcome]:
        assert self.large_stage is not None
        views = {task.view: self.views[task.view] for task in tasks}
        found = self.large_stage.sweep(work.queue, {task.view: task.starts for task in tasks}, views, work.snapshots)
        return {task.view: self._swept(task, found[task.view]) for task in tasks}

    def _swept(self, task: Task, found: Pieces | SourceUnreachable) -> Outcome:
        return found if isinstance(found, SourceUnreachable) else self._list(task, found)

    def _outcome(self, task: Task, work: Work, asker: Asker, ask: Callable[[Ask], Answer]) -> Outcome:
        try:
            return self._list(task, self._pieces(task, work, asker, ask))
        except SourceUnreachable as error:
            return error

    def _list(self, task: Task, pieces: Iterable[pa.Table]) -> ActionList:
        keeping = self.keeping[task.view]
        level = min(keeping.level, Level.STRONG) if task.anew is not None else keeping.level
        ends = None if level >= Level.COMPLETE else self._ends(task)
        actions = ActionList(task.view, task.after, task.until, consolidated(pieces), ends, level)
        self.done.add(task.view)
        return actions

    def _ends(self, task: Task) -> list[int]:
        """Where a manager that is not complete leaves its view consistent."""
        n = self.keeping[task.view].complete_n
        if n is None or task.anew is not None:
            return [task.until]
        first = task.after + n - task.after % n
        return sorted({*range(first, task.until + 1, n), task.until})

    def _pieces(self, task: Task, work: Work, asker: Asker, ask: Callable[[Ask], Answer]) -> Pieces:
        view, keeping, stored = self.views[task.view], self.keeping[task.view], partial(self.stored, task.view)
        manager = ViewManager(view, ask, asker.compensated)
        if task.anew is not None:
            return refreshed(manager, work.queue, task.until, stored, task.anew)
        if keeping.algorithm == REFRESH:
            return refreshed(manager, work.queue, task.until, stored)
        if keeping.algorithm == SWEEP:
            return manager.change(work.queue, task.starts)
        stepwise = StepwiseManager(
            view, ask, asker.compensated, keeping=keeping, catalog=self.catalog, stored=stored, run=self.run
        )
        updates, numbers = work.between(task.after, task.until)
        return stepwise.change(work.queue, updates, numbers.tolist())


def refreshed(manager: ViewManager, queue: Queue, number: int, stored: Stored, start: int = 0) -> Pieces:
    """What a refresh (see ``algorithms.refresh``) changes: the view as of ``number`` minus what is stored.

    Recomputed in columns, by the as-of law, as a load is: a view is too large to be put together row by row.
    """
    yield from manager.whole(queue, number, start)
    for batch in stored():
        table = pa.Table.from_batches([batch])
        table = table.set_column(table.column_names.index(COUNT), COUNT, pc.negate(table[COUNT]))
        yield table.append_column(UPDATE, pa.repeat(pa.scalar(number, pa.int64()), len(table)))
