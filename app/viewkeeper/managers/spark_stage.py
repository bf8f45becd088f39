"""Where a large batch is swept: as one Spark stage.

Its workers run the same function as the driver, ``ViewManager.change``, on slices of the batch's start rows. No
shuffle: a slice goes through all its hops where it is. Slices of several views that begin at the same relation are
swept together, so that what two of them ask is asked once.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import orjson
import pyarrow as pa

from viewkeeper.algebra.view import View
from viewkeeper.algorithms.sweep import Queue
from viewkeeper.errors import SourceUnreachable, ViewkeeperError
from viewkeeper.managers.manager import Asker, Tallies, Tally, ViewManager, add_tallies
from viewkeeper.managers.readers import workers
from viewkeeper.managers.shared_answers import SharedAnswers, shapes
from viewkeeper.managers.sources import Source
from viewkeeper.warehouse.streams import storage

LARGE = 200_000
"""Start rows from which a Spark stage is worth starting: below, the driver is done (in about a second) before the
first worker has started."""

SLICE = 50_000
"""Start rows in one task."""


Starts = Mapping[str, Mapping[int, pa.Table]]
"""Where sweeps start: view → occurrence → ΔR_i."""

Pieces = Iterator[pa.Table]
"""A view's change, a table at a time: the view's columns, ``_count`` and ``_update``."""


class Stage(Protocol):
    """Sweeps a batch for views, against snapshots of the sources."""

    def sweep(
        self, queue: Queue, starts: Starts, views: Mapping[str, View], snapshots: Mapping[str, Any]
    ) -> dict[str, Pieces | SourceUnreachable]:
        """Per view its change, lazily, or which source could not be reached for it.

        A change must be used before the snapshots are released.
        """


@dataclass
class SparkStage:
    """Sweeps in Spark's workers; batch and results pass through files in a scratch folder that workers can reach.

    The folder is this stage's alone. What an earlier sweep left there, because it failed or its result was never
    used, is deleted; so a result must be used before the next sweep.
    """

    spark: Any
    sources: Mapping[str, Source]
    scratch: Path
    tallies: Tallies = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._clear()

    def sweep(
        self, queue: Queue, starts: Starts, views: Mapping[str, View], snapshots: Mapping[str, Any]
    ) -> dict[str, Pieces | SourceUnreachable]:
        self._clear()
        try:
            with storage(self.scratch):
                self.scratch.mkdir(parents=True, exist_ok=True)
                folder = Path(tempfile.mkdtemp(dir=self.scratch))
                tasks = _write_tasks(queue, starts, views, folder)
            work = _Work(str(folder), tasks, dict(views), dict(self.sources), dict(snapshots), list(queue.changes))
            paths, failures = self._run(work)
        except BaseException:
            self._clear()
            raise
        unread = paths.keys() - failures.keys()
        if not unread:
            self._clear()
        swept = {view: self._results(view, paths[view], unread, folder) for view in sorted(unread)}
        return {**swept, **failures}

    def _clear(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _run(self, work: _Work) -> tuple[dict[str, list[str]], dict[str, SourceUnreachable]]:
        """Per view the files that its change was written to; and the views for which a source could not be reached.

        Any other error of a worker comes out as itself.
        """
        # Made where they run: no shuffle. A source may limit how many workers ask it at the same time.
        numbers = self.spark.range(0, len(work.tasks), 1, workers(self.sources.values(), len(work.tasks)))
        done = numbers.mapInArrow(work, "view string, path string, tallies string, failure binary").toArrow()
        paths: dict[str, list[str]] = {}
        failures: dict[str, SourceUnreachable] = {}
        for row in done.to_pylist():
            if row["tallies"] is not None:
                told = {source: Tally(**tally) for source, tally in orjson.loads(row["tallies"]).items()}
                self.tallies |= add_tallies(self.tallies, told)
            elif row["failure"] is not None:
                error = pickle.loads(row["failure"])
                if not isinstance(error, SourceUnreachable):
                    raise error
                failures[row["view"]] = error
            else:
                paths.setdefault(row["view"], []).append(row["path"])
        return paths, failures

    @staticmethod
    def _results(view: str, files: list[str], unread: set[str], folder: Path) -> Pieces:
        for path in files:
            if Path(path).stat().st_size == 0:
                continue
            with storage(folder), pa.memory_map(path) as file:
                yield from (pa.Table.from_batches([b]) for b in pa.ipc.open_stream(file))
        unread.discard(view)
        if not unread:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class _Task:
    """A slice of a view's start rows."""

    view: str
    occurrence: int
    low: int
    rows: int


