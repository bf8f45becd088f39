"""The UpdateMessageQueue: whole updates in delivery order, each once, from the topics of all sources."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper.messages import Reached, Received, Rejected, Truncation, Update
from viewkeeper.queue.debezium import DebeziumReader
from viewkeeper.queue.images import Images
from viewkeeper.queue.inlet import Inlet, Message, Reader, Unreadable, Whole
from viewkeeper.queue.native import NativeReader

__all__ = ["Inlet", "UpdateQueue"]

_FORMATS: dict[str, Callable[[Inlet], Reader]] = {"native": NativeReader, "debezium": DebeziumReader}

_ROWS = 10_000
"""So many messages are objects at the same time."""

_Place = tuple[str, int]
"""A message's topic and offset."""


class UpdateQueue:
    """Turns messages into whole updates: put together, repetitions known as such, bad ones set aside."""

    def __init__(self, inlets: Sequence[Inlet], quarantine: bool = False):
        self.inlets = {inlet.topic: inlet for inlet in inlets}
        self.quarantine = quarantine
        self._readers = {inlet.topic: _FORMATS[inlet.format](inlet) for inlet in inlets}

    def offsets(self) -> dict[str, int]:
        return {inlet.source: inlet.restart_offset for inlet in self.inlets.values()}

    def positions(self) -> dict[str, str]:
        return {inlet.source: str(inlet.position) for inlet in self.inlets.values()}

    def passed(self) -> dict[str, str]:
        """How far each source has been read, what was set aside or got no number included."""
        return {inlet.source: str(inlet.passed) for inlet in self.inlets.values()}

    def passed_barrier(self, source: str, token: str) -> bool:
        """Whether the barrier with this token has come out of the source's topic, not too long ago."""
        return self.before_barrier(source, token) is not None

    def before_barrier(self, source: str, token: str) -> int | None:
        """The furthest position of the source that came before this token's own transaction, or was loaded.

        None if the token has not come out.
        """
        topics = [inlet.topic for inlet in self.inlets.values() if inlet.source == source]
        return self._readers[topics[0]].before_barrier(token) if topics else None

    def unfinished(self) -> dict[str, str]:
        """Per source what came last, in words, of an update that has not come to its end."""
        told = {inlet.source: self._readers[topic].unfinished() for topic, inlet in self.inlets.items()}
        return {source: words for source, words in told.items() if words is not None}

    def rewind(self, positions: Mapping[str, str], offsets: Mapping[str, int]) -> None:
        """Goes back to where a cut stands: what came after it was not handled."""
        for topic, inlet in self.inlets.items():
            inlet.move_to(Reached.parse(positions[inlet.source]), offsets[inlet.source])
            self._readers[topic].forget()

    def skip_to(self, ends: Mapping[str, int]) -> None:
        """Passes over offsets, up to ``ends``, that hold no message: the control records of Kafka's transactions.

        Otherwise a restart would miss the last of them once retention has emptied the topic.
        """
        for topic, end in ends.items():
            inlet = self.inlets.get(topic)
            if inlet is not None and not inlet.stopped:
                inlet.offset = max(inlet.offset, end)

    def lacks(self, ends: Mapping[str, int]) -> bool:
        """Whether a message before these offsets was not received yet."""
        return any(inlet.offset < ends.get(topic, 0) for topic, inlet in self.inlets.items())

    def receive(self, messages: pa.Table) -> Received:
        """Takes messages (topic, offset, value, timestamp), each topic's in offset order.

        Afterwards every inlet stands behind the last message that was used. At a message that cannot be used a
        topic is read no further, unless it is quarantined.
        """
        with _collector_at_rest():
            marks = {topic: (inlet.mark(), self._readers[topic].mark()) for topic, inlet in self.inlets.items()}
            wrong: dict[_Place, str] = {}
            while True:
                taken = self._taken(messages, wrong)
                found = taken.wrong()
                if not found:
                    return taken.received()
                # Values of the wrong type are found only now, column by column. Take the batch again without them.
                wrong |= found
                taken.close()
                for topic, (of_inlet, of_reader) in marks.items():
                    self.inlets[topic].go_back(of_inlet)
                    self._readers[topic].go_back(of_reader)

    def _taken(self, messages: pa.Table, wrong: Mapping[_Place, str]) -> _Taken:
        taken = _Taken(self.inlets, self._readers)
        for topic, rows in _by_topic(messages):
            inlet = self.inlets.get(topic)
            if inlet is not None and not inlet.stopped:
                mine = {offset: reason for (of, offset), reason in wrong.items() if of == topic}
                self._read(inlet, rows, mine, taken)
        return taken

    def _read(self, inlet: Inlet, messages: Iterator[Message], wrong: Mapping[int, str], taken: _Taken) -> None:
        """Takes the messages that were not taken yet, up to one at which the job must stop."""
        take = self._readers[inlet.topic].take
        for message in messages:
            while inlet.offset <= message.offset:
                try:
                    whole = take(message, wrong.get(message.offset) if wrong else None)
                except Unreadable as refused:
                    self._refuse(inlet, message, refused, taken)
                    if inlet.stopped:
                        return
                    continue
                if whole is not None:
                    taken.add(whole)

    def _refuse(self, inlet: Inlet, message: Message, refused: Unreadable, taken: _Taken) -> None:
        about = refused.about or message
        taken.rejected.append(Rejected(inlet.source, inlet.topic, about.offset, about.value, str(refused)))
        if self.quarantine:
            self._readers[inlet.topic].pass_over(message, refused)
        else:
            inlet.stopped = True


