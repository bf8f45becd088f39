"""`bad_messages: quarantine`: a message that cannot be used is moved aside, and exactness is no longer promised."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaException, Producer

from viewkeeper.algebra.view import View
from viewkeeper.config import Config
from viewkeeper.errors import KafkaError
from viewkeeper.messages import Rejected
from viewkeeper.warehouse.warehouse import Warehouse

log = logging.getLogger("viewkeeper")


@dataclass
class Quarantine:
    """Sets messages aside, marks the views they may concern."""

    config: Config
    warehouse: Warehouse
    views: Mapping[str, View]

    def set_aside(self, rejected: Sequence[Rejected]) -> None:
        """Marks first, then sends: a crash between leaves a mark too many, never one too few."""
        for message in rejected:
            problem = message.error().problems[0]
            rejected_topic = self.config.rejected_topic(message.source)
            log.warning("%s: %s; moved to topic %s", problem.place, problem.what, rejected_topic)
            for name, view in self.views.items():
                if message.source in view.sources:
                    reason = f"offset {message.offset} of topic {message.topic} was set aside: {message.reason}"
                    self.warehouse.mark_inexact(name, reason)
        self._send(rejected)

    def _send(self, rejected: Sequence[Rejected]) -> None:
        producer = Producer(self.config.kafka.client(enable_idempotence=True))
        try:
            for message in rejected:
                headers = {"topic": message.topic, "offset": str(message.offset), "reason": message.reason}
                topic = self.config.rejected_topic(message.source)
                producer.produce(topic, message.value, key=message.source, headers=headers)
            unsent = producer.flush(30)
        except KafkaException as error:
            raise KafkaError.at("quarantine", error.args[0].str(), "is the broker up?") from error
        if unsent:
            raise KafkaError.at("quarantine", f"{unsent} messages could not be sent", "is the broker up?")
