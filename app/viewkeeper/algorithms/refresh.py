"""Periodic refresh (multiple-view-consistency-1997, section 6.3): the view is computed anew from time to time.

Promises strong consistency; assumes only FIFO channels. Recomputation by plain questions has the same anomalies as
incremental change, since its answers come from different moments. So each answer is compensated, as in SWEEP: the new
view is the one after exactly the updates that had been received when its computation began.
"""

from __future__ import annotations

from dataclasses import dataclass

from viewkeeper.algebra.view import Hop
from viewkeeper.algorithms.protocol import Install, Process, Query, Replace, Term, Update
from viewkeeper.algorithms.sweep_sequential import SequentialSweep


@dataclass
class Refresh(SequentialSweep):
    """Recomputes whenever ``every`` more updates have been received."""

    every: int = 10

    def receive(self, update: Update) -> Process:
        self.received.append(update)
        if not self.active:
            yield from self._while_due(self.every)

    def flush(self) -> Process:
        yield from self._while_due(1)

    def _while_due(self, enough: int) -> Process:
        self.active = 1
        while len(self.received) >= enough:
            yield from self._refresh()
        self.active = 0

    def _refresh(self) -> Process:
        wanted = frozenset(update.number for update in self.received)
        newest = self.received[max(wanted)]
        part = {self.tiny.nothing: 1}
        for hop in self._everything():
            if not part:
                break
            ((answer,),) = yield Query(hop.occurrence.source, (Term(part, (hop,)),))
            part = self.compensated(newest, part, hop, answer)
        yield Install(wanted, (Replace(self.tiny.output(part)),))
        for number in wanted:
            self.received.remove(number)

    def _everything(self) -> tuple[Hop, ...]:
        """Every row of the first occurrence, then along the joins; all as of the newest update wanted."""
        view = self.tiny.view
        whole = Hop(view.occurrences[0], (), (), True, view.decided_at_start(0))
        return (whole, *(Hop(h.occurrence, h.probe, h.key, True, h.residuals) for h in view.hops(0)))
