"""What sources and topics say when they are asked, all at the same time: each may take its whole timeout to give up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from viewkeeper.config import Config
from viewkeeper.config_sources import SourceConfig
from viewkeeper.errors import KafkaError, ViewkeeperError
from viewkeeper.job.assembly import make_source
from viewkeeper.queue import consumer

UNKNOWN = "unknown"
"""Begins what is said in place of something that cannot be reached."""

DEADLINE = 15.0
"""Seconds after which an answer is no longer waited for; clients give up by themselves before."""


@dataclass(frozen=True)
class Looked:
    """A source, if it was asked, and its topic at one moment; what cannot be reached says why instead."""

    last_change: str | None
    bounds: tuple[int, int] | str  # the topic's first offset, and the one after its last message

    def behind(self, offset: int | None) -> int | str:
        """Messages in the topic from an offset on (control records of Kafka's transactions counted in)."""
        if isinstance(self.bounds, str):
            return self.bounds
        low, high = self.bounds
        return high - max(low, offset or 0)


def look_at_sources(config: Config) -> dict[str, Looked]:
    """Looks at every source and every topic, side by side."""
    sources = {f"source {name}": partial(_last_change, name, section) for name, section in config.sources.items()}
    found = side_by_side({**sources, **_topics(config)})
    return {
        name: Looked(found[f"source {name}"], found[f"topic {section.topic}"])
        for name, section in config.sources.items()
    }


def look_at_topics(config: Config) -> dict[str, Looked]:
    """Looks at every topic, side by side, and at no source."""
    found = side_by_side(_topics(config))
    return {name: Looked(None, found[f"topic {section.topic}"]) for name, section in config.sources.items()}


def _topics(config: Config) -> dict[str, Callable[[], Any]]:
    return {f"topic {s.topic}": partial(_bounds, config, s.topic) for s in config.sources.values()}


def side_by_side(looks: Mapping[str, Callable[[], Any]], seconds: float = DEADLINE) -> dict[str, Any]:
    """What each look gives, or in words why it does not; none of them holds up the others, or the process's end."""
    found: dict[str, Any] = {}
    failures: list[Exception] = []

    def look(place: str) -> None:
        try:
            found[place] = looks[place]()
        except ViewkeeperError as error:
            found[place] = _reason(error)
        except Exception as error:  # the caller's thread raises it
            failures.append(error)

    threads = [threading.Thread(target=look, args=(place,), daemon=True) for place in looks]
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if failures:
        raise failures[0]
    return {place: found.get(place, f"{UNKNOWN}: {place}: no answer within {seconds:.0f} s") for place in looks}


def _last_change(name: str, section: SourceConfig) -> str:
    return make_source(name, section).last_change()


def _bounds(config: Config, topic: str) -> tuple[int, int]:
    return consumer.bounds(config.kafka.client(), [topic])[topic]


def _reason(error: ViewkeeperError) -> str:
    problem = error.problems[0]
    # Kafka's client says the cause last, after what it was about to do.
    what = problem.what.rpartition(": ")[2] if isinstance(error, KafkaError) else problem.what
    return f"{UNKNOWN}: {problem.place}: {what}"
