"""The topic that a capture writes: what it sent last, and one Kafka transaction per update."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka import KafkaError as Code

from viewkeeper.errors import KafkaError

_SECONDS = 30.0
_POLL = 0.2


class UpdateTopic:
    """Writes updates of one source to its topic; a later writer of the same topic fences this one off."""

    def __init__(self, source: str, topic: str, client: Mapping[str, Any]):
        self.source = source
        self.topic = topic
        self.client = dict(client)
        self._producer: Producer | None = None

    def open(self) -> None:
        """Becomes the only writer: what an earlier one left open is aborted."""
        settings = {
            # Named after the topic: sources of other projects on the same broker may have the same name.
            "transactional.id": f"viewkeeper-capture-{self.topic}",
            "linger.ms": 0,
            "message.max.bytes": 100_000_000,
            "compression.type": "lz4",
            "transaction.timeout.ms": 60_000,
        }
        self._producer = Producer({**self.client, **settings}, logger=_QUIET)
        with _reporting(self.topic):
            self._producer.init_transactions(_SECONDS)

    def close(self) -> None:
        self._producer = None

    def send(self, messages: Iterable[bytes]) -> None:
        """Sends the messages so that readers see all of them or none."""
        producer = self._producer
        assert producer is not None, "open comes first"
        with _reporting(self.topic):
            producer.begin_transaction()
            try:
                for message in messages:
                    self._produce(producer, message)
                producer.commit_transaction(_SECONDS)
            except BaseException:
                with contextlib.suppress(KafkaException):
                    producer.abort_transaction(_SECONDS)
                raise

    def _produce(self, producer: Producer, message: bytes) -> None:
        while True:
            try:
                producer.produce(self.topic, message, key=self.source, partition=0)
                producer.poll(0)
                return
            except BufferError:
                producer.poll(_POLL)

    # ---- where to go on

    def last_position(self) -> int | None:
        """The position of the last update in the topic; None if there is none."""
        with _reporting(self.topic), self._consumer() as consumer:
            low, high = consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=_SECONDS)
            step = 8
            end = high
            while end > low:
                start = max(low, end - step)
                last = None
                for message in self._read(consumer, start, end):
                    position = self._position(message)
                    last = position if position is not None else last
                if last is not None:
                    return last
                end, step = start, step * 4
            return None

    def was_emptied(self) -> bool:
        """Did retention remove messages that were once here?"""
        with _reporting(self.topic), self._consumer() as consumer:
            low, _ = consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=_SECONDS)
            return bool(low > 0)

    @contextlib.contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        settings = {
            "group.id": f"viewkeeper-capture-{self.source}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
        }
        consumer = Consumer({**self.client, **settings}, logger=_QUIET)
        try:
            yield consumer
        finally:
            consumer.close()

    def _read(self, consumer: Consumer, start: int, end: int) -> Iterator[Message]:
        """The committed messages with offsets from ``start`` to before ``end``; control records leave gaps."""
        consumer.assign([TopicPartition(self.topic, 0, start)])
        deadline = time.monotonic() + _SECONDS
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
        raise KafkaError.at(f"topic {self.topic}", f"could not be read within {_SECONDS:.0f} s")

    def _position(self, message: Message) -> int | None:
        """The position of an update of this source; None for anything else."""
        try:
            content = orjson.loads(message.value() or b"")
        except orjson.JSONDecodeError:
            return None
        if not isinstance(content, dict) or content.get("source") != self.source:
            return None
        position = content.get("position")
        return position if isinstance(position, int) else None


class _Quiet:
    """librdkafka retries by itself; what it cannot do comes back as an error."""

    def log(self, *_: Any, **__: Any) -> None:
        pass


_QUIET = _Quiet()


@contextlib.contextmanager
def _reporting(topic: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        cause = error.args[0]
        code = cause.code() if isinstance(cause, Code) else None
        if code in (Code._FENCED, Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED):
            what = "another capture of this source has taken over"
            raise Fenced.at(f"topic {topic}", what, "run one capture per source") from error
        if code in (Code.UNKNOWN_TOPIC_OR_PART, Code._UNKNOWN_TOPIC, Code._UNKNOWN_PARTITION):
            raise KafkaError.at(f"topic {topic}", "does not exist", "run `viewkeeper init`") from error
        if code == Code.MSG_SIZE_TOO_LARGE:
            what = "the broker refuses a message of this size"
            raise TooLarge.at(f"topic {topic}", what, "raise the topic's max.message.bytes") from error
        raise KafkaError.at(f"topic {topic}", cause.str() if isinstance(cause, Code) else str(error)) from error


class Fenced(KafkaError):
    """Another writer of the same source has taken over."""


class TooLarge(KafkaError):
    """A single row is larger than the topic takes."""
