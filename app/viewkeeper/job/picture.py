"""What a group's merge process has before it, for people: the ViewUpdateTable, and what each view waits for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from viewkeeper.consistency.levels import Level
from viewkeeper.counts import some
from viewkeeper.integrator.integrator import Batch
from viewkeeper.integrator.pending import Pending
from viewkeeper.job.keeper import Keeper
from viewkeeper.managers.pace import Pace

ROWS = 12
"""Rows of the table that are shown; the others are counted."""

NAMED = 3
"""Views that a sentence names; the others are counted."""


@dataclass(frozen=True)
class Picture:
    """One look at a keeper, taken while it works: it may be a moment behind."""

    keeper: Keeper

    def arrived(self) -> dict[str, int]:
        """Per source the updates that were received and have no number; to be looked at before ``views`` is.

        What is numbered meanwhile is then counted by both rather than by none.
        """
        arrived = self.keeper.rounds.arrived.updates
        numbering = self.keeper.rounds.numbering
        numbered = {(u.topic, u.offset) for u in numbering.received} if numbering is not None else set()
        return dict(Counter(u.source for u in arrived if (u.topic, u.offset) not in numbered))

    def views(self) -> dict[str, dict[str, Any]]:
        """Per view the updates that concern it and are in no cut, and what it waits for."""
        last = self.keeper.rounds.merge.last
        new = [batch for batch in self._pending().batches if batch.numbers.start > last]
        return {view: self._view(view, new) for view in self.keeper.views}

    def table(self) -> dict[str, Any]:
        """The last gray rows, then the first of those in no cut: of ``pending`` such rows, ``more`` are left out."""
        gray = [
            {"update": row.number, "transactions": list(row.transactions), "colors": dict(row.colors)}
            for row in self.keeper.recent
        ]
        # While a cut is being written its rows are still pending, and gray already.
        batches = [(batch, self._first(batch)) for batch in self._pending().batches]
        pending = sum(max(0, batch.last - first + 1) for batch, first in batches)
        shown: list[dict[str, Any]] = []
        for batch, first in batches:
            if len(shown) == ROWS:
                break
            shown += self._rows(batch, first, min(batch.last, first + ROWS - len(shown) - 1))
        return {
            "algorithm": "SPA" if self.keeper.level == str(Level.COMPLETE) else "PA",
            "views": list(self.keeper.views),
            "rows": gray + shown,
            "pending": pending,
            "more": pending - len(shown),
        }

    def _pending(self) -> Pending:
        rounds = self.keeper.rounds
        return rounds.numbering or rounds.pending

    def _first(self, batch: Batch) -> int:
        return max(batch.numbers.start, self.keeper.rounds.merge.applied + 1)

    def _view(self, view: str, new: Sequence[Batch]) -> dict[str, Any]:
        """What is to be told of a view; ``new`` are batches that the merge process does not know yet."""
        merge = self.keeper.rounds.merge
        arriving = sum(int(batch.concerned[:, batch.views.index(view)].sum()) for batch in new)
        owed, held = merge.owed(view) + arriving, merge.held(view)
        return {"behind": owed + held, "owed": owed, "held": held, "waits_for": self._waits_for(view, owed, held)}

    def _waits_for(self, view: str, owed: int, held: int) -> str | None:
        """Why the view's updates are in no cut yet, in words."""
        pace = self.keeper.rounds.paces[view]
        if pace.error is not None:
            return str(pace.error)
        if owed and pace.keeping.every is not None:
            return _next_refresh(pace)
        if owed and pace.keeping.complete_n is not None:
            return f"the next of every {some(pace.keeping.complete_n, 'update')}"
        if owed:
            return "its manager"
        others = [name for name in self.keeper.views if name != view and self.keeper.rounds.merge.owed(name)]
        return _named(others) if held and others else "the next cut" if held else None

    def _rows(self, batch: Batch, first: int, last: int) -> list[dict[str, Any]]:
        """Rows of a batch that are in no cut, from one number to another."""
        merge, done, start = self.keeper.rounds.merge, self.keeper.managers.done, batch.numbers.start
        if start <= merge.last:
            letters = merge.colors(first, last, batch.views)
        else:
            concerned = batch.concerned[first - start : last + 1 - start]
            letters = {
                view: "".join("b" if not c else "r" if view in done else "w" for c in concerned[:, place])
                for place, view in enumerate(batch.views)
            }
        transactions = batch.transactions(first, last)
        return [
            {
                "update": number,
                "transactions": transactions[number],
                "colors": {view: letters[view][number - first] for view in batch.views},
            }
            for number in range(first, last + 1)
        ]


def _next_refresh(pace: Pace) -> str:
    every = pace.keeping.every
    if not isinstance(every, timedelta):
        return "its next refresh"
    left = every.total_seconds() - (time.monotonic() - pace.refreshed)
    return f"its next refresh, in {spoken(left)}" if left > 0 else "its refresh, which is due"


def _named(views: Sequence[str]) -> str:
    left = len(views) - NAMED
    names = ", ".join(views[:NAMED])
    return f"view{'s' if len(views) > 1 else ''} {names}" + (f" and {left} more" if left > 0 else "")


def spoken(seconds: float) -> str:
    """A time, as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
