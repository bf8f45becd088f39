"""Weak consistency (strobe-1996 section 4.2, 2): convergent, and every warehouse state is one of some source states.

The paper asks for a schedule per source, not for one schedule: each source may stand anywhere in its own history. So a
vector counts even if it holds half of a global transaction, which is how far T-Strobe gets with global transactions
(section 5.4). What a source shows is always a prefix of its own history.
"""

from __future__ import annotations

from itertools import product

from viewkeeper.consistency import convergent
from viewkeeper.consistency.history import Vector
from viewkeeper.consistency.levels import Level, Verdict
from viewkeeper.consistency.trial import TooMany, Trial


def check(trial: Trial) -> Verdict:
    """Is every warehouse state that of the sources at some vector?"""
    base = convergent.check(trial)
    if not base.holds:
        return base.at(Level.WEAK)
    found: dict[int, Vector] = {trial.at(vector): vector for vector in reversed(trial.history.schedule)}
    try:
        _search(trial, found)
    except TooMany:
        return _without(trial, found, None, f"undecided: more than {trial.limit} source states to look at")
    if not found.keys() >= set(trial.runs):
        return _without(trial, found, False, "it is not that of the sources at any time")
    mapping = trial.spread([[found[number]] for number in trial.runs])
    return Verdict(Level.WEAK, True, "every warehouse state is that of the sources at some time", mapping)


def _search(trial: Trial, found: dict[int, Vector]) -> None:
    """Looks at vectors until every warehouse state is found, or none is left."""
    wanted = set(trial.runs) - found.keys()
    budget = trial.budget()
    for vector in product(*(range(length + 1) for length in trial.history.lengths)) if wanted else ():
        budget.spend()
        number = trial.at(vector)
        if number in wanted:
            found[number] = vector
            wanted.remove(number)
            if not wanted:
                return


def _without(trial: Trial, found: dict[int, Vector], holds: bool | None, why: str) -> Verdict:
    index = next(begin for number, begin in zip(trial.runs, trial.begins, strict=True) if number not in found)
    return Verdict(Level.WEAK, holds, f"warehouse state {index}: {why}", first_without=index)
