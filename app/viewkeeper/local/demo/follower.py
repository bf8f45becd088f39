"""A reader of view topics that honours seals: it starts from the views as first loaded and only follows the messages.

It holds no other copy and asks nobody, so that in the end its bags are evidence of their own.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from confluent_kafka import Consumer, TopicPartition

from viewkeeper.algebra.bag import COUNT
from viewkeeper.messages import Reached
from viewkeeper.warehouse.reader import WarehouseReader

Row = dict[str, Any]

_POLL = 0.1


@dataclass(frozen=True)
class Sealed:
    """What one cut did to one view, and when its seal was sent."""

    view: str
    cut: int
    last_update: int
    positions: Mapping[str, int]
    changes: list[tuple[Row, int]]  # in order of updates
    at: float


@dataclass
class FollowedView:
    """A view as its topic tells it: the bag at the last seal, and what came since."""

    name: str
    topic: str
    columns: tuple[str, ...]
    bag: Counter[tuple[Any, ...]]
    rows: int
    cut: int = 0
    pending: list[tuple[Row, int]] = field(default_factory=list)

    @classmethod
    def loaded(cls, warehouse: WarehouseReader, name: str, topic: str) -> FollowedView:
        """The view at cut 0, which is not in its topic."""
        columns, bag = read_bag(warehouse, name, 0)
        return cls(name, topic, columns, bag, bag.total())

    def receive(self, message: bytes, at: float) -> Sealed | None:
        """Takes in a message; a seal makes everything before it count."""
        content = orjson.loads(message)
        if "sealed" not in content:
            self.pending += [(change["row"], change["count"]) for change in content["changes"]]
            return None
        changes, self.pending = self.pending, []
        for row, count in changes:
            values = tuple(row[column] for column in self.columns)
            self.bag[values] += count
            if not self.bag[values]:
                del self.bag[values]
            self.rows += count
        self.cut = content["sealed"]
        positions = {source: Reached.parse(position).last for source, position in content["positions"].items()}
        return Sealed(self.name, self.cut, content["last_update"], positions, changes, at)


def read_bag(warehouse: WarehouseReader, view: str, cut: int) -> tuple[tuple[str, ...], Counter[tuple[Any, ...]]]:
    """The view's columns, and its rows at a cut with their counts."""
    reader = warehouse.read(view, warehouse.cut(cut))
    columns = tuple(name for name in reader.schema.names if name != COUNT)
    bag: Counter[tuple[Any, ...]] = Counter()
    for batch in reader:
        for row in batch.to_pylist():
            bag[tuple(row[column] for column in columns)] += row[COUNT]
    return columns, bag


class Follower:
    """Follows views in a thread of its own and tells ``heard`` of every seal."""

    def __init__(self, client: Mapping[str, Any], views: list[FollowedView], heard: Callable[[Sealed], None]):
        self.views = {view.name: view for view in views}
        self.failure: Exception | None = None
        self._client = dict(client)
        self._heard = heard
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(5)

    def _run(self) -> None:
        settings = {
            "group.id": "viewkeeper-demo",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 50,
        }
        consumer = Consumer({**self._client, **settings}, logger=_SILENT)
        try:
            consumer.assign([TopicPartition(view.topic, 0, 0) for view in self.views.values()])
            by_topic = {view.topic: view for view in self.views.values()}
            while not self._stop.is_set():
                message = consumer.poll(_POLL)
                # The client itself waits out a broker that is away.
                if message is None or message.error():
                    continue
                sealed = by_topic[message.topic()].receive(message.value(), message.timestamp()[1] / 1000)
                if sealed is not None:
                    self._heard(sealed)
        except Exception as error:  # for the main thread, which asks for it
            self.failure = error
        finally:
            consumer.close()


_SILENT = logging.getLogger("viewkeeper.local.demo.follower")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False
