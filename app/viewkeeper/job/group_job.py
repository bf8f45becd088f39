"""The job of one group: opens its stream and drives its keeper until it is told to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from viewkeeper.errors import KafkaError, SourceUnreachable, WarehouseError, WarehouseUnreachable
from viewkeeper.job.account import Account
from viewkeeper.job.assembly import Project, oldest_position
from viewkeeper.job.keeper import Keeper
from viewkeeper.job.opening import no_capture
from viewkeeper.job.patience import FIRST_START, patiently
from viewkeeper.job.progress import CatchingUp
from viewkeeper.job.source_identity import SourceIdentities
from viewkeeper.job.status import StatusFile
from viewkeeper.managers.spark_stage import SparkStage
from viewkeeper.queue import consumer
from viewkeeper.warehouse.durability import disk

log = logging.getLogger("viewkeeper")

PRUNE_EVERY = 30.0
"""Seconds between two rounds of forgetting what the newest cut made unnecessary in the sources' logs."""

LOOK_EVERY = 10.0
"""Seconds between two looks whether the sources are still what they were."""

VACUUM_EVERY = 3600.0
"""Seconds between two rounds of deleting files that no promised cut needs."""


@dataclass
class GroupJob:
    """A group's keeper and stream together, and what is done between batches. ``spark`` gives the session."""

    project: Project
    keeper: Keeper
    status: StatusFile
    stop: threading.Event
    spark: Callable[[], Any]
    targets: Mapping[str, str] | None = None  # the positions that --until-idle must reach
    _progress: tuple[float, dict[str, int]] = (0.0, {})
    _vacuumed: float = field(default_factory=time.monotonic)
    _looked: float = field(default_factory=time.monotonic)
    _noted: int = -1  # the cut at which the sources were last noted
    _pruned: float = field(default_factory=time.monotonic)

    def run(self, until_idle: bool) -> None:
        """Keeps the views until stopped; with ``until_idle``, until all that was committed by now is in a cut."""
        try:
            if until_idle:
                self.targets = self.keeper.targets = {
                    name: patiently(source.mark, seconds=FIRST_START, stop=self.stop)
                    for name, source in self.keeper.sources.items()
                }
            self.status.write(self.keeper)
            self.account.opened()
            if not self._idle():
                self._stream()
            if until_idle and not self.keeper.behind(self.targets or {}):
                self._looked = float("-inf")
                self._look_at_sources()
                self.keeper.finish()
        finally:
            self.account.ended()
            self.status.write(self.keeper, ended=True)

    @cached_property
    def account(self) -> Account:
        return Account(self.keeper, self.project.group if len(self.project.groups) > 1 else None)

    def _stream(self) -> None:
        # Imported late: what needs no Spark should not wait for it.
        from viewkeeper.job.jvm import naming_its_end
        from viewkeeper.job.stream import Stream

        config, group = self.project.config, self.project.group
        spark = self.spark()
        checkpoint = config.warehouse / "checkpoints" / group
        stream = Stream(spark, config.kafka.spark(), checkpoint, config.min_cut_interval, self.stop)
        managers = self.keeper.managers
        managers.large_stage = SparkStage(
            spark, self.keeper.sources, config.warehouse / "scratch" / group, managers.tallies
        )
        self.account.up(until_idle=self.targets is not None)
        with naming_its_end(spark, config.warehouse / "logs", self.stop):
            while not self.stop.is_set() and not self._idle():
                patiently(
                    lambda: stream.run(self._offsets(), self._handle, self._between, self.keeper.queue.lacks),
                    stop=self.stop,
                    waiting=self._waiting,
                    retryable=(KafkaError,),
                )

    def _offsets(self) -> dict[str, int]:
        """Where the stream starts; TopicLost if a topic no longer holds it."""
        self.keeper.rewind()  # what waited for a manager is read again
        offsets = self._read_to()
        consumer.require(self.project.config.kafka.client(), offsets)
        return offsets

    def _handle(self, ends: Mapping[str, int]) -> bool:
        before, offsets = self.keeper.updates_handled, self._read_to()
        cut = self.keeper.maintain_to(ends)
        if cut:
            self.status.write(self.keeper)
        messages = sum(offset - offsets[topic] for topic, offset in self._read_to().items())
        self.catching_up.batch(messages, self.keeper.updates_handled - before)
        self._stop_if_idle()
        return cut

    def _read_to(self) -> dict[str, int]:
        """Per topic the offset of the next message to be read."""
        return {inlet.topic: inlet.offset for inlet in self.keeper.queue.inlets.values()}

    def _stop_if_idle(self) -> None:
        if self._idle():
            self.stop.set()

    @cached_property
    def catching_up(self) -> CatchingUp:
        return CatchingUp(self._unread)

    def _unread(self) -> int:
        """Messages that the topics hold and no batch has read."""
        inlets = self.keeper.queue.inlets
        ends = consumer.bounds(self.project.config.kafka.client(), list(inlets))
        return sum(max(0, high - inlets[topic].offset) for topic, (_, high) in ends.items())

    def _idle(self) -> bool:
        """Whether all is reached that is to be; False while a batch is being handled: nobody can tell then."""
        if self.targets is None or not self.keeper.busy.acquire(blocking=False):
            return False
        try:
            return not self.keeper.behind(self.targets)
        finally:
            self.keeper.busy.release()

    def _between(self) -> None:
        """Called every moment by the waiting main thread, batch or no batch."""
        self._complain_if_nothing_arrives()
        if self.keeper.release():
            self.status.write(self.keeper)
        self._stop_if_idle()
        if self.keeper.busy.acquire(blocking=False):
            try:
                if self.keeper.fold_if_due():
                    self.status.write(self.keeper)
                self._prune()
                self._look_at_sources()
                self._vacuum()
            finally:
                self.keeper.busy.release()
        self.status.beat(self.keeper)
        self.account.now_and_then()

    def _complain_if_nothing_arrives(self) -> None:
        """With ``until_idle``: raises when a source's changes have not come for a while and its topic is read up."""
        if self.targets is None:
            return
        now, offsets = time.monotonic(), self._read_to()
        since, last = self._progress
        if offsets != last or self.keeper.busy.locked() or self.keeper.trouble is not None:
            self._progress = (now, offsets)
        elif now - since > FIRST_START:
            behind = self.keeper.undelivered(self.targets)
            topics = {self.project.config.sources[name].topic: name for name in behind}
            unread = consumer.read(self.project.config.kafka.client(), {t: offsets[t] for t in topics}, seconds=1.0)
            if len(unread):  # they are there: it is only us who are slow
                self._progress = (now, offsets)
            elif behind:
                raise no_capture(self.project, behind[0])

    def _prune(self) -> None:
        """The sources' logs need not remember what a cut holds, nor what is none of ours."""
        if time.monotonic() - self._pruned < PRUNE_EVERY:
            return
        self._pruned, config = time.monotonic(), self.project.config
        for name, capture in self.project.captures.items():
            try:
                capture.prune(oldest_position(config.warehouse, name, disk(config.durability)))
            except (SourceUnreachable, WarehouseError) as error:
                log.info("%s: its change log is pruned later", error)

    def _look_at_sources(self) -> None:
        """Raises SourceError if a source is not what it was: one that went back in time may never send an update."""
        if time.monotonic() - self._looked < LOOK_EVERY:
            return
        self._looked = time.monotonic()
        identities = SourceIdentities.of(self.project.config.warehouse, self.project.group)
        try:
            if self._noted == self.keeper.cut.cut:
                identities.require(self.keeper.sources)
            else:
                identities.note(self.keeper.sources)
                self._noted = self.keeper.cut.cut
            self.keeper.require_named()
            for name, source in self.keeper.sources.items():
                source.require(self.keeper.cut.positions[name])
        except SourceUnreachable as error:
            log.info("%s: looked at later", error)

    def _vacuum(self) -> None:
        if time.monotonic() - self._vacuumed >= VACUUM_EVERY:
            self._vacuumed = time.monotonic()
            try:
                self.keeper.warehouse.vacuum()
            except WarehouseUnreachable as error:
                log.info("%s: old files are deleted later", error)

    def _waiting(self, error: Any) -> None:
        self.keeper.error = None if error is None else str(error)
        self.status.write(self.keeper)
