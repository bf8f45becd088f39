"""How two bags of rows differ."""

from __future__ import annotations

from collections import Counter

from viewkeeper.local.demo.world import Bag


def difference(one: Bag, other: Bag) -> Bag:
    """What has to be added to ``other`` to get ``one``: rows with signed counts, no zeros."""
    counts = {row: one[row] - other[row] for row in one.keys() | other.keys()}
    return Counter({row: count for row, count in counts.items() if count})
