"""Action lists (multiple-view-consistency-1997, section 3.3): what a view manager sends to the merge process."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.bag import UPDATE
from viewkeeper.algebra.sizes import rows_at
from viewkeeper.consistency.levels import Level
from viewkeeper.warehouse.spill import Consolidator


@dataclass(frozen=True)
class ActionList:
    """A view's change for the updates after ``after``, up to ``until``.

    ``tables`` have the view's columns, ``_count`` and ``_update``. A list of them is in the order of updates and may be
    read again; anything else is lazy and must be used whole. With ``ends``, the view is consistent only after these of
    the updates, as a strongly consistent manager leaves it; without, after each of them. ``level`` says how good the
    states in between are.
    """

    view: str
    after: int
    until: int
    tables: Iterable[pa.Table]
    ends: Sequence[int] | None = None
    level: Level = Level.COMPLETE

    def last_end(self, number: int) -> int:
        """The last update, up to this one, after which the view is consistent."""
        if not isinstance(self.tables, list):
            return self.after
        if self.ends is None:
            return number
        place = bisect_right(self.ends, number)
        return self.ends[place - 1] if place else self.after

    def split(self, number: int) -> tuple[ActionList, ActionList]:
        """The same as two lists, the first up to ``number``; no update past its last end there concerns the view."""
        ends = self.ends or ()
        first, second = self._tables(number)
        return (
            replace(
                self, until=number, tables=first, ends=None if self.ends is None else [e for e in ends if e <= number]
            ),
            replace(
                self, after=number, tables=second, ends=None if self.ends is None else [e for e in ends if e > number]
            ),
        )

    def _tables(self, number: int) -> tuple[Iterable[pa.Table], Iterable[pa.Table]]:
        if not isinstance(self.tables, list):
            return [], self.tables
        places = [int(np.searchsorted(table[UPDATE].to_numpy(), number, side="right")) for table in self.tables]
        pairs = list(zip(self.tables, places, strict=True))
        return [table.slice(0, place) for table, place in pairs], [table.slice(place) for table, place in pairs]


def consolidated(tables: Iterable[pa.Table]) -> Iterable[pa.Table]:
    """A change with each (update, row) once.

    One that fits into memory is a list of tables in the order of updates, which may be read again; a larger one comes
    lazily, once, in no order.
    """
    pieces = iter(tables)
    first = next(pieces, None)
    if first is None:
        return []
    whole = Consolidator(first.schema)
    for piece in chain([first], pieces):
        whole.add(piece)
    return _closing(whole) if whole.spilled else [_in_order(table) for table in whole.results()]


def joined(lists: Sequence[ActionList]) -> Iterable[pa.Table]:
    """The tables of several action lists; they may be read again if each of them may."""
    if all(isinstance(actions.tables, list) for actions in lists):
        return [table for actions in lists for table in actions.tables]
    return chain.from_iterable(actions.tables for actions in lists)


def _in_order(table: pa.Table) -> pa.Table:
    numbers = table[UPDATE].to_numpy()
    if bool(np.all(numbers[1:] >= numbers[:-1])):
        return table
    return rows_at(table, np.argsort(numbers, kind="stable"))


def _closing(whole: Consolidator) -> Iterator[pa.Table]:
    with whole:
        yield from whole.results()
