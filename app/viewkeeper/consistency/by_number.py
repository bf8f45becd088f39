"""The levels of a warehouse whose states are read by number: the one under k speaks of the first k updates.

The papers compare a state with any source state, so a view of which one source is further than another is strong to
them. A reader who asks for number k, in several views perhaps, asks for one moment of all sources:

    strong        the state under k is that of the sources after some j ≤ k, j never goes back, and where all views
                  are published together, at a cut, j = k
    complete-N    strong, and j = k after every N-th update
    complete      j = k after every update

Convergence and weak consistency speak of no order, and are the papers'.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from viewkeeper.consistency import convergent, weak
from viewkeeper.consistency.history import SourceHistory, State, Vector
from viewkeeper.consistency.levels import Judgement, Level, Verdict
from viewkeeper.consistency.trial import LIMIT, Trial


@dataclass(frozen=True)
class NumberedStates:
    """Warehouse states with their numbers, both growing, and ``after``: what the sources include after 0, 1, … updates.

    Numbers count from ``since``, where ``after`` begins. Of ``published`` numbers the state must be exactly theirs.
    One more state than numbers is the last one once more, as it is stored.
    """

    states: Sequence[State]
    numbers: Sequence[int]
    since: int
    after: Sequence[Vector]
    published: Collection[int]
    history: SourceHistory

    def judge(self, n: int | None = None, limit: int = LIMIT) -> Judgement:
        """The verdicts on all levels, complete-N only if ``n`` is given."""
        trial = Trial(self.states, self.history, limit)
        end = convergent.check(trial)
        verdicts = {Level.CONVERGENT: end}
        if end.holds:
            verdicts[Level.STRONG] = self._strong()
            strong = verdicts[Level.STRONG]
            verdicts[Level.WEAK] = strong.at(Level.WEAK) if strong.holds else weak.check(trial)
            if n is not None:
                verdicts[Level.COMPLETE_N] = self._complete(Level.COMPLETE_N, lambda number: number % n == 0)
            verdicts[Level.COMPLETE] = self._complete(Level.COMPLETE, lambda number: True)
        else:
            first = end.first_without if (lost := self._lost) is None else lost
            above = [level for level in Level if level > Level.CONVERGENT and (n or level is not Level.COMPLETE_N)]
            below = Verdict(Level.CONVERGENT, False, end.reason, first_without=first)
            verdicts |= {level: below.at(level) for level in above}
        return Judgement({level: verdicts[level] for level in sorted(verdicts)})

    @cached_property
    def _lost(self) -> int | None:
        """The index of the first state that is not that of the sources after its number, or one before it in order."""
        return None if len(self._chain) == len(self.states) else len(self._chain)

    @cached_property
    def _chain(self) -> list[int]:
        """Per state the updates after which it is that of the sources, as few as can be; up to one that has none."""
        chain: list[int] = []
        for index, state in enumerate(self.states):
            own = self._own(index)
            first = own if own + self.since in self.published else (chain[-1] if chain else 0)
            found = next((j for j in range(first, own + 1) if self._shows(state, j)), None)
            if found is None:
                break
            chain.append(found)
        return chain

    def _strong(self) -> Verdict:
        if self._lost is None:
            mapping = tuple(self.after[j] for j in self._chain)
            return Verdict(Level.STRONG, True, "the warehouse states follow the numbers of the updates", mapping)
        reason = (
            f"warehouse state {self._lost} is not that of the sources after its update, nor an earlier one in order"
        )
        return Verdict(Level.STRONG, False, reason, first_without=self._lost)

    def _complete(self, level: Level, due: Callable[[int], bool]) -> Verdict:
        """Is the state under every due number that of the sources after it?"""
        strong = self._strong()
        if not strong.holds:
            return strong.at(level)
        for j, vector in enumerate(self.after):
            # Under a number that is not among these, the state before it is still shown.
            index = bisect_right(self.numbers, self.since + j) - 1
            if due(self.since + j) and not self._shows(self.states[index], j):
                reason = f"the source state at {self.history.described(vector)} is not shown under its number"
                return Verdict(level, False, reason, first_without=index + 1, missing=vector)
        every = "every number" if level is Level.COMPLETE else "every N-th number"
        schedule = tuple(self.after) if level is Level.COMPLETE else None
        return Verdict(level, True, f"the state under {every} is that of the sources", strong.mapping, schedule)

    def _own(self, index: int) -> int:
        """How many updates a state's number stands for."""
        return self.numbers[min(index, len(self.numbers) - 1)] - self.since

    def _shows(self, state: State, j: int) -> bool:
        vector = self.after[j]
        return vector in self._whole and bool(self.history.view(vector) == state)

    @cached_property
    def _whole(self) -> frozenset[Vector]:
        """The states of the schedule: none holds a part of a global transaction."""
        return frozenset(self.history.schedule)
