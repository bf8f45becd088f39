"""One change at a time: from a source's commit to the cut that holds it and to the view's topic, stage by stage."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import orjson
from confluent_kafka import Consumer, Producer, TopicPartition

from viewkeeper.bench.backlog import Shop
from viewkeeper.bench.job_process import JobProcess
from viewkeeper.bench.job_server import Step
from viewkeeper.bench.world import SOURCES, World, Written
from viewkeeper.local.demo.children import Child
from viewkeeper.messages import Reached
from viewkeeper.warehouse.topics import ensure_topics

_PATIENCE = 120.0
_PAUSE = (0.35, 0.65)
"""Seconds between a change's arrival and the next one: longer than the least time between two cuts."""


@dataclass(frozen=True)
class Heard:
    """A message as a reader of committed messages received it."""

    topic: str
    content: dict[str, Any]
    stamp: float  # when its writer wrote it
    at: float  # when it arrived here


class Listener:
    """Hears every message of some topics, in a thread, from where they end now."""

    def __init__(self, bootstrap: str, topics: Sequence[str]):
        settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, "log_level": 0}
        self._consumer = Consumer({**settings, "isolation.level": "read_committed"})
        partitions = [TopicPartition(topic, 0) for topic in topics]
        for partition in partitions:
            partition.offset = self._consumer.get_watermark_offsets(partition, timeout=30)[1]
        self._consumer.assign(partitions)
        self.heard: list[Heard] = []
        self._news = threading.Condition()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def await_one(self, wanted: Callable[[Heard], bool]) -> Heard:
        """The first message, past or to come, for which this holds."""
        found: list[Heard] = []
        seen = 0

        def arrived() -> bool:
            nonlocal seen
            found.extend(filter(wanted, self.heard[seen:]))
            seen = len(self.heard)
            return bool(found)

        with self._news:
            if not self._news.wait_for(arrived, _PATIENCE):
                raise TimeoutError(f"a change did not arrive within {_PATIENCE:.0f} s")
        return found[0]

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._consumer.close()

    def _listen(self) -> None:
        while not self._closed.is_set():
            message = self._consumer.poll(0.2)
            if message is None or message.error():
                continue
            at = time.time()
            content = orjson.loads(message.value())
            with self._news:
                self.heard.append(Heard(message.topic(), content, message.timestamp()[1] / 1e3, at))
                self._news.notify_all()


@dataclass(frozen=True)
class Change:
    """A change in the shop: its commit, the message that completed it in its topic, and its order position."""

    written: Written
    sent: Heard
    position: int


@dataclass(frozen=True)
class Spread:
    """Seconds: the median, and what 95 of 100 stay below."""

    median: float
    p95: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        return cls(median(seconds), quantiles(seconds, n=20)[-1])


@dataclass(frozen=True)
class Latency:
    to_cut: Spread
    to_topic: Spread
    stages: dict[str, float]  # medians


@contextmanager
def capturing(world: World) -> Iterator[None]:
    """The real capture runs inside the block."""
    child = Child("capture", world.folder / "capture.log", "capture", str(world.conf))
    try:
        yield
    finally:
        child.ask_to_end()
        child.wait(30)


def write_singly(world: World, listener: Listener, shop: Shop, changes: int) -> list[Change]:
    """Writes changes one by one, each some time after the one before was seen in the view's topic."""
    seen = []
    with world.writing("shop") as writer:
        for _ in range(changes):
            change = _seen(world, writer.write(shop.order_changed()), listener)
            listener.await_one(lambda m, change=change: _is_seal(world, m, change.position))  # type: ignore[misc]
            seen.append(change)
            time.sleep(random.uniform(*_PAUSE))
    return seen


def _seen(world: World, written: Written, listener: Listener) -> Change:
    """The change, once its topic holds it."""

    def position(message: Heard) -> int | None:
        return world.completed(written, message.content) if message.topic == world.topic("shop") else None

    sent = listener.await_one(lambda message: position(message) is not None)
    return Change(written, sent, position(sent) or 0)


def write_steadily(world: World, shop: Shop, seconds: float, per_second: int) -> tuple[float, float]:
    """Writes transactions all the while; when it began and when it ended."""
    begin = time.time()
    with ExitStack() as stack:
        writers = {source: stack.enter_context(world.writing(source)) for source in SOURCES}
        for i, write in enumerate(shop.uniform(int(seconds * per_second))):
            time.sleep(max(0.0, begin + i / per_second - time.time()))
            writers[write[0]].write(write)
    return begin, time.time()


def fold_share(steps: Sequence[Step], begin: float, end: float) -> float:
    """The part of that time which was spent folding."""
    return sum(s.end - s.begin for s in steps if s.name == "fold" and begin <= s.begin <= end) / (end - begin)


def latency(world: World, changes: Sequence[Change], heard: Sequence[Heard], steps: Sequence[Step]) -> Latency:
    """How long the changes took."""
    samples = [_stages(world, change, heard, steps) for change in changes]
    stages = [name for name in samples[0] if name not in ("cut", "topic")]
    return Latency(
        Spread.of([sample["cut"] for sample in samples]),
        Spread.of([sample["topic"] for sample in samples]),
        {name: median(sample[name] for sample in samples) for name in stages},
    )


def _is_seal(world: World, message: Heard, position: int) -> bool:
    """Does the message seal a cut that holds the shop's update at this position?"""
    if message.topic != world.view_topic or "sealed" not in message.content:
        return False
    return Reached.parse(message.content["positions"]["shop"]).last >= position


def _stages(world: World, change: Change, heard: Sequence[Heard], steps: Sequence[Step]) -> dict[str, float]:
    """Where one change spent its time."""
    written, sent = change.written, change.sent
    seal = next(m for m in heard if _is_seal(world, m, change.position))
    batch = batch_of(change, steps)
    parse, commit = batch[0], next(s for s in batch if s.name == "commit")
    return {
        "capture": sent.stamp - written.at,
        "spark": parse.begin - sent.stamp,
        "freeze, sweep": commit.begin - parse.begin,
        "commit": commit.end - commit.begin,
        "topics": seal.at - commit.end,
        "cut": commit.end - written.at,
        "topic": seal.at - written.at,
    }


def batch_of(change: Change, steps: Sequence[Step]) -> Sequence[Step]:
    """The steps of the batch that brought the change into a cut, from its parsing to its commit."""
    reached = (i for i, s in enumerate(steps) if Reached.parse(s.positions["shop"]).last >= change.position)
    here = next(reached)
    first = max(i for i in range(here + 1) if steps[i].name == "parse")
    last = next(i for i in range(here, len(steps)) if steps[i].name == "commit")
    return steps[first : last + 1]


def skeleton_latency(world: World, job: JobProcess, changes: int, warm_up: int) -> Spread:
    """The same pace through the bare skeleton: from a message's sending to the end of its third append."""
    topics = [f"{world.folder.name}.skeleton.{i}" for i in range(3)]
    ensure_topics({"bootstrap.servers": world.bootstrap}, dict.fromkeys(topics, 1))
    producer = Producer({"bootstrap.servers": world.bootstrap, "linger.ms": 0, "log_level": 0})
    seconds = []
    with job.skeleton(topics) as done:
        for i in range(warm_up + changes):
            begin = time.time()
            producer.produce(topics[0], str(i))
            producer.flush(10)
            seconds.append(done() - begin)
            time.sleep(random.uniform(*_PAUSE))
    return Spread.of(seconds[warm_up:])
