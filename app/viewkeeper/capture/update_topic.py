"""The topic that a capture writes: what it sent last, and updates in Kafka transactions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException, Message, Producer

from viewkeeper.capture.topic_end import QUIET, bounds, pages, reporting
from viewkeeper.errors import KafkaError
from viewkeeper.messages import ENVELOPE, LARGEST_MESSAGE

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
            "message.max.bytes": LARGEST_MESSAGE + ENVELOPE,  # up to there the broker's own limit decides
            "compression.type": "lz4",
            "transaction.timeout.ms": 60_000,
        }
        self._producer = Producer({**self.client, **settings}, logger=QUIET)
        with _reporting(self.topic):
            self._producer.init_transactions(_SECONDS)

    def close(self) -> None:
        self._producer = None

    def send(self, messages: Iterable[bytes]) -> None:
        """Sends the messages so that readers see all of them or none; after an error, ``open`` comes first again."""
        producer = self._producer
        assert producer is not None, "open comes first"
        too_large: list[Code] = []

        def delivered(error: Code | None, _: Message) -> None:
            if error is not None and error.code() == Code.MSG_SIZE_TOO_LARGE:
                too_large.append(error)

        with _reporting(self.topic):
            producer.begin_transaction()
            try:
                for message in messages:
                    if len(message) > LARGEST_MESSAGE:
                        raise _unsendable(self.topic, len(message))
                    self._produce(producer, message, delivered)
                _flush(producer, too_large)
                producer.commit_transaction(_SECONDS)
            except BaseException:
                with contextlib.suppress(KafkaException):
                    producer.abort_transaction(_SECONDS)
                raise

    def _produce(self, producer: Producer, message: bytes, delivered: Callable[[Code | None, Message], None]) -> None:
        while True:
            try:
                producer.produce(self.topic, message, key=self.source, partition=0, on_delivery=delivered)
                producer.poll(0)
                return
            except BufferError:
                producer.poll(_POLL)

    # ---- where to go on

    def last_position(self) -> int | None:
        """The position of the last update in the topic; None if there is none."""
        for page in pages(self.client, self.topic):
            found = [position for message in page if (position := self._position(message)) is not None]
            if found:
                return found[-1]
        return None

    def was_emptied(self) -> bool:
        """Did retention remove messages that were once here?"""
        return bounds(self.client, self.topic)[0] > 0

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


def _flush(producer: Producer, too_large: Sequence[Code]) -> None:
    """Waits until the broker has all messages, or refuses one for its size: it would not take those after it, either.

    A commit would wait for them in vain, and tell of that alone.
    """
    deadline = time.monotonic() + _SECONDS
    while producer.flush(_POLL) and not too_large and time.monotonic() < deadline:
        pass
    if too_large:
        raise KafkaException(too_large[0])


@contextlib.contextmanager
def _reporting(topic: str) -> Iterator[None]:
    with reporting(topic):
        try:
            yield
        except KafkaException as error:
            cause = error.args[0]
            code = cause.code() if isinstance(cause, Code) else None
            if code in (Code._FENCED, Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED):
                what = "another capture of this source has taken over"
                raise Fenced.at(f"topic {topic}", what, "run one capture per source") from error
            if code == Code.MSG_SIZE_TOO_LARGE:
                what = "the broker refuses a message of it: it is too large"
                raise TooLarge.at(f"topic {topic}", what, "raise the topic's max.message.bytes") from error
            raise


def _unsendable(topic: str, size: int) -> TooLarge:
    what = f"a row that was changed takes {size / 1e6:,.0f} MB, and a message {LARGEST_MESSAGE / 1e6:,.0f} at most"
    remedy = "make the row smaller, then load the views again with 'viewkeeper init --reload'"
    return TooLarge.at(f"topic {topic}", what, remedy)


class Fenced(KafkaError):
    """Another writer of the same source has taken over."""


class TooLarge(KafkaError):
    """A single row is larger than the topic takes."""
