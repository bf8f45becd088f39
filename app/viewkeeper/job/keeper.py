"""The keeper of a group: the body of the main loop. Micro-batches of messages in, cuts out.

    messages → queue → rounds (integrator → freeze → drain → managers → merge) → commit → publish

A cut holds what can be shown after a round; what cannot yet is remembered by the rounds. All of it can be had again
from the newest cut on: killed at any moment, the keeper starts again from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from typing import TypeVar

import pyarrow as pa

from viewkeeper.algebra.view import View
from viewkeeper.algorithms.sweep import Queue
from viewkeeper.errors import SourceError, ViewkeeperError
from viewkeeper.integrator.pending import Pending
from viewkeeper.job.freezing import Freezing, Frozen
from viewkeeper.job.last_rows import TableRow, last_rows
from viewkeeper.job.patience import patiently
from viewkeeper.job.planning import too_many
from viewkeeper.job.positions import furthest, positions
from viewkeeper.job.publishing import Publishing
from viewkeeper.job.rounds import Rounds
from viewkeeper.job.understood import used_by
from viewkeeper.job.whole_transactions import Incomplete, Unfinished, held_back
from viewkeeper.managers.keeping import weakest
from viewkeeper.managers.managers import Managers
from viewkeeper.managers.pace import Pace
from viewkeeper.managers.sources import Source
from viewkeeper.messages import Reached, Received, Rejected
from viewkeeper.queue.drain import Drain
from viewkeeper.queue.unsettled import Unsettled
from viewkeeper.queue.update_queue import UpdateQueue
from viewkeeper.warehouse.cuts import Cut, WarehouseTransaction, update_table
from viewkeeper.warehouse.warehouse import Warehouse

T = TypeVar("T")


@dataclass
class Keeper:
    """Keeps the views of one group in step with their sources."""

    views: Mapping[str, View]
    sources: Mapping[str, Source]
    queue: UpdateQueue
    publishing: Publishing
    managers: Managers
    drain: InitVar[Drain]
    cut: Cut
    set_aside: InitVar[Callable[[Sequence[Rejected]], None]]
    incomplete: Incomplete = field(default_factory=Incomplete)
    unfinished: Unfinished = field(default_factory=Unfinished)
    stop: threading.Event = field(default_factory=threading.Event)
    targets: Mapping[str, str] | None = None  # positions to reach as soon as can be, leaving nothing back
    error: str | None = None  # what the job waits for at the moment, in words
    updates_handled: int = 0
    batches: int = 0
    recent: list[TableRow] = field(default_factory=list)  # the last rows in a cut
    busy: threading.Lock = field(default_factory=threading.Lock)
    held_back: Mapping[str, str] = field(default_factory=dict)  # the sources that are read no further, and why
    _ends: dict[str, int] = field(default_factory=dict)  # per topic, up to where there are messages to read
    _attempted: WarehouseTransaction | None = None  # did not get through: the warehouse may hold part of it

    def __post_init__(self, drain: Drain, set_aside: Callable[[Sequence[Rejected]], None]) -> None:
        self.rounds = Rounds(
            self.views,
            self.sources,
            self.queue,
            self.managers,
            drain,
            lambda rejected: self._patiently(lambda: set_aside(rejected)),
            self.stop,
            {name: Pace(self.managers.keeping[name], self._cut_made) for name in self.views},
            self.cut.last_update,
        )

    @property
    def _cut_made(self) -> float:
        """When the newest cut was made, by the clock of paces."""
        return time.monotonic() - (time.time() - self.cut.committed_at.timestamp())

    @property
    def warehouse(self) -> Warehouse:
        return self.publishing.warehouse

    # ---- what it says of itself

    @property
    def level(self) -> str:
        """What the cuts promise: the weakest level among the views."""
        return str(weakest(self.managers.keeping))

    @property
    def trouble(self) -> str | None:
        """What keeps the views back that ought not to, in words."""
        errors = [self.error, *self.rounds.errors, *self.incomplete.late, *self.unfinished.late]
        return next((str(error) for error in errors if error is not None), None)

    @property
    def waiting(self) -> str | None:
        """What keeps the views back at the moment, in words."""
        if self.trouble is not None or self.held_back:
            return "; ".join(filter(None, [self.trouble, *self.held_back.values()]))
        paces, owed, pending = self.rounds.paces, self.rounds.merge.owed, len(self.rounds.pending)
        held = [name for name in self.views if paces[name].keeping.every is not None and owed(name)]
        updates = "1 update waits" if pending == 1 else f"{pending:,} updates wait"
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
        for source in self.rounds.waiting_sources:
            passed[source] = str(Reached.parse(self.cut.positions[source]).last)
        return passed

    def _short_of(self, targets: Mapping[str, str], reached: Mapping[str, str]) -> list[str]:
        return [name for name, target in targets.items() if not self.sources[name].reached(reached[name], target)]

    # ---- batches

    def maintain(self, messages: pa.Table) -> bool:
        """Brings the views past these messages, as far as managers are to work now; tells whether that took a cut.

        An error names a message that the job stops at; a cut holds every update before it (unless answers of that
        message's source were needed: what they contain cannot be known then). A batch without updates leaves no
        trace.
        """
        with self.busy:
            return self._maintain(lambda: iter([self.queue.receive(messages)]))

    def maintain_to(self, ends: Mapping[str, int]) -> bool:
        """The same for the messages that topics hold up to these offsets.

        A topic of which too much waits for others is left where it is, and read on when that has changed.
        """
        with self.busy:
            self._ends |= ends
            made = self._maintain(self._unread)
            return self._read_on() or made

    def _read_on(self) -> bool:
        """Reads topics that are no longer held back; tells whether that took a cut."""
        made = False
        while self._readable() and not self.stop.is_set():
            made = self._maintain(self._unread) or made
        return made

    def _readable(self) -> dict[str, int]:
        """Per topic that is not held back and holds messages to read, up to where."""
        inlets = [i for i in self.queue.inlets.values() if i.source not in self.held_back and not i.stopped]
        return {i.topic: self._ends[i.topic] for i in inlets if i.offset < self._ends.get(i.topic, 0)}

    def _unread(self) -> Iterator[Received]:
        return self.rounds.drain.to_offsets(self.queue, self._readable(), self.stop)

    def _maintain(self, messages: Callable[[], Iterator[Received]]) -> bool:
        if self.stop.is_set():
            return False
        with self.rounds.times.step("parse"):
            updates = self._take_all(messages())
        if self.stop.is_set():
            return False  # perhaps not all of it was read
        made = self._work() if updates or self.rounds.passed_over or self._flushes() else False
        if self.rounds.refused:
            raise self.rounds.refused[0].error()
        self.held_back = held_back(self.rounds.arrived, self.sources)
        return made

    def _take_all(self, messages: Iterator[Received]) -> int:
        """Takes what was received, or so much that a source must be held back; tells how many updates that is."""
        updates, spanning = 0, bool(self.held_back)
        for received in messages:
            self.rounds.take(received)
            updates += len(received.updates)
            spanning = spanning or any(update.part_of is not None for update in received.updates)
            if spanning and held_back(self.rounds.arrived, self.sources):
                break  # the others are read on after this round
        return updates

    def release(self) -> bool:
        """Lets managers work whose time has come, if no batch is being handled; tells whether that took a cut."""
        if not self.busy.acquire(blocking=False):
            return False
        try:
            self._look_for_missing()
            made = self._work() if self._is_due() else False
            self.held_back = held_back(self.rounds.arrived, self.sources)
            return self._read_on() or made
        finally:
            self.busy.release()

    def _look_for_missing(self) -> None:
        """Notes what transactions lack for too long; whoever is to reach a position cannot wait for it."""
        incomplete = self.incomplete.look(self.rounds.arrived, self.sources)
        unfinished = self.unfinished.look(self.queue.unfinished())
        if incomplete and self.targets is not None:
            remedy = "send the missing part, or an empty one in its place"
            raise SourceError.at("global transactions", self.incomplete.late[0], remedy)
        if unfinished and self.targets is not None:
            raise SourceError.at("updates", self.unfinished.late[0], "is its capture running?")

    def _is_due(self) -> bool:
        return self._attempted is not None or self.rounds.any_due(self._flushes())

    def _flushes(self) -> bool:
        """Whether everything that is to be reached has arrived: then nothing is kept back."""
        if self.targets is None or not self.rounds.waiting:
            return False
        return not self.undelivered(self.targets)

    def rewind(self) -> None:
        """Goes back to the newest cut: what came after it is received again."""
        self.queue.rewind(self.cut.positions, self.cut.offsets)
        self.rounds.begin(self.cut.last_update)
        self.recent, self._attempted = [], None
        self.held_back, self._ends = {}, {}

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
            self.rounds.round(frozen, self._flushes(), patient=self.targets is None)
        transaction = self._committed()
        if transaction is None and self.rounds.errors and too_many(self.rounds.pending):
            raise self.rounds.errors[0]
        return transaction

    # ---- cuts

    def _committed(self) -> WarehouseTransaction | None:
        """Commits a cut that holds all that can be shown by now, unless that is nothing new."""
        prefix = self.rounds.merge.prefix
        if prefix == self.cut.last_update and not self.rounds.passed_over:
            return None
        self.require_named()
        self._attempted = transaction = self._transaction(prefix)
        with self.rounds.times.step("commit"):
            cut = self.warehouse.commit(transaction)
        self._adopt(cut)
        return transaction

    def require_named(self) -> None:
        """Raises SourceError where changes of a table that views use may have come under another name of it.

        No cut may be past them: what it is past is not read again.
        """
        for inlet in self.queue.inlets.values():
            if inlet.strangers:
                used = used_by(self.views, inlet.source)
                self.sources[inlet.source].require_named(dict(inlet.strangers), used)
                inlet.strangers.clear()

    def _transaction(self, prefix: int) -> WarehouseTransaction:
        rounds = self.rounds
        taken, rest = rounds.pending.split(prefix)
        ready = rounds.merge.take(prefix)
        unsettled = rounds.unsettled.plus(taken.received, taken.changes).settled(rounds.contains, rounds.late_names)
        self._after = (rest, unsettled)
        self.recent = last_rows(rounds.pending, prefix) or self.recent
        return WarehouseTransaction(
            last_update=prefix,
            positions=positions(self.cut, self.queue, taken.received, [*rest.received, *rounds.arrived.updates]),
            offsets=self._offsets(rest, unsettled),
            level=str(min(weakest(self.managers.keeping), ready.level)),
            updates=taken.table if len(taken.received) else update_table([]),
            changes=ready.changes,
            views=self.views,
            asked=rounds.asked,
        )

    def _offsets(self, rest: Pending, unsettled: Unsettled) -> dict[str, int]:
        """Per source the offset of the first message that a restart needs."""
        needed = [*rest.received, *self.rounds.arrived.updates, *unsettled.updates]
        return Unsettled(needed).offsets(self.queue.offsets())

    def _adopt(self, cut: Cut) -> None:
        """The transaction that was attempted is in a cut."""
        self.cut, self._attempted = cut, None
        self.rounds.adopt(cut.last_update, *self._after)

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
        self.rounds.repeat()
        return None

    def _follow(self, transaction: WarehouseTransaction) -> None:
        """What follows a cut."""
        self.updates_handled += len(transaction.updates)
        self.batches += 1
        self.publishing.follow(self.cut, transaction, self.rounds.times, self._patiently)

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
            yield frozen.at, self.rounds.to_compensate(self.rounds.pending, self.rounds.arrived)

    def _bring_up(self, frozen: Freezing) -> None:
        """A cut holds every update that these snapshots contain, but for transactions that are not whole yet."""
        rounds = self.rounds
        rounds.round(frozen, flush=True, asked=self.sources, patient=self.targets is None)
        if frozen.away:
            raise next(iter(frozen.away.values()))
        if (transaction := self._committed()) is not None:
            self._follow(transaction)
        rounds.unsettled = rounds.unsettled.settled(rounds.contains, rounds.late_names)
        if rounds.pending.batches:
            raise rounds.errors[0] if rounds.errors else AssertionError("a flush leaves nothing pending")

    def fold_if_due(self) -> bool:
        """Brings the view tables forward if it is time; tells whether that took a cut of its own to name them."""
        if self._attempted is not None:
            return False
        self.publishing.fold_if_due(self.rounds.times, self._patiently)
        before = self.cut
        self.cut = self.publishing.name_folds(before, self.level, self.rounds.times, self._patiently)
        return self.cut != before

    def finish(self) -> None:
        """Folds, and writes a cut that names the folded versions: what `--until-idle` ends with."""
        with self.busy:
            self.cut = self.publishing.finish(self.cut, self.level, self.rounds.times)

    def close(self) -> None:
        """Closes its connections and ends its threads, but for those of the sources, which others may use."""
        self.rounds.drain.close()
        self.publishing.close()
        self.managers.close()

    def _patiently(self, work: Callable[[], T]) -> T:
        def note(error: ViewkeeperError | None) -> None:
            self.error = None if error is None else str(error)

        return patiently(work, stop=self.stop, waiting=note)
