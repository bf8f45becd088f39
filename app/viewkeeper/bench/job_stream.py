"""The job's stream in the benchmark: in a thread of its own, with a gate behind the keeper, each batch timed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from viewkeeper.job.keeper import Keeper

CHECKPOINT = "bench"
"""The stream's folder for Spark's checkpoint; the query is named after it."""

_POLL = 0.02


@dataclass(frozen=True)
class Drained:
    """A backlog that was handled: seconds in all (Spark's triggers), seconds by step, and questions asked."""

    seconds: float
    steps: dict[str, float]
    batches: int
    questions: int = 0


@dataclass(frozen=True)
class Handled:
    """A batch: seconds that the keeper took, in all and by step; whether it made a cut; and questions it asked."""

    seconds: float
    steps: dict[str, float]
    cut: bool
    questions: int


class KeptStream:
    """The job's stream in a thread of its own, with a gate behind the keeper.

    While a batch that was handled waits at the gate, a backlog can gather; the trigger after it takes the backlog
    whole, as it would after a pause of the job, but by a stream that has been running. (A gate before the keeper would
    let the batch that waits there take the backlog with it: the keeper reads on to what topics hold.)
    """

    def __init__(self, keeper: Keeper, stream: Callable[[threading.Event], Any], spark: Any):
        self._keeper = keeper
        self._spark = spark
        self._stop, self._open, self._waiting = threading.Event(), threading.Event(), threading.Event()
        self._open.set()
        self._handled: list[Handled] = []
        self._durations: dict[int, dict[str, int]] = {}  # by batch: Spark's own milliseconds, step by step
        self._unread: dict[int, dict[str, int]] = {}  # the same, of batches that nobody wanted to read
        self._ends: dict[str, int] = {}  # per topic what Spark's batches reached to
        self._wanted: list[dict[str, int]] = []  # the same, of batches that were handled
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
        first = len(self._handled)
        self._open.set()
        self._until(lambda: not self._keeper.behind(targets) and first < len(self._handled) == len(self._durations))
        return _drained(list(self._durations.values())[first:], self._handled[first:])

    def catch_up(self, targets: Mapping[str, str]) -> tuple[Drained, float]:
        """Waits until the positions are in a cut and the stream has read what was drained ahead of it.

        Gives the time from the first batch to the last cut; and the seconds after it.
        """
        inlets = self._keeper.queue.inlets.values()
        self._until(
            lambda: (
                not self._keeper.behind(targets)
                and 0 < len(self._handled) == len(self._durations)
                and all(self._ends.get(inlet.topic, 0) >= inlet.offset for inlet in inlets)
            )
        )
        durations = list(self._durations.values())
        count = max(i for i, batch in enumerate(self._handled) if batch.cut) + 1
        later = [*durations[count:], *self._unread.values()]
        drained = _drained(durations[:count], self._handled[:count])
        return drained, sum(d["triggerExecution"] for d in later) / 1e3

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
            stream.run(offsets, self._handle, self._note_progress, self._keeper.queue.lacks)
        except BaseException as error:
            self._failure.append(error)

    def _handle(self, ends: Mapping[str, int]) -> bool:
        self._wanted.append(dict(ends))
        self._keeper.rounds.times.seconds.clear()
        before, begin = self._questions(), time.perf_counter()
        cut = self._keeper.maintain_to(ends)
        seconds = time.perf_counter() - begin
        self._handled.append(Handled(seconds, dict(self._keeper.rounds.times.seconds), cut, self._questions() - before))
        if not self._open.is_set():
            self._waiting.set()
            self._open.wait()
            self._waiting.clear()
        return cut

    def _questions(self) -> int:
        return sum(tally.questions for tally in self._keeper.managers.tallies.values())

    def _note_progress(self) -> None:
        if not self._keeper.busy.locked():
            own = [query for query in self._spark.streams.active if query.name == f"viewkeeper {CHECKPOINT}"]
            for progress in (progress for query in own for progress in query.recentProgress):
                self._note(progress)

    def _note(self, progress: Any) -> None:
        durations = progress["durationMs"]
        ends: dict[str, int] = {}
        for source in progress["sources"]:
            reached = source["endOffset"]
            reached = json.loads(reached) if isinstance(reached, str) else reached
            ends |= {topic: partitions["0"] for topic, partitions in (reached or {}).items()}
        if "addBatch" in durations and ends in self._wanted:
            self._durations[progress["batchId"]] = durations
        elif "addBatch" in durations:
            self._unread[progress["batchId"]] = durations
        self._ends |= ends


def _drained(durations: list[dict[str, int]], handled: list[Handled]) -> Drained:
    """Spark's triggers hold everything; what the keeper did not use of them is Spark's own.

    A fold that happened to be due is left out: it comes once a minute, and has a bar of its own.
    """
    whole = sum(d["triggerExecution"] for d in durations) / 1e3
    names = dict.fromkeys(name for batch in handled for name in batch.steps)
    steps = {name: sum(batch.steps.get(name, 0.0) for batch in handled) for name in names}
    own = {"spark: plan, log": whole - sum(batch.seconds for batch in handled)}
    folding = steps.pop("fold", 0.0)
    return Drained(whole - folding, {**own, **steps}, len(durations), sum(batch.questions for batch in handled))
