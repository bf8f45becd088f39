"""Complete-N (multiple-view-consistency-1997 section 6.3): consistent after every N transactions.

Strongly consistent, and along some serial schedule every N-th source state, and the last, is among those that the
warehouse shows, in their order. N = 1 is completeness: the view's states along the schedule are the warehouse's.

The search walks through pairs (source state, run of warehouse states shown by then). A step shows the same run still,
or the next one where that equals the new source state; at an N-th source state, what is shown must equal it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from viewkeeper.consistency import convergent
from viewkeeper.consistency.history import Vector
from viewkeeper.consistency.levels import Level, Verdict
from viewkeeper.consistency.trial import Budget, TooMany, Trial

Steps = Callable[[Vector], Iterable[Vector]]
"""The source states that may follow one."""


def check(trial: Trial, n: int, level: Level = Level.COMPLETE_N) -> Verdict:
    """Is there a serial schedule whose every N-th state the warehouse shows?"""
    assert n >= 1
    base = convergent.check(trial)
    if not base.holds:
        return base.at(level)
    walk = _Walk(trial, n, level)
    try:
        known = walk.along(trial.history.schedule)
        if known.holds:
            return known
    except TooMany:
        return walk.undecided()
    try:
        searched = walk.search(trial.history.steps, trial.budget())
    except TooMany:
        return walk.undecided(known)
    # Evidence about the known schedule is what a reader can follow; without one, the walk that got furthest.
    return known if trial.history.schedule and not searched.holds else searched


@dataclass(frozen=True)
class _Node:
    """A source state, the run that the warehouse shows by then, and the transactions that led here."""

    vector: Vector
    run: int
    depth: int


@dataclass(frozen=True)
class _Walk:
    trial: Trial
    n: int
    level: Level

    def along(self, schedule: tuple[Vector, ...]) -> Verdict:
        """The verdict on one schedule; TooMany only where N > 1 leaves very many ways to show the states."""
        following = dict(pairwise(schedule))
        budget = Budget(self.trial.limit + len(schedule))
        return self.search(lambda vector: (following[vector],) if vector in following else (), budget)

    def search(self, steps: Steps, budget: Budget) -> Verdict:
        """Depth first, so that a schedule is found soon; if there is none, every pair is seen once."""
        trial = self.trial
        start = furthest = _Node(trial.history.first, 0, trial.history.before)
        before: dict[_Node, _Node | None] = {start: None}
        stack = [start]
        while stack:
            node = stack.pop()
            budget.spend()
            if node.vector == trial.history.last and node.run == len(trial.runs) - 1:
                return self._holds(_path(before, node))
            if (node.run, node.depth) > (furthest.run, furthest.depth):
                furthest = node
            for after in self._after(node, steps):
                if after not in before:
                    before[after] = node
                    stack.append(after)
        return self._fails(furthest, steps)

    def undecided(self, known: Verdict | None = None) -> Verdict:
        """No verdict, with what the known schedule lacks."""
        first, missing = (None, None) if known is None else (known.first_without, known.missing)
        reason = f"undecided: more than {self.trial.limit} source states to look at"
        return Verdict(self.level, None, reason, first_without=first, missing=missing)

    def _after(self, node: _Node, steps: Steps) -> Iterator[_Node]:
        trial, depth = self.trial, node.depth + 1
        for vector in steps(node.vector):
            number = trial.at(vector)
            due = depth % self.n == 0 or vector == trial.history.last
            if not due or number == trial.runs[node.run]:
                yield _Node(vector, node.run, depth)
            if node.run + 1 < len(trial.runs) and number == trial.runs[node.run + 1]:
                yield _Node(vector, node.run + 1, depth)

    def _holds(self, path: list[_Node]) -> Verdict:
        trial = self.trial
        stands_for: list[list[Vector]] = [[] for _ in trial.runs]
        for node in path:
            if trial.at(node.vector) == trial.runs[node.run]:
                stands_for[node.run].append(node.vector)
        every = "every source state" if self.n == 1 else f"every source state after {self.n} transactions more"
        reason = f"the warehouse shows {every} of a serial schedule, in order"
        return Verdict(self.level, True, reason, trial.spread(stands_for), tuple(node.vector for node in path))

    def _fails(self, stuck: _Node, steps: Steps) -> Verdict:
        """What the walk that got furthest could not get past."""
        trial = self.trial
        first = trial.begins[stuck.run + 1] if stuck.run + 1 < len(trial.runs) else None
        missing = next(iter(steps(stuck.vector)), None)
        reason = "the warehouse shows further states after the last source state"
        if missing is not None:
            reason = f"the source state at {trial.history.described(missing)} is not shown in its place"
        return Verdict(self.level, False, reason, first_without=first, missing=missing)


def _path(before: dict[_Node, _Node | None], end: _Node) -> list[_Node]:
    path: list[_Node] = []
    node: _Node | None = end
    while node is not None:
        path.append(node)
        node = before[node]
    return path[::-1]
