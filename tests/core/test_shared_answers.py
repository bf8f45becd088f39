"""Views that share answers: the same question is asked once, and every view is as if it had asked alone."""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.scale import scaled
from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.view import View
from viewkeeper.algorithms.sweep import Sweep
from viewkeeper.errors import SourceUnreachable
from viewkeeper.managers.keeping import Keeping
from viewkeeper.managers.managers import Managers, Task, Work
from viewkeeper.managers.shared_answers import shapes
from viewkeeper.merge.action_list import ActionList
from viewkeeper.messages import Answer, Ask, Update

from . import worlds
from .worlds import World


@dataclass
class Asked:
    """A source that answers from any thread, like one that holds a snapshot, or like one that hands over its tail.

    The first includes some of the batch's updates. The second includes all of them, and more of the later ones with
    every question.
    """

    world: World
    included: frozenset[int]
    later: list[int]
    rng: random.Random
    readers: int | None = None
    asked: list[Ask] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    _seen: int = 0

    def ask(self, ask: Ask, snapshot: Any) -> Answer:
        with self.lock:
            self.asked.append(ask)
            self._seen = self.rng.randint(self._seen, len(self.later))
            tail = self.later[: self._seen]
            return self.world.answer(ask, self.included | set(tail), tail)


class Play:
    def __init__(self, seed: int):
        self.rng = rng = random.Random(seed)
        self.world = worlds.random_world(rng, rng.randint(2, 14))
        self.last = rng.randint(1, len(self.world.history))
        views = [worlds.random_view(rng, self.world) for _ in range(rng.randint(2, 4))]
        self.views = {f"v{i}": _named(view, f"v{i}") for i, view in enumerate(views)}
        names = sorted({source for source, _ in self.world.catalog})
        self.sources = {name: self.source(name) for name in names}

    def source(self, name: str) -> Asked:
        mine = [k for k, did in enumerate(self.world.history, 1) if did.source == name]
        batch, later = [k for k in mine if k <= self.last], [k for k in mine if k > self.last]
        if self.rng.random() < 0.5:
            return Asked(self.world, frozenset(batch), later, self.rng)
        return Asked(self.world, frozenset(k for k in batch if self.rng.random() < 0.5), [], self.rng)

    def changes(self) -> dict[str, dict[int, Counter[Any]]]:
        numbers = range(1, self.last + 1)
        queue = self.world.queue(numbers)
        sources: Any = self.sources
        managers = Managers(
            self.views, dict.fromkeys(self.views, Keeping()), self.world.catalog, sources, lambda _: []
        )  # fmt: skip
        received = [Update(self.world.history[k - 1].source, str(k), k, "t", k, k) for k in numbers]
        tasks = [Task(name, 0, self.last, _starts(view, queue)) for name, view in self.views.items()]
        outcomes = managers.answer(tasks, Work(queue, received, np.array(numbers), dict.fromkeys(self.sources)))
        found = {}
        for name, outcome in outcomes.items():
            assert isinstance(outcome, ActionList), outcome
            found[name] = worlds.per_update(self.views[name], outcome.tables)
        return found

    def expected(self, view: View, k: int) -> Counter[Any]:
        return worlds.recompute(view, self.world.state(range(1, k + 1)), self.world.catalog)


def _named(view: View, name: str) -> View:
    return View(name, view.occurrences, view.edges, view.residuals, view.outputs, view.sql)


def _starts(view: View, queue: Any) -> dict[int, Any]:
    sweep = Sweep(view, queue)
    starts = {o.index: sweep.starts(o.index) for o in view.occurrences}
    return {index: table for index, table in starts.items() if len(table)}


@pytest.mark.parametrize("first", range(0, scaled(100, 800), 50))
def test_oracle_views_that_share_answers_change_as_recomputation_does(first: int) -> None:
    for seed in range(first, first + 50):
        play = Play(seed)
        for name, changes in play.changes().items():
            for k in range(1, play.last + 1):
                state = worlds.plus(play.expected(play.views[name], k - 1), changes.get(k, Counter()))
                assert state == play.expected(play.views[name], k), f"Play({seed}): {name} after {k}"


