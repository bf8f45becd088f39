"""The UpdateMessageQueue: whole updates in delivery order, each once, from the topics of all sources."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.types import Relation
from viewkeeper.messages import Received, Rejected, Update
from viewkeeper.queue.images import Images
from viewkeeper.queue.native import Piece, Unreadable, claimed_position, read_message


@dataclass
class Inlet:
    """What is known of one source's topic: where it has been read to, and what is still incomplete."""

    source: str
    topic: str
    relations: Mapping[str, Relation]  # every relation of the source; changes of others are refused
    used: Mapping[str, Sequence[str]]  # captured relations and the columns that views use of them
    position: int  # order position of the source's last update
    offset: int  # the next message to be read
    pieces: list[Piece] = field(default_factory=list)
    first_piece: int = 0
    stopped: bool = False  # a message was refused and the job must stop at it
    set_aside: int = -1  # the furthest position of a message that was quarantined

    @property
    def restart_offset(self) -> int:
        """Where a restart must read from: nothing before it is still needed."""
        return self.first_piece if self.pieces else self.offset


class UpdateQueue:
    """Turns messages into whole updates: pieces put together, repetitions dropped, bad messages set aside."""

    def __init__(self, inlets: Sequence[Inlet], quarantine: bool = False):
        self.inlets = {inlet.topic: inlet for inlet in inlets}
        self.quarantine = quarantine
        self._wrong: dict[tuple[str, int], str] = {}  # messages that hold a value of the wrong type: the reason

    def offsets(self) -> dict[str, int]:
        return {inlet.source: inlet.restart_offset for inlet in self.inlets.values()}

    def positions(self) -> dict[str, str]:
        return {inlet.source: str(inlet.position) for inlet in self.inlets.values()}

    def passed(self) -> dict[str, str]:
        """How far each source has been read, messages that were set aside included."""
        return {inlet.source: str(max(inlet.position, inlet.set_aside)) for inlet in self.inlets.values()}

    def rewind(self, positions: Mapping[str, str], offsets: Mapping[str, int]) -> None:
        """Goes back to where a cut stands: what came after it was not handled."""
        for inlet in self.inlets.values():
            inlet.position, inlet.offset = int(positions[inlet.source]), offsets[inlet.source]
            inlet.pieces, inlet.stopped = [], False

    def receive(self, messages: pa.Table) -> Received:
        """Takes messages (topic, offset, value, timestamp), each topic's in offset order.

        Afterwards every inlet stands behind the last message that was used. At a message that cannot be used a
        topic is read no further, unless it is quarantined.
        """
        with _collector_at_rest():
            return self._receive(messages)

    def _receive(self, messages: pa.Table) -> Received:
        rejected: list[Rejected] = []
        updates: list[Update] = []
        images = _BatchImages(self.inlets)
        before = {topic: (i.position, i.offset, i.pieces, i.first_piece) for topic, i in self.inlets.items()}
        for row in _rows(messages):
            inlet = self.inlets.get(row.topic)
            if inlet is None or inlet.stopped or row.offset < inlet.offset:
                continue
            try:
                whole = self._take(inlet, row)
            except Unreadable as reason:
                rejected.append(self._reject(inlet, row, str(reason)))
                continue
            if whole is not None:
                images.add(inlet.source, whole.changes, len(updates))
                updates.append(whole.update)
        wrong = images.wrong()
        if not wrong:
            order = _delivery_order(updates)
            return Received([updates[i] for i in order], images.tables(order), rejected)

        # Values of the wrong type are found only now, column by column. Take the batch again without them.
        for topic, (position, offset, pieces, first) in before.items():
            inlet = self.inlets[topic]
            inlet.position, inlet.offset, inlet.pieces, inlet.first_piece = position, offset, pieces, first
            inlet.stopped = False
        self._wrong |= {(updates[i].topic, updates[i].offset): reason for i, reason in wrong.items()}
        return self._receive(messages)

    def skip_to(self, ends: Mapping[str, int]) -> None:
        """Passes over offsets, up to ``ends``, that hold no message: the control records of Kafka's transactions.

        Otherwise a restart would miss the last of them once retention has emptied the topic.
        """
        for topic, end in ends.items():
            inlet = self.inlets.get(topic)
            if inlet is not None and not inlet.stopped:
                inlet.offset = max(inlet.offset, end)

    def _take(self, inlet: Inlet, row: _Row) -> _Taken | None:
        """One message: the update it completes, or None (a piece, a repetition, a barrier)."""
        reason = self._wrong.get((row.topic, row.offset))
        if reason is not None:
            raise Unreadable(reason)
        piece = read_message(row.value, inlet.source, inlet.relations)
        if piece.txn is None or piece.position <= inlet.position:
            inlet.offset = row.offset + 1
            return None
        if piece.parts > 1 or inlet.pieces:
            return self._assemble(inlet, row, piece)
        inlet.offset = row.offset + 1
        return _update(inlet, row, piece, piece.changes)

    def _assemble(self, inlet: Inlet, row: _Row, piece: Piece) -> _Taken | None:
        if piece.part == 1:
            inlet.pieces, inlet.first_piece = [], row.offset
        elif len(inlet.pieces) != piece.part - 1 or inlet.pieces[0].txn != piece.txn:
            raise Unreadable(f"part {piece.part} of transaction {piece.txn} does not follow part {piece.part - 1}")
        inlet.pieces = [*inlet.pieces, piece]
        inlet.offset = row.offset + 1
        if piece.part < piece.parts:
            return None
        changes = [change for each in inlet.pieces for change in each.changes]
        inlet.pieces = []
        return _update(inlet, row, piece, changes)

    def _reject(self, inlet: Inlet, row: _Row, reason: str) -> Rejected:
        if self.quarantine:
            inlet.offset = row.offset + 1
            inlet.set_aside = max(inlet.set_aside, claimed_position(row.value))
            inlet.pieces = []
        else:
            inlet.stopped = True
        return Rejected(inlet.source, row.topic, row.offset, row.value, reason)


