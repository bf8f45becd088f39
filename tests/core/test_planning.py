"""Which managers work, and how far: cuts must not starve where managers take steps of their own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from viewkeeper.algebra.bag import UPDATE
from viewkeeper.algorithms.sweep import Queue
from viewkeeper.consistency.levels import Level
from viewkeeper.errors import SourceUnreachable
from viewkeeper.integrator.integrator import Batch, Emptied
from viewkeeper.integrator.pending import Pending
from viewkeeper.job import planning
from viewkeeper.job.planning import Planning
from viewkeeper.managers.keeping import Keeping
from viewkeeper.managers.managers import Managers
from viewkeeper.managers.pace import Pace
from viewkeeper.merge.action_list import ActionList
from viewkeeper.merge.merge import Merge

SOON, LATER = timedelta(seconds=10), timedelta(seconds=14)


class Group:
    """Managers of these kinds, all of whose views every update concerns; each does its tasks at once."""

    def __init__(self, **keeping: Keeping):
        self.views = list(keeping)
        self.merge = Merge(self.views, 0)
        managers: Any = Managers({}, keeping, {}, {}, lambda _: [])
        paces = {view: Pace(kept, refreshed=0.0) for view, kept in keeping.items()}
        self.planning = Planning(managers, self.merge, paces)
        self.pending = Pending()

    def updates(self, count: int, emptied: Mapping[str, Emptied] | None = None) -> None:
        numbers = range(self.merge.last + 1, self.merge.last + 1 + count)
        concerned = np.ones((count, len(self.views)), bool)
        table = pa.table({UPDATE: np.array(numbers)})
        self.pending = self.pending.and_then(
            Batch(numbers, Queue(), {}, table, [], emptied or {}, tuple(self.views), concerned)
        )

    def round(self, now: float, flush: bool = False) -> dict[str, int]:
        """What each manager that worked has answered for; and a cut, if one can be made."""
        tasks = self.planning.tasks(self.pending, flush, now)
        for batch in self.pending.batches:
            if batch.numbers.start > self.merge.last:
                self.merge.relevant(batch.numbers, batch.views, batch.concerned)
        for task in tasks:
            kept = self.planning.managers.keeping[task.view]
            n = kept.complete_n
            ends = None if kept.level is Level.COMPLETE else [task.until] if n is None else list(
                range(task.after + n - task.after % n, task.until + 1, n)
            )  # fmt: skip
            self.merge.actions(ActionList(task.view, task.after, task.until, [], ends, kept.level))
            self.planning.paces[task.view].succeeded(now)
        self.merge.take(self.merge.prefix)
        self.pending = Pending([b for b in self.pending.batches if b.last > self.merge.applied])
        return {task.view: task.until for task in tasks}


def test_complete_managers_answer_for_every_batch() -> None:
    group = Group(a=Keeping(), b=Keeping())
    for count in (3, 4):
        group.updates(count)
        group.round(now=0.0)
        assert group.merge.applied == group.merge.last


def test_refreshes_of_different_periods_are_made_together_or_their_lists_would_reach_across_each_other() -> None:
    group = Group(soon=Keeping("refresh", every=SOON), later=Keeping("refresh", every=LATER), swept=Keeping())
    group.updates(5)
    assert group.round(now=1.0) == {"swept": 5} and group.merge.applied == 0
    group.updates(5)
    assert group.round(now=10.0) == {"soon": 10, "later": 10, "swept": 10}
    assert group.merge.applied == 10
    group.updates(5)
    assert group.round(now=15.0) == {"swept": 15}
    assert group.round(now=20.0) == {"soon": 15, "later": 15}
    assert group.merge.applied == 15


def test_a_refresh_that_is_tried_again_takes_the_others_along() -> None:
    group = Group(a=Keeping("refresh", every=SOON), b=Keeping("refresh", every=SOON))
    group.updates(4)
    group.planning.paces["a"].failed(SourceUnreachable.at("source s", "is away"), now=10.0)
    assert group.round(now=10.0) == {"b": 4} and group.merge.applied == 0
    group.updates(4)
    assert group.round(now=11.0) == {"a": 8, "b": 8}, "b's next would be due long after"
    assert group.merge.applied == 8


def test_a_refresh_that_has_failed_is_not_forgotten_when_nothing_is_to_be_left_back() -> None:
    """Found by a played history: it was neither hurried, because of its error, nor due, for lack of updates."""
    group = Group(a=Keeping("refresh", every=timedelta(hours=1)))
    group.updates(2)
    group.planning.paces["a"].failed(SourceUnreachable.at("source s", "is away"), now=1.0)
    assert group.round(now=1.1, flush=True) == {}, "it rests for a moment"
    assert group.round(now=2.0, flush=True) == {"a": 2}


def test_beside_complete_n_nobody_answers_across_its_steps() -> None:
    group = Group(n=Keeping("complete_n", {"complete_n": 4}), r=Keeping("refresh", every=SOON), s=Keeping("t_strobe"))
    group.updates(10)
    assert group.round(now=10.0) == {"n": 8, "r": 8, "s": 8}
    assert group.merge.applied == 8
    group.updates(1)
    assert group.round(now=20.0) == {}
    group.updates(2)
    assert group.round(now=30.0) == {"n": 12, "r": 12, "s": 12}
    assert group.round(now=30.0, flush=True) == {"n": 13, "r": 13, "s": 13}
    assert group.merge.applied == 13


def test_nobody_answers_for_less_than_an_update_that_emptied_a_relation() -> None:
    """Found by review: as of update 4, a relation that update 5 has emptied cannot be seen any more."""
    group = Group(n=Keeping("complete_n", {"complete_n": 4}), s=Keeping())
    group.updates(5, emptied={"n": Emptied(5, 0), "s": Emptied(5, 0)})
    assert group.round(now=0.0) == {"s": 5} and group.merge.applied == 0
    group.updates(3)
    assert group.round(now=0.0) == {"n": 8, "s": 8} and group.merge.applied == 8


def test_steps_that_hardly_ever_meet_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MOST", 20)
    group = Group(a=Keeping("complete_n", {"complete_n": 97}), b=Keeping("complete_n", {"complete_n": 101}))
    group.updates(21)
    group.round(now=0.0)
    assert group.merge.applied == 21


def test_a_strong_manager_that_is_tried_again_takes_refreshes_along() -> None:
    """Its list reaches across the last refresh, so a cut would have to wait for the next one."""
    group = Group(s=Keeping("t_strobe"), r=Keeping("refresh", every=SOON))
    group.updates(3)
    group.planning.paces["s"].failed(SourceUnreachable.at("source s", "is away"), now=10.0)
    assert group.round(now=10.0) == {"r": 3} and group.merge.applied == 0
    group.updates(2)
    assert group.round(now=11.0) == {"s": 5, "r": 5} and group.merge.applied == 5


def test_different_steps_meet_at_their_common_multiple() -> None:
    group = Group(a=Keeping("complete_n", {"complete_n": 4}), b=Keeping("complete_n", {"complete_n": 6}))
    cuts = []
    for _ in range(10):
        group.updates(3)
        group.round(now=0.0)
        cuts.append(group.merge.applied)
    assert cuts == [0, 0, 0, 12, 12, 12, 12, 24, 24, 24]
