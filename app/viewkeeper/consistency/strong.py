"""Strong consistency (strobe-1996 section 4.2, 3; multiple-view-consistency-1997 section 2.2).

Convergent, and there are source states v_0 ≤ v_1 ≤ … of one serial schedule with V(v_i) = ws_i. Every chain of vectors
lies on some schedule, so a chain is all there is to look for. The papers write m(ws_i) < m(ws_k); a repeated
warehouse state is the same state here (see ``trial``), so it may keep its source state.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable

from viewkeeper.consistency import convergent
from viewkeeper.consistency.history import Vector, at_most
from viewkeeper.consistency.levels import Level, Verdict
from viewkeeper.consistency.trial import Budget, TooMany, Trial


def check(trial: Trial) -> Verdict:
    """Is there a chain of source states that the warehouse states equal, one after the other?"""
    base = convergent.check(trial)
    if not base.holds:
        return base.at(Level.STRONG)
    chain = along_schedule(trial)
    if len(chain) < len(trial.runs):
        return _searched(trial, len(chain))
    return _holds(trial, chain)


def along_schedule(trial: Trial) -> list[Vector]:
    """The source states of the first runs, as many as have one along the known schedule, each at its earliest."""
    chain: list[Vector] = []
    for vector in trial.history.schedule:
        if len(chain) < len(trial.runs) and trial.at(vector) == trial.runs[len(chain)]:
            chain.append(vector)
    return chain


def _searched(trial: Trial, along: int) -> Verdict:
    """The verdict of a search through all source states; ``along`` runs had one along the known schedule."""
    fronts: list[list[Vector]] = [[trial.history.first]]
    budget = trial.budget()
    try:
        for number in trial.runs[1:-1]:
            fronts.append(_next_front(trial, fronts[-1], number, budget))
            if not fronts[-1]:
                index = trial.begins[len(fronts) - 1]
                reason = f"warehouse state {index} is no source state from where the one before it stands"
                return Verdict(Level.STRONG, False, reason, first_without=index)
    except TooMany:
        index = trial.begins[along] if trial.history.schedule else trial.begins[len(fronts)]
        reason = f"warehouse state {index}: undecided: more than {trial.limit} source states to look at"
        return Verdict(Level.STRONG, None, reason, first_without=index)
    return _holds(trial, _chain(fronts, trial.history.last) if len(trial.runs) > 1 else fronts[0])


def _next_front(trial: Trial, front: Iterable[Vector], number: int, budget: Budget) -> list[Vector]:
    """The smallest source states of that number, at or above the front.

    Smallest are enough: what lies above a larger one lies above a smaller one too.
    """
    heap = [(sum(vector), vector) for vector in front]
    heapq.heapify(heap)
    seen = {vector for _, vector in heap}
    found: list[Vector] = []
    while heap:
        _, vector = heapq.heappop(heap)
        if _above(vector, found):
            continue
        budget.spend()
        if trial.at(vector) == number:
            found.append(vector)
            continue
        for step in trial.history.steps(vector):
            if step not in seen:
                seen.add(step)
                heapq.heappush(heap, (sum(step), step))
    return found


def _above(vector: Vector, found: Collection[Vector]) -> bool:
    return any(at_most(smaller, vector) for smaller in found)


def _chain(fronts: list[list[Vector]], last: Vector) -> list[Vector]:
    """A chain that takes one vector of each front and ends at the last."""
    chain = [last]
    for front in reversed(fronts):
        chain.append(next(vector for vector in front if at_most(vector, chain[-1])))
    return chain[::-1]


def _holds(trial: Trial, chain: list[Vector]) -> Verdict:
    mapping = trial.spread([[vector] for vector in chain])
    return Verdict(Level.STRONG, True, "the warehouse states follow a chain of source states", mapping)
