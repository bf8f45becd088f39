"""The laboratory finds what each algorithm breaks, makes it small, and finds nothing where nothing is broken."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from viewkeeper.algorithms.registry import Scenario
from viewkeeper.consistency.levels import Level
from viewkeeper.simulator.anomaly import Effort, search, smallest
from viewkeeper.simulator.evidence import fault_of
from viewkeeper.simulator.examples import EXAMPLES
from viewkeeper.simulator.history import Commit, Crash, Deliver, History
from viewkeeper.simulator.laboratory import Oracle, Subject, frozen, judged, make, replayed, subjects, unpromised
from viewkeeper.simulator.schedule import Faults, run_randomly
from viewkeeper.simulator.shrink import feasible, shrink
from viewkeeper.simulator.smallest import Size, small_workloads
from viewkeeper.simulator.workload import Shape, random_workload

QUICK = Effort(systematic=400, at_random=60)
CONVENTIONAL = Subject.of("convergent", {"keyed": True})


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("strobe-1996-example-1", Level.INCONSISTENT),
        ("strobe-1996-example-3", Level.COMPLETE),
        ("strobe-1996-example-4", Level.CONVERGENT),
        ("strobe-1996-example-5", Level.COMPLETE),
        ("strobe-1996-example-6", Level.COMPLETE),
        ("sweep-1997-figure-5", Level.COMPLETE),
    ],
)
def test_an_example_of_the_papers_reaches_the_level_that_they_say(name: str, level: Level) -> None:
    assert judged(replayed(EXAMPLES[name])).level is level


def test_example_1_ends_with_a_row_that_should_not_be_there() -> None:
    world = replayed(EXAMPLES["strobe-1996-example-1"])
    oracle = Oracle(world.workload)
    fault = fault_of(world, judged(world, None, oracle), Level.COMPLETE, oracle)
    assert fault is not None
    assert world.states[-1] == {(1, 2, 3, 4): 1}
    assert (fault.level, fault.state, fault.should) == (Level.CONVERGENT, len(world.states) - 1, frozen({}))


def test_figure_5_of_sweep_goes_through_every_state_that_the_paper_shows() -> None:
    states = replayed(EXAMPLES["sweep-1997-figure-5"]).states
    assert states == [{(7, 8): 2}, {(5, 6): 2, (7, 8): 2}, {(5, 6): 2}, {(5, 6): 1}]


def test_the_conventional_algorithm_breaks_convergence_with_two_updates() -> None:
    found = search(CONVENTIONAL, Scenario.SINGLE, unpromised(CONVENTIONAL, Scenario.SINGLE), QUICK)
    assert found.lowest is Level.CONVERGENT
    assert len(smallest(found, Level.CONVERGENT).workload.transactions) == 2


def test_strobe_shows_the_middle_of_a_transaction_of_two_changes() -> None:
    strobe = Subject.of("strobe", {})
    found = search(strobe, Scenario.LOCAL, unpromised(strobe, Scenario.LOCAL), QUICK)
    assert found.lowest is Level.WEAK
    (transaction,) = smallest(found, Level.WEAK).workload.transactions
    assert [len(ops) for ops in transaction.parts.values()] == [2]


@pytest.mark.parametrize("subject", subjects(), ids=str)
def test_nothing_breaks_a_promise_in_small_histories(subject: Subject) -> None:
    for scenario in Scenario:
        promised = subject.promise(scenario)
        if promised:
            found = search(subject, scenario, [promised], Effort(systematic=150, at_random=10))
            assert not found.broken, f"{scenario}: {found.broken}"


def test_every_small_workload_is_possible_and_is_there_once() -> None:
    for scenario in Scenario:
        workloads = list(small_workloads(Size(2, 2), scenario))
        assert all(map(feasible, workloads))
        assert len({(str(w.initial), str(w.transactions)) for w in workloads}) == len(workloads)
        spans = {len(t.parts) for w in workloads for t in w.transactions}
        assert spans == ({1, 2} if scenario is Scenario.GLOBAL else {1})


# Shrinking -----------------------------------------------------------------------------------------------------------


def inconsistent(history: History) -> bool:
    return judged(replayed(history)).level is Level.INCONSISTENT


def first_failing(updates: int) -> History:
    for seed in range(100):
        rng = random.Random(seed)
        workload = random_workload(rng, Shape(3, 3, updates, rows=3, values=2))
        world = make("convergent", workload, {"keyed": True})
        history = History(workload, "convergent", {"keyed": True}, run_randomly(world, rng, Faults(0.02, 0.05)), seed)
        if inconsistent(history):
            return history
    raise AssertionError("none of 100 seeds fails")


def test_a_shrunk_history_still_fails_and_nothing_more_can_be_left_out() -> None:
    small = shrink(first_failing(12), inconsistent)
    assert inconsistent(small)
    assert feasible(small.workload)
    assert len(small.workload.transactions) == 2
    for i in range(len(small.events)):
        assert not inconsistent(replace(small, events=small.events[:i] + small.events[i + 1 :]))


def test_shrinking_is_deterministic() -> None:
    history = first_failing(8)
    assert shrink(history, inconsistent) == shrink(history, inconsistent)


def test_commits_keep_their_transaction_when_others_are_dropped() -> None:
    workload = EXAMPLES["strobe-1996-example-1"].workload
    history = History(workload, "strobe", {}, (Crash(), Commit(0), Commit(1), Deliver("x")))
    small = shrink(history, lambda h: any(t.id == "U2" for t in h.workload.transactions) and Commit(0) in h.events)
    assert [t.id for t in small.workload.transactions] == ["U2"]
    assert small.events == (Commit(0),)


def test_a_history_that_does_not_fail_is_not_shrunk() -> None:
    with pytest.raises(AssertionError):
        shrink(EXAMPLES["strobe-1996-example-3"], inconsistent)
