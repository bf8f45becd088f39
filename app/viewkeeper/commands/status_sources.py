"""What sources and topics say when they are asked, all at the same time: each may take its whole timeout to give up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from viewkeeper.capture.lag import Lag, postgres_lag, sqlite_lag
from viewkeeper.capture.presence import Presence
from viewkeeper.config import Config
from viewkeeper.config_groups import ALL
from viewkeeper.config_sources import PostgresConfig, SqliteConfig
from viewkeeper.errors import KafkaError, ViewkeeperError
from viewkeeper.job.assembly import make_source, who
from viewkeeper.job.source_identity import SourceIdentities
from viewkeeper.queue import consumer
from viewkeeper.queue.outstanding import Outstanding, told
from viewkeeper.warehouse.brokers import metadata
from viewkeeper.warehouse.groups import groups
from viewkeeper.warehouse.layout import Layout
from viewkeeper.warehouse.reader import WarehouseReader

UNKNOWN = "unknown"
"""Begins what is said in place of something that cannot be reached."""

DEADLINE = 15.0
"""Seconds after which an answer is no longer waited for; clients give up by themselves before."""

_MOST = 200_000  # messages that are looked at one by one; the others are counted as they are
_SECONDS = 5.0
_REFUSED_WITHIN = 1.0


@dataclass(frozen=True)
class Start:
    """From where on a source's topic matters to somebody: an offset, and the furthest position of its cuts."""

    offset: int
    position: int

    def and_(self, other: Start) -> Start:
        return Start(min(self.offset, other.offset), max(self.position, other.position))


@dataclass(frozen=True)
class Looked:
    """A source, its topic and its capture at one moment; what cannot be reached says why instead."""

    last_change: str | None
    topic: Outstanding | str
    lag: Lag | str

    @property
    def is_doubtful(self) -> bool:
        """Whether the source was asked and did not answer, or is not the one that the views were made from."""
        return self.last_change is not None and self.last_change.startswith(UNKNOWN)


def look_at_sources(config: Config, starts: Mapping[str, Start]) -> dict[str, Looked]:
    """Looks at every source and at every topic from ``starts`` on, side by side; nothing is asked of other topics."""
    looks: dict[str, Callable[[], Any]] = {}
    for name, section in config.sources.items():
        looks[f"source {name}"] = partial(_last_change, config, name)
        looks[f"topic {section.topic}"] = partial(_topic_and_lag, config, name, starts.get(name))
    found = side_by_side(looks)
    return {
        name: Looked(found[f"source {name}"], *_apart(found[f"topic {section.topic}"]))
        for name, section in config.sources.items()
    }


def _apart(found: tuple[Outstanding | str, Lag | str] | str) -> tuple[Outstanding | str, Lag | str]:
    return (found, found) if isinstance(found, str) else found


def _topic_and_lag(config: Config, name: str, start: Start | None) -> tuple[Outstanding | str, Lag | str]:
    """The topic comes after the log of PostgreSQL, before that of SQLite: what is sent meanwhile is missed by none."""
    section = config.sources[name]
    if isinstance(section, PostgresConfig):
        lag = _or_reason(lambda: postgres_lag(name, section))
        return _or_reason(lambda: _topic(config, section.topic, "debezium", start)), lag
    assert isinstance(section, SqliteConfig)
    topic = _or_reason(lambda: _topic(config, section.topic, "native", start))
    return topic, _or_reason(lambda: _sqlite_lag(config, name, section, start, topic))


def _or_reason(look: Callable[[], Any]) -> Any:
    try:
        return look()
    except ViewkeeperError as error:
        return _reason(error)


def _topic(config: Config, topic: str, format: Literal["native", "debezium"], start: Start | None) -> Outstanding:
    client = config.kafka.client()
    try:
        if start is None:  # no cut: nothing can be behind one
            consumer.bounds(client, [topic])
            return Outstanding([])
        messages, rest = consumer.stretch(client, topic, start.offset, _MOST, _SECONDS)
        return Outstanding(told(format, messages), rest)
    except KafkaError:
        with suppress(KafkaError):
            metadata(client, _REFUSED_WITHIN)  # it knows why, where nobody is let in
        raise


def _sqlite_lag(config: Config, name: str, section: SqliteConfig, start: Start | None, topic: Outstanding | str) -> Lag:
    running = Presence.of(config.warehouse, name).is_held()
    if start is None:
        return Lag(running)
    if isinstance(topic, str) or topic.rest:  # it is not known what was sent last
        return Lag(running, bytes=None)
    me = who(config, name, Layout(config.warehouse, ALL).id())
    return sqlite_lag(name, str(section.path), max(start.position, topic.last), running, me)


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


def _last_change(config: Config, name: str) -> str:
    """The newest change of a source, if it is the one that the views were made from."""
    source = make_source(config, name)
    for group in groups(config.warehouse):
        cut = WarehouseReader(config.warehouse, group).newest()
        if cut is not None and name in cut.positions:
            SourceIdentities.of(config.warehouse, group).require({name: source})
    return source.last_change()


def _reason(error: ViewkeeperError) -> str:
    problem = error.problems[0]
    # Kafka's client says the cause last, after what it was about to do.
    what = problem.what.rpartition(": ")[2] if isinstance(error, KafkaError) else problem.what
    return f"{UNKNOWN}: {problem.place}: {what}"
