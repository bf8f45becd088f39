"""What people build by hand, and strobe-1996 calls conventional: join each change with whatever the sources hold now.

Nothing is compensated, so a change that happens while another is joined is counted twice or not at all. Promises
nothing: the view is right at the end if updates were far enough apart, and only then. It is kept to be measured
against, and for views whose users know that their updates never meet.

With keys (``keyed``) a deletion takes the rows with its key out of the view at once, and no row is inserted twice: the
form of strobe-1996, Example 1. Without, a deletion is joined like an insertion, and takes away no more than there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from viewkeeper.algebra.view import Hop
from viewkeeper.algorithms.keys import Deleted, Keys
from viewkeeper.algorithms.message_queue import Unwanted
from viewkeeper.algorithms.protocol import Action, Change, Insert, Install, Process, Update
from viewkeeper.algorithms.sweep_sequential import SequentialSweep


@dataclass
class Convergent(SequentialSweep):
    """Every update is handled when it arrives, beside those under way."""

    keyed: bool = False
    done: set[int] = field(default_factory=set, init=False)

    def receive(self, update: Update) -> Process:
        self.received.append(update)
        if self.keyed:
            yield from self._by_key(update)
        else:
            change = yield from self.view_change(update)
            yield self._finished(update, Change(change, clamped=True))

    def _by_key(self, update: Update) -> Process:
        keys = Keys.of(self.tiny)
        gone = tuple(keys.action(deleted) for deleted in self._deleted(update, keys))
        inserted = replace(update, ops=tuple(op for op in update.ops if op.count > 0))
        if gone and inserted.ops:
            yield Install(frozenset(), gone)
        if not inserted.ops:
            yield self._finished(update, *gone)
            return
        change = yield from self.view_change(inserted)
        yield self._finished(update, Insert(frozenset(change)))

    def _deleted(self, update: Update, keys: Keys) -> Iterator[Deleted]:
        for occurrence in self.tiny.view.occurrences:
            for row, count in update.change(self.tiny, occurrence).items():
                if count < 0:
                    yield Deleted(update.number, occurrence.index, keys.key(occurrence.index, row))

    @staticmethod
    def unwanted(update: Update, hop: Hop) -> Unwanted:
        """Only the update itself is known not to be wanted right of the start."""
        return lambda number: not hop.inclusive and number == update.number

    def _finished(self, update: Update, *actions: Action) -> Install:
        """The update's install; it counts as reflected when all earlier ones of its sources do."""
        self.done.add(update.number)
        reflected = set()
        blocked: set[str] = set()
        for other in self.received:
            if other.number in self.done and blocked.isdisjoint(other.sources):
                reflected.add(other.number)
            else:
                blocked |= other.sources
        for number in reflected:
            self.received.remove(number)
        self.done -= reflected
        return Install(frozenset(reflected), actions)
