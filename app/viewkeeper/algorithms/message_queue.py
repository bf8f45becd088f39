"""The UpdateMessageQueue (sweep-1997, Figure 4): updates that were received and that the view does not reflect yet.

What it is asked is which of their changes meet partial rows, so it keeps the changes by the keys that hops look up:
an answer's compensation costs what it finds, not what waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from viewkeeper.algebra.tiny import Bag, Part, Row, TinyView, add
from viewkeeper.algebra.view import Hop
from viewkeeper.algorithms.protocol import Update

Unwanted = Callable[[int], bool]
"""Whether an update (by number), though received, is not wanted in a state."""

_Index = dict[Row, dict[int, Bag]]
"""Key → update → the rows with that key which it changed."""


@dataclass
class MessageQueue:
    """Updates by number, oldest first."""

    tiny: TinyView
    _updates: dict[int, Update] = field(default_factory=dict)
    _indexes: dict[tuple[int, tuple[str, ...]], tuple[Hop, _Index]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._updates)

    def __iter__(self) -> Iterator[Update]:
        return iter(self._updates.values())

    def __getitem__(self, number: int) -> Update:
        return self._updates[number]

    @property
    def first(self) -> Update:
        """The oldest one."""
        return next(iter(self._updates.values()))

    def append(self, update: Update) -> None:
        self._updates[update.number] = update
        for hop, index in self._indexes.values():
            self._enter(index, hop, update)

    def remove(self, number: int) -> None:
        update = self._updates.pop(number)
        for hop, index in self._indexes.values():
            for key in {hop_key for hop_key, _, _ in self._changes(hop, update)}:
                changed = index[key]
                del changed[number]
                if not changed:
                    del index[key]

    def error(self, part: Part, hop: Hop, unwanted: Unwanted) -> tuple[Part, tuple[int, ...]]:
        """ΔR_j ⋈ TempView: what unwanted updates changed in the answer to a hop, and which updates those are."""
        because: set[int] = set()
        index = self._index(hop)

        def matching(key: Row) -> Iterator[tuple[Row, int]]:
            for number, rows in index.get(key, {}).items():
                if unwanted(number):
                    because.add(number)
                    yield from rows.items()

        error = self.tiny.join_by(part, hop, matching)
        return error, tuple(sorted(because))

    def _index(self, hop: Hop) -> _Index:
        name = (hop.occurrence.index, hop.key)
        if name not in self._indexes:
            self._indexes[name] = (hop, {})
            for update in self:
                self._enter(self._indexes[name][1], hop, update)
        return self._indexes[name][1]

    def _enter(self, index: _Index, hop: Hop, update: Update) -> None:
        for key, row, count in self._changes(hop, update):
            add(index.setdefault(key, {}).setdefault(update.number, {}), {row: count})

    def _changes(self, hop: Hop, update: Update) -> Iterator[tuple[Row, Row, int]]:
        """What an update changes in a hop's occurrence: key, row, count."""
        key = self.tiny.key_of(hop)
        for row, count in update.change(self.tiny, hop.occurrence).items():
            yield key(row), row, count
