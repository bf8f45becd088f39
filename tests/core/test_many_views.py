"""Many views in simulation: SPA is complete, PA strong, under mutual checkers; and planted mistakes are caught."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import pytest

from tests.scale import scaled
from viewkeeper.algorithms.registry import Scenario
from viewkeeper.consistency.levels import Level
from viewkeeper.merge.painting import Painting, SimplePainting
from viewkeeper.simulator.history import Commit, Deliver, Evaluate
from viewkeeper.simulator.many_views import (
    INTEGRATOR,
    Hear,
    ManyEvent,
    ManyViews,
    Receive,
    replayed,
)
from viewkeeper.simulator.many_views_judging import Truth, judged_together
from viewkeeper.simulator.many_views_schedule import COMPLETE, STRONG, Kind, every_merge

from .many_views_worlds import (
    AnyOrder,
    PassAlong,
    Split,
    broken_promise,
    example_1,
    keep_their_promise,
    one_source_two_views,
    random_world,
    small,
    without_line,
)
from .painting_worlds import Printed

HISTORIES = scaled(12, 100)

MIXED = (*COMPLETE, *STRONG)
QUICK: tuple[Kind, ...] = (("sweep_sequential", {}), ("sweep_sites", {}))
LAZY: tuple[Kind, ...] = (("refresh", {"every": 2}), ("sweep_sequential", {}))


def test_example_1_without_a_merge_process_one_view_is_ahead_of_the_other() -> None:
    """Table 1: at t2 V1 reflects the new row of S, and V2 does not."""
    world = replayed(ManyViews(example_1(), painter=lambda group: PassAlong()), ())
    assert world.states == [({}, {}), ({(1, 2, 3): 1}, {}), ({(1, 2, 3): 1}, {(2, 3, 4): 1})]
    verdict = judged_together(world, Truth(world.group)).obstacle
    assert verdict is not None
    assert (verdict.first_without, verdict.views) == (1, ("V2",))


def test_example_1_both_views_move_together() -> None:
    """The same steps: V1's change is there at t2, and waits for V2's."""
    world = ManyViews(example_1())
    to_both: list[ManyEvent] = [Commit(0), Deliver("y"), Receive("V1"), Receive("V2"), Hear(INTEGRATOR)]
    of_v1: list[ManyEvent] = [Evaluate("x"), Deliver("x"), Receive("V1"), Hear("V1")]
    for event in (*to_both, *of_v1):
        world.take(event)
    assert not world.sequencing.under_way
    world.settle()
    assert world.states == [({}, {}), ({(1, 2, 3): 1}, {(2, 3, 4): 1})]
    assert judged_together(world, Truth(world.group)).level is Level.COMPLETE


def test_commits_keep_the_order_of_each_relation_and_cuts_that_of_each_source() -> None:
    """U1 is on R, U2 on Q, both in x, and V2's list comes first: the warehouse shows U2 without U1, which never was.

    Updates of different relations do not conflict, so the paper takes it for consistent; a cut is stricter.
    """
    world = ManyViews(one_source_two_views())
    for event in (Commit(0), Deliver("x"), Commit(1), Deliver("x"), Receive("V1"), Receive("V2")):
        world.take(event)
    for sender in (INTEGRATOR, INTEGRATOR, "V2", "V1"):
        world.take(Hear(sender))
    world.settle()
    both = ({(1, 1): 1}, {(2, 2): 1})
    assert world.states == [({}, {}), ({}, {(2, 2): 1}), both]
    assert list(world.cuts()) == [(0, ({}, {})), (2, both)]
    assert judged_together(world, Truth(world.group)).level is Level.COMPLETE


@pytest.mark.parametrize("scenario", Scenario)
def test_complete_managers_make_a_complete_warehouse(scenario: Scenario) -> None:
    assert keep_their_promise(COMPLETE, scenario, range(HISTORIES)) > HISTORIES


@pytest.mark.parametrize("scenario", Scenario)
def test_managers_of_all_kinds_make_a_strongly_consistent_warehouse(scenario: Scenario) -> None:
    assert keep_their_promise(MIXED, scenario, range(HISTORIES)) > HISTORIES


def test_batched_transactions_leave_a_strongly_consistent_warehouse() -> None:
    """Section 4.3: a BWT may advance the warehouse by more than one state, whoever the managers are."""
    for seed in range(scaled(10, 100)):
        world, _ = random_world(MIXED, Scenario.GLOBAL, seed, batch=3)
        judgement = judged_together(world, Truth(world.group))
        assert judgement.reaches(Level.STRONG), f"replay: random_world(MIXED, Scenario.GLOBAL, {seed}, batch=3)"


@pytest.mark.parametrize("kinds", [QUICK, LAZY], ids=["SPA", "PA"])
@pytest.mark.parametrize("scenario", [Scenario.SINGLE, Scenario.GLOBAL])
def test_every_order_of_messages_and_commits_of_small_histories(kinds: tuple[Kind, ...], scenario: Scenario) -> None:
    seen = 0
    for seed in range(scaled(6, 40)):
        group = small(kinds, scenario, seed, views=2)
        truth = Truth(group)
        for world, events in every_merge(lambda group=group: ManyViews(group)):  # type: ignore[misc]
            seen += 1
            broken = broken_promise(world, truth)
            assert broken is None, f"seed {seed}: {broken}\nreplay: replayed(ManyViews({group}), {events})"
    assert seen > 100


def test_a_history_is_replayed_from_its_events() -> None:
    for seed in range(3):
        world, events = random_world(MIXED, Scenario.GLOBAL, seed)
        assert replayed(ManyViews(world.group), events).states == world.states
        for other, every in islice(every_merge(lambda group=world.group: ManyViews(group)), 3):  # type: ignore[misc]
            assert replayed(ManyViews(world.group), every).states == other.states


MISTAKES: Mapping[str, tuple[tuple[Kind, ...], Scenario, dict[str, Any]]] = {
    "no merge": (QUICK, Scenario.SINGLE, {"painter": lambda group: PassAlong()}),
    "commit order ignored": (QUICK, Scenario.SINGLE, {"sequencer": AnyOrder}),
    "painting without the state rule": (LAZY, Scenario.SINGLE, {"painter": lambda group: without_line(5)}),
    "painting without order in a column": (QUICK, Scenario.SINGLE, {"painter": lambda group: without_line(4)}),
    "painting as printed": (LAZY, Scenario.SINGLE, {"painter": lambda group: Printed()}),
    "a global transaction split": (QUICK, Scenario.GLOBAL, {"integrator": lambda g: Split(g.workload.sources, g.uses)}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_caught_by_the_mutual_checkers_and_its_right_form_is_not(mistake: str) -> None:
    kinds, scenario, planted = MISTAKES[mistake]
    caught = []
    for seed in range(100):
        wrong, _ = random_world(kinds, scenario, seed, busy=True, **planted)
        if not judged_together(wrong, Truth(wrong.group)).reaches(Level.STRONG):
            caught.append(seed)
            keep_their_promise(kinds, scenario, [seed], busy=True)
        if len(caught) == 3:
            return
    pytest.fail(f"{mistake}: caught only in {caught}")


def test_the_weakest_manager_chooses_the_merge_algorithm() -> None:
    assert isinstance(ManyViews(small(QUICK, Scenario.SINGLE, 0, views=2)).merging, SimplePainting)
    assert isinstance(ManyViews(small(LAZY[:1], Scenario.SINGLE, 0, views=2)).merging, Painting)
