"""What the tests share: one real broker for the whole run, and names that no other test uses."""

from __future__ import annotations

import itertools
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from viewkeeper.local.broker import Broker

# A shell starts background jobs with Ctrl-C ignored, and children inherit that; tests that send it want it heard.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The JVMs of tests live for seconds: compiled lightly they start in half the time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

_numbers = itertools.count(1)
_run = uuid.uuid4().hex[:8]


def unique(name: str) -> str:
    """A topic or group name that no other test, worker or earlier run has used."""
    return f"{name}-{_run}-{next(_numbers)}"


def eventually(condition: Callable[[], object], seconds: float = 10.0, what: str = "") -> None:
    """Polls until the condition holds; fails at the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what or condition}"
        time.sleep(0.02)


ODD_FOLDER = "a b#c?d%eü{f}*'\"`$,:=日;&(<!~+@"
"""A folder's name with everything that paths, patterns, addresses and settings files take for something else."""


@dataclass(frozen=True)
class SharedBroker:
    """The broker of the test run, as tests use it."""

    bootstrap: str

    def client(self, **settings: object) -> dict[str, object]:
        return {
            "bootstrap.servers": self.bootstrap,
            "log_level": 0,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }

    def create(self, *topics: str) -> None:
        """Creates single-partition topics of exactly these names."""
        admin = AdminClient(self.client())
        for future in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
            future.result(30)

    def new_topic(self, name: str = "topic") -> str:
        """Creates a topic with a fresh name."""
        topic = unique(name)
        self.create(topic)
        return topic

    def send(self, topic: str, *values: bytes | str, key: str | None = None) -> None:
        """Sends the values in order and waits until the broker has them."""
        producer = Producer(self.client(enable_idempotence=True, linger_ms=0))
        for value in values:
            producer.produce(topic, value, key)
        assert producer.flush(30) == 0

    def messages(self, topic: str, since: int = OFFSET_BEGINNING) -> list[Message]:
        """Every message that a read_committed reader sees in the topic now, from an offset on."""
        reading = {"isolation_level": "read_committed", "enable_partition_eof": True}
        consumer = Consumer(self.client(group_id=unique("reader"), **reading))
        try:
            end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1]
            consumer.assign([TopicPartition(topic, 0, since)])
            return list(_until(end, consumer))
        finally:
            consumer.close()

    def end(self, topic: str) -> int:
        """The offset that the topic's next message will have."""
        consumer = Consumer(self.client(group_id=unique("reader")))
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1])
        finally:
            consumer.close()


def _until(end: int, consumer: Consumer) -> Iterator[Message]:
    """The messages before ``end``, which may have no message itself; others may be sent all the while."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error():  # the only error a healthy broker gives here is the end of the partition
            return
        if message.offset() < end:
            yield message
        if message.offset() >= end - 1:
            return
    raise AssertionError("the end of the topic was not reached within 120 s")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedBroker]:
    """One real broker for all tests; ``VIEWKEEPER_TEST_BOOTSTRAP`` may name one that runs already."""
    if named := os.environ.get("VIEWKEEPER_TEST_BOOTSTRAP"):
        yield SharedBroker(named)
        return
    with Broker(tmp_path_factory.mktemp("broker")) as started:
        yield SharedBroker(started.bootstrap)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that take long come first."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
