"""Inside the job's process: its own keeper, stream and stages, with a gate before them and a clock at each step."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from viewkeeper.config import load_config
from viewkeeper.job.assembly import assemble
from viewkeeper.job.keeper import Keeper, StepTimes
from viewkeeper.job.opening import Opening
from viewkeeper.job.run import Job
from viewkeeper.job.status import StatusFile
from viewkeeper.managers.stages import SparkStage
from viewkeeper.warehouse.warehouse import Warehouse

_POLL = 0.02


@dataclass(frozen=True)
class Step:
    """When a step of the keeper ran (wall clock), and the positions its queue had reached at its end."""

    name: str
    begin: float
    end: float
    positions: Mapping[str, str]


@dataclass(frozen=True)
class Drained:
    """A backlog that was handled: seconds in all (Spark's triggers), and seconds by step."""

    seconds: float
    steps: dict[str, float]
    batches: int


def serve(conf: Path, pipe: Connection) -> None:
    """Does what the parent asks until it closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when it is over
    quiet(conf.with_name("job.log"))
    with Warehouse(load_config(conf).warehouse).lock():
        server = _Server(conf, pipe)
        while True:
            try:
                command, *arguments = pipe.recv()
            except EOFError:
                break
            try:
                pipe.send(getattr(server, command)(*arguments))
            except Exception as error:
                pipe.send(RuntimeError(f"{command}: {type(error).__name__}: {error}"))
        server.close()


def quiet(log: Path) -> None:
    """From now on this process, and what it starts, complains to a file."""
    sys.stderr.flush()
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)


class _Server:
    """One method for each thing that the parent may ask."""

    def __init__(self, conf: Path, pipe: Connection):
        self.pipe = pipe
        self.project = assemble(load_config(conf))
        self.folder = self.project.config.warehouse
        self.stop = threading.Event()
        self.keeper: Keeper
        self.times: _Recorder
        self.gated: _GatedStream
        self.spark: Any = None

    def open(self) -> float:
        from viewkeeper.job.session import spark_session

        begin = time.perf_counter()
        self.keeper = Opening(self.project, Warehouse(self.folder), stop=self.stop).open()
        seconds = time.perf_counter() - begin
        self.times = self.keeper.times = _Recorder(positions=self.keeper.queue.positions)
        self.spark = spark_session(self.folder / "logs" / "spark.log", self.stop)
        self.keeper.large_stage = SparkStage(
            self.spark, self.keeper.sources, self.folder / "scratch", self.keeper.stage.tallies
        )
        self.gated = _GatedStream(self.keeper, self._stream, self.spark)
        return seconds

    def hold(self) -> None:
        self.gated.hold()

    def await_held(self) -> None:
        self.gated.await_held()

    def drain(self, targets: dict[str, str]) -> Drained:
        return self.gated.drain(targets)

    def skeleton(self, topics: list[str]) -> list[Step]:
        """Kafka source → foreachBatch → toArrow → three delta-rs appends; tells the parent of every message done."""
        self.gated.close()
        tables = [self._skeleton_table(name) for name in ("one", "two", "three")]

        def handle(messages: pa.Table, _: Mapping[str, int]) -> bool:
            rows = messages.select(["offset", "value"])
            for table in tables:
                write_deltalake(table, rows, mode="append")
            for done in [time.time()] * len(rows):
                self.pipe.send(done)
            return False

        stop = threading.Event()
        self._stopped_by_parent(stop)
        self._stream(stop).run(dict.fromkeys(topics, 0), handle, lambda: None)
        return []

    def _skeleton_table(self, name: str) -> DeltaTable:
        schema = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
        return DeltaTable.create(str(self.folder.parent / "skeleton" / name), schema)

    def keep(self) -> list[Step]:
        self.gated.close()
        self.times.steps.clear()
        self._stopped_by_parent(self.stop)
        Job(self.project, self.keeper, StatusFile.of(self.folder), self.stop).run(until_idle=False)
        return self.times.steps

    def _stopped_by_parent(self, stop: threading.Event) -> None:
        def wait() -> None:
            try:
                self.pipe.recv()
            except EOFError:
                pass
            finally:
                stop.set()

        threading.Thread(target=wait, daemon=True).start()
        self.pipe.send("running")

    def _stream(self, stop: threading.Event) -> Any:
        from viewkeeper.job.stream import Stream

        options = self.project.config.kafka.spark()
        return Stream(self.spark, options, self.folder / "checkpoints" / "bench", timedelta(0), stop)

    def close(self) -> None:
        if self.spark is not None:
            self.gated.close()
            self.spark.stop()


@dataclass
class _Recorder(StepTimes):
    """Step times that also remember every single step."""

    positions: Callable[[], dict[str, str]] = dict
    steps: list[Step] = field(default_factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        begin = time.time()
        with super().step(name):
            yield
        self.steps.append(Step(name, begin, time.time(), self.positions()))


@dataclass(frozen=True)
class _Handled:
    """A batch: seconds that the keeper took, in all and by step."""

    seconds: float
    steps: dict[str, float]


class _GatedStream:
    """The job's stream in a thread of its own, with a gate before the keeper.

    While a batch waits at the gate, a backlog can gather; the trigger after it takes the backlog whole, as it would
    after a pause of the job, but by a stream that has been running.
    """

    def __init__(self, keeper: Keeper, stream: Callable[[threading.Event], Any], spark: Any):
        self._keeper = keeper
        self._spark = spark
        self._stop, self._open, self._waiting = threading.Event(), threading.Event(), threading.Event()
        self._open.set()
        self._handled: list[_Handled] = []
        self._durations: dict[int, dict[str, int]] = {}  # by batch: Spark's own milliseconds, step by step
        self._failure: list[BaseException] = []
        offsets = {inlet.topic: inlet.offset for inlet in keeper.queue.inlets.values()}
        self._thread = threading.Thread(target=self._run, args=(stream(self._stop), offsets))
        self._thread.start()

    def hold(self) -> None:
        self._open.clear()

    def await_held(self) -> None:
        self._until(self._waiting.is_set)

    def drain(self, targets: Mapping[str, str]) -> Drained:
        """Opens the gate; what was held counts for nothing, the batches after it for all."""
        first = len(self._handled) + 1
        self._open.set()
        self._until(lambda: not self._keeper.behind(targets) and first < len(self._handled) == len(self._durations))
        return _drained(list(self._durations.values())[first:], self._handled[first:])

    def close(self) -> None:
        self._open.set()
        self._stop.set()
        self._thread.join()

    def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._failure:
                raise self._failure[0]
            time.sleep(_POLL)

    def _run(self, stream: Any, offsets: Mapping[str, int]) -> None:
        try:
            stream.run(offsets, self._handle, self._note_progress)
        except BaseException as error:
            self._failure.append(error)

    def _handle(self, messages: pa.Table, ends: Mapping[str, int]) -> bool:
        if not self._open.is_set():
            self._waiting.set()
            self._open.wait()
            self._waiting.clear()
        self._keeper.times.seconds.clear()
        begin = time.perf_counter()
        cut = self._keeper.maintain(messages, ends)
        self._handled.append(_Handled(time.perf_counter() - begin, dict(self._keeper.times.seconds)))
        return cut

    def _note_progress(self) -> None:
        if not self._keeper.busy.locked():
            for query in self._spark.streams.active:
                for progress in query.recentProgress:
                    if progress["numInputRows"]:
                        self._durations[progress["batchId"]] = progress["durationMs"]


def _drained(durations: list[dict[str, int]], handled: list[_Handled]) -> Drained:
    """Spark's triggers hold everything; what the keeper did not use of them is Spark's own.

    A fold that happened to be due is left out: it comes once a minute, and has a bar of its own.
    """
    whole = sum(d["triggerExecution"] for d in durations) / 1e3
    batches = sum(d["addBatch"] for d in durations) / 1e3
    names = dict.fromkeys(name for batch in handled for name in batch.steps)
    steps = {name: sum(batch.steps.get(name, 0.0) for batch in handled) for name in names}
    own = {"spark: plan, log": whole - batches, "spark: read": batches - sum(batch.seconds for batch in handled)}
    folding = steps.pop("fold", 0.0)
    return Drained(whole - folding, {**own, **steps}, len(durations))
