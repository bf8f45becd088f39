"""What is put to the test: algorithms with options, the worlds they live in, and the levels their runs reached.

Knows as the only place which world an algorithm needs, and shapes random workloads by what an algorithm assumes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from viewkeeper.algebra.tiny import Row, recompute
from viewkeeper.algorithms.registry import ALGORITHMS, Entry, Options, Scenario
from viewkeeper.consistency.history import Vector
from viewkeeper.consistency.judge import judge
from viewkeeper.consistency.levels import Judgement, Level
from viewkeeper.simulator.history import History, Workload
from viewkeeper.simulator.tagged import TaggedWorld
from viewkeeper.simulator.workload import Shape, random_workload
from viewkeeper.simulator.world import World, run

FrozenBag = frozenset[tuple[Row, int]]
"""A view's contents with a hash, which makes the checkers fast."""

JUDGED = 5_000
"""Source states that a judgement in the laboratory looks at before it stays undecided."""

AnyWorld = World | TaggedWorld

VARIANTS: Mapping[str, tuple[Options, ...]] = {
    "sweep_sequential": ({}, {"parallel": True}, {"pipeline": 3}),
    "refresh": ({"every": 3},),
    "complete_n": ({"complete_n": 3},),
    "convergent": ({}, {"keyed": True}),
}
"""The options under which an algorithm is tried; small runs, so that short histories hold several."""


@dataclass(frozen=True)
class Subject:
    """An algorithm with its options."""

    name: str
    chosen: tuple[tuple[str, int | bool], ...] = ()

    @classmethod
    def of(cls, name: str, options: Options) -> Subject:
        return cls(name, tuple(sorted(options.items())))

    @property
    def options(self) -> Options:
        return dict(self.chosen)

    @property
    def entry(self) -> Entry:
        return ALGORITHMS[self.name]

    @property
    def run_length(self) -> int | None:
        """The N of complete-N, where the algorithm promises that."""
        if Level.COMPLETE_N not in self.entry.promise.values():
            return None
        return int(self.options.get("complete_n", getattr(self.entry.make, "complete_n", 1)))

    def promise(self, scenario: Scenario) -> Level:
        """The level that the algorithm promises; INCONSISTENT stands for no promise."""
        return self.entry.promise.get(scenario, Level.INCONSISTENT)

    def __str__(self) -> str:
        shown = (name if value is True else f"{name}={value}".lower() for name, value in self.chosen)
        return " ".join((self.name, *shown))


def subjects() -> tuple[Subject, ...]:
    """Every algorithm under every option that is worth a line of its own."""
    return tuple(Subject.of(name, options) for name in ALGORITHMS for options in VARIANTS.get(name, ({},)))


def level_named(name: str) -> Level | None:
    """The level of that name, as ``str(level)`` gives it, in any case."""
    return next((level for level in Level if str(level).lower() == name.lower()), None)


def make(name: str, workload: Workload, options: Options) -> AnyWorld:
    """A new world for a workload, kept by that algorithm: the one place that knows who lives in which."""
    made = ALGORITHMS[name].make
    if made is None:
        return TaggedWorld(workload)
    return World(workload, lambda tiny: made(tiny, **options))


def replayed(history: History) -> AnyWorld:
    """The world after a history."""
    return run(make(history.algorithm, history.workload, history.options), history.events)


def fitting(subject: Subject, shape: Shape) -> Shape | None:
    """The nearest shape whose views the algorithm may keep, or None: with keys, without repetition, in one source."""
    return next((near for near in _nearby(shape) if fits(subject, near)), None)


def _nearby(shape: Shape) -> Iterator[Shape]:
    for single in (shape, replace(shape, sources=1)):
        for once in (single, replace(single, repeated=False)):
            yield once
            yield replace(once, keyed=True)


def fits(subject: Subject, shape: Shape) -> bool:
    """Whether the algorithm may keep the views of such workloads."""
    if subject.options.get("keyed") and not shape.keyed:
        return False
    outline = Shape(
        shape.sources, shape.relations, 0, keyed=shape.keyed, grouped=shape.grouped, repeated=shape.repeated
    )
    return _keeps(subject.name, outline)


@cache
def _keeps(name: str, outline: Shape) -> bool:
    return not ALGORITHMS[name].problems(random_workload(random.Random(0), outline).tiny)


class Oracle:
    """The view over any state of a workload's sources, by recomputation; worlds of one workload share it."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._known: dict[Vector, FrozenBag] = {}

    def __call__(self, vector: Vector) -> FrozenBag:
        known = self._known.get(vector)
        if known is None:
            known = self._known[vector] = frozen(recompute(self._workload.tiny, self._workload.state(vector)))
        return known


class Oracles:
    """The oracle of the workload that is tried at the moment; many worlds of one workload follow each other."""

    def __init__(self) -> None:
        self._last: tuple[Workload, Oracle] | None = None

    def of(self, workload: Workload) -> Oracle:
        if self._last is None or self._last[0] is not workload:
            self._last = (workload, Oracle(workload))
        return self._last[1]


def frozen(bag: Mapping[Row, int]) -> FrozenBag:
    return frozenset(bag.items())


def judged(world: AnyWorld, run_length: int | None = None, oracle: Oracle | None = None) -> Judgement:
    """The levels that a run reached; ``run_length`` is the N of complete-N, where that is asked for."""
    source_history = replace(world.judged_by(), view=oracle or Oracle(world.workload))
    return judge([frozen(state) for state in world.states], source_history, run_length, JUDGED)


def unpromised(subject: Subject, scenario: Scenario, levels: Iterable[Level] = Level) -> list[Level]:
    """The levels above the promise, lowest first; complete-N only where N is known."""
    known = (level for level in levels if level is not Level.COMPLETE_N or subject.run_length is not None)
    return sorted(level for level in known if level > subject.promise(scenario))
