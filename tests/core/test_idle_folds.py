"""While nothing arrives, what has changed is folded and named by a cut: once, and nothing follows from it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.core.test_warehouse import loaded, published, transaction
from viewkeeper.errors import WarehouseUnreachable
from viewkeeper.job.publishing import Publishing, StepTimes
from viewkeeper.warehouse.cuts import Cut, WarehouseTransaction
from viewkeeper.warehouse.pace import FoldPace
from viewkeeper.warehouse.warehouse import Warehouse


@dataclass
class Told:
    """The view topics: which cuts they were told of."""

    cuts: list[int] = field(default_factory=list)

    def require_alone(self) -> None: ...

    def publish(self, cut: Cut, *_: object) -> None:
        self.cuts.append(cut.cut)


class Idle:
    """A job between batches, whose clock is ours."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, fold: Any = "auto"):
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.warehouse = loaded(root)
        self.start(fold)

    def start(self, fold: Any) -> None:
        self.topics: Any = Told()
        self.publishing = Publishing(["v"], self.warehouse, self.topics, FoldPace(fold))
        newest = self.warehouse.newest()
        assert newest is not None
        self.cut = newest

    def change(self, number: int) -> None:
        """An update arrives, and a cut holds it."""
        step = transaction(number, [(number, "b", 1, number)])
        self.cut = self.warehouse.commit(step)
        self.publishing.follow(self.cut, step, StepTimes(), once)

    def wait(self, seconds: int) -> list[int]:
        """Nothing arrives for a while; the cuts that come all the same."""
        before = self.cut.cut
        for _ in range(seconds * 5):
            self.now += 0.2
            self.publishing.fold_if_due(StepTimes(), once)
            self.cut = self.publishing.name_folds(self.cut, "complete", StepTimes(), once)
        return list(range(before + 1, self.cut.cut + 1))


def once(work: Callable[[], Any]) -> Any:
    return work()


@pytest.mark.parametrize("fold", ["auto", timedelta(seconds=60), "every_cut"])
def test_a_change_is_folded_and_named_once_though_nothing_arrives_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fold: Any
) -> None:
    idle = Idle(tmp_path, monkeypatch, fold)
    assert idle.wait(200) == [], "there is nothing to fold"
    idle.change(1)
    assert idle.cut.folded == {"v": 0}
    assert idle.wait(65) == [2]
    newest = idle.warehouse.newest()
    assert newest == idle.cut and newest.folded == {"v": 1} and newest.last_update == 1
    assert newest.versions["v"] == idle.warehouse.view_table("v").refreshed_version()
    assert published(tmp_path) == {(1, "a"): 2, (None, None): 1, (1, "b"): 1}
    assert (newest.positions, newest.offsets) == ({"shop": "1"}, {"shop": 2})
    assert idle.topics.cuts == [1, 2], "its seal as well"
    assert idle.wait(600) == [] and idle.topics.cuts == [1, 2], "it does not wake itself"
    idle.change(2)
    assert idle.wait(130) == [4] and idle.cut.folded == {"v": 2}


def test_a_fold_is_named_by_a_cut_that_comes_anyway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = Idle(tmp_path, monkeypatch, "every_cut")
    for number in range(1, 6):
        idle.change(number)
        idle.now += 0.5
        assert idle.cut.cut == number and idle.cut.folded == {"v": number - 1}
    assert idle.wait(10) == [6]


def test_cuts_that_name_folds_come_no_more_often_than_min_cut_interval_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = Idle(tmp_path, monkeypatch, "every_cut")
    idle.publishing.cut_interval = 5.0
    for number in range(1, 4):
        idle.change(number)
        assert idle.wait(5) == [], "the next cut names it"
        assert idle.cut.cut == number
    assert idle.wait(10) == [4] and idle.cut.folded == {"v": 3}


def test_an_update_that_changes_no_row_is_folded_once_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = Idle(tmp_path, monkeypatch)
    step = transaction(1, [])
    idle.cut = idle.warehouse.commit(step)
    assert idle.wait(200) == [2] and idle.cut.folded == {"v": 1}
    assert idle.wait(200) == []


def test_a_fold_that_a_killed_job_left_is_named_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = Idle(tmp_path, monkeypatch)
    idle.change(1)
    idle.warehouse.fold()
    idle.warehouse = Warehouse(tmp_path)
    idle.warehouse.open()
    idle.start("auto")
    assert idle.wait(5) == [2] and idle.cut.folded == {"v": 1}
    assert idle.wait(200) == []


@pytest.mark.parametrize("is_through", [False, True])
def test_a_naming_cut_that_fails_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_through: bool
) -> None:
    idle = Idle(tmp_path, monkeypatch)
    idle.change(1)
    commit, failures = idle.warehouse.commit, [WarehouseUnreachable.at("warehouse", "its disk is full")]

    def failing(step: WarehouseTransaction) -> Cut:
        if failures:
            if is_through:
                commit(step)
            raise failures.pop()
        return commit(step)

    def twice(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except WarehouseUnreachable:
            return work()

    monkeypatch.setattr(idle.warehouse, "commit", failing)
    monkeypatch.setattr("tests.core.test_idle_folds.once", twice)
    assert idle.wait(70) == [2] and not failures
    assert idle.wait(200) == [] and idle.warehouse.newest() == idle.cut
