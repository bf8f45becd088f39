"""What the laboratory measures: promises kept, questions within the papers' bounds, who needs a pause."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from viewkeeper.algorithms.registry import Scenario
from viewkeeper.commands.lab.plots import HEIGHT, Axis, Line, apart, log_ticks, merged, plot
from viewkeeper.simulator.history import Deliver, Evaluate
from viewkeeper.simulator.laboratory import Subject, make, subjects
from viewkeeper.simulator.measure import (
    RELATIONS,
    Stream,
    formula,
    measure_random,
    measure_small,
    measure_stream,
)
from viewkeeper.simulator.timed import Clock
from viewkeeper.simulator.workload import Shape, random_workload

HISTORIES = 20
RUSH = Stream(relations=3, rate=4.0, updates=200)


@pytest.mark.parametrize("scenario", Scenario)
def test_every_algorithm_keeps_its_promise_and_its_bound_in_random_histories(scenario: Scenario) -> None:
    tallies = measure_random(subjects(), scenario, range(HISTORIES), seed=1)
    assert len(tallies) >= len(subjects()) - 1  # an algorithm for one source has no global transactions
    for (subject, _), tally in tallies.items():
        assert tally.broken is None, f"{subject}, {scenario}:\n{tally.broken}"
        assert tally.lowest is not None and tally.lowest >= subject.promise(scenario), f"{subject}, {scenario}"
        if scenario is Scenario.SINGLE:
            assert tally.worst <= formula(subject).bound[RELATIONS], str(subject)


def test_a_batch_pays_for_its_snapshots() -> None:
    world = make("sweep", random_workload(random.Random(1), Shape(3, 3, 1)), {})
    world.settle()
    looked_up = sum(happened.kind == "send" for happened in world.log)
    assert world.costs.questions == looked_up + 3
    assert world.costs.questions <= formula(Subject.of("sweep", {})).bound[3] == 5


def test_many_relations_in_a_source_are_asked_at_once() -> None:
    together, apart = (Stream(6, 0.05, 40, sources) for sources in (1, 6))
    asked = {
        (name, stream): flow.questions
        for name in ("sweep_sequential", "sweep_sites")
        for stream in (together, apart)
        if (flow := measure_stream(Subject.of(name, {}), stream, seed=1)) is not None
    }
    assert asked["sweep_sites", together] * 2 < asked["sweep_sequential", together]
    assert asked["sweep_sites", apart] == asked["sweep_sequential", apart]


def test_measuring_is_repeatable_and_histories_may_be_dealt_out() -> None:
    subject = Subject.of("strobe", {})
    whole = measure_random([subject], Scenario.LOCAL, range(12), seed=3)
    parts = [measure_random([subject], Scenario.LOCAL, numbers, seed=3) for numbers in (range(5), range(5, 12))]
    first, second = (part[(subject, Scenario.LOCAL)] for part in parts)
    first.add(second)
    assert whole == {(subject, Scenario.LOCAL): first}


def test_small_workloads_are_tried_in_every_order_and_counted() -> None:
    subject = Subject.of("sweep_sequential", {})
    (tally,) = measure_small(subject, Scenario.SINGLE, 300).values()
    assert tally.small == 300
    assert tally.broken is None
    assert tally.exhausted


@pytest.mark.parametrize("name", ["strobe", "t_strobe", "g_strobe", "eca"])
def test_what_waits_for_quiescence_stands_still_in_a_rush(name: str) -> None:
    flow = measure_stream(Subject.of(name, {}), RUSH, seed=1)
    assert flow is not None and flow.needs_quiet


@pytest.mark.parametrize("name", ["sweep", "sweep_sequential", "nested_sweep", "c_strobe", "refresh", "convergent"])
def test_what_needs_no_quiescence_moves_on_in_a_rush(name: str) -> None:
    flow = measure_stream(Subject.of(name, {"every": 3} if name == "refresh" else {}), RUSH, seed=1)
    assert flow is not None and not flow.needs_quiet


def test_by_the_clock_channels_stay_fifo_and_time_never_runs_backwards() -> None:
    rng = random.Random(5)
    world = make("strobe", random_workload(rng, Shape(3, 3, 40)), {})
    timing = Clock(world, rng, rate=2.0).run()
    times = [happened.time for happened in world.log if happened.time <= timing.length]
    assert times == sorted(times)
    assert len(timing.stale) == 40
    assert not any(isinstance(event, Deliver | Evaluate) for event in world.enabled())


def test_a_slow_stream_is_as_stale_as_its_sweep_takes() -> None:
    flow = measure_stream(Subject.of("sweep_sequential", {}), Stream(3, 0.01, 30), seed=1)
    assert flow is not None
    assert flow.stalest < 25  # an update, then two questions and two answers, of one message time each on average
    assert 1.0 <= flow.questions <= 2.0


# Plots ---------------------------------------------------------------------------------------------------------------


def test_lines_that_lie_on_each_other_are_drawn_once() -> None:
    one, same = Line("a", ((1, 1.0), (2, 2.0)), 0), Line("b", ((1, 1.001), (2, 2.0)), 1)
    other = Line("c", ((1, 1.0), (2, 3.0)), 2)
    assert [line.name for line in merged([one, same, other])] == ["a = b", "c"]
    drawn = plot("p", [one, same, other], Axis("x", (1, 2)), Axis("y", log_ticks([1, 3]), log=True))
    assert drawn.count("<polyline") == 2


def test_labels_are_pushed_apart_and_stay_in_the_plot() -> None:
    heights = [16.0] * 20
    places = apart([100.0] * 20, heights)
    assert all(b - a >= 16 for a, b in pairwise(places))
    assert places[0] >= 0 and places[-1] + heights[-1] <= HEIGHT


@pytest.mark.parametrize("values", [[1.0], [0.3, 7.0], [5.0, 5.0], [0.001, 2000.0]])
def test_the_ticks_of_a_log_axis_enclose_the_values(values: list[float]) -> None:
    ticks = log_ticks(values)
    assert ticks[0] <= min(values) and max(values) <= ticks[-1]
    assert len(ticks) >= 2
