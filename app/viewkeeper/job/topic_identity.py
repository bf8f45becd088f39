"""Whether a topic is still the one that a cut's offsets refer to: a topic made anew counts from zero again."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from viewkeeper.config_groups import ALL
from viewkeeper.errors import KafkaError, TopicLost
from viewkeeper.warehouse.layout import write_atomically

_WRITING = threading.Lock()  # groups work at the same time, and share the file


@dataclass(frozen=True)
class TopicIdentities:
    """The ids that Kafka gave the sources' topics, remembered in a small file beside the warehouse's tables."""

    file: Path
    client: Mapping[str, Any]

    @classmethod
    def of(cls, warehouse: Path, client: Mapping[str, Any], group: str = ALL) -> TopicIdentities:
        """Those that a group's cuts were made from: each group has a history of its own."""
        return cls(warehouse / ("topics.json" if group == ALL else f"topics-{group}.json"), client)

    def remember(self, topics: Sequence[str]) -> None:
        """From now on these topics are the right ones."""
        if topics:
            self._add(self._current(topics))

    def require(self, topics: Sequence[str]) -> None:
        """Raises TopicLost where a remembered topic was deleted and made anew; remembers those it does not know."""
        known, current = self._read(), self._current(topics)
        for topic in topics:
            if known.get(topic, current[topic]) != current[topic]:
                raise TopicLost.at(
                    f"topic {topic}",
                    "was deleted and made anew since the newest cut: what the views still need may be gone",
                    "load the views again with 'viewkeeper init --reload'",
                )
        if not current.items() <= known.items():
            self._add(current)

    def _current(self, topics: Sequence[str]) -> dict[str, str]:
        admin = AdminClient(dict(self.client))  # kept until its answers are there
        try:
            found = admin.describe_topics(TopicCollection(list(topics)), request_timeout=10)
            return {topic: str(described.result(10).topic_id) for topic, described in found.items()}
        except KafkaException as error:
            place = f"kafka {self.client['bootstrap.servers']}"
            raise KafkaError.at(place, error.args[0].str(), "is the broker up?") from error

    def _read(self) -> dict[str, str]:
        try:
            known: dict[str, str] = orjson.loads(self.file.read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return {}
        return known

    def _add(self, ids: Mapping[str, str]) -> None:
        with _WRITING:
            write_atomically(self.file, orjson.dumps({**self._read(), **ids}).decode())
