"""`bad_messages: quarantine`: a message that cannot be used is moved aside, and exactness is no longer promised."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError as Reason
from confluent_kafka import KafkaException, Producer

from viewkeeper.algebra.view import View
from viewkeeper.config import Config
from viewkeeper.counts import are, some
from viewkeeper.errors import KafkaError
from viewkeeper.messages import ENVELOPE, LARGEST_MESSAGE, Rejected
from viewkeeper.warehouse.warehouse import Warehouse

log = logging.getLogger("viewkeeper")

PATIENCE = 30.0
_TEXT = 300
"""Characters of a reason that are kept: a reason may quote its message, and a message may be large."""

_SETTINGS = {
    "enable.idempotence": True,
    "compression.type": "lz4",
    "message.max.bytes": LARGEST_MESSAGE + ENVELOPE,  # the broker's own limit decides
}


@dataclass
class Quarantine:
    """Sets messages aside, marks the views they may concern."""

    config: Config
    warehouse: Warehouse
    views: Mapping[str, View]

    def set_aside(self, rejected: Sequence[Rejected]) -> None:
        """Marks first, then sends: a crash between leaves a mark too many, never one too few."""
        for name, view in self.views.items():
            first = next((message for message in rejected if message.source in view.sources), None)
            if first is not None:
                reason = f"offset {first.offset} of topic {first.topic} was set aside: {_shortened(first.reason)}"
                self.warehouse.mark_inexact(name, reason)
        for message in rejected:
            topic = self.config.rejected_topic(message.source)
            log.warning("%s: %s; moved to topic %s", _place(message), _shortened(message.reason), topic)
        # Kafka refuses a batch as a whole, so what was refused has a second chance alone. What is too large even then
        # can never be sent: it stays where it was, and the views are marked.
        for message in self._send(rejected):
            if self._send([message]):
                topic = self.config.rejected_topic(message.source)
                log.warning("%s: is too large for topic %s, and stays only where it is", _place(message), topic)

    def _send(self, rejected: Sequence[Rejected]) -> list[Rejected]:
        """Sends the messages and returns those that were too large; any other failure is a KafkaError."""
        sending = _Sending(Producer({**self.config.kafka.client(), **_SETTINGS}))
        try:
            for message in rejected:
                sending.send(self.config.rejected_topic(message.source), message)
            return sending.finish()
        except KafkaException as error:
            raise _unsent(error.args[0].str()) from error


class _Sending:
    """Messages on their way, and what became of them."""

    def __init__(self, producer: Producer):
        self._producer = producer
        self._too_large: list[Rejected] = []
        self._failures: list[str] = []

    def send(self, topic: str, message: Rejected) -> None:
        """Hands a message to Kafka's client; what becomes of it is known when ``finish`` returns."""
        headers = {"topic": message.topic, "offset": str(message.offset), "reason": _shortened(message.reason)}

        def delivered(error: Reason | None, _: Any) -> None:
            if error is not None:
                self._failed(message, error)

        while True:
            try:
                self._producer.produce(topic, message.value, key=message.source, headers=headers, on_delivery=delivered)
            except BufferError:  # its queue is full
                self._producer.poll(0.05)
                continue
            except KafkaException as error:
                self._failed(message, error.args[0])
            self._producer.poll(0)
            return

    def finish(self) -> list[Rejected]:
        """Waits until every message has arrived; returns those that were too large to."""
        unsent = self._producer.flush(PATIENCE)
        if unsent:
            raise _unsent(f"{some(unsent, 'message')} {are(unsent)} still on the way after {PATIENCE:.0f} s")
        if self._failures:
            raise _unsent(self._failures[0])
        return self._too_large

    def _failed(self, message: Rejected, error: Reason) -> None:
        if error.code() == Reason.MSG_SIZE_TOO_LARGE:
            self._too_large.append(message)
        else:
            self._failures.append(error.str())


def _unsent(why: str) -> KafkaError:
    return KafkaError.at("quarantine", f"messages could not be set aside ({why})", "is the broker up?")


def _place(message: Rejected) -> str:
    return message.error().problems[0].place


def _shortened(text: str) -> str:
    """The beginning of a text, as any reader of UTF-8 can have it."""
    text = text[: _TEXT + 1].encode(errors="replace").decode()
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"
