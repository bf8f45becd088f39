"""Sources taken as they are now: where a load of everything begins, and what it is made from."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from viewkeeper.errors import SourceError, SourceUnreachable, TopicLost
from viewkeeper.job.assembly import Project
from viewkeeper.job.freezing import Frozen, frozen
from viewkeeper.job.partial_loads import LoadPoint, whole_transactions
from viewkeeper.job.source_identity import SourceIdentities
from viewkeeper.job.topic_identity import TopicIdentities
from viewkeeper.messages import Reached
from viewkeeper.queue import consumer
from viewkeeper.warehouse.cuts import Cut


class Start(NamedTuple):
    """Sources frozen for a load, and the point where it stands."""

    at: Frozen
    point: LoadPoint


@dataclass(frozen=True)
class FreshStarts:
    """Starts a group's sources afresh, and remembers which sources and topics its cuts are made from."""

    project: Project

    @property
    def topic_identities(self) -> TopicIdentities:
        config = self.project.config
        return TopicIdentities.of(config.warehouse, config.kafka.client(), self.project.group)

    @property
    def source_identities(self) -> SourceIdentities:
        return SourceIdentities.of(self.project.config.warehouse, self.project.group)

    @contextmanager
    def start(self, names: Collection[str], cut: Cut | None = None) -> Iterator[Start]:
        """Sources frozen as they are now, where no update straddles, and offsets that no later update lies before."""
        config = self.project.config
        sources = {name: self.project.sources[name] for name in names}
        topics = {name: config.sources[name].topic for name in names}
        bounds = consumer.bounds(config.kafka.client(), list(topics.values()))
        shown = {name: self.project.captures[name].pass_topic() for name in names}
        with frozen(sources, None, hold=True) as at:
            offsets = {}
            for name, snapshot in at.snapshots.items():
                low, high = bounds[topics[name]]
                told_all = low == high or shown[name] or sources[name].shows_all(snapshot)
                offsets[name] = high if told_all else self._offset_before(name, low, high, cut)
            # Behind a barrier, no crash of a source takes back what its snapshot shows.
            at.barriers(at.snapshots)
            positions = {name: sources[name].position(snapshot) for name, snapshot in at.snapshots.items()}
            yield Start(at, whole_transactions(self.project, at, positions, offsets, self._held(names, cut)))

    def _held(self, names: Collection[str], cut: Cut | None) -> dict[str, int]:
        """Up to where the cut holds the updates of these sources, as far as they are the ones it was made from."""
        known = {} if cut is None else {name: text for name, text in cut.positions.items() if name in names}
        held = {}
        for name, position in known.items():
            source = self.project.sources[name]
            try:
                self.source_identities.require({name: source})
                source.require(position)
                held[name] = Reached.parse(position).last
            except SourceUnreachable:
                raise
            except SourceError:
                held[name] = -1  # nothing of what it tells now, though others' transactions were whole
        return held

    def _offset_before(self, name: str, low: int, high: int, cut: Cut | None) -> int:
        """From where on to read a topic that has told of updates which its source does not show yet.

        The newest cut knows, if topic and source are the ones that it was made from.
        """
        topic = self.project.config.sources[name].topic
        try:
            self.topic_identities.require([topic])
            self.source_identities.require({name: self.project.sources[name]})
            known = -1 if cut is None else cut.offsets.get(name, -1)
        except (TopicLost, SourceError):
            known = -1
        if low <= known <= high:
            return known
        what = f"a transaction may be in topic {topic} that cannot be seen yet, because an older one runs"
        raise SourceUnreachable.at(f"source {name}", what, "end it, or wait")

    def know(self, names: Collection[str]) -> None:
        """These sources, as they are now, and their topics are the ones that the newest cut was made from."""
        self.topic_identities.remember([self.project.config.sources[name].topic for name in names])
        self.source_identities.remember({name: self.project.sources[name] for name in names})
