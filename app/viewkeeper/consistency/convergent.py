"""Convergence (strobe-1996 section 4.2, 1): after all activity has ceased, the view is that of the sources.

As in the paper, the view is assumed to be right at the beginning, V(ws_0) = V(ss_0); where it is not, no level holds.
"""

from __future__ import annotations

from viewkeeper.consistency.levels import Level, Verdict
from viewkeeper.consistency.trial import Trial


def check(trial: Trial) -> Verdict:
    """Does the first state equal the sources' first, and the last their last?"""
    history = trial.history
    if trial.runs[0] != trial.at(history.first):
        reason = "the first warehouse state is not that of the sources before all transactions"
        return Verdict(Level.CONVERGENT, False, reason, first_without=0)
    if trial.runs[-1] != trial.at(history.last):
        reason = "the last warehouse state is not that of the sources after all transactions"
        return Verdict(Level.CONVERGENT, False, reason, first_without=trial.size - 1)
    return Verdict(Level.CONVERGENT, True, "the last warehouse state is that of the sources after all transactions")