_Tasks = list[_Task]
"""Slices that begin at the same relation, one of each view."""


def _write_tasks(queue: Queue, starts: Starts, views: Mapping[str, View], folder: Path) -> list[_Tasks]:
    """Writes queue and starts for the workers to map, and gives the slices to sweep: those together that belong so."""
    for number, table in enumerate(queue.changes.values()):  # a relation's name may be no file's
        _write(table, folder / f"queue-{number}")
    tasks: dict[tuple[str, str, int], _Tasks] = {}
    for view, occurrences in starts.items():
        for occurrence, table in occurrences.items():
            _write(table, folder / f"starts-{view}-{occurrence}")
            start = views[view].occurrences[occurrence]
            for low in range(0, len(table), SLICE):
                task = _Task(view, occurrence, low, min(SLICE, len(table) - low))
                tasks.setdefault((start.source, start.relation, low), []).append(task)
    return list(tasks.values())


@dataclass
class _Work:
    """What a Spark worker does with the numbers of its tasks; pickled to it with everything it needs."""

    folder: str
    tasks: list[_Tasks]
    views: dict[str, View]
    sources: dict[str, Source]
    snapshots: dict[str, Any]
    relations: list[tuple[str, str]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pa.set_cpu_count(1)
        folder = Path(self.folder)
        queue = Queue({relation: _read(folder / f"queue-{i}") for i, relation in enumerate(self.relations)})
        try:
            for numbers in batches:
                for number in numbers.column(0).to_pylist():
                    yield from self._together(self.tasks[number], queue, folder)
        finally:
            for name, snapshot in self.snapshots.items():
                self.sources[name].release(snapshot)

    def _together(self, tasks: _Tasks, queue: Queue, folder: Path) -> Iterator[pa.RecordBatch]:
        asker = Asker(self.sources, self.snapshots)
        shared = SharedAnswers(shapes(self.views[task.view] for task in tasks), asker)
        for task in tasks:
            manager = ViewManager(self.views[task.view], shared.ask, asker.compensated)
            try:
                with storage(folder):
                    yield _done(view=task.view, path=_sweep(task, manager, queue, folder))
            except ViewkeeperError as error:
                # Raised here, it would reach the driver as Spark's own error.
                yield _done(view=task.view, failure=pickle.dumps(error))
        yield _done(tallies=orjson.dumps({name: asdict(tally) for name, tally in asker.tallies.items()}).decode())


def _sweep(task: _Task, manager: ViewManager, queue: Queue, folder: Path) -> str:
    """Writes the change that a slice makes to a file."""
    starts = _read(folder / f"starts-{task.view}-{task.occurrence}").slice(task.low, task.rows)
    handle, path = tempfile.mkstemp(dir=folder, prefix="result-")
    writer = None
    with os.fdopen(handle, "wb") as file:
        for piece in manager.change(queue, {task.occurrence: starts}):
            writer = writer or pa.ipc.new_stream(file, piece.schema)
            writer.write_table(piece)
            del piece
            # Arrow's allocator would keep what it has freed, in each worker, for as long as the job lives.
            pa.default_memory_pool().release_unused()
        if writer is not None:
            writer.close()
    return path


_DONE = pa.schema(
    [("view", pa.string()), ("path", pa.string()), ("tallies", pa.string()), ("failure", pa.binary())]
)  # fmt: skip


def _done(
    view: str | None = None, path: str | None = None, tallies: str | None = None, failure: bytes | None = None
) -> pa.RecordBatch:
    """What a worker tells: a slice's result, or why there is none; or what was asked."""
    row = {"view": view, "path": path, "tallies": tallies, "failure": failure}
    return pa.RecordBatch.from_pylist([row], schema=_DONE)


def _write(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _read(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as file:
        return pa.ipc.open_file(file).read_all()
