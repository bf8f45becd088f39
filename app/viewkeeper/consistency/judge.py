"""All levels at once: which does a sequence of warehouse states reach?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from viewkeeper.consistency import complete, complete_n, convergent, strong, weak
from viewkeeper.consistency.history import SourceHistory, State
from viewkeeper.consistency.levels import Judgement, Level, Verdict
from viewkeeper.consistency.trial import LIMIT, Trial

__all__ = ["Judgement", "Level", "Verdict", "judge"]


def judge(states: Sequence[State], history: SourceHistory, n: int | None = None, limit: int = LIMIT) -> Judgement:
    """Judges warehouse states, the first of them right before all transactions; complete-N only if ``n`` is given.

    The schedule that the history names is tried first. Where it does not suffice, up to ``limit`` source states are
    looked at per level; beyond that a verdict is undecided.
    """
    if n is not None and n < 1:
        raise ValueError(f"complete-N needs N of at least 1, not {n}")
    trial = Trial(states, history, limit)
    verdicts = {Level.CONVERGENT: convergent.check(trial)}
    above = [level for level in Level if level > Level.CONVERGENT and (n is not None or level is not Level.COMPLETE_N)]
    if not verdicts[Level.CONVERGENT].holds:
        lost = _first_lost(trial, verdicts[Level.CONVERGENT])
        return Judgement(verdicts | {level: lost.at(level) for level in above})
    # A level that holds spares those below it, and one that does not those above: mostly one search is enough.
    for level in (Level.STRONG, Level.COMPLETE, Level.COMPLETE_N, Level.WEAK):
        if level in above and level not in verdicts:
            verdict = _check(level, trial, n)
            implied = [o for o in above if (o < level if verdict.holds else verdict.holds is False and o > level)]
            verdicts |= {level: verdict} | {o: verdict.at(o) for o in implied if not _known(verdicts, o)}
    return Judgement({level: verdicts[level] for level in (Level.CONVERGENT, *above)})


def _first_lost(trial: Trial, convergent: Verdict) -> Verdict:
    """The verdict on a warehouse that ends wrong, naming where it left the known schedule: mostly that is the cause."""
    followed = len(strong.along_schedule(trial))
    if not trial.history.schedule or followed == len(trial.runs):
        return convergent
    return replace(convergent, first_without=trial.begins[followed])


def _known(verdicts: dict[Level, Verdict], level: Level) -> bool:
    return level in verdicts and verdicts[level].holds is not None


def _check(level: Level, trial: Trial, n: int | None) -> Verdict:
    match level:
        case Level.WEAK:
            return weak.check(trial)
        case Level.STRONG:
            return strong.check(trial)
        case Level.COMPLETE_N:
            assert n is not None
            return complete_n.check(trial, n)
        case _:
            return complete.check(trial)
