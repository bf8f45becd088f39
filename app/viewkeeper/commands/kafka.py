"""What the commands say when Kafka does not answer."""

from __future__ import annotations

from confluent_kafka import KafkaException

from viewkeeper.config import Config
from viewkeeper.errors import KafkaError, Problem


def unreachable(config: Config, error: KafkaException) -> KafkaError:
    """The client's error in our words, with the remedy."""
    reason = error.args[0].str() if error.args else str(error)
    place = f"kafka {config.kafka.bootstrap}"
    return KafkaError(Problem(place, f"cannot be used ({reason})", "start it, or correct kafka.bootstrap"))
