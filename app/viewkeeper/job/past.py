"""The sources' past: every source state since an update, found again from what is stored.

The relations are read as of the newest cut, as for a load, and rolled back update by update with the messages that the
warehouse's ``updates`` name. All of it is kept in memory, a copy of a relation for each update that changes it: this
is for small data and tests.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from viewkeeper.algebra.bag import COUNT, UPDATE
from viewkeeper.algebra.tiny import Bag, Name, Row, add, plain, plus
from viewkeeper.algebra.types import Catalog, Column, Relation
from viewkeeper.algebra.view import Output, in_full
from viewkeeper.algorithms.sweep import Queue
from viewkeeper.errors import KafkaError, SourceError, UsageError
from viewkeeper.job.assembly import Project
from viewkeeper.job.inlets import inlet
from viewkeeper.job.loading import whole
from viewkeeper.job.patience import FIRST_START
from viewkeeper.managers.sources import Source
from viewkeeper.messages import ORDINAL, Received
from viewkeeper.queue import consumer
from viewkeeper.queue.update_queue import Inlet, UpdateQueue
from viewkeeper.warehouse.cuts import Cut
from viewkeeper.warehouse.reader import WarehouseReader


def rows_of(table: pa.Table, columns: Sequence[Column | Output]) -> Iterator[tuple[Row, int]]:
    """The rows of a signed bag as plain values, with their counts."""
    counts = table[COUNT].to_pylist()
    values = [table[column.name].to_pylist() for column in columns]
    # A view may count the rows of a relation without using any of its columns.
    return zip(map(plain, zip(*values, strict=True)) if values else [()] * len(counts), counts, strict=True)


@dataclass(frozen=True)
class Numbered:
    """One numbered update: where it came from, what it did to the relations that matter, and as a part of what."""

    number: int
    source: str
    txn: str
    changes: Mapping[Name, Bag]
    part_of: str | None = None  # the global transaction


class Past:
    """The states that relations went through from update ``first`` to the newest cut's last."""

    def __init__(self, first: int, updates: Sequence[Numbered], now: Mapping[Name, Bag]):
        self.first = first
        self.updates = updates
        self.sources = tuple(sorted({update.source for update in updates} | {source for source, _ in now}))
        self._states: dict[Name, list[Bag]] = {}
        self._version: dict[Name, list[int]] = {}
        start = {name: dict(bag) for name, bag in now.items()}
        for update in reversed(updates):
            _roll_back(start, update)
        for name, bag in start.items():
            self._go_forward(name, bag)

    def _go_forward(self, name: Name, bag: Bag) -> None:
        """Keeps the relation's states, and which of them holds after 0, 1, … updates of its source."""
        states, version = self._states.setdefault(name, [bag]), self._version.setdefault(name, [0])
        for update in self.updates:
            if update.source == name[0]:
                if change := update.changes.get(name):
                    states.append(plus(states[-1], change))
                version.append(len(states) - 1)

    def counts(self, number: int) -> tuple[int, ...]:
        """Per source how many of its updates are numbered up to ``number``."""
        numbered = [u.source for u in self.updates if u.number <= number]
        return tuple(numbered.count(source) for source in self.sources)

    def versions(self, names: Iterable[Name], counts: Sequence[int]) -> tuple[int, ...]:
        """Which state each relation is in after so many updates of each source."""
        by_source = dict(zip(self.sources, counts, strict=True))
        return tuple(self._version[name][by_source[name[0]]] for name in names)

    def relations(self, names: Iterable[Name], versions: Iterable[int]) -> dict[Name, Bag]:
        """The relations in these states."""
        return {name: self._states[name][version] for name, version in zip(names, versions, strict=True)}


def _roll_back(relations: dict[Name, Bag], update: Numbered) -> None:
    for name, change in update.changes.items():
        add(relations[name], change, -1)
        if any(relations[name].get(row, 0) < 0 for row in change):
            raise SourceError.at(
                f"source {name[0]}",
                f"{name[1]} does not hold what update {update.number} left in it: a later change is in no message",
                "load the views again with 'viewkeeper init --reload'",
            )


def past(
    project: Project, warehouse: WarehouseReader, cut: Cut, since: Mapping[str, int], catalog: Catalog,
    sources: Mapping[str, Source], snapshots: Mapping[str, Any], queue: Queue,
) -> Past:  # fmt: skip
    """The past of the relations of ``catalog``, and of just its columns, up to a cut where the snapshots stand.

    ``queue`` is what compensates their answers to it.

    ``since`` says per source from which update on its states are wanted.
    """
    first = min(since.values())
    rows = warehouse.updates(first + 1, cut.last_update).to_pylist()
    wanted = [row for row in rows if row[UPDATE] > since.get(row["source"], cut.last_update)]
    did = _Messages(project, warehouse, cut, since).read(wanted, catalog)
    now = {name: _now(relation, sources, snapshots, cut, queue) for name, relation in catalog.items()}
    nothing = _Did({}, None)
    found = [(row, did.get((row["topic"], row["offset"]), nothing)) for row in rows]
    return Past(first, [Numbered(r[UPDATE], r["source"], r["txn"], d.changes, d.part_of) for r, d in found], now)


