"""Looks for the smallest history in which an algorithm breaks a level that it does not promise.

Small workloads one size after the other, each through every order of messages that the manager can see; past the
budget, and in worlds whose orders are too many to try, random small histories. What is found is shrunk.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from viewkeeper.algorithms.registry import SWEEP, Scenario
from viewkeeper.consistency.levels import Level
from viewkeeper.simulator.history import Event, History, Workload
from viewkeeper.simulator.laboratory import AnyWorld, Oracles, Subject, fits, fitting, judged, make, replayed
from viewkeeper.simulator.schedule import every_interleaving, run_randomly
from viewkeeper.simulator.shrink import shrink
from viewkeeper.simulator.smallest import SIZES, Size, small_workloads
from viewkeeper.simulator.workload import Shape, random_workload
from viewkeeper.simulator.world import World


@dataclass(frozen=True)
class Effort:
    """How long to look: histories of small workloads, and random ones after that."""

    systematic: int = 4_000
    at_random: int = 400


THOROUGH = Effort()


@dataclass
class Search:
    """What a search has found: per level the first history that breaks it, and what was tried."""

    subject: Subject
    scenario: Scenario
    broken: dict[Level, History] = field(default_factory=dict)
    histories: int = 0
    at_random: int = 0
    exhausted: list[Size] = field(default_factory=list)  # sizes all of whose interleavings were tried

    @property
    def lowest(self) -> Level | None:
        """The lowest level that was broken."""
        return min(self.broken, default=None)


def search(subject: Subject, scenario: Scenario, levels: list[Level], effort: Effort = THOROUGH) -> Search:
    """Looks for histories that break these levels (lowest first), until the lowest is broken or the effort is spent."""
    result = Search(subject, scenario)
    wanted, oracles = set(levels), Oracles()
    for world, history in _tries(result, effort):
        judgement = judged(world, subject.run_length, oracles.of(history.workload))
        for level in [level for level in wanted if judgement.verdicts[level].holds is False]:
            result.broken[level] = history
            wanted.discard(level)
        if not wanted or min(levels) in result.broken:
            break
    return result


def smallest(search: Search, level: Level) -> History:
    """The history found for a level, with everything left out that can be."""
    run_length = search.subject.run_length

    def fails(history: History) -> bool:
        return judged(replayed(history), run_length).verdicts[level].holds is False

    return shrink(search.broken[level], fails)


def _tries(result: Search, effort: Effort) -> Iterator[tuple[AnyWorld, History]]:
    yield from systematic(result, effort.systematic)
    yield from _at_random(result, effort.at_random)


def possible(subject: Subject, scenario: Scenario, relations: int) -> Shape | None:
    """The shape of workloads over so many relations, or None: global transactions need several sources."""
    if scenario is Scenario.GLOBAL and not fits(subject, Shape(2, 2)):
        return None
    return fitting(subject, Shape(relations, relations, scenario=scenario))


def systematic(result: Search, budget: int) -> Iterator[tuple[AnyWorld, History]]:
    """Every interleaving of every small workload, until the budget of histories is spent; ``result`` keeps count."""
    subject = result.subject
    if subject.name == SWEEP:
        return  # its world has too many orders to try them all, even of the smallest workloads
    for size in SIZES:
        shape = possible(subject, result.scenario, size.relations)
        if shape is None:
            continue
        for workload in small_workloads(size, result.scenario, shape.sources < size.relations):
            for world, events in _interleavings(subject, workload):
                if result.histories >= budget:
                    return
                result.histories += 1
                yield world, History(workload, subject.name, subject.options, events)
        result.exhausted.append(size)


def _interleavings(subject: Subject, workload: Workload) -> Iterator[tuple[World, tuple[Event, ...]]]:
    def new_world() -> World:
        world = make(subject.name, workload, subject.options)
        assert isinstance(world, World)
        return world

    yield from every_interleaving(new_world)


def _at_random(result: Search, count: int) -> Iterator[tuple[AnyWorld, History]]:
    subject = result.subject
    for seed in range(count):
        rng = random.Random(seed)
        n = rng.choice((2, 3))
        if possible(subject, result.scenario, n) is None:
            continue
        drawn = Shape(n, n, rng.choice((2, 3, 4)), result.scenario, keyed=rng.random() < 0.5)
        shape = fitting(subject, drawn)
        if shape is None:
            continue
        workload = random_workload(rng, shape)
        world = make(subject.name, workload, subject.options)
        events = run_randomly(world, rng)
        result.at_random += 1
        yield world, History(workload, subject.name, subject.options, events, seed)
