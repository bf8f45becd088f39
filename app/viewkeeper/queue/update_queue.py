"""The UpdateMessageQueue: whole updates in delivery order, each once, from the topics of all sources."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.bag import COUNT
from viewkeeper.algebra.types import Column, Relation
from viewkeeper.messages import ORDINAL, Received, Rejected, Update
from viewkeeper.queue.native import Piece, Unreadable, claimed_position, read_message
from viewkeeper.queue.values import WrongType, json_column


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
        taken: list[_Taken] = []
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
                taken.append(whole)
        taken = _delivery_order(taken)
        updates = [update for update, _ in taken]
        changes, wrong = _columns(taken, self.inlets)
        if not wrong:
            return Received(updates, changes, rejected)

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
    return _Taken(Update(inlet.source, piece.txn, piece.position, row.topic, row.offset, row.timestamp), used)


def _delivery_order(taken: list[_Taken]) -> list[_Taken]:
    """All topics merged by the time their messages were written, each topic's own order kept."""
    latest: dict[str, int] = {}
    keyed = []
    for i, (update, _) in enumerate(taken):
        stamp = latest[update.topic] = max(latest.get(update.topic, 0), update.timestamp)
        keyed.append((stamp, i))
    return [taken[i] for _, i in sorted(keyed)]


def _columns(
    taken: Sequence[_Taken], inlets: Mapping[str, Inlet]
) -> tuple[dict[tuple[str, str], pa.Table], dict[int, str]]:
    """Per relation its changes as columns; and by ordinal the updates that hold a value of the wrong type."""
    images: defaultdict[tuple[str, str], _Images] = defaultdict(_Images)
    for ordinal, (update, changes) in enumerate(taken):
        for change in changes:
            side = images[update.source, change["relation"]]
            if (before := change.get("before")) is not None:
                side.add(before, -1, ordinal)
            if (after := change.get("after")) is not None:
                side.add(after, 1, ordinal)
    by_source = {inlet.source: inlet for inlet in inlets.values()}
    tables: dict[tuple[str, str], pa.Table] = {}
    wrong: dict[int, str] = {}
    for (source, name), rows in images.items():
        inlet = by_source[source]
        used = [c for c in inlet.relations[name].columns if c.name in inlet.used[name]]
        tables[(source, name)] = rows.table(name, used, wrong)
    return tables, wrong


class _Images:
    """Row images of one relation, gathered before they become columns."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.counts: list[int] = []
        self.ordinals: list[int] = []

    def add(self, row: dict[str, Any], count: int, ordinal: int) -> None:
        self.rows.append(row)
        self.counts.append(count)
        self.ordinals.append(ordinal)

    def table(self, relation: str, used: Sequence[Column], wrong: dict[int, str]) -> pa.Table:
        """The images as columns; what does not fit is noted in ``wrong`` by its update's ordinal."""
        columns: dict[str, pa.Array] = {}
        for column in used:
            try:
                columns[column.name] = json_column([row[column.name] for row in self.rows], column.type)
            except KeyError:
                for ordinal, row in zip(self.ordinals, self.rows, strict=True):
                    if column.name not in row:
                        wrong.setdefault(ordinal, f"{relation}: column {column.name!r} is missing")
            except WrongType as error:
                for index, reason in error.reasons.items():
                    wrong.setdefault(self.ordinals[index], f"{relation}.{column.name}: {reason}")
        if wrong:
            return pa.table({})
        columns[COUNT] = pa.array(np.array(self.counts, np.int64))
        columns[ORDINAL] = pa.array(np.array(self.ordinals, np.int64))
        return pa.table(columns)
