"""Submitting warehouse transactions (multiple-view-consistency-1997, section 4.3).

WT_j depends on WT_i if it was submitted later and both change a view in common. Dependent transactions must commit in
the order in which they were submitted; all others may commit in any order, or at the same time. Several that are
waiting may be batched into one (BWT): fewer commits, at the price that states in between are not seen, and that
whatever depends on one of them waits for all.

The job has no such station. A cut of a group is itself the batch: it holds every transaction up to its last update, and
one cut is committed after the other, which is the order. So a transaction that could commit at once waits for those
before it, but is never seen without them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic

from viewkeeper.merge.painting import Applied
from viewkeeper.merge.view_update_table import A


def depends(later: Applied[A], earlier: Applied[A]) -> bool:
    """Must the transaction that was submitted later also commit later?"""
    return not later.views.isdisjoint(earlier.views)


def batched(transactions: Iterable[Applied[A]]) -> Applied[A]:
    """BWT: these transactions, given in the order of submission, as one that has their effect."""
    each = tuple(transactions)
    rows = sorted(row for transaction in each for row in transaction.rows)
    return Applied(tuple(rows), tuple(told for transaction in each for told in transaction.actions))


@dataclass(frozen=True, eq=False)
class Submitted(Generic[A]):
    """A transaction that the warehouse may commit; two of them are never equal."""

    transaction: Applied[A]


class Sequencer(Generic[A]):
    """Says which transactions may commit now; only those wait that depend on one that has not committed."""

    def __init__(self) -> None:
        self._waiting: list[Applied[A]] = []  # in the order of submission
        self._under_way: dict[Submitted[A], frozenset[str]] = {}  # started and not committed, with its views

    def __len__(self) -> int:
        """How many transactions wait."""
        return len(self._waiting)

    @property
    def under_way(self) -> tuple[Submitted[A], ...]:
        """What may be committing at this moment, in any order."""
        return tuple(self._under_way)

    def submit(self, transaction: Applied[A]) -> None:
        self._waiting.append(transaction)

    def start(self) -> list[Submitted[A]]:
        """Takes every waiting transaction that depends on none before it; each may commit by itself."""
        taken = self._take(together=False, most=None)
        return [self._started(transaction) for transaction in taken]

    def start_batch(self, most: int | None = None) -> Submitted[A] | None:
        """Takes up to ``most`` waiting transactions as one; none of them depends on any but those in it."""
        taken = self._take(together=True, most=most)
        return self._started(batched(taken)) if taken else None

    def committed(self, submitted: Submitted[A]) -> None:
        """The warehouse has committed it: what depended on it may go on."""
        del self._under_way[submitted]

    def _take(self, together: bool, most: int | None) -> list[Applied[A]]:
        """In the order of submission, so that one which must wait makes those wait that depend on it."""
        taken: list[Applied[A]] = []
        left: list[Applied[A]] = []
        held = set().union(*self._under_way.values())  # the views that a later transaction may not change yet
        for transaction in self._waiting:
            views = transaction.views
            if (most is not None and len(taken) >= most) or not held.isdisjoint(views):
                left.append(transaction)
                held |= views
            else:
                taken.append(transaction)
                held |= frozenset() if together else views
        self._waiting = left
        return taken

    def _started(self, transaction: Applied[A]) -> Submitted[A]:
        submitted = Submitted(transaction)
        self._under_way[submitted] = transaction.views
        return submitted
