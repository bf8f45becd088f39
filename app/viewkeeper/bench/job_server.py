"""Inside the job's process: its own keeper, stream and stages, with a gate behind them and a clock at each step."""

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

from viewkeeper.bench.answers import Answers
from viewkeeper.bench.groups_beside import Beside
from viewkeeper.bench.job_stream import CHECKPOINT, Drained, KeptStream
from viewkeeper.config import load_config
from viewkeeper.job.assembly import assemble
from viewkeeper.job.group_job import GroupJob
from viewkeeper.job.keeper import Keeper
from viewkeeper.job.opening import Opening
from viewkeeper.job.publishing import StepTimes
from viewkeeper.job.status import StatusFile
from viewkeeper.managers.spark_stage import SparkStage
from viewkeeper.warehouse.warehouse import Warehouse


@dataclass(frozen=True)
class Step:
    """When a step of the keeper ran (wall clock), and the positions its queue had reached at its end."""

    name: str
    begin: float
    end: float
    positions: Mapping[str, str]


@dataclass(frozen=True)
class Backlog:
    """A backlog that was handled, with the drains that cost: seconds spent on reading again what was drained already.

    ``answered`` rows came from the sources; ``joined`` of them are different rows that join.
    """

    drained: Drained
    again: float
    answered: int
    joined: int


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
    """One method for each thing that the parent may ask. The first group is the one that is measured."""

    def __init__(self, conf: Path, pipe: Connection):
        self.pipe = pipe
        self.whole = assemble(load_config(conf))
        first = next(iter(self.whole.groups))
        self.project = self.whole.part(first)
        self.folder = self.project.config.warehouse
        self.others: list[Beside] = []
        self.stop = threading.Event()
        self.keeper: Keeper
        self.times: _Recorder
        self.stream: KeptStream | None = None
        self.spark: Any = None

    def open(self) -> float:
        from viewkeeper.job.session import spark_session

        begin = time.perf_counter()
        warehouse = Warehouse(self.folder, self.project.group)
        self.keeper = Opening(self.project, warehouse, stop=self.stop).open()
        seconds = time.perf_counter() - begin
        self.times = self.keeper.rounds.times = _Recorder(positions=self.keeper.queue.positions)
        self.spark = spark_session(self.folder / "logs" / "spark.log", self.stop)
        managers = self.keeper.managers
        managers.large_stage = SparkStage(self.spark, managers.sources, self.folder / "scratch", managers.tallies)
        return seconds

    def hold(self) -> None:
        if self.stream is None:
            self.stream = self._started()
        self.stream.hold()

    def await_held(self) -> None:
        self._held().await_held()

    def drain(self, targets: dict[str, str]) -> Drained:
        return self._held().drain(targets)

    def _held(self) -> KeptStream:
        assert self.stream is not None, "hold comes first"
        return self.stream

    def backlog(self, targets: dict[str, str]) -> Backlog:
        """Starts a stream on what the topics hold; ends it when the positions are in a cut and all was read."""
        self._end_stream()
        self.keeper.rewind()
        answers, managers = Answers(), self.keeper.managers
        managers.sources = answers.of(self.keeper.sources)
        stream = self._started()
        try:
            drained, again = stream.catch_up(targets)
        finally:
            stream.close()
            managers.sources = self.keeper.sources
        return Backlog(drained, again, *answers.counted())

    def _started(self) -> KeptStream:
        return KeptStream(self.keeper, self._stream, self.spark)

    def _end_stream(self) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            stream.close()

    def join(self) -> None:
        """Lets the other groups work, too."""
        names = [group for group in self.whole.groups if group != self.project.group]
        self.others = [Beside(self.whole, group, self.spark) for group in names]

    def leave(self, targets: dict[str, str]) -> None:
        """Ends the other groups' work when they have reached these positions."""
        for other in self.others:
            other.reach(targets)
            other.close()
        self.others = []

    def skeleton(self, topics: list[str]) -> list[Step]:
        """Kafka source → foreachBatch → toArrow → three delta-rs appends; tells the parent of every message done."""
        self._end_stream()
        tables = [self._skeleton_table(name) for name in ("one", "two", "three")]

        def handle(batch: Any, _: int) -> None:
            rows = batch.select("offset", "value").toArrow()
            for table in tables:
                write_deltalake(table, rows, mode="append")
            for done in [time.time()] * len(rows):
                self.pipe.send(done)

        stop = threading.Event()
        stream = self._stream(stop)
        source = stream.source(dict.fromkeys(topics, 0)).writeStream.foreachBatch(handle)
        query = source.option("checkpointLocation", str(self.folder / "checkpoints" / "skeleton")).start()
        self._stopped_by_parent(stop)
        stop.wait()
        query.stop()
        return []

    def _skeleton_table(self, name: str) -> DeltaTable:
        schema = pa.schema([("offset", pa.int64()), ("value", pa.binary())])
        return DeltaTable.create(str(self.folder.parent / "skeleton" / name), schema)

    def keep(self) -> list[Step]:
        self._end_stream()
        self.times.steps.clear()
        self._stopped_by_parent(self.stop)
        status = StatusFile.of(self.folder, self.project.group)
        GroupJob(self.project, self.keeper, status, self.stop, lambda: self.spark).run(until_idle=False)
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
        return Stream(self.spark, options, self.folder / "checkpoints" / CHECKPOINT, timedelta(0), stop)

    def close(self) -> None:
        if self.spark is not None:
            for other in self.others:
                other.close()
            self._end_stream()
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
