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
"""At most so many updates wait for a manager: they are in memory."""


@dataclass(frozen=True)
class Planning:
    """The state of a group's managers between two rounds."""

    managers: Managers
    merge: Merge
    paces: Mapping[str, Pace]

    def tasks(self, pending: Pending, flush: bool, now: float) -> list[Task]:
        """What is to be done of these updates now; ``flush`` keeps nothing back."""
        if not pending.batches:
            return []
        rows = {view: self._rows(pending, view) for view in self.paces}
        owed = {view: int((numbers > self.merge.answered(view)).sum()) for view, numbers in rows.items()}
        every = flush or len(pending) > MOST
        refresh = every or any(self._refreshes(view) and self.paces[view].due(owed[view], now) for view in rows)
        tasks = []
        for view, pace in self.paces.items():
            hurried = not pace.rests(now) and (every or (refresh and self._refreshes(view)))
            if owed[view] and (hurried or pace.due(owed[view], now)):
                task = self._task(pending, view, rows[view], flush)
                tasks += [task] if task is not None else []
        return tasks

    def _refreshes(self, view: str) -> bool:
        return self.managers.keeping[view].every is not None

    def _rows(self, pending: Pending, view: str) -> np.ndarray:
        """The numbers of the updates that concern a view, of those in no cut."""
        new = [batch for batch in pending.batches if batch.numbers.start > self.merge.last]
        found = [np.flatnonzero(b.concerned[:, b.views.index(view)]) + b.numbers.start for b in new]
        return np.concatenate([self.merge.rows(view), *found])

    def _task(self, pending: Pending, view: str, rows: np.ndarray, flush: bool) -> Task | None:
        """What a manager answers for, if anything; a list of several updates ends at one that concerns the view."""
        after, last = self.merge.answered(view), pending.batches[-1].last
        anew = pending.emptied(view, after)
        until = last
        if anew is not None or self.managers.keeping[view].level < Level.COMPLETE:
            bound = last if flush else last - last % self._step
            until = bound
            if anew is not None or self.managers.keeping[view].complete_n is None:
                until = int(rows[rows <= bound].max(initial=after))
        if until <= after:
            return None
        task = Task(view, after, until, pending.starts(view, after, until), anew)
        if self.managers.builds(task) and self.merge.forgets(view):
            # What it builds on was too large to be kept for reading it again.
            self.merge.restart(view)
            return self._task(pending, view, rows, flush)
        return task

    @property
    def _step(self) -> int:
        """The number of updates between two states that all views can show."""
        return math.lcm(*(keeping.complete_n or 1 for keeping in self.managers.keeping.values()))
