"""Numbered updates that are in no cut yet: what managers still have to answer for, or the merge process holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.bag import UPDATE
from viewkeeper.algorithms.sweep import Queue
from viewkeeper.integrator.integrator import Batch, Emptied
from viewkeeper.messages import Tables, Update

K = TypeVar("K")


class Taken(NamedTuple):
    """Updates that a cut is to hold: their rows of ``updates``, and what they changed."""

    table: pa.Table
    received: Sequence[Update]
    changes: Tables


@dataclass
class Pending:
    """Batches in the order of their numbers, each after the one before."""

    batches: list[Batch] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(len(batch.numbers) for batch in self.batches)

    @property
    def nbytes(self) -> int:
        """What the updates changed, in bytes."""
        return sum(table.nbytes for batch in self.batches for table in batch.queue.changes.values())

    def and_then(self, batch: Batch) -> Pending:
        """With one more batch, which may be empty."""
        return Pending([*self.batches, batch] if len(batch.numbers) else list(self.batches))

    @property
    def received(self) -> Iterator[Update]:
        return (update for batch in self.batches for update in batch.received)

    @property
    def changes(self) -> Tables:
        """What the updates changed, by relation."""
        found: dict[tuple[str, str], list[pa.Table]] = {}
        for batch in self.batches:
            for name, table in batch.queue.changes.items():
                found.setdefault(name, []).append(table)
        return {
            name: pa.concat_tables([table.select(tables[0].column_names) for table in tables])
            for name, tables in found.items()
        }

    def starts(self, view: str, after: int, until: int) -> dict[int, pa.Table]:
        """Where the view's sweeps start: by occurrence, ΔR of the updates after one number, up to another."""
        found: dict[int, list[pa.Table]] = {}
        for batch in self._past(after):
            for occurrence, table in batch.starts.get(view, {}).items():
                found.setdefault(occurrence, []).append(table)
        return _between({o: pa.concat_tables(pieces) for o, pieces in found.items()}, range(after + 1, until + 1))

    def emptied(self, view: str, after: int) -> Emptied | None:
        """The last time that a relation of the view was emptied, if one was by an update after a number."""
        found = [batch.emptied[view] for batch in self._past(after) if view in batch.emptied]
        return found[-1] if found and found[-1].number > after else None

    def updates(self, after: int) -> tuple[list[Update], np.ndarray]:
        """The updates after a number, and the number of each."""
        batches = [_rest(batch, after) for batch in self._past(after)]
        numbers = [batch.number_of for batch in batches]
        received = [update for batch in batches for update in batch.received]
        return received, np.concatenate(numbers) if numbers else np.empty(0, np.int64)

    def split(self, number: int) -> tuple[Taken, Pending]:
        """The updates up to a number, for a cut, and the rest."""
        first = [_until(batch, number) for batch in self.batches if batch.numbers.start <= number]
        rest = Pending([_rest(batch, number) for batch in self._past(number)])
        taken = Pending(first)
        tables = [batch.updates for batch in first]
        return Taken(pa.concat_tables(tables) if tables else pa.table({}), list(taken.received), taken.changes), rest

    def _past(self, number: int) -> list[Batch]:
        return [batch for batch in self.batches if batch.last > number]


def _rest(batch: Batch, number: int) -> Batch:
    """The batch without the updates up to a number."""
    if number < batch.numbers.start:
        return batch
    return _part(batch, range(number + 1, batch.numbers.stop))


def _until(batch: Batch, number: int) -> Batch:
    """The batch without the updates past a number."""
    return batch if number >= batch.last else _part(batch, range(batch.numbers.start, number + 1))


def _part(batch: Batch, numbers: range) -> Batch:
    inside = (batch.number_of >= numbers.start) & (batch.number_of < numbers.stop)
    return replace(
        batch,
        numbers=numbers,
        queue=Queue(_between(batch.queue.changes, numbers)),
        starts={view: _between(tables, numbers) for view, tables in batch.starts.items()},
        updates=batch.updates.filter(pa.array(inside)),
        emptied={view: each for view, each in batch.emptied.items() if each.number in numbers},
        received=[update for update, keep in zip(batch.received, inside.tolist(), strict=True) if keep],
        concerned=batch.concerned[numbers.start - batch.numbers.start : numbers.stop - batch.numbers.start],
    )


def _between(tables: Mapping[K, pa.Table], numbers: range) -> dict[K, pa.Table]:
    """The changes of these numbers, where there are any; all of a table are the table itself, however large."""
    kept = {name: _rows_between(table, numbers) for name, table in tables.items()}
    return {name: table for name, table in kept.items() if len(table)}


def _rows_between(table: pa.Table, numbers: range) -> pa.Table:
    of = table[UPDATE].to_numpy()
    inside = (of >= numbers.start) & (of < numbers.stop)
    return table if inside.all() else table.filter(pa.array(inside))