CATALOG = worlds.catalog(worlds.relation("a", "r", "x k"), worlds.relation("b", "s", "k y z"))
JOIN = "SELECT {} FROM a.r r JOIN b.s s ON s.k = r.k {}"


def shop(*sqls: str) -> tuple[World, dict[str, View], Asked]:
    """Five rows r(x, k) come; s holds a row for each k."""
    initial = {("a", "r"): Counter(), ("b", "s"): Counter({(k, 10 * k, k % 2): 1 for k in range(5)})}
    world = World(CATALOG, initial, [worlds.Did("a", {"r": Counter({(n, n): 1 for n in range(5)})})])
    views = {f"v{i}": parse_view(f"v{i}", sql, CATALOG) for i, sql in enumerate(sqls)}
    return world, views, Asked(world, frozenset(), [], random.Random(1))


def kept(world: World, views: dict[str, View], source: Any, starts: dict[str, Any] | None = None) -> dict[str, Any]:
    queue = world.queue([1])
    managers = Managers(views, dict.fromkeys(views, Keeping()), CATALOG, {"a": source, "b": source}, lambda _: [])
    tasks = [Task(name, 0, 1, (starts or {}).get(name, _starts(view, queue))) for name, view in views.items()]
    work = Work(queue, [Update("a", "1", 1, "t", 1, 1)], np.array([1]), dict.fromkeys("ab"))
    return managers.answer(tasks, work)


def test_the_same_question_of_two_views_is_asked_once() -> None:
    world, views, source = shop(JOIN.format("r.x, s.y", ""), JOIN.format("r.x, s.z", ""))
    outcomes = kept(world, views, source)
    assert [(ask.relation, len(ask.keys or ())) for ask in source.asked] == [("s", 5)]
    assert set(source.asked[0].columns) == {"k", "y", "z"}
    assert worlds.per_update(views["v1"], outcomes["v1"].tables)[1] == Counter({(n, n % 2): 1 for n in range(5)})


def test_only_keys_that_nobody_has_asked_for_are_asked_for() -> None:
    world, views, source = shop(JOIN.format("r.x, s.y", "WHERE r.x < 3"), JOIN.format("r.x, s.z", "WHERE r.x > 1"))
    kept(world, views, source)
    asked = [set(ask.keys["k"].to_pylist()) for ask in source.asked if ask.keys is not None]
    assert set().union(*asked) == set(range(5)) and sum(map(len, asked)) == 5


def test_a_selection_is_sent_along_only_if_all_views_make_it() -> None:
    one, other = "WHERE s.y > 5 AND r.x < 9", "WHERE s.y > 6 AND r.x < 9"
    assert [s.selection for s in shapes(shop(JOIN.format("r.x", one), JOIN.format("s.z", one))[1].values()).values()][
        -1
    ]
    different = shapes(shop(JOIN.format("r.x", one), JOIN.format("s.z", other))[1].values())
    assert different["b", "s", ("k",)].selection is None


def test_a_look_up_that_one_view_makes_alone_is_left_as_it_is() -> None:
    _, views, _ = shop(JOIN.format("r.x", ""), "SELECT s.y FROM b.s s")
    assert shapes(views.values()) == {}


def test_a_view_whose_source_is_away_fails_alone() -> None:
    world, views, _ = shop(JOIN.format("r.x, s.y", ""), "SELECT r.x FROM a.r r", "SELECT r.k FROM a.r r")

    class Away:
        readers = None

        def ask(self, ask: Ask, snapshot: Any) -> Answer:
            raise SourceUnreachable.at("source b", "is away")

    outcomes = kept(world, views, Away())
    assert isinstance(outcomes["v0"], SourceUnreachable)
    for name in ("v1", "v2"):
        assert sum(worlds.per_update(views[name], outcomes[name].tables)[1].values()) == 5
