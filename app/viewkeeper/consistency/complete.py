"""Completeness (strobe-1996 section 4.2, 4; multiple-view-consistency-1997 section 2.2).

Strongly consistent, and every source state of one serial schedule is shown: complete-N with N = 1.
"""

from __future__ import annotations

from viewkeeper.consistency import complete_n
from viewkeeper.consistency.levels import Level, Verdict
from viewkeeper.consistency.trial import Trial


def check(trial: Trial) -> Verdict:
    """Is there a serial schedule whose every state the warehouse shows, in order and up to stutter?"""
    return complete_n.check(trial, 1, Level.COMPLETE)
