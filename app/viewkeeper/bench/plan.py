"""How much is measured, and what comes of it: plain figures by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from viewkeeper.bench.job_stream import Drained

Figures = dict[str, float]

_ALL_AT_ONCE = ("backlog", "hot", "latency", "fold", "cuts", "cut", "simulator", "merge")
_WITH_A_SPARK = ("recompute", "wide", "views", "groups", "consistency", "postgres")  # each starts one of its own

ITEMS = (*_ALL_AT_ONCE, *_WITH_A_SPARK)


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    sizes: tuple[int, int] = (100_000, 1_000_000)
    backlog: int = 100_000
    rounds: int = 3
    changes: int = 60  # written one by one
    warm_up: int = 15
    steady_seconds: float = 130.0  # at least two folds, which come once a minute
    steady_rate: int = 50
    cuts: int = 10_000
    commits: int = 50
    payments: int = 1_000_000


QUICK = Plan(
    (1_000, 5_000),
    backlog=2_000,
    rounds=1,
    changes=3,
    warm_up=1,
    steady_seconds=2.0,
    cuts=60,
    commits=5,
    payments=20_000,
)
QUICK_ITEMS = _ALL_AT_ONCE


def per_update(name: str, updates: int, runs: Sequence[Drained]) -> Figures:
    """Medians over the runs: microseconds per update in all and in the sweep, seconds by step."""
    figures = {
        f"{name}_micros": 1e6 * median(run.seconds for run in runs) / updates,
        f"{name}_sweep_micros": 1e6 * median(run.steps["sweep"] for run in runs) / updates,
    }
    for step in runs[0].steps:
        figures[f"{name}_step_{step}"] = median(run.steps.get(step, 0.0) for run in runs)
    return figures
