"""Puts the action lists of a batch together into one warehouse transaction.

Every view manager of the group has answered for every update of the batch, whatever its level, so the whole batch may
be applied at once: no action list waits for another, and all views agree at the cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.bag import UPDATE
from viewkeeper.messages import ActionList
from viewkeeper.warehouse.cuts import WarehouseTransaction
from viewkeeper.warehouse.spill import Consolidator


def merge(
    updates: pa.Table,
    actions: Iterable[ActionList],
    last_update: int,
    positions: Mapping[str, str],
    offsets: Mapping[str, int],
    views: Collection[str],
    level: str,
) -> WarehouseTransaction:
    """The transaction that brings every view to ``last_update``; each (update, row) of a view appears once in it.

    ``level`` is what the views promise of the states in between.
    A change that fits into memory is a list of tables in the order of updates, which may be read again; a larger
    one comes lazily, once, in no order.
    """
    return WarehouseTransaction(
        updates=updates,
        changes={action.view: _consolidated(action.tables) for action in actions},
        last_update=last_update,
        positions=dict(positions),
        offsets=dict(offsets),
        level=level,
        views=views,
    )


def _consolidated(tables: Iterable[pa.Table]) -> Iterable[pa.Table]:
    pieces = iter(tables)
    first = next(pieces, None)
    if first is None:
        return []
    whole = Consolidator(first.schema)
    for piece in chain([first], pieces):
        whole.add(piece)
    return _closing(whole) if whole.spilled else [_in_order(table) for table in whole.results()]


def _in_order(table: pa.Table) -> pa.Table:
    return table.take(pa.array(np.argsort(table[UPDATE].to_numpy(), kind="stable")))


def _closing(whole: Consolidator) -> Iterator[pa.Table]:
    with whole:
        yield from whole.results()
