"""The job in a process of its own, so that its memory is its own, driven through a pipe step by step.

The keeper, the stream and the stages are the job's; only the loop around them is ours, so that one Spark session
serves one backlog after another and every step is timed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from viewkeeper.bench.memory import MemoryWatch
from viewkeeper.config import load_config
from viewkeeper.job.assembly import assemble
from viewkeeper.job.keeper import Keeper, StepTimes
from viewkeeper.job.opening import Opening
from viewkeeper.job.run import Job
from viewkeeper.job.status import StatusFile
from viewkeeper.managers.stages import SparkStage
from viewkeeper.warehouse.warehouse import Warehouse

PATIENCE = 900.0
"""Seconds after which a step of the benchmark is given up."""


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


class JobProcess:
    """The parent's end: starts the process, asks it for one step after another, watches its memory."""

    def __init__(self, conf: Path):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(conf, theirs), name="job")
        self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self.memory = MemoryWatch(self._process.pid)

    def open(self) -> float:
        """Loads the view, and starts Spark; the seconds that the load took."""
        return float(self._ask("open"))

    def drain(self, targets: Mapping[str, str]) -> Drained:
        """Keeps the view until the positions are reached."""
        answer: Drained = self._ask("drain", dict(targets))
        return answer

    @contextmanager
    def skeleton(self, topics: list[str]) -> Iterator[Callable[[], float]]:
        """Runs the bare skeleton inside the block; the function waits for one message, and gives when it was done."""
        with self._meanwhile("skeleton", topics):
            yield self._receive

    @contextmanager
    def keeping(self) -> Iterator[list[Step]]:
        """Runs the job, with its own loop, inside the block; afterwards the list holds what it did. It runs once."""
        with self._meanwhile("keep") as steps:
            yield steps

    def close(self) -> None:
        self._pipe.close()
        self._process.join(60)
        self.memory.close()
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> JobProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _meanwhile(self, *command: Any) -> Iterator[list[Any]]:
        gathered: list[Any] = []
        self._pipe.send(command)
        self._receive()  # it runs
        yield gathered
        self._pipe.send("stop")
        gathered += self._receive()

    def _ask(self, *command: Any) -> Any:
        self._pipe.send(command)
        return self._receive()

    def _receive(self) -> Any:
        if not self._pipe.poll(PATIENCE):
            raise TimeoutError(f"the job did not answer within {PATIENCE:.0f} s")
        answer = self._pipe.recv()
        if isinstance(answer, BaseException):
            raise answer
        return answer


def serve(conf: Path, pipe: Connection) -> None:
    """The process's end: does what it is asked until the pipe is closed."""
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


class _Server:
    def __init__(self, conf: Path, pipe: Connection):
        self.conf = conf
        self.pipe = pipe
        self.project = assemble(load_config(conf))
        self.folder = self.project.config.warehouse
        self.stop = threading.Event()
        self.keeper: Keeper
        self.times: _Recorder
        self.spark: Any = None
        # A job has one thread that asks the sources; here every stream would bring another, with caches of its own.
        self._thread = ThreadPoolExecutor(1)

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
        return seconds

    def drain(self, targets: dict[str, str]) -> Drained:
        self.times.seconds.clear()
        maintained: list[float] = []
        stop = threading.Event()
        durations: list[dict[str, int]] = []

        def handle(messages: pa.Table, ends: Mapping[str, int]) -> bool:
            begin = time.perf_counter()
            cut = self.keeper.maintain(messages, ends)
            maintained.append(time.perf_counter() - begin)
            return cut

        def between() -> None:
            if not self.keeper.busy.locked() and not self.keeper.behind(targets):
                durations[:] = self._durations()
                if maintained and len(durations) == len(maintained):
                    stop.set()

        offsets = {inlet.topic: inlet.offset for inlet in self.keeper.queue.inlets.values()}
        self._stream(stop).run(offsets, handle, between)
        return _drained(durations, sum(maintained), dict(self.times.seconds))

    def _durations(self) -> list[dict[str, int]]:
        """Milliseconds that Spark says it spent on each batch that held messages, step by step."""
        progress = [p for query in self.spark.streams.active for p in query.recentProgress]
        return [p["durationMs"] for p in progress if p["numInputRows"]]

    def skeleton(self, topics: list[str]) -> list[Step]:
        """Kafka source → foreachBatch → toArrow → three delta-rs appends; tells the parent of every message done."""
        tables = [self._skeleton_table(name) for name in ("one", "two", "three")]

        def handle(messages: pa.Table, _: Mapping[str, int]) -> bool:
            rows = messages.select(["offset", "value"])
            for table in tables:
                write_deltalake(table, rows, mode="append")
            for done in [time.time()] * len(rows):
                self.pipe.send(done)
            return False

        stop = self._stopped_by_parent()
        self._stream(stop).run(dict.fromkeys(topics, 0), handle, lambda: None)
        return []

    def _skeleton_table(self, name: str) -> DeltaTable:
        schema = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
        return DeltaTable.create(str(self.folder.parent / "skeleton" / name), schema)

    def keep(self) -> list[Step]:
        self.times.steps.clear()
        self._stopped_by_parent(self.stop)
        Job(self.project, self.keeper, StatusFile.of(self.folder), self.stop).run(until_idle=False)
        return self.times.steps

    def _stopped_by_parent(self, stop: threading.Event | None = None) -> threading.Event:
        event = stop or threading.Event()

        def wait() -> None:
            try:
                self.pipe.recv()
            except EOFError:
                pass
            finally:
                event.set()

        threading.Thread(target=wait, daemon=True).start()
        self.pipe.send("running")
        return event

    def _stream(self, stop: threading.Event) -> Any:
        from viewkeeper.job.stream import Stream

        options = self.project.config.kafka.spark()
        return Stream(self.spark, options, self.folder / "checkpoints" / "bench", timedelta(0), stop)

    def close(self) -> None:
        self._thread.shutdown()
        if self.spark is not None:
            self.spark.stop()


def _drained(durations: list[dict[str, int]], maintained: float, steps: dict[str, float]) -> Drained:
    """Spark's triggers hold everything; what the keeper did not use of them is Spark's own."""
    whole = sum(d["triggerExecution"] for d in durations) / 1e3
    batches = sum(d["addBatch"] for d in durations) / 1e3
    own = {"spark: plan, log": whole - batches, "spark: read": batches - maintained}
    return Drained(whole, {**own, **steps}, len(durations))
