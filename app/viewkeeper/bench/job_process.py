"""The job in a process of its own, so that its memory is its own, driven through a pipe step by step."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from viewkeeper.bench.job_server import Backlog, Step, serve
from viewkeeper.bench.job_stream import Drained
from viewkeeper.bench.memory import MemoryWatch

PATIENCE = 900.0
"""Seconds after which a step of the benchmark is given up."""


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
        """Loads the view, and starts Spark and the stream; the seconds that the load took."""
        return float(self._ask("open"))

    def hold(self) -> None:
        """The next batch will wait, and all that is sent meanwhile becomes the batch after it."""
        self._ask("hold")

    def await_held(self) -> None:
        """Returns when a batch waits."""
        self._ask("await_held")

    def drain(self, targets: Mapping[str, str]) -> Drained:
        """Lets the waiting batch go, and keeps the view until the positions are reached."""
        answer: Drained = self._ask("drain", dict(targets))
        return answer

    def backlog(self, targets: Mapping[str, str]) -> Backlog:
        """Starts the stream on what the topics hold already, and keeps the view until the positions are reached."""
        answer: Backlog = self._ask("backlog", dict(targets))
        return answer

    def join(self) -> None:
        """From now on the configuration's other groups work, too, in the same process; returns when they do."""
        self._ask("join")

    def leave(self, targets: Mapping[str, str]) -> None:
        """Ends their work when they have reached these positions."""
        self._ask("leave", dict(targets))

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
