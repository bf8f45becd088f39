"""The integrator (multiple-view-consistency-1997, section 3): one numbering, and REL_i for every update.

A number stands for a row of the ViewUpdateTable: an update, or several that must be seen together (``arrange``). It is
relevant to a view if, after the view's selections and restricted to the columns it uses, any row of any occurrence
changes. The rows found on the way are ΔR_i, where the sweeps start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.bag import UPDATE
from viewkeeper.algebra.sizes import pieces
from viewkeeper.algebra.timeline import POSITION, UNNUMBERED
from viewkeeper.algebra.view import Occurrence, View
from viewkeeper.algorithms.sweep import Queue, Sweep
from viewkeeper.integrator.arrange import Arranged
from viewkeeper.messages import ORDINAL, Received, Tables, Truncation, Update
from viewkeeper.warehouse.mapped import SPOOL_BYTES, gather
from viewkeeper.warehouse.spill import Consolidator


class Emptied(NamedTuple):
    """A relation was emptied: by which update, and which occurrence of a view it is."""

    number: int
    occurrence: int


@dataclass(frozen=True)
class Batch:
    """Numbered updates: their changes as a queue, where each view's sweeps start, and the rows of ``updates``.

    Updates of one row share its number, so ``updates`` may name a number several times. ``concerned`` is REL: per
    number, per view in the order of ``views``, whether it concerns the view. ``emptied`` are views over a relation
    that an update emptied without telling its rows, each with the last time that happened. What such a view
    was before that update can no longer be asked for; what it is after it can.
    """

    numbers: range
    queue: Queue
    starts: Mapping[str, Mapping[int, pa.Table]]  # view → occurrence → ΔR_i
    updates: pa.Table  # _update, source, txn, topic, offset, views
    received: Sequence[Update] = ()
    emptied: Mapping[str, Emptied] = field(default_factory=dict)
    views: tuple[str, ...] = ()
    concerned: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), bool))

    @property
    def last(self) -> int:
        """The number of the last row; if there is none, of the one before the batch."""
        return self.numbers.stop - 1

    def transactions(self, first: int, last: int) -> dict[int, list[str]]:
        """Per number the transactions that share it, as ``source.txn``."""
        low, high = np.searchsorted(self.number_of, [first, last + 1]).tolist()
        found: dict[int, list[str]] = {number: [] for number in range(first, last + 1)}
        for number, update in zip(self.number_of[low:high].tolist(), self.received[low:high], strict=True):
            found[number].append(f"{update.source}.{update.txn}")
        return found

    @property
    def number_of(self) -> np.ndarray:
        """The number of each update that was received."""
        return self.updates[UPDATE].to_numpy()


def number(arranged: Arranged, last_update: int, views: Sequence[View]) -> Batch:
    """Gives the rows that are ready the numbers after ``last_update``, in order."""
    ready = arranged.ready
    numbers = range(last_update + 1, last_update + 1 + arranged.row_count)
    number_of = arranged.rows + numbers.start
    queue = Queue(_numbered(ready, number_of))
    starts = {view.name: _starts(view, queue) for view in views}
    emptied = {view.name: rows for view in views if (rows := _emptied(view, ready.truncated, arranged.rows))}
    concerned = _concerned(starts, emptied, numbers)
    updates = pa.table(
        {
            UPDATE: pa.array(number_of, pa.int64()),
            "source": pa.array([u.source for u in ready.updates], pa.string()),
            "txn": pa.array([u.txn for u in ready.updates], pa.string()),
            "topic": pa.array([u.topic for u in ready.updates], pa.string()),
            "offset": pa.array([u.offset for u in ready.updates], pa.int64()),
            "views": _named(concerned[arranged.rows], list(starts)),
        }
    )
    latest = {view: Emptied(max(rows)[0] + numbers.start, max(rows)[1]) for view, rows in emptied.items()}
    swept = {view: tables for view, tables in starts.items() if view not in latest}
    return Batch(numbers, queue, swept, updates, ready.updates, latest, tuple(starts), concerned)


def unnumbered(received: Received) -> Tables:
    """The changes of updates that have no number yet, as a queue holds them: an answer may contain them already."""
    return _numbered(received, np.full(len(received.updates), UNNUMBERED, np.int64))


def _numbered(received: Received, number_of: np.ndarray) -> dict[tuple[str, str], pa.Table]:
    """The changes under the numbers of their updates, with the positions that decide which answers contain them."""
    positions = np.fromiter((update.known_by for update in received.updates), np.int64, len(received.updates))
    tables = {}
    for name, changes in received.changes.items():
        ordinal = changes[ORDINAL].to_numpy()
        table = changes.drop_columns([ORDINAL])
        table = table.append_column(UPDATE, pa.array(number_of[ordinal]))
        tables[name] = table.append_column(POSITION, pa.array(positions[ordinal]))
    return tables


def _starts(view: View, queue: Queue) -> dict[int, pa.Table]:
    sweep = Sweep(view, queue)
    starts = {occurrence.index: _start(sweep, occurrence) for occurrence in view.occurrences}
    return {index: table for index, table in starts.items() if len(table)}


def _start(sweep: Sweep, occurrence: Occurrence) -> pa.Table:
    """ΔR_i; a large one is summed, and kept, on disk."""
    changes = sweep.queue.changes.get((occurrence.source, occurrence.relation))
    if changes is None or changes.nbytes <= SPOOL_BYTES:
        return sweep.starts(occurrence.index)
    schema = sweep.starts_of(occurrence.index, changes.slice(0, 0)).schema
    with Consolidator(schema) as bag:
        for piece in pieces(changes, len(changes)):
            bag.add(sweep.starts_of(occurrence.index, piece))
        return gather((batch for table in bag.results() for batch in table.to_batches()), schema)


def _emptied(view: View, truncated: Sequence[Truncation], rows: np.ndarray) -> list[tuple[int, int]]:
    """(row, occurrence) for each occurrence whose relation was emptied."""
    return [
        (int(rows[t.ordinal]), o.index)
        for t in truncated
        for o in view.occurrences
        if (o.source, o.relation) == (t.source, t.relation)
    ]


def _concerned(
    starts: Mapping[str, Mapping[int, pa.Table]], emptied: Mapping[str, Sequence[tuple[int, int]]], numbers: range
) -> np.ndarray:
    """REL: per number, per view, whether some update of that number concerns the view."""
    concerned = np.zeros((len(numbers), len(starts)), bool)
    for column, (name, occurrences) in enumerate(starts.items()):
        for table in occurrences.values():
            concerned[table[UPDATE].to_numpy() - numbers.start, column] = True
        concerned[[row for row, _ in emptied.get(name, ())], column] = True
    return concerned


def _named(concerned: np.ndarray, names: Sequence[str]) -> pa.Array:
    """Per line the list of the views that are marked in it."""
    _, which = np.nonzero(concerned)
    ends = np.concatenate([[0], np.cumsum(concerned.sum(axis=1))]).astype(np.int32)
    values = pa.array(names, pa.string()).take(pa.array(which))
    return pa.ListArray.from_arrays(pa.array(ends), values)
