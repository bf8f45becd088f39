"""Reading topics without Spark: what they hold, and a stretch of their messages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as Reason

from viewkeeper.errors import KafkaError, TopicLost

PIECE_BYTES = 32_000_000
PIECE_MESSAGES = 50_000
"""What is taken from topics at a time, in bytes of values and in messages: an estimate by those before is never far
off, because the client's own buffer, which it is taken from, is no larger."""

_AT_ONCE = 5_000

MESSAGES = pa.schema(
    [("topic", pa.string()), ("offset", pa.int64()), ("value", pa.binary()), ("timestamp", pa.int64())]
)
"""Messages as the queue receives them; the timestamp in milliseconds."""


def reader(client: Mapping[str, Any], **settings: Any) -> Consumer:
    """A read-committed consumer that remembers nothing."""
    return Consumer(
        {
            **client,
            "group.id": "viewkeeper",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,  # who reads on waits for more, and who reads up to an end learns of it
            "queued.max.messages.kbytes": PIECE_BYTES // 1000,
            "log_level": 0,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )


@contextmanager
def consumer(client: Mapping[str, Any], **settings: Any) -> Iterator[Consumer]:
    """Such a consumer for a while; KafkaException becomes KafkaError."""
    opened = reader(client, **settings)
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
    """The messages from these offsets on that arrive within ``seconds``, or a piece of them."""
    rows: list[Message] = []
    ended: set[str] = set()
    size, deadline = 0, time.monotonic() + seconds
    with consumer(client) as reader:
        reader.assign([TopicPartition(topic, 0, offset) for topic, offset in offsets.items()])
        while size < PIECE_BYTES and len(rows) < PIECE_MESSAGES and not (rows and ended == offsets.keys()):
            if (left := deadline - time.monotonic()) <= 0:
                break
            for message in some(reader, left):
                if message.error() is None:
                    rows.append(message)
                    size += len(message)
                elif message.error().code() == Reason._PARTITION_EOF:
                    ended.add(message.topic())
                else:
                    raise KafkaException(message.error())
    return table_of(rows)


def stretch(
    client: Mapping[str, str], topic: str, start: int, most: int, seconds: float
) -> tuple[list[tuple[int, bytes | None]], int]:
    """A topic's messages (offset, value) from an offset on, ``most`` at most; how many offsets are left behind them."""
    found: list[tuple[int, bytes | None]] = []
    with consumer(client, enable_partition_eof=True, fetch_wait_max_ms=20) as reader:
        low, high = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=10.0, cached=False)
        at, deadline = max(low, start), time.monotonic() + seconds
        reader.assign([TopicPartition(topic, 0, at)])
        while at < high and len(found) < most and time.monotonic() < deadline:
            message = reader.poll(0.2)
            if message is None:
                continue
            if message.error() is None:
                found.append((message.offset(), message.value()))
                at = message.offset() + 1
            elif message.error().code() == Reason._PARTITION_EOF:
                return found, 0  # what follows is of a transaction that is not over
            else:
                raise KafkaException(message.error())
    return found, max(0, high - at)


def some(reader: Consumer, seconds: float) -> list[Message]:
    """What has arrived (errors and ends of topics among it), or a piece of it; waits at most so long for the first."""
    first = reader.poll(seconds)
    if first is None:
        return []
    found, size = [first], len(first)
    while size < PIECE_BYTES and len(found) < PIECE_MESSAGES:
        fitting = (PIECE_BYTES - size) * len(found) // max(size, 1)
        more = reader.consume(max(1, min(fitting, PIECE_MESSAGES - len(found), _AT_ONCE)), timeout=0)
        if not more:
            break
        found += more
        size += sum(map(len, more))
    return found


def table_of(messages: Sequence[Message]) -> pa.Table:
    """Messages as the queue receives them."""
    columns = [
        [m.topic() for m in messages],
        [m.offset() for m in messages],
        [m.value() for m in messages],
        [m.timestamp()[1] for m in messages],
    ]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, MESSAGES, strict=True)], schema=MESSAGES)
