"""Reading topics without Spark: what they hold, and a stretch of their messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, TopicPartition

from viewkeeper.errors import KafkaError, TopicLost

MESSAGES = pa.schema(
    [("topic", pa.string()), ("offset", pa.int64()), ("value", pa.binary()), ("timestamp", pa.int64())]
)
"""Messages as the queue receives them; the timestamp in milliseconds."""


def reader(client: Mapping[str, Any]) -> Consumer:
    """A read-committed consumer that remembers nothing."""
    return Consumer(
        {
            **client,
            "group.id": "viewkeeper",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": False,
            "log_level": 0,
        }
    )


@contextmanager
def consumer(client: Mapping[str, Any]) -> Iterator[Consumer]:
    """Such a consumer for a while; KafkaException becomes KafkaError."""
    opened = reader(client)
    try:
        yield opened
    except KafkaException as error:
        raise KafkaError.at(f"kafka {client['bootstrap.servers']}", error.args[0].str(), "is the broker up?") from error
    finally:
        opened.close()


def bounds(client: Mapping[str, str], topics: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Per topic the offset of its first message and the offset after its last."""
    with consumer(client) as reader:
        return {
            topic: reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=10.0, cached=False)
            for topic in topics
        }


def require(client: Mapping[str, str], needed: Mapping[str, int]) -> None:
    """Raises TopicLost where a topic no longer holds the message that must be read next."""
    for topic, (low, high) in bounds(client, list(needed)).items():
        if not low <= needed[topic] <= high:
            raise lost(topic, needed[topic], low, high)


def lost(topic: str, needed: int, low: int, high: int) -> TopicLost:
    return TopicLost.at(
        f"topic {topic}",
        f"holds offsets {low} to {high}, but the views still need offset {needed}: "
        "retention removed it, or the topic was made anew",
        "load the views again with 'viewkeeper init --reload'",
    )


def read(client: Mapping[str, str], offsets: Mapping[str, int], seconds: float) -> pa.Table:
    """The messages from these offsets on, as many as arrive in one poll of at most ``seconds``."""
    rows: list[tuple[str, int, bytes | None, int]] = []
    with consumer(client) as reader:
        reader.assign([TopicPartition(topic, 0, offset) for topic, offset in offsets.items()])
        for message in reader.consume(num_messages=50_000, timeout=seconds):
            if message.error():
                raise KafkaException(message.error())
            rows.append((message.topic(), message.offset(), message.value(), message.timestamp()[1]))
    return pa.Table.from_pylist([dict(zip(MESSAGES.names, row, strict=True)) for row in rows], MESSAGES)
