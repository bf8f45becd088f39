"""From action lists to signed rows of ``changes/<view>``.

Some actions speak of what the view holds (a key's rows, a row unless it is there). They are worked out against the view
as of the last cut, brought forward by this batch's own action lists; ``protocol.apply`` says what each one means. Only
rows that some action can touch are kept in memory, but finding them reads the whole stored view once a batch: that is
the price of these algorithms, and ``sweep`` does not pay it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.bag import COUNT, UPDATE
from viewkeeper.algebra.hashing import row_hashes
from viewkeeper.algebra.tiny import Bag, Row, add, plain
from viewkeeper.algebra.view import View
from viewkeeper.algorithms.protocol import Action, Change, Insert, Install, KeyDelete, Replace

Stored = Callable[[], Iterable[pa.RecordBatch]]
"""The view as of the last cut: its columns and ``_count``."""

Columns = tuple[int, ...]


@dataclass(frozen=True)
class Labelled:
    """An action list, and the update number that its change is stored under."""

    label: int
    install: Install


def signed_rows(view: View, installs: Sequence[Labelled], stored: Stored) -> pa.Table:
    """The change of each action list: the view's columns, ``_count`` and ``_update``."""
    contents = Contents(view)
    contents.read(installs, stored)
    changes = [(labelled.label, contents.apply(labelled.install.actions)) for labelled in installs]
    rows = [(row, count, label) for label, change in changes for row, count in change.items()]
    arrays = {f.name: pa.array([row[i] for row, _, _ in rows], f.type) for i, f in enumerate(view.schema)}
    arrays[COUNT] = pa.array([count for _, count, _ in rows], pa.int64())
    arrays[UPDATE] = pa.array([label for _, _, label in rows], pa.int64())
    return pa.table(arrays)


@dataclass
class Contents:
    """The part of a view that a batch's actions can touch; ``by_key`` finds its rows by columns they are deleted by."""

    view: View
    rows: Bag = field(default_factory=dict)
    by_key: dict[Columns, dict[Row, set[Row]]] = field(default_factory=dict)

    def read(self, installs: Iterable[Labelled], stored: Stored) -> None:
        """Takes from the stored view what these action lists can touch; reads nothing if they touch nothing."""
        needs = _Needs.of(self.view, (action for each in installs for action in each.install.actions))
        self.by_key = {columns: {} for columns in needs.keys}
        if needs.something:
            for batch in stored():
                self._add(needs.found(batch))

    def apply(self, actions: Sequence[Action]) -> Bag:
        """Applies an action list; gives what it changed."""
        delta: Bag = {}
        for action in actions:
            effect = self._effect(action)
            self._add(effect)
            add(delta, effect)
        return delta

    def _effect(self, action: Action) -> Bag:
        match action:
            case Change(bag, clamped):
                return self._clamped(bag) if clamped else bag
            case Insert(rows):
                return {row: 1 for row in rows if row not in self.rows}
            case KeyDelete(columns, key):
                return {row: -self.rows[row] for row in self.by_key[columns].get(key, ())}
            case Replace(bag):
                effect = dict(bag)
                add(effect, self.rows, -1)
                return effect

    def _clamped(self, change: Bag) -> Bag:
        effect = {row: max(count, -self.rows.get(row, 0)) for row, count in change.items()}
        return {row: count for row, count in effect.items() if count}

    def _add(self, change: Bag) -> None:
        add(self.rows, change)
        for columns, index in self.by_key.items():
            for row in change:
                rows = index.setdefault(tuple(row[c] for c in columns), set())
                rows.add(row) if row in self.rows else rows.discard(row)


@dataclass(frozen=True)
class _Needs:
    """Which rows of the stored view some actions can touch."""

    view: View
    rows: set[Row]
    keys: dict[Columns, set[Row]]
    everything: bool

    @classmethod
    def of(cls, view: View, actions: Iterable[Action]) -> _Needs:
        rows: set[Row] = set()
        keys: dict[Columns, set[Row]] = {}
        everything = False
        for action in actions:
            match action:
                case Change(bag, clamped=True):
                    rows.update(bag)
                case Insert(inserted):
                    rows.update(inserted)
                case KeyDelete(columns, key):
                    keys.setdefault(columns, set()).add(key)
                case Replace():
                    everything = True
        return cls(view, rows, keys, everything)

    @property
    def something(self) -> bool:
        return bool(self.everything or self.rows or self.keys)

    def found(self, batch: pa.RecordBatch) -> Bag:
        """The rows of a piece of the stored view that are needed, with their counts."""
        table = pa.Table.from_batches([batch])
        if not self.everything:
            table = table.filter(pa.array(self._may_match(table)))
        columns = [table[name].to_pylist() for name in self.view.schema.names]
        rows = map(plain, zip(*columns, strict=True))
        return {row: n for row, n in zip(rows, table[COUNT].to_pylist(), strict=True) if self._needs(row)}

    def _needs(self, row: Row) -> bool:
        deleted = (tuple(row[c] for c in columns) in keys for columns, keys in self.keys.items())
        return self.everything or row in self.rows or any(deleted)

    def _may_match(self, table: pa.Table) -> np.ndarray:
        """Per row whether it can be needed, by hash: looking at each row of a large view in Python takes too long."""
        found = np.zeros(len(table), bool)
        for names, hashes in self._hashes:
            found |= np.isin(row_hashes(table, names), hashes)
        return found

    @cached_property
    def _hashes(self) -> list[tuple[list[str], np.ndarray]]:
        """Per set of columns that rows are looked for by, the hashes of what is looked for."""
        fields = list(self.view.schema)
        wanted = [(tuple(range(len(fields))), self.rows), *self.keys.items()]
        return [
            ([fields[c].name for c in columns], row_hashes(*_table([fields[c] for c in columns], rows)))
            for columns, rows in wanted
            if rows
        ]


def _table(fields: Sequence[pa.Field], rows: Iterable[Row]) -> tuple[pa.Table, list[str]]:
    columns = zip(*rows, strict=True)
    table = pa.table({f.name: pa.array(values, f.type) for f, values in zip(fields, columns, strict=True)})
    return table, table.column_names
