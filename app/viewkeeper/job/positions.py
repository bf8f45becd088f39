"""Where sources stand: what a cut says of them, so that a restart misses nothing and repeats nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from viewkeeper.messages import Reached, Update
from viewkeeper.queue.update_queue import UpdateQueue
from viewkeeper.warehouse.cuts import Cut


def positions(
    last: Cut, queue: UpdateQueue, taken: Sequence[Update], waiting: Sequence[Update]
) -> dict[str, str]:  # fmt: skip
    """Where each source stands at the cut that follows ``last`` and holds the updates that are ``taken``.

    Past all that was read of it, unless some of its updates are ``waiting``: then past those that cuts hold.
    """
    reached = {source: Reached.parse(last.positions[source]) for source in {update.source for update in waiting}}
    for update in taken if reached else ():
        if update.source in reached:
            reached[update.source] = replace(reached[update.source], last=update.position)
    return {**queue.positions(), **{source: str(each) for source, each in reached.items()}}


def furthest(positions: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """The positions, and of sources that both name the one that is further; these count by plain numbers."""
    return {**positions, **{name: str(max(int(positions[name]), int(other))) for name, other in others.items()}}
