"""Sources frozen for one attempt at a batch, a load or a comparison."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from viewkeeper.errors import SourceUnreachable
from viewkeeper.managers.sources import Source
from viewkeeper.messages import Received, SnapshotPosition
from viewkeeper.queue.update_queue import UpdateQueue


@dataclass(frozen=True)
class Frozen:
    """Sources and a snapshot of each."""

    sources: Mapping[str, Source]
    snapshots: dict[str, Any]

    def and_also(self, other: Frozen) -> Frozen:
        """Both together."""
        return Frozen({**self.sources, **other.sources}, {**self.snapshots, **other.snapshots})

    def barriers(self, names: Collection[str]) -> dict[str, str]:
        """Writes a barrier into each of these sources that needs one; gives the tokens to wait for."""
        written = {name: self.sources[name].barrier(self.snapshots[name]) for name in sorted(names)}
        return {name: token for name, token in written.items() if token is not None}

    def require_unbroken(self, queue: UpdateQueue, tokens: Mapping[str, str]) -> None:
        """Raises SourceError if a topic whose barrier came out lacks what its source has done before."""
        for name, token in tokens.items():
            if (before := queue.before_barrier(name, token)) is not None:
                self.sources[name].require_unbroken(self.snapshots[name], before)

    def contains(self) -> dict[str, SnapshotPosition]:
        """What the snapshots contain, of the sources that do not always show all they have delivered."""
        found = {name: self.sources[name].contains(snapshot) for name, snapshot in self.snapshots.items()}
        return {name: position for name, position in found.items() if position is not None}

    def require_visible(self, received: Received) -> None:
        """Raises SourceUnreachable if a relation was emptied by an update that a snapshot does not include yet."""
        contains = self.contains() if received.truncated else {}
        for truncation in received.truncated:
            tag = received.updates[truncation.ordinal].known_by
            if truncation.source not in contains or not contains[truncation.source].includes(np.array([tag]))[0]:
                what = f"the transaction that emptied {truncation.relation} is not visible yet"
                raise SourceUnreachable.at(f"source {truncation.source}", what)

    def confirm(self) -> None:
        """Raises SourceUnreachable if answers were void; to be called after the last one."""
        for name, snapshot in self.snapshots.items():
            self.sources[name].confirm(snapshot)


class Freezing:
    """Sources that are frozen when they are needed, each at its own moment: answers tell their own positions.

    ``away`` are those that cannot be used in this attempt, and why; the others are not to wait for them.
    """

    def __init__(self, sources: Mapping[str, Source], positions: Callable[[], Mapping[str, str]], hold: bool = False):
        self.at = Frozen(sources, {})
        self.away: dict[str, SourceUnreachable] = {}
        self._positions = positions
        self._hold = hold
        self._barred: set[str] = set()

    def __enter__(self) -> Freezing:
        return self

    def __exit__(self, *_: object) -> None:
        for name, snapshot in self.at.snapshots.items():
            self.at.sources[name].release(snapshot)

    def freeze(self, names: Collection[str]) -> None:
        """Takes a snapshot of each that has none yet."""
        positions = self._positions()
        for name in sorted(set(names) - self.at.snapshots.keys() - self.away.keys()):
            try:
                self.at.snapshots[name] = self.at.sources[name].freeze(positions[name], self._hold)
            except SourceUnreachable as error:
                self.away[name] = error

    def barriers(self, names: Collection[str]) -> dict[str, str]:
        """Writes a barrier into each frozen source that needs one and has none yet; gives the tokens to wait for."""
        tokens: dict[str, str] = {}
        for name in sorted((set(names) & self.at.snapshots.keys()) - self._barred - self.away.keys()):
            self._barred.add(name)
            try:
                tokens |= self.at.barriers([name])
            except SourceUnreachable as error:
                self.away[name] = error
        return tokens

    def confirm(self) -> None:
        """Notes the sources whose answers were void; to be called after the last one."""
        for name, snapshot in self.at.snapshots.items():
            try:
                self.at.sources[name].confirm(snapshot)
            except SourceUnreachable as error:
                self.away[name] = error


@contextmanager
def frozen(
    sources: Mapping[str, Source], positions: Mapping[str, str] | None, hold: bool = False
) -> Iterator[Frozen]:  # fmt: skip
    """The sources frozen until the block ends; without positions, for a fresh start."""
    snapshots: dict[str, Any] = {}
    try:
        for name, source in sources.items():
            snapshots[name] = source.freeze(None if positions is None else positions[name], hold)
        yield Frozen(sources, snapshots)
    finally:
        for name, snapshot in snapshots.items():
            sources[name].release(snapshot)
