"""Table 1 of sweep-1997 and Figure 2 of strobe-1996, measured: levels reached, questions, bytes, staleness.

Levels come from random histories (with faults, several shapes of views) and from every interleaving of small ones.
Costs come from those of the random histories that have no faults and one relation a source, so that n means the same
to all. Staleness comes from streams by the clock (see ``timed``).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil

from viewkeeper.algorithms.protocol import Install
from viewkeeper.algorithms.registry import SWEEP, Scenario
from viewkeeper.consistency.levels import Level
from viewkeeper.simulator.anomaly import Search, possible, systematic
from viewkeeper.simulator.files import dumps
from viewkeeper.simulator.history import History, Workload
from viewkeeper.simulator.laboratory import (
    AnyWorld,
    Oracle,
    Oracles,
    Subject,
    fitting,
    judged,
    make,
)
from viewkeeper.simulator.schedule import NONE, Faults, run_randomly
from viewkeeper.simulator.smallest import Size
from viewkeeper.simulator.timed import Clock
from viewkeeper.simulator.workload import Shape, random_workload

RELATIONS = 3
"""The n of the table: relations of the view, each in a source of its own."""

FAULTS = Faults(crash=0.03, duplicate=0.05, delay=0.02)

Cell = tuple[Subject, Scenario]


@dataclass
class Tally:
    """What was seen of a subject in a scenario."""

    histories: int = 0
    small: int = 0  # histories of small workloads, every interleaving
    exhausted: tuple[Size, ...] = ()  # sizes of which every interleaving was tried
    lowest: Level | None = None
    undecided: int = 0
    updates: int = 0  # of the histories that costs are counted in
    questions: int = 0
    bytes: int = 0
    worst: int = 0  # questions for one update
    broken: str | None = None  # the first history below the promise, saved

    def add(self, other: Tally) -> None:
        """Takes in what was seen elsewhere, later."""
        self.histories += other.histories
        self.small += other.small
        self.exhausted += other.exhausted
        self.undecided += other.undecided
        self.updates += other.updates
        self.questions += other.questions
        self.bytes += other.bytes
        self.worst = max(self.worst, other.worst)
        self.lowest = min((level for level in (self.lowest, other.lowest) if level is not None), default=None)
        self.broken = self.broken or other.broken

    @property
    def questions_per_update(self) -> float | None:
        return self.questions / self.updates if self.updates else None

    @property
    def bytes_per_update(self) -> float | None:
        return self.bytes / self.updates if self.updates else None

    def judge(self, subject: Subject, world: AnyWorld, history: History, scenario: Scenario, oracle: Oracle) -> None:
        """Counts a history at the level that it reached."""
        judgement = judged(world, subject.run_length, oracle)
        self.lowest = judgement.level if self.lowest is None else min(self.lowest, judgement.level)
        self.undecided += bool(judgement.undecided)
        promised = judgement.verdicts.get(subject.promise(scenario))
        if promised is not None and promised.holds is False and self.broken is None:
            self.broken = dumps(history)

    def count(self, subject: Subject, world: AnyWorld) -> None:
        """Counts what a history cost."""
        self.updates += len(world.order)
        self.questions += world.costs.questions
        self.bytes += world.costs.bytes
        self.worst = max(self.worst, worst_update(subject, world))


def worst_update(subject: Subject, world: AnyWorld) -> int:
    """The most questions that one update took: those since the install before its own, shared by all in the install.

    Where several updates are handled at once but installed one by one, the average of the history stands for it.
    """
    if subject.name in (SWEEP, "convergent") or subject.options.get("pipeline", 1) > 1:
        return ceil(world.costs.questions / len(world.order)) if world.order else 0
    worst = asked = 0
    for happened in world.log:
        if happened.kind == "send":
            asked += 1
        elif happened.kind == "install":
            install: Install = happened.what[0]
            worst = max(worst, ceil(asked / max(1, len(install.updates))))
            asked = 0 if install.updates else asked
    return worst


@dataclass(frozen=True)
class _Draw:
    """How a random history is drawn: its shape, its faults, and whether its costs count."""

    shape: Shape
    faults: Faults
    counted: bool


def _drawn(rng: random.Random, number: int, scenario: Scenario) -> _Draw:
    """Six of ten histories are plain, two have faults, two have views of other shapes and faults."""
    updates = rng.randint(2, 8)
    keyed = rng.random() < 0.5
    if number % 10 < 8:
        shape = Shape(RELATIONS, RELATIONS, updates, scenario, keyed)
        return _Draw(shape, FAULTS if number % 10 >= 6 else NONE, counted=number % 10 < 6)
    relations = rng.randint(1, 4)
    sources = rng.randint(1, relations)
    grouped, repeated = rng.random() < 0.5, relations > 1 and rng.random() < 0.4
    return _Draw(Shape(sources, relations, min(updates, 5), scenario, keyed, grouped, repeated), FAULTS, counted=False)


def measure_random(subjects: Iterable[Subject], scenario: Scenario, numbers: range, seed: int) -> Mapping[Cell, Tally]:
    """Runs the random histories of these numbers for all subjects; those that can share a workload do."""
    tallies: dict[Cell, Tally] = {}
    able = [subject for subject in subjects if possible(subject, scenario, RELATIONS) is not None]
    for number in numbers:
        seeded = f"{seed}/{scenario}/{number}"
        draw = _drawn(random.Random(seeded), number, scenario)
        workloads: dict[Shape, tuple[Workload, Oracle]] = {}
        for subject in able:
            shape = fitting(subject, draw.shape)
            if shape is None:
                continue
            if shape not in workloads:
                workload = random_workload(random.Random(seeded), shape)
                workloads[shape] = (workload, Oracle(workload))
            tally = tallies.setdefault((subject, scenario), Tally())
            _try(tally, subject, scenario, *workloads[shape], draw, random.Random(f"{seeded}/events"))
    return tallies


def _try(
    tally: Tally,
    subject: Subject,
    scenario: Scenario,
    workload: Workload,
    oracle: Oracle,
    draw: _Draw,
    rng: random.Random,
) -> None:
    world = make(subject.name, workload, subject.options)
    events = run_randomly(world, rng, draw.faults)
    tally.histories += 1
    tally.judge(subject, world, History(workload, subject.name, subject.options, events), scenario, oracle)
    if draw.counted:
        tally.count(subject, world)


def measure_small(subject: Subject, scenario: Scenario, budget: int) -> Mapping[Cell, Tally]:
    """Runs every interleaving of small workloads, one size after the other, until the budget is spent."""
    search, tally, oracles = Search(subject, scenario), Tally(), Oracles()
    for world, history in systematic(search, budget):
        tally.judge(subject, world, history, scenario, oracles.of(history.workload))
    tally.small, tally.exhausted = search.histories, tuple(search.exhausted)
    return {(subject, scenario): tally}


# Formulas ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Formula:
    """How many questions an update may cost in a view of n relations, with single updates, and who says so."""

    text: str
    bound: Mapping[int, float]
    said_by: str = "the papers say"


def _strobe_compensated(n: int) -> int:
    """Messages of C-Strobe for one insertion: a query over m relations takes m, and may be asked again without each."""
    return 0 if n <= 1 else (n - 1) * (1 + _strobe_compensated(n - 1))


_N = range(1, 8)
_SWEEP = Formula("n−1", {n: n - 1 for n in _N})
_C_STROBE = Formula("(n−1)! queries", {n: _strobe_compensated(n) for n in _N})
# A batch asks n−1 for each relation that it changes, and every source for a snapshot; its updates share them, so the
# most an update can cost is what it costs alone.
_BATCHED = Formula("2n−1, shared in a batch", {n: 2 * n - 1 for n in _N}, "at most")
_FORMULAS = {
    SWEEP: _BATCHED,
    "c_strobe": _C_STROBE,
    "c_t_strobe": _C_STROBE,
    "eca": Formula("1", dict.fromkeys(_N, 1)),
    "refresh": Formula("n a refresh", {n: n for n in _N}),
}


def formula(subject: Subject) -> Formula:
    """What the papers say about the questions of an algorithm."""
    return _FORMULAS.get(subject.name, _SWEEP)


# Streams -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stream:
    """A stream of single updates that never pauses: so many relations, updates per message time, updates in all.

    Each relation is in a source of its own, or else they are dealt out in runs to so many ``sources``.
    """

    relations: int
    rate: float
    updates: int = 120
    sources: int | None = None


@dataclass(frozen=True)
class Flow:
    """How an algorithm fared in a stream; times in message times."""

    questions: float  # per update
    bytes: float  # per update
    stalest: float
    pause: float  # the longest time that the view stood still
    length: float

    @property
    def needs_quiet(self) -> bool:
        """Whether the view stood still for most of the stream."""
        return self.pause > self.length / 2


def measure_stream(subject: Subject, stream: Stream, seed: int) -> Flow | None:
    """Runs a stream; None if the algorithm cannot keep such views."""
    n = stream.relations
    sources = n if stream.sources is None else stream.sources
    shape = fitting(subject, Shape(sources, n, stream.updates, grouped=True, rows=4, values=2, keys=6))
    if shape is None:
        return None
    rng = random.Random(f"{seed}/{stream}")
    world = make(subject.name, random_workload(rng, shape), subject.options)
    timing = Clock(world, rng, stream.rate).run()
    asked, carried = world.costs.questions / stream.updates, world.costs.bytes / stream.updates
    return Flow(asked, carried, timing.stalest, timing.longest_pause, timing.length)
