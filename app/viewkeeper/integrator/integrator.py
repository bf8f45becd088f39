"""The integrator (multiple-view-consistency-1997, section 3): one numbering, and REL_i for every update.

An update is relevant to a view if, after the view's selections and restricted to the columns it uses, any row of any
occurrence changes. The rows found on the way are ΔR_i, where the sweeps start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.bag import UPDATE
from viewkeeper.algebra.timeline import POSITION
from viewkeeper.algebra.view import View
from viewkeeper.algorithms.sweep import Queue, Sweep
from viewkeeper.messages import ORDINAL, Received, Truncation, Update


@dataclass(frozen=True)
class Batch:
    """Numbered updates: their changes as a queue, where each view's sweeps start, and the rows of ``updates``.

    ``emptied`` are views over a relation that an update emptied without telling its rows, each with the occurrence
    that was emptied last. What such a view was before that update can no longer be asked for; what it is after it can.
    """

    numbers: range
    queue: Queue
    starts: Mapping[str, Mapping[int, pa.Table]]  # view → occurrence → ΔR_i
    updates: pa.Table  # _update, source, txn, topic, offset, views
    received: Sequence[Update] = ()
    emptied: Mapping[str, int] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The number of the last update; if there is none, of the one before the batch."""
        return self.numbers.stop - 1


def number(received: Received, last_update: int, views: Sequence[View]) -> Batch:
    """Gives the received updates the numbers after ``last_update``, in delivery order."""
    numbers = range(last_update + 1, last_update + 1 + len(received.updates))
    positions = np.fromiter((update.known_by for update in received.updates), np.int64, len(numbers))
    queue = Queue(
        {relation: _numbered(changes, numbers.start, positions) for relation, changes in received.changes.items()}
    )
    starts = {view.name: _starts(view, queue) for view in views}
    emptied = {view.name: occurrences for view in views if (occurrences := _emptied(view, received.truncated))}
    updates = pa.table(
        {
            UPDATE: pa.array(np.arange(numbers.start, numbers.stop)),
            "source": pa.array([u.source for u in received.updates], pa.string()),
            "txn": pa.array([u.txn for u in received.updates], pa.string()),
            "topic": pa.array([u.topic for u in received.updates], pa.string()),
            "offset": pa.array([u.offset for u in received.updates], pa.int64()),
            "views": _relevant(starts, emptied, numbers),
        }
    )
    latest = {view: max(occurrences)[1] for view, occurrences in emptied.items()}
    swept = {view: tables for view, tables in starts.items() if view not in latest}
    return Batch(numbers, queue, swept, updates, received.updates, latest)


def _numbered(changes: pa.Table, first: int, positions: np.ndarray) -> pa.Table:
    ordinal = changes[ORDINAL].to_numpy()
    table = changes.drop_columns([ORDINAL])
    table = table.append_column(UPDATE, pa.array(ordinal + first))
    return table.append_column(POSITION, pa.array(positions[ordinal]))


def _starts(view: View, queue: Queue) -> dict[int, pa.Table]:
    sweep = Sweep(view, queue)
    starts = {occurrence.index: sweep.starts(occurrence.index) for occurrence in view.occurrences}
    return {index: table for index, table in starts.items() if len(table)}


def _emptied(view: View, truncated: Sequence[Truncation]) -> list[tuple[int, int]]:
    """(ordinal of the update, occurrence) for each occurrence whose relation was emptied."""
    return [
        (t.ordinal, o.index)
        for t in truncated
        for o in view.occurrences
        if (o.source, o.relation) == (t.source, t.relation)
    ]


def _relevant(
    starts: Mapping[str, Mapping[int, pa.Table]], emptied: Mapping[str, Sequence[tuple[int, int]]], numbers: range
) -> pa.Array:
    """Per update the list of views it concerns."""
    names = list(starts)
    concerned = np.zeros((len(numbers), len(names)), bool)
    for column, (name, occurrences) in enumerate(starts.items()):
        for table in occurrences.values():
            concerned[table[UPDATE].to_numpy() - numbers.start, column] = True
        concerned[[ordinal for ordinal, _ in emptied.get(name, ())], column] = True
    _, which = np.nonzero(concerned)
    ends = np.concatenate([[0], np.cumsum(concerned.sum(axis=1))]).astype(np.int32)
    values = pa.array(names, pa.string()).take(pa.array(which))
    return pa.ListArray.from_arrays(pa.array(ends), values)
