"""The merge process's speed: action lists a second of 20 views, on one core."""

from __future__ import annotations

import random
import time
from itertools import count

from viewkeeper.merge.painting import AnyPainter, Painting, SimplePainting

VIEWS = tuple(f"view_{number}" for number in range(1, 21))
RUN = 10
"""Updates that an action list of a refreshed view stands for."""
REFRESHED = VIEWS[:5]

Message = tuple[str | None, int]
"""A view and where its action list ends; None for REL."""


def bench_merge(lists: int, seed: int = 1) -> dict[str, float]:
    """Action lists a second: SPA and PA with messages out of order, and PA while one view is behind by everything."""
    rng = random.Random(seed)
    relevant = _relevant(rng, lists)
    single, runs = ({view: _ends(relevant, view, length) for view in VIEWS} for length in (1, RUN))
    jumbled, behind = 50.0, 10.0 * lists
    return {
        "merge_spa": _speed(SimplePainting(VIEWS), relevant, _arriving(rng, relevant, single, jumbled)),
        "merge_pa": _speed(Painting(VIEWS), relevant, _arriving(rng, relevant, runs, jumbled)),
        "merge_pa_behind": _speed(Painting(VIEWS), relevant, _arriving(rng, relevant, runs, jumbled, behind)),
    }


def _relevant(rng: random.Random, lists: int) -> list[list[str]]:
    """The views of each update: half of them at the mean."""
    relevant: list[list[str]] = []
    while lists > 0:
        relevant.append(rng.sample(VIEWS, rng.randint(1, len(VIEWS))))
        lists -= len(relevant[-1])
    return relevant


def _ends(relevant: list[list[str]], view: str, length: int) -> list[int]:
    """Where the view's action lists end: at each of its updates, or at the last of every so many of all updates."""
    mine = [number for number, views in enumerate(relevant, 1) if view in views]
    if view not in REFRESHED:
        return mine
    return list({(number - 1) // length: number for number in mine}.values())


def _arriving(
    rng: random.Random, relevant: list[list[str]], ends: dict[str, list[int]], jumbled: float, behind: float = 0.0
) -> list[Message]:
    """All messages, each at some time after its update; a sender's own in the order sent. The last view is behind."""
    times: list[tuple[float, int, str | None, int]] = []
    ties = count()
    for sender, numbers in ((None, list(range(1, len(relevant) + 1))), *ends.items()):
        late = 0.0
        for number in numbers:
            late = max(late, number + rng.random() * jumbled + (behind if sender == VIEWS[-1] else 0.0))
            times.append((late, next(ties), sender, number))
    return [(sender, number) for _, _, sender, number in sorted(times)]


def _speed(painter: AnyPainter[None], relevant: list[list[str]], messages: list[Message]) -> float:
    begin = time.process_time()
    for sender, number in messages:
        if sender is None:
            painter.relevant(number, relevant[number - 1])
        else:
            painter.actions(sender, number, None)
    seconds = time.process_time() - begin
    assert painter.applied_prefix == len(relevant), "not everything was applied"
    return (len(messages) - len(relevant)) / seconds
