"""Complete-N (multiple-view-consistency-1997, section 6.3): SWEEP whose changes are installed N updates at a time.

Promises complete-N: the view is consistent after every N-th update; assumes only FIFO channels. Runs of N are counted
by update number, so that they are the same whoever counts. ``flush`` installs a run that is not full yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from viewkeeper.algebra.tiny import Bag, add
from viewkeeper.algorithms.protocol import Change, Install, Process
from viewkeeper.algorithms.sweep_sequential import SequentialSweep


@dataclass
class CompleteN(SequentialSweep):
    """SWEEP with an install every ``complete_n`` updates."""

    complete_n: int = 10

    def install(self) -> Process:
        while self.received:
            first = self.received.first.number
            last = first + (-first) % self.complete_n
            run = range(first, last + 1)
            if not all(number in self.finished for number in run):
                return
            yield self._run(run)

    def flush(self) -> Process:
        if self.finished:
            yield self._run(sorted(self.finished))

    def _run(self, run: Sequence[int]) -> Install:
        total: Bag = {}
        for number in run:
            add(total, self.finished.pop(number))
            self.received.remove(number)
        return Install(frozenset(run), (Change(total),))
