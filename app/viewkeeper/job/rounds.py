"""Rounds of a group: what has arrived is numbered, and every manager works whose time has come.

    arrived → integrator → freeze → drain → managers → merge

A round reaches as far as its barriers: what a source delivers before its barrier comes out of the topic is handled with
it, so every update that an answer can contain was received.

Between rounds is remembered what was received and has no number (``arrived``), what has a number and is in no cut
(``pending``), the action lists that wait (``merge``), and what is in cuts though some snapshot may lack it
(``unsettled``). All of it can be had again from the newest cut on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from viewkeeper.algebra.view import View
from viewkeeper.algorithms.sweep import Queue
from viewkeeper.errors import SourceError, SourceUnreachable, ViewkeeperError
from viewkeeper.integrator.arrange import Arranged, arrange
from viewkeeper.integrator.integrator import number, unnumbered
from viewkeeper.integrator.pending import Pending
from viewkeeper.job.freezing import Freezing
from viewkeeper.job.patience import FIRST_START, Stopped
from viewkeeper.job.planning import Planning
from viewkeeper.job.publishing import StepTimes
from viewkeeper.managers.manager import asked_since, copied
from viewkeeper.managers.managers import Managers, Task, Work
from viewkeeper.managers.pace import Pace
from viewkeeper.managers.sources import Source
from viewkeeper.merge.action_list import ActionList
from viewkeeper.merge.merge import Merge
from viewkeeper.messages import Received, Rejected, SnapshotPosition
from viewkeeper.queue.drain import PATIENCE, BarrierLate, Drain
from viewkeeper.queue.unsettled import Unsettled
from viewkeeper.queue.update_queue import UpdateQueue
from viewkeeper.warehouse.mapped import Ends

NOTHING = Received([], {}, [])

log = logging.getLogger("viewkeeper")


@dataclass
class Rounds:
    """The rounds of one group after a cut, ``after`` being the last update in it."""

    views: Mapping[str, View]
    sources: Mapping[str, Source]
    queue: UpdateQueue
    managers: Managers
    drain: Drain
    set_aside: Callable[[Sequence[Rejected]], None]
    stop: threading.Event
    paces: dict[str, Pace]
    after: int
    times: StepTimes = field(default_factory=StepTimes)
    passed_over: bool = False  # messages were set aside: the next cut tells that they are passed
    _late: int = 0  # barriers that did not come out, one after the other

    def __post_init__(self) -> None:
        published = self.managers.stored
        self.managers.stored = lambda view: chain(published(view), self.merge.change(view))
        self.begin(self.after)

    def begin(self, after: int) -> None:
        """Remembers nothing but the newest cut, which holds the updates up to this one."""
        self.after = after
        self.arrived = NOTHING
        self._ends = Ends()  # of its changes
        self.pending = Pending()
        self.numbering: Pending | None = None  # with the batch that is being handled
        self.merge = Merge(self.views, after)
        self.unsettled = Unsettled()
        self.contains: dict[str, SnapshotPosition] = {}
        self.asked: Mapping[str, Mapping[str, int]] = {}
        self.refused: list[Rejected] = []
        self.taken = self._offsets()  # per source the first message that was not taken

    def adopt(self, after: int, pending: Pending, unsettled: Unsettled) -> None:
        """A cut holds the updates up to this one; these are left."""
        self.after, self.pending, self.unsettled, self.passed_over = after, pending, unsettled, False
        for pace in self.paces.values():
            pace.published()

    def repeat(self) -> None:
        """All managers begin again after the newest cut: what they have answered since is lost."""
        for pace in self.paces.values():
            pace.lost()
        self.merge = Merge(self.views, self.after)
        for batch in self.pending.batches:
            self.merge.relevant(batch.numbers, batch.views, batch.concerned)

    # ---- what they have before them

    def take(self, received: Received) -> None:
        """Keeps what was received; bad messages are set aside, if that is wanted."""
        arrived = self.arrived.and_then(replace(received, rejected=(), again=None))
        self.arrived = replace(arrived, changes=self._ends.grown(arrived.changes, received.changes))
        self.unsettled = self.unsettled.and_again(received.again, self.after)
        if received.rejected and self.queue.quarantine:
            self.set_aside(received.rejected)
            self.passed_over = True
        elif received.rejected:
            self.refused += received.rejected
        # Last: who looks from outside never finds something neither here nor in the topic past it.
        self.taken = self._offsets()

    def _offsets(self) -> dict[str, int]:
        return {inlet.source: inlet.offset for inlet in self.queue.inlets.values()}

    @property
    def waiting(self) -> int:
        """How many updates are in no cut."""
        return len(self.pending) + len(self.arrived.updates)

    @property
    def waiting_sources(self) -> set[str]:
        """The sources with updates that are in no cut."""
        return {update.source for update in (*self.pending.received, *self.arrived.updates)}

    @property
    def errors(self) -> list[ViewkeeperError]:
        """What managers have failed with and not made up for."""
        return [pace.error for pace in self.paces.values() if pace.error is not None]

    def any_due(self, flush: bool) -> bool:
        """Whether there is work for a manager now; ``flush`` keeps nothing back."""
        return self._planning.any_due(self.pending, flush, time.monotonic())

    @property
    def _planning(self) -> Planning:
        return Planning(self.managers, self.merge, self.paces)

    def to_compensate(self, pending: Pending, arrived: Received) -> Queue:
        """What answers may contain or lack: these updates with and without a number, and what is not settled."""
        return Queue(pending.changes).and_older(self.unsettled.changes).and_older(unnumbered(arrived))

    @property
    def late_names(self) -> list[str]:
        """The sources that may show an update later than they deliver it."""
        return [name for name, source in self.sources.items() if source.late]

    # ---- a round: freeze, drain, managers

    def round(self, frozen: Freezing, flush: bool, asked: Collection[str] = (), patient: bool = True) -> None:
        """Numbers what has arrived and lets every manager work that is to; ``asked`` are sources needed anyway.

        Afterwards each has answered, or is left as it was and tries again later. An error leaves all of them so.
        Unless it is ``patient``, barriers that are late again and again are an error.
        """
        arranged, pending, tasks = self._complete(frozen, flush, asked, patient)
        usable = [task for task in tasks if not self.managers.asks(task) & frozen.away.keys()]
        self.numbering = pending
        before = copied(self.managers.tallies)
        with self.times.step("sweep"):
            received, numbers = pending.updates(self.after)
            queue = self.to_compensate(pending, arranged.waiting)
            outcomes = self.managers.answer(usable, Work(queue, received, numbers, frozen.at.snapshots))
            frozen.confirm()
        self.asked = asked_since(before, self.managers.tallies)
        self._number(arranged, pending)
        for task in tasks:
            away = [frozen.away[name] for name in sorted(self.managers.asks(task) & frozen.away.keys())]
            outcome = away[0] if away else outcomes[task.view]
            self._answered(task, outcome) if isinstance(outcome, ActionList) else self._failed(task, outcome)
        for view in self.views:
            self._nothing_owed(view)
        self.contains |= frozen.at.contains()

    def _complete(
        self, frozen: Freezing, flush: bool, asked: Collection[str], patient: bool
    ) -> tuple[Arranged, Pending, list[Task]]:
        """The batch with everything that answers of the sources it asks can contain, and what is to be done."""
        while True:
            with self.times.step("number"):
                arranged = arrange(self.arrived, self.sources)
                batch = number(arranged, self.merge.last, list(self.views.values()))
            pending = self.pending.and_then(batch)
            tasks = self._planning.tasks(pending, flush, time.monotonic())
            wanted = set(asked).union(*(self.managers.asks(task) for task in tasks))
            with self.times.step("freeze"):
                frozen.freeze(wanted | self._late_sources(pending))
                tokens = frozen.barriers(wanted)
            more = self._drained(frozen, tokens, patient)
            frozen.at.require_unbroken(self.queue, {name: t for name, t in tokens.items() if name not in frozen.away})
            if not more:
                frozen.at.require_visible(arranged.ready)
                return arranged, pending, tasks

    def _late_sources(self, pending: Pending) -> set[str]:
        """The sources whose updates a snapshot may not show yet: only a later one can tell."""
        if not self.late_names:
            return set()
        return {update.source for update in (*pending.received, *self.unsettled.updates)}.intersection(self.late_names)

    def _drained(self, frozen: Freezing, tokens: Mapping[str, str], patient: bool) -> bool:
        """Reads on to these barriers; tells whether updates came before them. A source whose does not is away."""
        if not tokens:
            return False
        before = len(self.arrived.updates)
        try:
            with self.times.step("drain"):
                for received in self.drain.to_barriers(self.queue, tokens, self.stop):
                    self.take(received)
        except BarrierLate as late:
            self._late += 1
            if not patient and self._late * PATIENCE >= FIRST_START:
                raise SourceError(late.problems) from late
            frozen.away |= {name: late for name, token in tokens.items() if not self.queue.passed_barrier(name, token)}
        else:
            self._late = 0
        if self.stop.is_set():
            raise Stopped
        for refused in self.refused:
            if refused.source in tokens:  # its barrier cannot come out any more
                raise refused.error()
        return len(self.arrived.updates) > before

    def _number(self, arranged: Arranged, pending: Pending) -> None:
        """What was numbered in this round keeps its numbers."""
        new = pending.batches[len(self.pending.batches) :]
        self._ends.kept(arranged.waiting.changes, self.arrived.changes)
        self.arrived, self.pending, self.numbering = arranged.waiting, pending, None
        for batch in new:
            self.merge.relevant(batch.numbers, batch.views, batch.concerned)

    def _answered(self, task: Task, actions: ActionList) -> None:
        if self.paces[task.view].error is not None:
            log.info("view %s: going on", task.view)
        self.paces[task.view].succeeded(time.monotonic())
        self.merge.actions(actions)

    def _failed(self, task: Task, error: SourceUnreachable) -> None:
        """The manager begins again where it stood; nobody else is concerned."""
        pause = self.paces[task.view].failed(error, time.monotonic())
        log.warning("view %s: %s; trying again in %.1f s", task.view, error, pause)

    def _nothing_owed(self, view: str) -> None:
        """An empty action list, where nothing that is left concerns the view."""
        after = self.merge.answered(view)
        if after < self.merge.last and not self.merge.owed(view):
            self.merge.actions(ActionList(view, after, self.merge.last, []))
