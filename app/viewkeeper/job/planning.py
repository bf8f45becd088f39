"""Which managers work in a round, and up to which update.

A cut needs an update after which every view of the group is consistent. Complete managers have such a state after every
update. The others must be brought to a common one, or their action lists reach across each other for ever: so all
views that are refreshed now and then are refreshed together, when the first of them is due, and beside views that are
complete after every N-th update, nobody who is not complete answers beyond one of these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from viewkeeper.consistency.levels import Level
from viewkeeper.integrator.pending import Pending
from viewkeeper.managers.managers import Managers, Task
from viewkeeper.managers.pace import Pace
from viewkeeper.merge.merge import Merge

MOST = 200_000
MOST_BYTES = 512 << 20
"""At most so many updates, and so much that they changed, wait for a manager: they are in memory, or in files."""


def too_many(pending: Pending) -> bool:
    """Whether more than that waits."""
    return len(pending) > MOST or pending.nbytes > MOST_BYTES


@dataclass(frozen=True)
class Planning:
    """The state of a group's managers between two rounds."""

    managers: Managers
    merge: Merge
    paces: Mapping[str, Pace]

    def tasks(self, pending: Pending, flush: bool, now: float) -> list[Task]:
        """What is to be done of these updates now; ``flush`` keeps nothing back."""
        return [self._task(pending, view, until) for view, until in self._reach(pending, flush, now).items()]

    def any_due(self, pending: Pending, flush: bool, now: float) -> bool:
        """Whether there is anything to do."""
        return bool(self._reach(pending, flush, now))

    def _reach(self, pending: Pending, flush: bool, now: float) -> dict[str, int]:
        """The views whose managers are to work, and up to which update each of them answers."""
        if not pending.batches:
            return {}
        rows = {view: self._rows(pending, view) for view in self.paces}
        owed = {view: int((numbers > self.merge.answered(view)).sum()) for view, numbers in rows.items()}
        everybody = flush or too_many(pending)
        together = any(self._draws_others(view) and self.paces[view].due(owed[view], now) for view in rows)
        found: dict[str, int] = {}
        for view, pace in self.paces.items():
            hurried = not pace.rests(now) and (everybody or (together and self._refreshes(view)))
            if owed[view] and (hurried or pace.due(owed[view], now)):
                until = self._until(pending, view, rows[view], everybody)
                found |= {view: until} if until > self.merge.answered(view) else {}
        return found

    def _draws_others(self, view: str) -> bool:
        """Whether the view's list may reach across the end of a refresh: then all refreshes must be made with it."""
        is_tried_again = self.paces[view].error is not None and self._level(view) < Level.COMPLETE
        return self._refreshes(view) or is_tried_again

    def _refreshes(self, view: str) -> bool:
        return self.managers.keeping[view].every is not None

    def _level(self, view: str) -> Level:
        return self.managers.keeping[view].level

    def _rows(self, pending: Pending, view: str) -> np.ndarray:
        """The numbers of the updates that concern a view, of those in no cut."""
        new = [batch for batch in pending.batches if batch.numbers.start > self.merge.last]
        found = [np.flatnonzero(b.concerned[:, b.views.index(view)]) + b.numbers.start for b in new]
        return np.concatenate([self.merge.rows(view), *found])

    def _until(self, pending: Pending, view: str, rows: np.ndarray, everybody: bool) -> int:
        """The update up to which a manager answers now; a list of several updates ends at one that concerns the view.

        A relation that was emptied can be seen no more as it was before, so nobody answers for less than that.
        """
        after, last = self.merge.answered(view), pending.batches[-1].last
        emptied = pending.emptied(view, after)
        complete = self._level(view) >= Level.COMPLETE
        if complete and emptied is None:
            return last
        bound = last if everybody or complete else last - last % self._step
        if emptied is not None and emptied.number > bound:
            return after
        if emptied is None and self.managers.keeping[view].complete_n is not None:
            return bound
        return int(rows[rows <= bound].max(initial=after))

    def _task(self, pending: Pending, view: str, until: int) -> Task:
        after = self.merge.answered(view)
        emptied = pending.emptied(view, after)
        anew = None if emptied is None else emptied.occurrence
        task = Task(view, after, until, pending.starts(view, after, until), anew)
        if self.managers.builds(task) and self.merge.forgets(view):
            # What it builds on was too large to be kept for reading it again.
            self.merge.restart(view)
            return self._task(pending, view, until)
        return task

    @property
    def _step(self) -> int:
        """The number of updates between two states that all views can show."""
        return math.lcm(*(keeping.complete_n or 1 for keeping in self.managers.keeping.values()))
