"""Reading topics on until barriers come out of them: then the queue holds everything that an answer can contain."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as Reason

from viewkeeper.errors import KafkaError, SourceUnreachable
from viewkeeper.messages import Received
from viewkeeper.queue.consumer import MESSAGES, lost, reader
from viewkeeper.queue.update_queue import Inlet, UpdateQueue

PATIENCE = 15.0
"""Seconds without a message of its topic after which a barrier is given up."""

AT_ONCE = 50_000
"""Messages that are received together."""


_LOST = {Reason._AUTO_OFFSET_RESET, Reason.OFFSET_OUT_OF_RANGE}


class BarrierLate(SourceUnreachable):
    """A barrier does not come out of its topic; it may, once the source's changes are sent again."""


class Drain:
    """Reads topics to their barriers. Keeps its connection: a new one would be most of a small drain's time."""

    def __init__(self, client: Mapping[str, Any]):
        self._client = client
        self._reader: Consumer | None = None

    def to_barriers(self, queue: UpdateQueue, tokens: Mapping[str, str], stop: threading.Event) -> Iterator[Received]:
        """What the queue receives up to the token of each of these sources, or a little more.

        Ends early at ``stop``, and at a message that cannot be used. Raises SourceUnreachable if nothing arrives.
        """
        inlets = {inlet.source: inlet for inlet in queue.inlets.values() if inlet.source in tokens}
        with self._reading({inlet.topic: inlet.offset for inlet in inlets.values()}) as reader:
            moved = {source: (inlet.offset, time.monotonic()) for source, inlet in inlets.items()}
            while missing := [source for source in tokens if not queue.passed_barrier(source, tokens[source])]:
                if stop.is_set() or any(inlets[source].stopped for source in missing):
                    return
                messages = _some(reader, inlets.values())
                if messages:
                    yield queue.receive(_table(messages))
                for source in missing:
                    offset, since = moved[source]
                    if inlets[source].offset > offset:
                        moved[source] = (inlets[source].offset, time.monotonic())
                    elif time.monotonic() - since > PATIENCE:
                        raise _late(source, inlets[source].topic)

    def close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    @contextmanager
    def _reading(self, offsets: Mapping[str, int]) -> Iterator[Consumer]:
        """A consumer at these offsets; one that failed is not used again."""
        try:
            if self._reader is None:
                self._reader = reader({**self._client, "fetch.wait.max.ms": 5})
            self._reader.assign([TopicPartition(topic, 0, offset) for topic, offset in offsets.items()])
            yield self._reader
            self._reader.unassign()
        except KafkaException as error:
            self.close()
            place = f"kafka {self._client['bootstrap.servers']}"
            raise KafkaError.at(place, error.args[0].str(), "is the broker up?") from error
        except BaseException:
            self.close()
            raise


def _some(reader: Consumer, inlets: Collection[Inlet]) -> list[Message]:
    """The messages that are there; waits a moment for the first one. TopicLost if a topic lacks what comes next."""
    first = reader.poll(0.1)
    if first is None:
        return []
    messages = [first, *reader.consume(AT_ONCE, timeout=0)]
    for message in messages:
        if error := message.error():
            if error.code() in _LOST:
                (offset,) = (inlet.offset for inlet in inlets if inlet.topic == message.topic())
                low, high = reader.get_watermark_offsets(TopicPartition(message.topic(), 0), timeout=10.0, cached=False)
                raise lost(message.topic(), offset, low, high)
            raise KafkaException(error)
    return messages


def _table(messages: list[Message]) -> pa.Table:
    columns = [
        [m.topic() for m in messages],
        [m.offset() for m in messages],
        [m.value() for m in messages],
        [m.timestamp()[1] for m in messages],
    ]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, MESSAGES, strict=True)], schema=MESSAGES)


def _late(source: str, topic: str) -> BarrierLate:
    return BarrierLate.at(
        f"source {source}",
        f"what was written to its log {PATIENCE:.0f} s ago has not come out of topic {topic}",
        "is its capture running?",
    )
