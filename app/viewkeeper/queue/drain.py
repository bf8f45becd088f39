"""Reading topics: up to the offsets of a batch, and on until barriers come out of them.

Once they have, the queue holds everything that an answer can contain. Values are taken in pieces of bounded bytes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as Reason

from viewkeeper.errors import KafkaError, SourceUnreachable
from viewkeeper.messages import Received
from viewkeeper.queue.consumer import lost, reader, some, table_of
from viewkeeper.queue.update_queue import Inlet, UpdateQueue

PATIENCE = 15.0
"""Seconds without a message of its topic after which a barrier is given up."""

SILENCE = 60.0
"""Seconds without a message after which a topic that must hold more cannot be read."""

_LOST = {Reason._AUTO_OFFSET_RESET, Reason.OFFSET_OUT_OF_RANGE}


class BarrierLate(SourceUnreachable):
    """A barrier does not come out of its topic; it may, once the source's changes are sent again."""


class Drain:
    """Reads topics up to somewhere. Keeps its connection: a new one would be most of a small drain's time."""

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
                messages, _ = _some(reader, inlets.values())
                if messages:
                    yield queue.receive(table_of(messages))
                for source in missing:
                    offset, since = moved[source]
                    if inlets[source].offset > offset:
                        moved[source] = (inlets[source].offset, time.monotonic())
                    elif time.monotonic() - since > PATIENCE:
                        raise _late(source, inlets[source].topic)

    def to_offsets(self, queue: UpdateQueue, ends: Mapping[str, int], stop: threading.Event) -> Iterator[Received]:
        """What the queue receives up to the offset of each of these topics, or a little more.

        Ends early at ``stop``; a topic ends at a message that cannot be used. Offsets that hold no message for a
        reader (control records of transactions) are passed over.
        """
        unread = {i.topic: i for i in queue.inlets.values() if not i.stopped and i.offset < ends.get(i.topic, 0)}
        if not unread:
            return
        with self._reading({topic: inlet.offset for topic, inlet in unread.items()}) as reader:
            heard = time.monotonic()
            while unread:
                if stop.is_set():
                    return
                messages, ended = _some(reader, unread.values())
                if messages:
                    yield queue.receive(table_of(messages))
                for topic, inlet in list(unread.items()):
                    if inlet.stopped or inlet.offset >= ends[topic] or ended.get(topic, 0) >= ends[topic]:
                        del unread[topic]
                if messages or ended:
                    heard = time.monotonic()
                elif time.monotonic() - heard > SILENCE:
                    raise _silent(self._client, next(iter(unread)))
        queue.skip_to(ends)

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


def _some(reader: Consumer, inlets: Collection[Inlet]) -> tuple[list[Message], dict[str, int]]:
    """Messages that are there, and the topics that end for now, with the offset; waits a moment for the first one.

    TopicLost if a topic lacks what comes next.
    """
    messages: list[Message] = []
    ended: dict[str, int] = {}
    for message in some(reader, 0.1):
        error = message.error()
        if error is None:
            messages.append(message)
        elif error.code() == Reason._PARTITION_EOF:
            ended[message.topic()] = message.offset()
        elif error.code() in _LOST:
            (offset,) = (inlet.offset for inlet in inlets if inlet.topic == message.topic())
            low, high = reader.get_watermark_offsets(TopicPartition(message.topic(), 0), timeout=10.0, cached=False)
            raise lost(message.topic(), offset, low, high)
        else:
            raise KafkaException(error)
    return messages, ended


def _silent(client: Mapping[str, Any], topic: str) -> KafkaError:
    what = f"topic {topic} cannot be read on: nothing has come for {SILENCE:.0f} s"
    return KafkaError.at(f"kafka {client['bootstrap.servers']}", what, "is the broker up?")


def _late(source: str, topic: str) -> BarrierLate:
    return BarrierLate.at(
        f"source {source}",
        f"what was written to its log {PATIENCE:.0f} s ago has not come out of topic {topic}",
        "is its capture running?",
    )
