"""The integrator (multiple-view-consistency-1997, section 3): one numbering, and REL_i for every update.

An update is relevant to a view if, after the view's selections and restricted to the columns it uses, any row of any
occurrence changes. The rows found on the way are ΔR_i, where the sweeps start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.bag import UPDATE
from viewkeeper.algebra.timeline import POSITION
from viewkeeper.algebra.view import View
from viewkeeper.algorithms.sweep import Queue, Sweep
from viewkeeper.messages import ORDINAL, Received, Update


@dataclass(frozen=True)
class Batch:
    """Numbered updates: their changes as a queue, where each view's sweeps start, and the rows of ``updates``."""

    numbers: range
    queue: Queue
    starts: Mapping[str, Mapping[int, pa.Table]]  # view → occurrence → ΔR_i
    updates: pa.Table  # _update, source, txn, topic, offset, views
    received: Sequence[Update] = ()


def number(received: Received, last_update: int, views: Sequence[View]) -> Batch:
    """Gives the received updates the numbers after ``last_update``, in delivery order."""
    numbers = range(last_update + 1, last_update + 1 + len(received.updates))
    positions = np.fromiter((update.known_by for update in received.updates), np.int64, len(numbers))
    queue = Queue(
        {relation: _numbered(changes, numbers.start, positions) for relation, changes in received.changes.items()}
    )
    starts = {view.name: _starts(view, queue) for view in views}
    updates = pa.table(
        {
            UPDATE: pa.array(np.arange(numbers.start, numbers.stop)),
            "source": pa.array([u.source for u in received.updates], pa.string()),
            "txn": pa.array([u.txn for u in received.updates], pa.string()),
            "topic": pa.array([u.topic for u in received.updates], pa.string()),
            "offset": pa.array([u.offset for u in received.updates], pa.int64()),
            "views": _relevant(starts, numbers),
        }
    )
    return Batch(numbers, queue, starts, updates, received.updates)


def _numbered(changes: pa.Table, first: int, positions: np.ndarray) -> pa.Table:
    ordinal = changes[ORDINAL].to_numpy()
    table = changes.drop_columns([ORDINAL])
    table = table.append_column(UPDATE, pa.array(ordinal + first))
    return table.append_column(POSITION, pa.array(positions[ordinal]))


def _starts(view: View, queue: Queue) -> dict[int, pa.Table]:
    sweep = Sweep(view, queue)
    starts = {occurrence.index: sweep.starts(occurrence.index) for occurrence in view.occurrences}
    return {index: table for index, table in starts.items() if len(table)}


def _relevant(starts: Mapping[str, Mapping[int, pa.Table]], numbers: range) -> pa.Array:
    """Per update the list of views it concerns."""
    names = list(starts)
    concerned = np.zeros((len(numbers), len(names)), bool)
    for column, occurrences in enumerate(starts.values()):
        for table in occurrences.values():
            concerned[table[UPDATE].to_numpy() - numbers.start, column] = True
    _, which = np.nonzero(concerned)
    ends = np.concatenate([[0], np.cumsum(concerned.sum(axis=1))]).astype(np.int32)
    values = pa.array(names, pa.string()).take(pa.array(which))
    return pa.ListArray.from_arrays(pa.array(ends), values)