class _Taken:
    """What came of a batch's messages."""

    def __init__(self, inlets: Mapping[str, Inlet], readers: Mapping[str, Reader]):
        self.rejected: list[Rejected] = []
        self._new = _Gathered(inlets, readers)
        self._again = _Gathered(inlets, readers)

    def add(self, whole: Whole) -> None:
        (self._again if whole.again else self._new).add(whole)

    def wrong(self) -> dict[_Place, str]:
        """What is wrong with values, by the last message of their update. Called once, when all were added."""
        return self._new.wrong() | self._again.wrong()

    def close(self) -> None:
        """Nobody wants it."""
        self._new.close()
        self._again.close()

    def received(self) -> Received:
        again = self._again.received() if self._again.updates else None
        return self._new.received(self.rejected, again)


class _Gathered:
    """Updates, and the row images of what they did by source and relation."""

    def __init__(self, inlets: Mapping[str, Inlet], readers: Mapping[str, Reader]):
        self.updates: list[Update] = []
        self._truncated: list[Truncation] = []
        self._inlets = {inlet.source: inlet for inlet in inlets.values()}
        self._readers = readers
        self._images: dict[tuple[str, str], Images] = {}

    def add(self, whole: Whole) -> None:
        source, index = whole.update.source, len(self.updates)
        self.updates.append(whole.update)
        for relation, before, after in whole.changes:
            images = self._images.get((source, relation)) or self._of(source, relation)
            images.add(before, after, index)
        for relation in whole.truncated:
            self._truncated.append(Truncation(index, source, relation))

    def wrong(self) -> dict[_Place, str]:
        for images in self._images.values():
            images.finish()
        by_update = {update: reason for images in self._images.values() for update, reason in images.wrong.items()}
        return {(self.updates[i].topic, self.updates[i].offset): reason for i, reason in by_update.items()}

    def received(self, rejected: Sequence[Rejected] = (), again: Received | None = None) -> Received:
        """The updates in delivery order."""
        order = _delivery_order(self.updates)
        ordinals = np.empty(len(order), np.int64)
        ordinals[order] = np.arange(len(order))
        return Received(
            [self.updates[i] for i in order],
            {key: images.table(ordinals) for key, images in self._images.items()},
            rejected,
            sorted(each._replace(ordinal=int(ordinals[each.ordinal])) for each in self._truncated),
            again,
        )

    def close(self) -> None:
        for images in self._images.values():
            images.close()

    def _of(self, source: str, relation: str) -> Images:
        inlet = self._inlets[source]
        images = Images(relation, inlet.columns(relation), self._readers[inlet.topic].column)
        self._images[source, relation] = images
        return images


def _delivery_order(updates: Sequence[Update]) -> list[int]:
    """Indices of the updates, all topics merged by the time their messages were written, each topic's order kept."""
    if not updates or updates[0].topic == updates[-1].topic:  # they come topic by topic
        return list(range(len(updates)))
    latest: dict[str, int] = {}
    keyed = []
    for i, update in enumerate(updates):
        stamp = latest[update.topic] = max(latest.get(update.topic, 0), update.timestamp)
        keyed.append((stamp, i))
    return [i for _, i in sorted(keyed)]


def _by_topic(messages: pa.Table) -> Iterator[tuple[str, Iterator[Message]]]:
    """Each topic with its messages in offset order."""
    topics = messages["topic"].combine_chunks().dictionary_encode()
    codes, offsets = topics.indices.to_numpy(), messages["offset"].to_numpy()
    later = (codes[1:] > codes[:-1]) | ((codes[1:] == codes[:-1]) & (offsets[1:] >= offsets[:-1]))
    if not bool(later.all()):
        order = np.lexsort((offsets, codes))
        messages, codes = messages.take(pa.array(order)), codes[order]
    names = topics.dictionary.to_pylist()
    for code in sorted(range(len(names)), key=names.__getitem__):
        first, end = np.searchsorted(codes, [code, code + 1]).tolist()
        yield names[code], _messages(messages.slice(first, end - first))


_message: Callable[[tuple[Any, ...]], Message] = partial(tuple.__new__, Message)
"""Message._make without its checks: it is called for every message of a backlog."""


def _messages(table: pa.Table) -> Iterator[Message]:
    for first in range(0, len(table), _ROWS):
        some = table.slice(first, _ROWS)
        columns = (
            some["offset"].to_numpy().tolist(),
            some["value"].to_pylist(),
            some["timestamp"].cast(pa.int64()).to_numpy().tolist(),
        )
        yield from map(_message, zip(*columns, strict=True))


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
