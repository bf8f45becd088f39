"""The end of a topic, read backwards: how far a capture has come."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as Code

from viewkeeper.errors import KafkaError

SECONDS = 30.0
_POLL = 0.2
_FIRST_PAGE, _LARGEST_PAGE = 8, 10_000


def pages(client: Mapping[str, Any], topic: str) -> Iterator[list[Message]]:
    """The topic's committed messages, the last ones first, in pages that grow; a page's messages in their order."""
    with reporting(topic), _consumer(client) as consumer:
        low, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=SECONDS)
        size = _FIRST_PAGE
        while end > low:
            start = max(low, end - size)
            yield list(_read(consumer, topic, start, end))
            end, size = start, min(4 * size, _LARGEST_PAGE)


def bounds(client: Mapping[str, Any], topic: str) -> tuple[int, int]:
    """The offset of the topic's first message, and the offset after its last."""
    with reporting(topic), _consumer(client) as consumer:
        low, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=SECONDS)
        return int(low), int(end)


def furthest_sent(client: Mapping[str, Any], topic: str) -> int:
    """How far of its source's log a topic of Debezium's holds, as an LSN; 0 if it holds nothing.

    ENDs come in the order of the log, and what a connector repeats after a failure begins where it had confirmed: so
    nothing before the last END is further than that END and what follows it.
    """
    furthest = 0
    for page in pages(client, topic):
        told = [_told(message.value()) for message in page]
        furthest = max([furthest, *(lsn for lsn, _ in told)])
        if any(ends for _, ends in told):
            break
    return furthest


def _told(value: bytes | None) -> tuple[int, bool]:
    """The LSN that a message of Debezium's tells, and whether it is an END."""
    try:
        content = orjson.loads(value or b"")
        content = content.get("payload") or content
        if "status" in content:
            return int(content["id"].partition(":")[2]), content["status"] == "END"
        return int(content["source"]["lsn"]), False
    except (AttributeError, KeyError, TypeError, ValueError):
        return 0, False  # a heartbeat, or nothing of Debezium's


class Quiet:
    """librdkafka retries by itself; what it cannot do comes back as an error."""

    def log(self, *_: Any, **__: Any) -> None:
        pass


QUIET = Quiet()


@contextlib.contextmanager
def _consumer(client: Mapping[str, Any]) -> Iterator[Consumer]:
    settings = {
        "group.id": "viewkeeper-capture",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 50,
    }
    consumer = Consumer({**client, **settings}, logger=QUIET)
    try:
        yield consumer
    finally:
        consumer.close()


def _read(consumer: Consumer, topic: str, start: int, end: int) -> Iterator[Message]:
    """The messages with offsets from ``start`` to before ``end``; control records leave gaps."""
    consumer.assign([TopicPartition(topic, 0, start)])
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        message = consumer.poll(_POLL)
        if message is None:
            continue
        if message.error():
            if message.error().code() == Code._PARTITION_EOF:
                return
            raise KafkaException(message.error())
        if message.offset() >= end:
            return
        yield message
        if message.offset() == end - 1:
            return
    raise KafkaError.at(f"topic {topic}", f"could not be read within {SECONDS:.0f} s")


@contextlib.contextmanager
def reporting(topic: str) -> Iterator[None]:
    """What the client cannot do comes out as our errors."""
    try:
        yield
    except KafkaException as error:
        cause = error.args[0]
        code = cause.code() if isinstance(cause, Code) else None
        if code in (Code.UNKNOWN_TOPIC_OR_PART, Code._UNKNOWN_TOPIC, Code._UNKNOWN_PARTITION):
            raise KafkaError.at(f"topic {topic}", "does not exist", "run `viewkeeper init`") from error
        raise KafkaError.at(f"topic {topic}", cause.str() if isinstance(cause, Code) else str(error)) from error
