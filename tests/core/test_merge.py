"""The merge process over runs of updates, against the Painting Algorithm over single ones."""

from __future__ import annotations

import random
from bisect import bisect_right

import numpy as np
import pyarrow as pa
import pytest

from tests.scale import scaled
from viewkeeper.algebra.bag import COUNT, UPDATE
from viewkeeper.consistency.levels import Level
from viewkeeper.merge.action_list import ActionList
from viewkeeper.merge.merge import Merge
from viewkeeper.merge.painting import Painting


def table(numbers: list[int]) -> pa.Table:
    """One row a number: the number itself."""
    return pa.table({"x": numbers, COUNT: [1] * len(numbers), UPDATE: numbers})


def actions(view: str, after: int, until: int, relevant: list[int], ends: list[int] | None, lazy: bool) -> ActionList:
    labels = relevant if ends is None else sorted({ends[bisect_right(ends, n - 1)] for n in relevant})
    tables = [table(labels)]
    level = Level.COMPLETE if ends is None else Level.STRONG
    return ActionList(view, after, until, iter(tables) if lazy else tables, ends, level)


class Play:
    """Managers that answer for runs of any length, in any order; the same is told to both merge processes."""

    def __init__(self, seed: int):
        self.rng = rng = random.Random(seed)
        self.views = [f"v{i}" for i in range(rng.randint(1, 4))]
        self.complete = {view: rng.random() < 0.5 for view in self.views}
        self.merge = Merge(self.views, 0)
        self.painter: Painting[None] = Painting(self.views)
        self.relevant: dict[str, list[int]] = {view: [] for view in self.views}
        self.answered = dict.fromkeys(self.views, 0)
        self.last = self.cut = 0

    def step(self) -> None:
        self.rng.choice((self.updates, self.answer, self.answer, self.take))()

    def updates(self) -> None:
        numbers = range(self.last + 1, self.last + 1 + self.rng.randint(1, 6))
        concerned = np.array([[self.rng.random() < 0.5 for _ in self.views] for _ in numbers])
        self.merge.relevant(numbers, self.views, concerned)
        for number, row in zip(numbers, concerned, strict=True):
            views = [view for view, is_ in zip(self.views, row, strict=True) if is_]
            self.painter.relevant(number, views)
            for view in views:
                self.relevant[view].append(number)
        self.last = numbers.stop - 1

    def answer(self) -> None:
        view = self.rng.choice(self.views)
        after = self.answered[view]
        if after == self.last:
            return
        until = self.rng.randint(after + 1, self.last)
        mine = [n for n in self.relevant[view] if after < n <= until]
        ends, lazy = None, False
        if mine and not self.complete[view]:  # then its list reaches to an update that concerns the view
            until, lazy = mine[-1], self.rng.random() < 0.2
            ends = sorted({until, *self.rng.sample(mine, self.rng.randint(0, len(mine)))})
        self.merge.actions(actions(view, after, until, mine, ends, lazy))
        self.answered[view] = until
        for number in mine if ends is None else ends[-1:] if lazy else ends:
            self.painter.actions(view, number, None)

    def take(self) -> None:
        prefix = self.merge.prefix
        assert prefix == self.painter.applied_prefix
        ready = self.merge.take(prefix)
        for tables in ready.changes.values():
            shown = [n for t in tables for n in t[UPDATE].to_pylist()]
            assert all(self.cut < n <= prefix for n in shown), "states of earlier cuts stay as they are"
            assert shown == sorted(shown)
        for view in self.views:
            assert self.merge.owed(view) == sum(n > self.answered[view] for n in self.relevant[view])
            assert self.merge.owed(view) + self.merge.held(view) == sum(n > prefix for n in self.relevant[view])
        self.cut = prefix


@pytest.mark.parametrize("first", range(0, scaled(400, 8000), 100))
def test_a_cut_holds_as_much_as_the_painting_algorithm_applies(first: int) -> None:
    for seed in range(first, first + 100):
        play = Play(seed)
        try:
            for _ in range(play.rng.randint(1, 25)):
                play.step()
            play.take()
        except AssertionError as error:
            raise AssertionError(f"Play({seed})") from error


def test_everything_is_shown_once_all_have_answered() -> None:
    for seed in range(200):
        play = Play(seed)
        for _ in range(20):
            play.step()
        for view in play.views:
            if play.answered[view] < play.last:
                mine = [n for n in play.relevant[view] if n > play.answered[view]]
                play.merge.actions(actions(view, play.answered[view], play.last, mine, None, lazy=False))
        assert play.merge.prefix == play.last, f"Play({seed})"


def test_a_list_that_reaches_across_keeps_earlier_rows_back() -> None:
    """Example 4 of the paper: V1's one list stands for U1 and U3, so not even U2 may be shown before U3 can be."""
    merge = Merge(["v1", "v2", "v3"], 0)
    merge.relevant(range(1, 4), ["v1", "v2", "v3"], np.array([[1, 1, 0], [0, 1, 1], [1, 1, 0]], bool))
    merge.actions(ActionList("v1", 0, 3, [table([3])], [3], Level.STRONG))
    merge.actions(ActionList("v2", 0, 2, [table([1, 2])]))
    merge.actions(ActionList("v3", 0, 3, [table([2])]))
    assert merge.prefix == 0
    assert merge.colors(1, 3, ["v1", "v2", "v3"]) == {"v1": "rbr", "v2": "rrw", "v3": "brb"}
    merge.actions(ActionList("v2", 2, 3, [table([3])]))
    assert merge.prefix == 3
    assert merge.take(3).level is Level.STRONG


def test_what_waits_of_a_view_is_part_of_what_its_manager_builds_on() -> None:
    merge = Merge(["v"], 0)
    merge.relevant(range(1, 4), ["v"], np.ones((3, 1), bool))
    merge.actions(ActionList("v", 0, 1, [table([1])]))
    merge.actions(ActionList("v", 1, 2, [pa.table({"x": [1, 7], COUNT: [-1, 2], UPDATE: [2, 2]})]))
    assert [row for batch in merge.change("v") for row in batch.to_pylist()] == [{"x": 7, COUNT: 2}]
    assert not merge.forgets("v")
    merge.actions(ActionList("v", 2, 3, iter([table([3])])))
    assert merge.forgets("v")
    merge.restart("v")
    assert merge.answered("v") == 0 and merge.owed("v") == 3 and not list(merge.change("v"))
