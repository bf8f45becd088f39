"""Many views (multiple-view-consistency-1997 section 2.3): a warehouse state is a vector, one element a view.

The levels are those of one view with ≡ for =: a warehouse state is that of a source state if every view in it is. So
the same checkers run over tuples, and the evidence says besides which views disagree with the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

from viewkeeper.consistency.history import SourceHistory, State, Vector
from viewkeeper.consistency.judge import judge
from viewkeeper.consistency.levels import Judgement, Level, Verdict
from viewkeeper.consistency.trial import LIMIT

CANDIDATES = 10_000
"""Source states that are compared to say which view disagrees, where no schedule is known."""

States = tuple[State, ...]
"""The contents of every view, in the order of the views' names."""


def judge_together(
    views: Sequence[str], states: Sequence[States], history: SourceHistory, n: int | None = None, limit: int = LIMIT
) -> Judgement:
    """Judges the views as one warehouse; ``history.view`` gives the contents of all of them, in the same order."""
    return blamed(judge(states, history, n, limit), views, states, history)


def blamed(
    judgement: Judgement, views: Sequence[str], states: Sequence[States], history: SourceHistory
) -> Judgement:  # fmt: skip
    """The judgement, each verdict that does not hold with the views that disagree."""
    blame = _Blame(views, states, history, bool(judgement.verdicts[Level.CONVERGENT].holds))
    return Judgement({level: blame.of(verdict) for level, verdict in judgement.verdicts.items()})


@dataclass(frozen=True)
class _Blame:
    """Finds the views that keep a warehouse state from being that of a source state."""

    views: Sequence[str]
    states: Sequence[States]
    history: SourceHistory
    convergent: bool

    def of(self, verdict: Verdict) -> Verdict:
        """The verdict with the views that disagree, if it does not hold."""
        if verdict.holds:
            return verdict
        views = self._disagreeing(verdict)
        if not views:
            return verdict
        return replace(verdict, views=views, reason=f"{verdict.reason} (out of step: {', '.join(views)})")

    def _disagreeing(self, verdict: Verdict) -> tuple[str, ...]:
        index = verdict.first_without
        if verdict.missing is not None:
            # Every state has its source state, but one is skipped: by the views that do not show it.
            shown = self.states[-1 if index is None else index - 1]
            return self._differing(shown, verdict.missing)
        if index is None:
            return ()
        state = self.states[index]
        if not self.convergent:
            return self._differing(state, self.history.last if index else self.history.first)
        # Of the source states that most views agree with, the latest: the others have not come so far.
        nearest = min(self._candidates(), key=lambda vector: (len(self._differing(state, vector)), -sum(vector)))
        return self._differing(state, nearest)

    def _candidates(self) -> Iterable[Vector]:
        everything = product(*(range(length + 1) for length in self.history.lengths))
        return self.history.schedule or islice(everything, CANDIDATES)

    def _differing(self, state: States, vector: Vector) -> tuple[str, ...]:
        wanted = self.history.view(vector)
        return tuple(name for name, own, other in zip(self.views, state, wanted, strict=True) if own != other)
