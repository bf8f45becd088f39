"""What the laboratory measures for its table and page: the jobs, how they are done, and the results put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean

from viewkeeper.algorithms.registry import Scenario
from viewkeeper.commands.lab.workers import each
from viewkeeper.simulator.laboratory import Subject, subjects
from viewkeeper.simulator.measure import (
    Cell,
    Flow,
    Stream,
    Tally,
    measure_random,
    measure_small,
    measure_stream,
)

CHUNK = 20
"""Random histories in one job."""

SMALL = 3
"""Histories of small workloads for each random one: they are shorter."""

RUSH = Stream(relations=3, rate=4.0, updates=600)
"""The stream that never pauses: four updates per message time, for 150 message times."""

BY_RELATIONS = tuple(Stream(n, 1.0, 60) for n in range(2, 7))
LASTING = 100
"""How long the streams of different rates last, in message times: as long as each other, whatever the rate."""
BY_RATE = tuple(Stream(4, rate, round(rate * LASTING)) for rate in (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0))
BY_SOURCES = tuple(tuple(Stream(6, rate, 120, sources) for sources in (1, 2, 3, 6)) for rate in (0.1, 1.0))
"""Views of six relations: all in one source, then fewer and fewer in each; while little happens, and much."""
SITES = (Subject.of("sweep_sequential", {}), Subject.of("sweep_sites", {}))
"""SWEEP, and what becomes of it where a source is asked for all its relations at once."""
SEEDS = 3
"""A point of a plot is the mean of so many streams."""


@dataclass(frozen=True)
class _Random:
    scenario: Scenario
    numbers: range
    seed: int


@dataclass(frozen=True)
class _Small:
    subject: Subject
    scenario: Scenario
    budget: int


@dataclass(frozen=True)
class _Streamed:
    subject: Subject
    stream: Stream
    seed: int


_Job = _Random | _Small | _Streamed


@dataclass
class Results:
    """Everything that was measured."""

    histories: int
    seed: int
    cells: dict[Cell, Tally] = field(default_factory=dict)
    flows: dict[tuple[Subject, Stream], list[Flow]] = field(default_factory=dict)

    def rush(self, subject: Subject) -> Flow:
        return self.flows[(subject, RUSH)][0]

    def mean(self, subject: Subject, stream: Stream, what: str) -> float | None:
        """The mean of a measured quantity over the streams of that kind."""
        flows = self.flows.get((subject, stream))
        return fmean(getattr(flow, what) for flow in flows) if flows else None

    def broken(self) -> Iterator[tuple[Cell, str]]:
        """The cells whose promise was broken, each with the saved history."""
        return ((cell, tally.broken) for cell, tally in self.cells.items() if tally.broken is not None)


def measure(histories: int, seed: int, plots: bool) -> Results:
    """Measures every algorithm in every scenario; streams of all kinds only for the plots."""
    results = Results(histories, seed)
    found: dict[Cell, Tally] = {}
    jobs = list(_jobs(histories, seed, plots))
    for job, done in zip(jobs, each(_do, jobs, "measuring"), strict=True):
        if isinstance(job, _Streamed):
            assert done is None or isinstance(done, Flow)
            results.flows.setdefault((job.subject, job.stream), []).extend([done] if done is not None else [])
        else:
            assert isinstance(done, Mapping)
            for cell, tally in done.items():
                found.setdefault(cell, Tally()).add(tally)
    ordered = ((subject, scenario) for subject in subjects() for scenario in Scenario)
    # An algorithm for one source has no histories with global transactions, and so no level there.
    results.cells = {cell: found[cell] for cell in ordered if found[cell].lowest is not None}
    return results


def _jobs(histories: int, seed: int, plots: bool) -> Iterator[_Job]:
    everyone = subjects()
    for subject in everyone:
        yield _Streamed(subject, RUSH, seed)
    for scenario in Scenario:
        for start in range(0, histories, CHUNK):
            yield _Random(scenario, range(start, min(start + CHUNK, histories)), seed)
        for subject in everyone:
            yield _Small(subject, scenario, histories * SMALL)
    for subject in everyone if plots else ():
        for stream in (*BY_RELATIONS, *BY_RATE, *(chain(*BY_SOURCES) if subject in SITES else ())):
            for n in range(SEEDS):
                yield _Streamed(subject, stream, seed + n)


def _do(job: _Job) -> Mapping[Cell, Tally] | Flow | None:
    if isinstance(job, _Random):
        return measure_random(subjects(), job.scenario, job.numbers, job.seed)
    if isinstance(job, _Small):
        return measure_small(job.subject, job.scenario, job.budget)
    return measure_stream(job.subject, job.stream, job.seed)