class _Row(NamedTuple):
    topic: str
    offset: int
    value: bytes | None
    timestamp: int


def _rows(messages: pa.Table) -> Iterator[_Row]:
    order = messages.sort_by([("topic", "ascending"), ("offset", "ascending")]).combine_chunks()
    topics = order["topic"].combine_chunks().dictionary_encode()
    names = topics.dictionary.to_pylist()
    stamps = order["timestamp"].cast(pa.int64()).to_numpy().tolist()
    return map(
        _Row._make,
        zip(
            [names[i] for i in topics.indices.to_numpy().tolist()],
            order["offset"].to_numpy().tolist(),
            order["value"].to_pylist(),
            stamps,
            strict=True,
        ),
    )


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """A batch is half a million small objects, none of them in a cycle: looking through them is a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Taken(NamedTuple):
    """An update, and everything it did."""

    update: Update
    changes: list[dict[str, Any]]


def _update(inlet: Inlet, row: _Row, piece: Piece, changes: list[dict[str, Any]]) -> _Taken | None:
    """The update, unless it touches no captured relation: such a transaction gets no number."""
    inlet.position = piece.position
    used = [change for change in changes if change["relation"] in inlet.used]
    if not used:
        return None
    assert piece.txn is not None
    update = Update(
        inlet.source, piece.txn, piece.position, row.topic, row.offset, row.timestamp, piece.part_of
    )  # fmt: skip
    return _Taken(update, used)


def _delivery_order(updates: Sequence[Update]) -> list[int]:
    """Indices of the updates, all topics merged by the time their messages were written, each topic's order kept."""
    latest: dict[str, int] = {}
    keyed = []
    for i, update in enumerate(updates):
        stamp = latest[update.topic] = max(latest.get(update.topic, 0), update.timestamp)
        keyed.append((stamp, i))
    return [i for _, i in sorted(keyed)]


class _BatchImages:
    """The row images of a batch, by source and relation."""

    def __init__(self, inlets: Mapping[str, Inlet]):
        self._inlets = {inlet.source: inlet for inlet in inlets.values()}
        self._images: dict[tuple[str, str], Images] = {}

    def add(self, source: str, changes: Sequence[dict[str, Any]], update: int) -> None:
        for change in changes:
            key = (source, change["relation"])
            images = self._images.get(key)
            if images is None:
                images = self._images[key] = self._of(*key)
            images.add(change, update)

    def _of(self, source: str, relation: str) -> Images:
        inlet = self._inlets[source]
        return Images(relation, [c for c in inlet.relations[relation].columns if c.name in inlet.used[relation]])

    def wrong(self) -> dict[int, str]:
        """By index of the update: what is wrong with a value it holds. Called once, when all were added."""
        for images in self._images.values():
            images.finish()
        return {update: reason for images in self._images.values() for update, reason in images.wrong.items()}

    def tables(self, order: Sequence[int]) -> dict[tuple[str, str], pa.Table]:
        ordinals = np.empty(len(order), np.int64)
        ordinals[order] = np.arange(len(order))
        return {key: images.table(ordinals) for key, images in self._images.items()}
