"""Queue, integrator and sweep together, over topics that repeat themselves and a keeper that crashes.

Only the databases and the disk are played: a topic is a list, the warehouse a dictionary that survives crashes.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scale import scaled
from viewkeeper.algebra.view import View
from viewkeeper.algorithms.sweep import Queue, Sweep, drive
from viewkeeper.integrator.arrange import untouched
from viewkeeper.integrator.integrator import number
from viewkeeper.messages import Answer, Ask, Reached
from viewkeeper.queue.consumer import MESSAGES
from viewkeeper.queue.update_queue import Inlet, UpdateQueue

from . import worlds
from .worlds import Row, World


@dataclass(frozen=True)
class LogPosition:
    id: int

    def includes(self, positions: np.ndarray) -> np.ndarray:
        return np.asarray(positions <= self.id)


@dataclass
class Cut:
    last_update: int = 0
    positions: dict[str, int] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    views: dict[str, Counter[Row]] = field(default_factory=dict)
    handled: list[int] = field(default_factory=list)  # updates of the history in the order they were numbered


class Play:
    """A world whose sources commit, deliver, repeat; and a job that keeps views, crashes and goes on."""

    def __init__(self, seed: int):
        self.rng = rng = random.Random(seed)
        self.world = worlds.random_world(rng, updates=rng.randint(2, 14))
        self.sources = sorted({source for source, _ in self.world.catalog})
        self.topics: dict[str, list[bytes]] = {source: [] for source in self.sources}
        self.sent = 0
        self.views = {f"v{i}": worlds.random_view(rng, self.world) for i in range(3)}
        self.cut = Cut(positions=dict.fromkeys(self.sources, 0), offsets=dict.fromkeys(self.sources, 0))
        self.load("v0")

    # -- the sources

    def position(self, source: str) -> int:
        """Positions of a source are the numbers of its updates in the history."""
        return max((k for k in range(1, self.sent + 1) if self.world.history[k - 1].source == source), default=0)

    def send(self) -> None:
        """The next transaction reaches its topic; now and then the capture repeats what it sent."""
        self.sent += 1
        did = self.world.history[self.sent - 1]
        changes: list[dict[str, Any]] = []
        for relation, rows in did.changes.items():
            names = [c.name for c in self.world.catalog[(did.source, relation)].columns]
            for row, count in rows.items():
                side, op = ("after", "insert") if count > 0 else ("before", "delete")
                image = dict(zip(names, row, strict=True))
                changes += [{"relation": relation, "op": op, side: image}] * abs(count)
        message = {"source": did.source, "txn": str(self.sent), "position": self.sent, "changes": changes}
        topic = self.topics[did.source]
        topic += self._pieces(message)
        if self.rng.random() < 0.2:
            topic.append(self.rng.choice(topic))

    def _pieces(self, message: dict[str, Any]) -> list[bytes]:
        changes = message["changes"]
        if len(changes) < 2 or self.rng.random() < 0.7:
            return [json.dumps(message).encode()]
        pieces = [changes[:1], changes[1:]]
        return [
            json.dumps(message | {"changes": piece, "part": i + 1, "parts": 2}).encode()
            for i, piece in enumerate(pieces)
        ]

    def answer(self, ask: Ask, delivered: int) -> Answer:
        """One read: all that was delivered, and a stretch of what the source did since, handed over as the tail."""
        mine = [k for k in range(1, len(self.world.history) + 1) if self.world.history[k - 1].source == ask.source]
        beyond = [k for k in mine if k > delivered]
        tail = beyond[: self.rng.randint(0, len(beyond))]
        seen = [k for k in mine if k <= delivered] + tail
        rows = self.world.answer(ask, seen, tail)
        return Answer(rows.rows, LogPosition(max(seen, default=0)), rows.tail)

    def all_read(self) -> bool:
        return all(self.cut.offsets[source] == len(topic) for source, topic in self.topics.items())

    # -- the job

    def queue(self) -> UpdateQueue:
        """What a (re)started job knows: the newest cut, nothing else."""
        inlets = []
        for source in self.sources:
            relations = {r.name: r for r in self.world.catalog.values() if r.source == source}
            used = {name: [c.name for c in r.columns] for name, r in relations.items()}
            reached = Reached(self.cut.positions[source])
            inlets.append(Inlet(source, source, relations, used, reached, self.cut.offsets[source]))
        return UpdateQueue(inlets)

    def load(self, name: str) -> None:
        view = self.views[name]
        pieces = drive(Sweep(view, Queue()).whole(self.cut.last_update), self._asked(self.cut.positions))
        loaded = worlds.per_update(view, pieces).get(self.cut.last_update, Counter())
        self.cut.views[name] = loaded

    def _asked(self, positions: dict[str, int]) -> Any:
        return lambda ask: self.answer(ask, positions[ask.source])

    def batch(self, queue: UpdateQueue, crash: bool) -> None:
        """One micro-batch of whatever part of the topics arrives; a crash leaves the cut as it was."""
        rows = []
        for inlet in queue.inlets.values():
            topic = self.topics[inlet.topic]
            until = self.rng.randint(inlet.offset, len(topic))
            rows += [
                {"topic": inlet.topic, "offset": i, "value": topic[i], "timestamp": i}
                for i in range(inlet.offset, until)
            ]
        received = queue.receive(pa.Table.from_pylist(rows, MESSAGES))
        assert not received.rejected
        views = {name: self.views[name] for name in self.cut.views}
        batch = number(untouched(received), self.cut.last_update, list(views.values()))
        positions = {name: int(position) for name, position in queue.positions().items()}
        cut = Cut(self.cut.last_update + len(batch.numbers), positions, queue.offsets(), {}, [*self.cut.handled])
        cut.handled += [update.position for update in received.updates]
        for name, view in views.items():
            cut.views[name] = self._kept(view, name, batch.queue, batch.numbers, positions, cut.handled)
        if not crash:
            self.cut = cut

    def _kept(
        self, view: View, name: str, queue: Queue, numbers: range, positions: dict[str, int], handled: list[int]
    ) -> Counter[Row]:
        """The view after the batch; every state on the way is compared with recomputation."""
        changes = worlds.per_update(view, drive(Sweep(view, queue).changes(numbers), self._asked(positions)))
        state = self.cut.views[name]
        for k in numbers:
            state = worlds.plus(state, changes.get(k, Counter()))
            expected = worlds.recompute(view, self.world.state(handled[:k]), self.world.catalog)
            assert state == expected, f"view {view.sql} at update {k}"
        return state


@given(st.integers(0, 10**9))
@settings(max_examples=scaled(12, 150), deadline=None)
def test_oracle_redelivery_crashes_and_views_added_late(seed: int) -> None:
    play = Play(seed)
    queue = play.queue()
    while play.sent < len(play.world.history) or not play.all_read():
        while play.sent < len(play.world.history) and play.rng.random() < 0.7:
            play.send()
        crash = play.rng.random() < 0.25
        play.batch(queue, crash)
        if crash or play.rng.random() < 0.2:
            queue = play.queue()
        if len(play.cut.views) < len(play.views) and play.rng.random() < 0.3:
            play.load(f"v{len(play.cut.views)}")
    something = [
        k for k, did in enumerate(play.world.history, 1) if any(n for b in did.changes.values() for n in b.values())
    ]
    assert sorted(play.cut.handled) == something, "every update once"
    for source in play.sources:
        order = [k for k in play.cut.handled if play.world.history[k - 1].source == source]
        assert order == sorted(order), "each source in its own order"


def test_an_update_no_view_can_see_is_numbered_but_relevant_to_none() -> None:
    relations = worlds.catalog(worlds.relation("s", "R", "a b"))
    world = World(relations, {("s", "R"): Counter()})
    view = worlds.parse_view("v", "SELECT x.a FROM s.R x WHERE x.a > 5", world.catalog)
    inlet = Inlet("s", "s", {"R": relations[("s", "R")]}, {"R": ["a"]}, Reached(0), 0)
    changes = [
        [{"relation": "R", "op": "insert", "after": {"a": 1, "b": 1}}],
        [{"relation": "R", "op": "update", "before": {"a": 9, "b": 1}, "after": {"a": 9, "b": 2}}],
        [{"relation": "R", "op": "update", "before": {"a": 9, "b": 1}, "after": {"a": 3, "b": 1}}],
    ]
    rows = [
        {
            "topic": "s",
            "offset": i,
            "timestamp": i,
            "value": json.dumps({"source": "s", "txn": str(i), "position": i + 1, "changes": c}).encode(),
        }
        for i, c in enumerate(changes)
    ]
    received = UpdateQueue([inlet]).receive(pa.Table.from_pylist(rows, MESSAGES))
    batch = number(untouched(received), 0, [view])
    assert batch.updates["views"].to_pylist() == [[], [], ["v"]], "selection fails; no used column changed; relevant"
