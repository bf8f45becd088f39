"""The keeper of a group: the body of the main loop. Micro-batches of messages in, cuts out.

    messages → queue → integrator → freeze → drain → managers → merge → commit → publish

A batch reaches as far as its barriers: what a source delivers before its barrier comes out of the topic is handled
with it, so every update that an answer can contain was received.

Between cuts the keeper remembers what was received and has no number (``arrived``), what has a number and is in no cut
(``pending``), and the action lists that wait (``merge``). All of it can be had again from the newest cut on: killed at
any moment, the keeper starts again from there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

import pyarrow as pa

from viewkeeper.algebra.view import View
from viewkeeper.algorithms.sweep import Queue
from viewkeeper.errors import SourceError, SourceUnreachable, ViewkeeperError
from viewkeeper.integrator.arrange import Arranged, arrange
from viewkeeper.integrator.integrator import number, unnumbered
from viewkeeper.integrator.pending import Pending
from viewkeeper.job.freezing import Freezing, Frozen
from viewkeeper.job.last_rows import TableRow, last_rows
from viewkeeper.job.patience import FIRST_START, Stopped, patiently
from viewkeeper.job.planning import MOST, Planning
from viewkeeper.job.positions import furthest, positions
from viewkeeper.job.publishing import Publishing, StepTimes
from viewkeeper.job.whole_transactions import Incomplete
from viewkeeper.managers.keeping import weakest
from viewkeeper.managers.manager import asked_since, copied
from viewkeeper.managers.managers import Managers, Task, Work
from viewkeeper.managers.pace import Pace
from viewkeeper.managers.sources import Source
from viewkeeper.merge.action_list import ActionList
from viewkeeper.merge.merge import Merge
from viewkeeper.messages import Reached, Received, Rejected, SnapshotPosition
from viewkeeper.queue.drain import PATIENCE, BarrierLate, Drain
from viewkeeper.queue.unsettled import Unsettled
from viewkeeper.queue.update_queue import UpdateQueue
from viewkeeper.warehouse.cuts import Cut, WarehouseTransaction, update_table
from viewkeeper.warehouse.warehouse import Warehouse

T = TypeVar("T")

NOTHING = Received([], {}, [])

log = logging.getLogger("viewkeeper")


@dataclass
class Keeper:
    """Keeps the views of one group in step with their sources."""

    views: Mapping[str, View]
    sources: Mapping[str, Source]
    queue: UpdateQueue
    publishing: Publishing
    managers: Managers
    drain: Drain
    cut: Cut
    set_aside: Callable[[Sequence[Rejected]], None]
    incomplete: Incomplete = field(default_factory=Incomplete)
    stop: threading.Event = field(default_factory=threading.Event)
    targets: Mapping[str, str] | None = None  # positions to reach as soon as can be, leaving nothing back
    error: str | None = None  # what the job waits for at the moment, in words
    times: StepTimes = field(default_factory=StepTimes)
    updates_handled: int = 0
    batches: int = 0
    unsettled: Unsettled = field(default_factory=Unsettled)
    busy: threading.Lock = field(default_factory=threading.Lock)
    _late: int = 0  # barriers that did not come out, one after the other
    _set_aside: bool = False  # messages were: the next cut tells that they are passed
    _attempted: WarehouseTransaction | None = None  # did not get through: the warehouse may hold part of it

    def __post_init__(self) -> None:
        self.paces = {name: Pace(self.managers.keeping[name], self._cut_made) for name in self.views}
        published = self.managers.stored
        self.managers.stored = lambda view: chain(published(view), self.merge.change(view))
        self._begin()

    @property
    def _cut_made(self) -> float:
        """When the newest cut was made, by the clock of paces."""
        return time.monotonic() - (time.time() - self.cut.committed_at.timestamp())

    @property
    def warehouse(self) -> Warehouse:
        return self.publishing.warehouse

    def _begin(self) -> None:
        """Remembers nothing but the newest cut."""
        self.arrived = NOTHING
        self.pending = Pending()
        self.numbering: Pending | None = None  # with the batch that is being handled
        self.recent: list[TableRow] = []
        self.merge = Merge(self.views, self.cut.last_update)
        self.unsettled = Unsettled()
        self._contains: dict[str, SnapshotPosition] = {}
        self._asked: Mapping[str, Mapping[str, int]] = {}
        self._refused: list[Rejected] = []
        self._attempted = None

    # ---- what it says of itself

    @property
    def level(self) -> str:
        """What the cuts promise: the weakest level among the views."""
        return str(weakest(self.managers.keeping))

    @property
    def trouble(self) -> str | None:
        """What keeps the views back that ought not to, in words."""
        errors = [self.error, *(pace.error for pace in self.paces.values()), *self.incomplete.late]
        return next((str(error) for error in errors if error is not None), None)

    @property
    def waiting(self) -> str | None:
        """What keeps the views back at the moment, in words."""
        if self.trouble is not None:
            return self.trouble
        held = [name for name in self.views if self.paces[name].keeping.every is not None and self.merge.owed(name)]
        updates = "1 update waits" if len(self.pending) == 1 else f"{len(self.pending)} updates wait"
        return f"{updates} for the next refresh of {', '.join(held)}" if held else None

    def behind(self, targets: Mapping[str, str]) -> list[str]:
        """The sources whose updates are not in a cut up to the target position."""
        return self._short_of(targets, self._handled())

    def undelivered(self, targets: Mapping[str, str]) -> list[str]:
        """The sources whose topics have not told of everything up to the target position."""
        return self._short_of(targets, self.queue.passed())

    def _handled(self) -> dict[str, str]:
        """How far each source has come into cuts, what was set aside or got no number included."""
        passed = self.queue.passed()
        for source in self._waiting_sources():
            passed[source] = str(Reached.parse(self.cut.positions[source]).last)
        return passed

    def _short_of(self, targets: Mapping[str, str], reached: Mapping[str, str]) -> list[str]:
        return [name for name, target in targets.items() if not self.sources[name].reached(reached[name], target)]

    def _waiting_sources(self) -> set[str]:
        """The sources with updates that are in no cut."""
        return {update.source for update in (*self.pending.received, *self.arrived.updates)}

    # ---- batches

    def maintain(self, messages: pa.Table, ends: Mapping[str, int] | None = None) -> bool:
        """Brings the views past these messages, as far as managers are to work now; tells whether that took a cut.

        An error names a message that the job stops at; a cut holds every update before it (unless answers of that
        message's source were needed: what they contain cannot be known then). A batch without updates leaves no
        trace. ``ends`` says per topic up to which offset there are no messages besides these.
        """
        with self.busy:
            if self.stop.is_set():
                return False
            with self.times.step("parse"):
                received = self.queue.receive(messages)
                self.queue.skip_to(ends or {})
            self._take(received)
            made = self._work() if received.updates or self._set_aside or self._flushes() else False
            if self._refused:
                raise self._refused[0].error()
            return made

    def release(self) -> bool:
        """Lets managers work whose time has come, if no batch is being handled; tells whether that took a cut."""
        if not self.busy.acquire(blocking=False):
            return False
        try:
            if self.incomplete.look(self.arrived, self.sources) and self.targets is not None:
                raise SourceError.at("global transactions", self.incomplete.late[0], "send the missing part")
            return self._work() if self._is_due() else False
        finally:
            self.busy.release()

    def _is_due(self) -> bool:
        return self._attempted is not None or self._planning.any_due(self.pending, self._flushes(), time.monotonic())

    @property
    def _planning(self) -> Planning:
        return Planning(self.managers, self.merge, self.paces)

    def _flushes(self) -> bool:
        """Whether everything that is to be reached has arrived: then nothing is kept back."""
        if self.targets is None or not len(self.pending) + len(self.arrived.updates):
            return False
        return not self.undelivered(self.targets)

    def rewind(self) -> None:
        """Goes back to the newest cut: what came after it is received again."""
        self.queue.rewind(self.cut.positions, self.cut.offsets)
        self._begin()

    def _take(self, received: Received) -> None:
        """Keeps what was received; bad messages are set aside, if that is wanted."""
        self.arrived = self.arrived.and_then(replace(received, rejected=(), again=None))
        self.unsettled = self.unsettled.and_again(received.again, self.cut.last_update)
        if received.rejected and self.queue.quarantine:
            self._patiently(lambda: self.set_aside(received.rejected))
            self._set_aside = True
        elif received.rejected:
            self._refused += received.rejected

    def _work(self) -> bool:
        """Does what can be done now; tells whether that took a cut."""
        transaction = self._patiently(self._attempt)
        if transaction is None:
            return False
        self._follow(transaction)
        return True

    def _attempt(self) -> WarehouseTransaction | None:
        """One round; the transaction that it committed, if it did."""
        if self._attempted is not None and (done := self._recovered()) is not None:
            return done
        with Freezing(self.sources, self.queue.positions) as frozen:
            self._round(frozen, self._flushes())
        transaction = self._committed()
        errors = [pace.error for pace in self.paces.values() if pace.error is not None]
        if transaction is None and errors and len(self.pending) > MOST:
            raise errors[0]
        return transaction

    # ---- a round: freeze, drain, managers

    def _round(self, frozen: Freezing, flush: bool, asked: Collection[str] = ()) -> None:
        """Numbers what has arrived and lets every manager work that is to; ``asked`` are sources needed anyway.

        Afterwards each has answered, or is left as it was and tries again later. An error leaves all of them so.
        """
        arranged, pending, tasks = self._complete(frozen, flush, asked)
        usable = [task for task in tasks if not self.managers.asks(task) & frozen.away.keys()]
        self.numbering = pending
        before = copied(self.managers.tallies)
        with self.times.step("sweep"):
            received, numbers = pending.updates(self.cut.last_update)
            queue = Queue(pending.changes).and_older(self.unsettled.changes).and_older(unnumbered(arranged.waiting))
            outcomes = self.managers.answer(usable, Work(queue, received, numbers, frozen.at.snapshots))
            frozen.confirm()
        self._asked = asked_since(before, self.managers.tallies)
        self._number(arranged, pending)
        for task in tasks:
            away = [frozen.away[name] for name in sorted(self.managers.asks(task) & frozen.away.keys())]
            outcome = away[0] if away else outcomes[task.view]
            self._answered(task, outcome) if isinstance(outcome, ActionList) else self._failed(task, outcome)
        for view in self.views:
            self._nothing_owed(view)
        self._contains |= frozen.at.contains()

    def _complete(self, frozen: Freezing, flush: bool, asked: Collection[str]) -> tuple[Arranged, Pending, list[Task]]:
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
            more = self._drained(frozen, tokens)
            frozen.at.require_unbroken(self.queue, {name: t for name, t in tokens.items() if name not in frozen.away})
            if not more:
                frozen.at.require_visible(arranged.ready)
                return arranged, pending, tasks

    @property
    def _late_names(self) -> list[str]:
        return [name for name, source in self.sources.items() if source.late]

    def _late_sources(self, pending: Pending) -> set[str]:
        """The sources whose updates a snapshot may not show yet: only a later one can tell."""
        if not self._late_names:
            return set()
        return {update.source for update in (*pending.received, *self.unsettled.updates)}.intersection(self._late_names)

    def _drained(self, frozen: Freezing, tokens: Mapping[str, str]) -> bool:
        """Reads on to these barriers; tells whether updates came before them. A source whose does not is away."""
        if not tokens:
            return False
        before = len(self.arrived.updates)
        try:
            with self.times.step("drain"):
                for received in self.drain.to_barriers(self.queue, tokens, self.stop):
                    self._take(received)
        except BarrierLate as late:
            self._late += 1
            if self.targets is not None and self._late * PATIENCE >= FIRST_START:
                raise SourceError(late.problems) from late
            frozen.away |= {name: late for name, token in tokens.items() if not self.queue.passed_barrier(name, token)}
        else:
            self._late = 0
        if self.stop.is_set():
            raise Stopped
        for refused in self._refused:
            if refused.source in tokens:  # its barrier cannot come out any more
                raise refused.error()
        return len(self.arrived.updates) > before

    def _number(self, arranged: Arranged, pending: Pending) -> None:
        """What was numbered in this round keeps its numbers."""
        new = pending.batches[len(self.pending.batches) :]
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

    # ---- cuts

    def _committed(self) -> WarehouseTransaction | None:
        """Commits a cut that holds all that can be shown by now, unless that is nothing new."""
        prefix = self.merge.prefix
        if prefix == self.cut.last_update and not self._set_aside:
            return None
        self._attempted = transaction = self._transaction(prefix)
        with self.times.step("commit"):
            cut = self.warehouse.commit(transaction)
        self._adopt(cut)
        return transaction

    def _transaction(self, prefix: int) -> WarehouseTransaction:
        taken, rest = self.pending.split(prefix)
        ready = self.merge.take(prefix)
        unsettled = self.unsettled.plus(taken.received, taken.changes).settled(self._contains, self._late_names)
        self._after = (rest, unsettled)
        self.recent = last_rows(self.pending, prefix) or self.recent
        return WarehouseTransaction(
            last_update=prefix,
            positions=positions(self.cut, self.queue, taken.received, [*rest.received, *self.arrived.updates]),
            offsets=self._offsets(rest, unsettled),
            level=str(min(weakest(self.managers.keeping), ready.level)),
            updates=taken.table if len(taken.received) else update_table([]),
            changes=ready.changes,
            views=self.views,
            asked=self._asked,
        )

    def _offsets(self, rest: Pending, unsettled: Unsettled) -> dict[str, int]:
        """Per source the offset of the first message that a restart needs."""
        return Unsettled([*rest.received, *self.arrived.updates, *unsettled.updates]).offsets(self.queue.offsets())

    def _adopt(self, cut: Cut) -> None:
        """The transaction that was attempted is in a cut."""
        self.cut, self._attempted, self._set_aside = cut, None, False
        self.pending, self.unsettled = self._after
        for pace in self.paces.values():
            pace.published()

    def _recovered(self) -> WarehouseTransaction | None:
        """After a commit that failed: the cut stands all the same, or all managers begin again after the last one."""
        transaction = self._attempted
        self.warehouse.recover()
        newest = self.warehouse.newest()
        if newest is not None and newest.cut != self.cut.cut:
            self._adopt(newest)
            self.publishing.unsent = True
            return transaction
        self._attempted = None
        for pace in self.paces.values():
            pace.lost()
        self.merge = Merge(self.views, self.cut.last_update)
        for batch in self.pending.batches:
            self.merge.relevant(batch.numbers, batch.views, batch.concerned)
        return None

    def _follow(self, transaction: WarehouseTransaction) -> None:
        """What follows a cut."""
        self.updates_handled += len(transaction.updates)
        self.batches += 1
        self.publishing.follow(self.cut, transaction, self.times, self._patiently)

    # ---- standing still, folding, ending

    @contextmanager
    def standstill(self, lately: Mapping[str, str]) -> Iterator[tuple[Frozen, Queue]]:
        """The sources frozen where the newest cut stands, and what answers are to be compensated for.

        Updates that the snapshots may contain are brought into a cut first. Snapshots of sources that ``lately``
        names are taken from there, if they have not come further. What failed before may be tried again.
        """
        if self._attempted is not None:
            self._recovered()
        with Freezing(self.sources, lambda: furthest(self.queue.positions(), lately), hold=True) as frozen:
            try:
                self._bring_up(frozen)
            except BaseException:
                if self._attempted is None:
                    self.rewind()  # what was drained is in no cut: it must be received again
                raise
            yield frozen.at, Queue(self.unsettled.changes).and_older(unnumbered(self.arrived))

    def _bring_up(self, frozen: Freezing) -> None:
        """A cut holds every update that these snapshots contain, but for transactions that are not whole yet."""
        self._round(frozen, flush=True, asked=self.sources)
        if frozen.away:
            raise next(iter(frozen.away.values()))
        if (transaction := self._committed()) is not None:
            self._follow(transaction)
        self.unsettled = self.unsettled.settled(self._contains, self._late_names)
        errors = [pace.error for pace in self.paces.values() if pace.error is not None]
        if self.pending.batches:
            raise errors[0] or AssertionError("a flush leaves nothing pending")

    def fold_if_due(self) -> None:
        """Brings the view tables forward if it is time; the next cut names the new versions."""
        self.publishing.fold_if_due(self.times, self._patiently)

    def finish(self) -> None:
        """Folds, and writes a cut that names the folded versions: what `--until-idle` ends with."""
        with self.busy:
            self.cut = self.publishing.finish(self.cut, self.level, self.times)

    def _patiently(self, work: Callable[[], T]) -> T:
        def note(error: ViewkeeperError | None) -> None:
            self.error = None if error is None else str(error)

        return patiently(work, stop=self.stop, waiting=note)
