"""What ``viewkeeper verify --level`` prints: the level reached, and what stands between it and the next one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from viewkeeper.commands.differing import differing
from viewkeeper.consistency.levels import Level, Verdict
from viewkeeper.job.judging import Difference, Judged

EXAMPLES = 20
"""Differing rows that are shown."""


def level_report(judged: Judged, asked: Level | None) -> Iterator[str]:
    """The level asked for (or the highest, beside the promise) and, where it is not reached, the evidence."""
    judgement = judged.judgement
    obstacle = judgement.obstacle if asked is None else judgement.verdicts[asked]
    end = _span(judged) + (_promised(judged) if asked is None else "")
    if obstacle is None or judgement.reaches(obstacle.level):
        yield f"{judged.name}: {_named(judgement.level if asked is None else asked, judged)} {end}"
    else:
        word = "undecided whether" if obstacle.holds is None else "not"
        yield f"{judged.name}: {_named(judgement.level, judged)}, {word} {_named(obstacle.level, judged)}, {end}"
        yield from _evidence(judged, obstacle)
    if judged.contradicts_itself:
        yield from _contradiction(judged)


def _span(judged: Judged) -> str:
    begin = f"from update {judged.since}"
    if judged.asked_since is not None and judged.asked_since != judged.since:
        begin += f", the last cut before {judged.asked_since},"
    return f"{begin} to {judged.cut.last_update}, cut {judged.cut.cut}"


def _promised(judged: Judged) -> str:
    word = "promised" if judged.judgement.reaches(judged.promise) else "less than promised"
    return f"; {word}: {_named(judged.promise, judged) if judged.promise else 'nothing'}"


def _evidence(judged: Judged, verdict: Verdict) -> Iterator[str]:
    """What keeps the level from holding: rows of the very state that is spoken of."""
    wrong = judged.wrong_end
    if wrong is not None:
        yield f"  {judged.state(wrong)} is not that of the sources:"
        yield from _rows(judged.difference(wrong), "the warehouse")
    else:
        yield f"  {_obstacle(judged, verdict)}"
    if judged.departure is not None and judged.departure != wrong:
        yield from _departure(judged, rows=wrong is None)


def _obstacle(judged: Judged, verdict: Verdict) -> str:
    """The state that has no source state, or the source state that no state shows."""
    if verdict.holds is not None and verdict.missing is not None:
        return f"{judged.source_state(verdict.missing)} is skipped: the warehouse does not show it at its update"
    if verdict.holds is not None and verdict.first_without is not None:
        after = " that comes after those of the states before it" if verdict.level >= Level.STRONG else ""
        return f"{judged.state(verdict.first_without)} is that of no source state{after}"
    return verdict.reason


def _departure(judged: Judged, rows: bool) -> Iterator[str]:
    """Where the warehouse first differs from the sources in the order of the updates."""
    index = judged.departure
    assert index is not None
    yield f"  in the order of the updates, the first to differ is {judged.state(index)}{':' if rows else ''}"
    if rows:
        yield from _rows(judged.difference(index), "the warehouse")


def _contradiction(judged: Judged) -> Iterator[str]:
    """The load and the stored changes are one way to the newest state, the stored view another: they do not meet."""
    end = len(judged.states) - 1
    yield f"{judged.name}: load and stored changes do not add up to {judged.state(end)}:"
    yield from _rows(judged.contradiction(), "the sum")
    if judged.wrong_end is None and judged.departure is not None:
        yield from _departure(judged, rows=False)


def _rows(differences: Iterable[Difference], holder: str) -> Iterator[str]:
    left, more = EXAMPLES, 0
    for view, schema, rows in differences:
        for text in differing(schema, rows[:left], view):
            yield f"    {text}"
        more += len(rows[left:])
        left -= len(rows[:left])
    if more:
        yield f"    … and {more} more"
    yield f"    (+ {holder} holds too many, − too few)"


def _named(level: Level, judged: Judged) -> str:
    return f"complete-{judged.n}" if level is Level.COMPLETE_N else str(level)
