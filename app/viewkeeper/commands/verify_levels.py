"""What ``viewkeeper verify --level`` prints: the level reached, and what stands between it and the next one."""

from __future__ import annotations

from collections.abc import Iterator

from viewkeeper.consistency.levels import Level, Verdict
from viewkeeper.job.judging import Judged

EXAMPLES = 20
"""Differing rows that are shown."""


def level_report(judged: Judged, asked: Level | None, n: int | None) -> Iterator[str]:
    """The level asked for (or the highest) and, where it is not reached, the evidence."""
    judgement = judged.judgement
    span = f"from update {judged.since} to {judged.cut.last_update}, cut {judged.cut.cut}"
    obstacle = judgement.obstacle if asked is None else judgement.verdicts[asked]
    reached = obstacle is None or judgement.reaches(obstacle.level)
    if obstacle is None or reached:
        yield f"{judged.name}: {judgement.level if asked is None else _named(asked, n)} {span}"
    else:
        word = "undecided whether" if obstacle.holds is None else "not"
        yield f"{judged.name}: {judgement.level}, {word} {_named(obstacle.level, n)}, {span}"
        yield from _evidence(judged, obstacle)
    if judged.contradicts_itself:
        yield f"{judged.name}: its load and its stored changes do not add up to {judged.state(len(judged.states) - 1)}"
    if judged.contradicts_itself or not reached:
        yield from _departure(judged)


def _evidence(judged: Judged, verdict: Verdict) -> Iterator[str]:
    """The state that has no source state, or the source state that no state shows."""
    if verdict.holds is None:
        yield f"  {verdict.reason}"
    elif not judged.judgement.reaches(Level.CONVERGENT):
        index = judged.judgement.verdicts[Level.CONVERGENT].first_without
        assert index is not None
        yield f"  {judged.state(index)} is not that of the sources"
    elif verdict.missing is not None:
        yield f"  {judged.source_state(verdict.missing)} is skipped: no state of the warehouse shows it"
    elif verdict.first_without is not None:
        after = " that comes after those of the states before it" if verdict.level >= Level.STRONG else ""
        yield f"  {judged.state(verdict.first_without)} is that of no source state{after}"


def _departure(judged: Judged) -> Iterator[str]:
    """Where the warehouse first differs from the sources in the order of the updates, and in which rows."""
    if judged.departure is None:
        return
    yield f"  in the order of the updates, the first to differ is {judged.state(judged.departure)}:"
    rows = list(judged.difference(judged.departure))
    for view, row, count in rows[:EXAMPLES]:
        yield f"    {'+' if count > 0 else '−'}{abs(count)} {view} {row}"
    if len(rows) > EXAMPLES:
        yield f"    … and {len(rows) - EXAMPLES} more"
    yield "    (+ the warehouse holds too many, − too few)"


def _named(level: Level, n: int | None) -> str:
    return f"complete-{n}" if level is Level.COMPLETE_N else str(level)
