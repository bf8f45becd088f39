"""A scheduler by virtual clock: updates come at a rate, messages take a random time, channels stay FIFO.

Time is counted in message times: the mean that a message is under way. Nothing waits.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from viewkeeper.algorithms.protocol import Install, Update
from viewkeeper.simulator.history import Commit, Deliver, Evaluate, Event, Return, Show, Transaction
from viewkeeper.simulator.laboratory import AnyWorld
from viewkeeper.simulator.tagged import TaggedSource, TaggedWorld


@dataclass(frozen=True)
class Timing:
    """How a stream went, in message times: how long each transaction took into the view, and where the view paused."""

    length: float  # how long the stream of updates lasted
    stale: tuple[float, ...]  # per transaction: until the view reflected it, or until the stream ended
    longest_pause: float  # the longest time that the view did not move though updates waited

    @property
    def stalest(self) -> float:
        return max(self.stale, default=0.0)


@dataclass
class Clock:
    """Lets a world run by the clock: ``rate`` transactions commit per message time."""

    world: AnyWorld
    rng: random.Random
    rate: float
    _agenda: list[tuple[float, int, Event]] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)
    _last: dict[Event, float] = field(default_factory=dict)  # when the last message of a channel arrives
    _planned: Counter[Event] = field(default_factory=Counter)  # messages of a channel that have a time

    def run(self) -> Timing:
        """Runs the workload as a stream without a pause; measures until the last commit, then lets it settle."""
        now = 0.0
        for index in range(len(self.world.workload.transactions)):
            now += self.rng.expovariate(self.rate)
            self._plan(now, Commit(index))
        while self._agenda and self._agenda[0][0] <= now:
            self._step()
        timing = timing_of(self.world, now)
        while self._agenda:
            self._step()
        self.world.settle()
        return timing

    def _plan(self, at: float, event: Event) -> None:
        heapq.heappush(self._agenda, (at, next(self._numbers), event))

    def _step(self) -> None:
        at, _, event = heapq.heappop(self._agenda)
        if isinstance(event, Show) and not self.world.possible(event):
            self._plan(at + self._delay(), event)  # an earlier update still holds its rows
            return
        self.world.time = at - 1  # an event takes one unit of the world's own time
        self.world.take(event)
        self._planned[event] -= 1
        if isinstance(event, Commit):
            self._show(at, event.index)
        self._send(at)

    def _delay(self) -> float:
        return self.rng.expovariate(1.0)

    def _send(self, now: float) -> None:
        """Gives every message that has been sent since a time of arrival, no earlier than the one before it."""
        for arrival, length in _channels(self.world):
            for _ in range(length - self._planned[arrival]):
                self._last[arrival] = max(self._last.get(arrival, 0.0), now + self._delay())
                self._plan(self._last[arrival], arrival)
            self._planned[arrival] = length

    def _show(self, now: float, index: int) -> None:
        """Where snapshots lag behind the log, a commit becomes visible some time later."""
        if isinstance(self.world, TaggedWorld):
            for name in self.world.workload.transactions[index].parts:
                self._plan(now + self._delay(), Show(name, len(self.world.sources[name].committed) - 1))


def _channels(world: AnyWorld) -> Iterator[tuple[Event, int]]:
    """Per channel: the event that is an arrival on it, and how many messages are under way."""
    for name, source in world.sources.items():
        yield Evaluate(name), len(source.inbox)
        yield Deliver(name), len(source.channel)
        if isinstance(source, TaggedSource):
            yield Return(name), len(source.answers)


def timing_of(world: AnyWorld, end: float) -> Timing:
    """How stale a world's view was until a moment."""
    watch = _Watch()
    for happened in world.log:
        if happened.kind == "commit":
            watch.committed(happened.time, happened.what)
        elif happened.kind == "update":
            watch.received(happened.what)
        elif happened.kind == "install":
            watch.installed(happened.time, happened.what[0])
    return watch.stopped(end)


@dataclass
class _Watch:
    """Follows transactions into the view. ``since`` is when the view last moved, or something began to wait for it."""

    commits: dict[str, float] = field(default_factory=dict)  # transaction → when
    updates: dict[int, str] = field(default_factory=dict)  # update number → transaction
    missing: dict[str, int] = field(default_factory=dict)  # transaction → its parts that are not in the view
    stale: list[float] = field(default_factory=list)
    since: float | None = None
    longest: float = 0.0

    def committed(self, now: float, transaction: Transaction) -> None:
        if transaction.id not in self.commits:
            self.commits[transaction.id] = now
            self.missing[transaction.id] = len(transaction.parts)
            self.since = now if self.since is None else self.since

    def received(self, update: Update) -> None:
        self.updates[update.number] = update.txn

    def installed(self, now: float, install: Install) -> None:
        assert self.since is not None, "a view moves only after a commit"
        self.longest = max(self.longest, now - self.since)
        for number in install.updates:
            txn = self.updates.pop(number)
            self.missing[txn] -= 1
            if not self.missing[txn]:
                del self.missing[txn]
                self.stale.append(now - self.commits[txn])
        self.since = now if self.missing else None

    def stopped(self, end: float) -> Timing:
        """What was seen; what still waits counts as stale until now."""
        pause = 0.0 if self.since is None else end - self.since
        waiting = [end - self.commits[txn] for txn in self.missing]
        return Timing(end, (*self.stale, *waiting), max(self.longest, pause))