def _now(
    relation: Relation, sources: Mapping[str, Source], snapshots: Mapping[str, Any], cut: Cut, queue: Queue
) -> Bag:
    """A relation as of the cut: a view that shows nothing else, in full."""
    view = in_full(relation.source, relation.name, relation.columns)
    bag: Bag = {}
    for piece in whole(view, sources, snapshots, cut.last_update, {}, queue):
        for row, count in rows_of(piece, relation.columns):
            add(bag, {row: count})
    return bag


_Place = tuple[str, int]
"""(topic, offset) of the message that completed an update."""


class _Did(NamedTuple):
    """What an update did to the relations that matter, and the global transaction that it is a part of."""

    changes: dict[Name, Bag]
    part_of: str | None


@dataclass(frozen=True)
class _Messages:
    """Finds the messages of numbered updates in the topics again."""

    project: Project
    warehouse: WarehouseReader
    cut: Cut
    since: Mapping[str, int]

    def read(self, wanted: Sequence[dict[str, Any]], catalog: Catalog) -> dict[_Place, _Did]:
        """By topic and offset what each wanted update did; updates that touch none of the relations are left out."""
        by_place = {(row["topic"], row["offset"]): row for row in wanted}
        inlets = [self._inlet(source) for source in sorted({row["source"] for row in wanted})]
        ends = {inlet.topic: self._end(inlet, wanted) for inlet in inlets}
        did: dict[_Place, _Did] = {}
        for received in self._received(UpdateQueue(inlets, quarantine=True), ends):
            for rejected in received.rejected:
                if row := by_place.get((rejected.topic, rejected.offset)):
                    what = f"offset {rejected.offset} cannot be read any more ({rejected.reason})"
                    raise _gone(rejected.topic, what, row[UPDATE])
            for truncation in received.truncated:
                update = received.updates[truncation.ordinal]
                if row := by_place.get((update.topic, update.offset)):
                    what = f"update {row[UPDATE]} emptied {truncation.relation}, and nothing says of what"
                    raise _gone(update.topic, what, row[UPDATE])
            for update, changes in zip(received.updates, _changes(received, catalog), strict=True):
                if row := by_place.get((update.topic, update.offset)):
                    if row["txn"] != update.txn:
                        raise _made_anew(update.topic, self.cut.last_update)
                    part_of = None if update.part_of is None else update.part_of.id
                    did[update.topic, update.offset] = _Did(changes, part_of)
        return did

    def _inlet(self, source: str) -> Inlet:
        """The source's topic from where the last cut before the wanted updates stands."""
        cuts = (c for c in self.warehouse.cuts(0, self.cut.cut) if c.last_update <= self.since[source])
        start = max(cuts, key=lambda c: c.cut)
        return inlet(self.project, start, source)

    def _end(self, inlet: Inlet, wanted: Sequence[dict[str, Any]]) -> int:
        """The offset after the source's last wanted update; UsageError if the topic lost one."""
        mine = [row for row in wanted if row["source"] == inlet.source]
        low, high = consumer.bounds(self.project.config.kafka.client(), [inlet.topic])[inlet.topic]
        lost = [row[UPDATE] for row in mine if row["offset"] < low]
        if lost:
            what = f"no longer holds updates that came after {self.since[inlet.source]}: retention removed them"
            raise _gone(inlet.topic, what, max(lost))
        if mine[-1]["offset"] >= high or any(row["topic"] != inlet.topic for row in mine):
            raise _made_anew(inlet.topic, self.cut.last_update)
        inlet.offset = max(inlet.offset, low)
        return int(mine[-1]["offset"]) + 1

    def _received(self, queue: UpdateQueue, ends: Mapping[str, int]) -> Iterator[Received]:
        """What the topics hold from the inlets' offsets to the ends."""
        client = self.project.config.kafka.client()
        deadline = time.monotonic() + FIRST_START
        while behind := {i.topic: i.offset for i in queue.inlets.values() if i.offset < ends[i.topic]}:
            messages = consumer.read(client, behind, seconds=0.5)
            if len(messages):
                deadline = time.monotonic() + FIRST_START
                yield queue.receive(messages)
            elif time.monotonic() > deadline:
                place = f"kafka {self.project.config.kafka.bootstrap}"
                raise KafkaError.at(place, f"sends nothing of topic {next(iter(behind))}", "is the broker up?")


def _changes(received: Received, catalog: Catalog) -> list[dict[Name, Bag]]:
    """What each update did to the relations of the catalogue."""
    did: list[dict[Name, Bag]] = [{} for _ in received.updates]
    for name, table in received.changes.items():
        if name in catalog:
            rows = rows_of(table, catalog[name].columns)
            for (row, count), ordinal in zip(rows, table[ORDINAL].to_pylist(), strict=True):
                add(did[ordinal].setdefault(name, {}), {row: count})
    return did


def _gone(topic: str, what: str, since: int) -> UsageError:
    return UsageError.at(f"topic {topic}", what, f"judge a shorter past with --since {since}")


def _made_anew(topic: str, last: int) -> UsageError:
    return _gone(topic, "is not the one that the updates came from: it was made anew", last)
