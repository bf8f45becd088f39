"""Updates that are in cuts although a snapshot may not include them yet.

A source that logs a commit before it shows it can deliver an update and still leave it out of a later snapshot. Until
some snapshot includes it (then all later ones do), every answer must be compensated for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.algebra.bag import UPDATE
from viewkeeper.algebra.timeline import POSITION
from viewkeeper.messages import ORDINAL, Received, SnapshotPosition, Tables, Update, stacked


@dataclass(frozen=True)
class Unsettled:
    """Such updates, and their changes (used columns, ``_count``, ``_update``, ``_position``) by relation."""

    updates: Sequence[Update] = ()
    changes: Tables = field(default_factory=dict)

    def and_again(self, again: Received | None, number: int) -> Unsettled:
        """With updates that came again, all of them numbered up to ``number``; the queue tells each just once."""
        if again is None:
            return self
        tags = np.fromiter((u.known_by for u in again.updates), np.int64, len(again.updates))
        return self.plus(again.updates, {name: _numbered(table, tags, number) for name, table in again.changes.items()})

    def plus(self, updates: Sequence[Update], changes: Tables) -> Unsettled:
        """With these updates, whose changes are numbered."""
        return Unsettled([*self.updates, *updates], stacked(self.changes, changes))

    def settled(self, contains: Mapping[str, SnapshotPosition], late: Collection[str]) -> Unsettled:
        """Without what these snapshots include; of sources that are never ``late`` to show, nothing is kept."""
        kept: list[Update] = []
        for source in late:
            mine = [u for u in self.updates if u.source == source]
            if (position := contains.get(source)) is None:
                kept += mine
                continue
            included = position.includes(np.fromiter((u.known_by for u in mine), np.int64, len(mine)))
            kept += [u for u, is_in in zip(mine, included.tolist(), strict=True) if not is_in]
        if not kept:
            return Unsettled()
        tags = {source: pa.array([u.known_by for u in kept if u.source == source], pa.int64()) for source in late}
        changes = {
            name: table.filter(pc.is_in(table[POSITION], value_set=tags[name[0]]))
            for name, table in self.changes.items()
            if name[0] in tags
        }
        return Unsettled(kept, {name: table for name, table in changes.items() if len(table)})

    def offsets(self, otherwise: Mapping[str, int]) -> dict[str, int]:
        """Per source the offset of the first message that is still needed."""
        first = dict(otherwise)
        for update in self.updates:
            first[update.source] = min(first[update.source], update.first_offset)
        return first


def _numbered(changes: pa.Table, tags: np.ndarray, number: int) -> pa.Table:
    table = changes.drop_columns([ORDINAL])
    table = table.append_column(UPDATE, pa.array(np.full(len(table), number, np.int64)))
    return table.append_column(POSITION, pa.array(tags[changes[ORDINAL].to_numpy()]))
