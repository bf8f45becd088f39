"""Every algorithm keeps its promise: on thousands of random histories, and on all interleavings of small ones."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from viewkeeper.algorithms.registry import Scenario
from viewkeeper.consistency.levels import Level
from viewkeeper.simulator.files import dumps
from viewkeeper.simulator.history import Event, History, Workload
from viewkeeper.simulator.laboratory import Oracle, Subject, fitting, judged, make, replayed, subjects
from viewkeeper.simulator.schedule import Faults, every_interleaving, run_randomly
from viewkeeper.simulator.shrink import shrink
from viewkeeper.simulator.workload import Shape, random_workload

HISTORIES = 1_000  # for each scenario it promises something in
BLOCKS = 2
SMALL = 12

PROMISES = [(subject, scenario) for subject in subjects() for scenario in subject.entry.promise]

SIZES = {Scenario.SINGLE: ((3, 0), (2, 1)), Scenario.LOCAL: ((2, 0),), Scenario.GLOBAL: ((2, 0),)}
"""Updates and crashes of the histories that are enumerated: larger transactions have far more interleavings."""

ENUMERABLE = [
    pytest.param(subject, scenario, *size, id=f"{subject}-{scenario}-{size[0]} updates, {size[1]} crashes")
    for subject, scenario in PROMISES
    for size in SIZES[scenario]
    if subject.name != "sweep"  # its messages come on two channels
    and subject.promise(scenario) > Level.CONVERGENT  # Strobe has a query for each row: too many to enumerate
]


def shape_for(subject: Subject, scenario: Scenario, rng: random.Random, updates: int) -> Shape:
    """A random shape that the algorithm may keep: sites with several relations and repeated relations included."""
    drawn = Shape(
        sources=rng.randint(1, 4), relations=rng.randint(1, 4), updates=updates, scenario=scenario,
        keyed=rng.random() < 0.5, grouped=rng.random() < 0.5, repeated=rng.random() < 0.3, values=rng.randint(1, 3),
    )  # fmt: skip
    shape = fitting(subject, replace(drawn, sources=min(drawn.sources, drawn.relations)))
    assert shape is not None, f"{subject} fits no shape"
    return shape


def fails(history: History, subject: Subject, promise: Level) -> bool:
    return not judged(replayed(history), subject.run_length).reaches(promise)


def report(subject: Subject, promise: Level, workload: Workload, events: tuple[Event, ...], tmp_path: Path) -> str:
    """The smallest failing history, saved, with the command that replays it."""
    history = History(workload, subject.name, subject.options, events)
    file = tmp_path / "failing.json"
    file.write_text(dumps(shrink(history, lambda smaller: fails(smaller, subject, promise))))
    return f"{subject} breaks its promise ({promise}); replay it with: viewkeeper lab replay {file}\n{file.read_text()}"


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize(("subject", "scenario"), PROMISES, ids=str)
def test_promises_hold_on_random_histories(subject: Subject, scenario: Scenario, block: int, tmp_path: Path) -> None:
    promise = subject.promise(scenario)
    for seed in range(block, HISTORIES, BLOCKS):
        rng = random.Random(seed)
        workload = random_workload(rng, shape_for(subject, scenario, rng, updates=rng.randint(2, 7)))
        world = make(subject.name, workload, subject.options)
        faults = Faults(crash=0.02, duplicate=0.05, delay=0.03) if seed % 3 == 0 else Faults()
        events = run_randomly(world, rng, faults)
        if not judged(world, subject.run_length).reaches(promise):
            pytest.fail(f"seed {seed}: {report(subject, promise, workload, events, tmp_path)}")


@pytest.mark.parametrize(("subject", "scenario", "updates", "crashes"), ENUMERABLE)
def test_promises_hold_in_every_interleaving_of_small_histories(
    subject: Subject, scenario: Scenario, updates: int, crashes: int, tmp_path: Path
) -> None:
    """At three sources, or at one where the algorithm wants one."""
    promise = subject.promise(scenario)
    shape = fitting(subject, Shape(sources=3, relations=3, updates=updates, scenario=scenario, values=2))
    assert shape is not None
    looked_at = 0
    for seed in range(SMALL):
        workload = random_workload(random.Random(seed), shape)
        oracle = Oracle(workload)
        for world, events in every_interleaving(partial(make, subject.name, workload, subject.options), crashes):
            looked_at += 1
            if not judged(world, subject.run_length, oracle).reaches(promise):
                pytest.fail(f"seed {seed}: {report(subject, promise, workload, events, tmp_path)}")
    assert looked_at > SMALL
