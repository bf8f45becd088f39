"""Questions as SQL: which rows of a table SQLite is asked for."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from viewkeeper.algebra.types import Kind, Type
from viewkeeper.errors import SourceError
from viewkeeper.managers.sources.sqlite_pushdown import certain_sql
from viewkeeper.managers.sources.sqlite_schema import Table, quoted
from viewkeeper.managers.sources.sqlite_tail import Chunks, chunks
from viewkeeper.managers.sources.sqlite_values import ONE_FORM
from viewkeeper.messages import Ask

_KEYS_AT_ONCE = 5_000
_VARIABLES = 30_000  # SQLite allows 32,766 in one statement
_COLLATED = (Kind.TEXT, Kind.DATE)

Statement = tuple[str, list[Any]]


@dataclass(frozen=True)
class Question:
    """What is asked, of a table as it is now."""

    ask: Ask
    table: Table
    place: str

    @cached_property
    def types(self) -> dict[str, Type]:
        return self._types(self.ask.columns)

    @cached_property
    def columns(self) -> str:
        return ", ".join(f"_t.{quoted(name)}" for name in self.ask.columns) or "NULL"

    @property
    def of_table(self) -> str:
        return f"FROM {quoted(self.table.name)} AS _t"

    def rows(self, db: sqlite3.Connection) -> Chunks:
        """The rows to answer with."""
        for sql, parameters in self._statements():
            yield from chunks(db.execute(sql, parameters))

    def _statements(self) -> Iterable[Statement]:
        if not self.has_keys:
            kept, parameters = self.selection()
            yield f"SELECT {self.columns} {self.of_table} WHERE {kept}", parameters
            return
        for start in range(0, len(self.keys), self.most_keys):
            yield self.keyed(start, self.most_keys)

    def selection(self, indexed: bool = True) -> Statement:
        """What SQLite may decide of the selection itself; by an index, or not."""
        certain = None
        if self.ask.selection is not None:
            name = "_t.{}" if indexed else "+_t.{}"
            certain = certain_sql(self.ask.selection, lambda column: name.format(quoted(column)))
        return ("1", []) if certain is None else (f"({certain[0]})", list(certain[1]))

    # ---- by keys

    @cached_property
    def has_keys(self) -> bool:
        """May SQLite look the keys up? Where equal values have several stored forms, all rows are read."""
        return self.ask.keys is not None and all(type.kind in ONE_FORM for type in self._types(self.ask.key).values())

    @cached_property
    def keys(self) -> pa.Table:
        """The asked keys, sorted; those with a NULL join nothing and are left out."""
        assert self.ask.keys is not None
        keys = self.ask.keys.select(list(self.ask.key)).drop_null()
        return keys.sort_by([(name, "ascending") for name in self.ask.key])

    @property
    def most_keys(self) -> int:
        """Of one statement."""
        return min(_KEYS_AT_ONCE, _VARIABLES // max(len(self.ask.key), 1))

    def keyed(self, start: int, count: int) -> Statement:
        """Asks for the rows of ``count`` keys from the one at ``start`` on; a row of each is found once."""
        names = [f"k{i}" for i in range(len(self.ask.key))]
        columns = [_bindable(column) for column in self.keys.slice(start, count).columns]
        values = columns[0] if len(columns) == 1 else [value for row in zip(*columns, strict=True) for value in row]
        bound = ", ".join([f"({', '.join('?' * len(names))})"] * len(columns[0]))
        kept, parameters = self.selection()
        # CROSS JOIN keeps the keys outside, so that the table is looked up and not scanned.
        sql = (
            f"WITH _k({', '.join(names)}) AS (VALUES {bound}) SELECT {self.columns} FROM _k CROSS JOIN "
            f"{quoted(self.table.name)} AS _t WHERE {self._equal(names)} AND {kept}"
        )
        return sql, [*values, *parameters]

    def _equal(self, names: Iterable[str]) -> str:
        """By the column's own collation, which its indexes have; then by value, or 'a' and 'A' both find each row."""
        types = self._types(self.ask.key)
        parts = []
        for (column, type), key in zip(types.items(), names, strict=True):
            parts.append(f"_t.{quoted(column)} = _k.{key}")
            if type.kind in _COLLATED:
                parts.append(f"_t.{quoted(column)} = _k.{key} COLLATE BINARY")
        return " AND ".join(parts)

    def _types(self, columns: Iterable[str]) -> dict[str, Type]:
        found = {c.name: c.type for c in self.table.columns}
        for name in columns:
            if name not in found or found[name].kind is Kind.UNKNOWN:
                raise SourceError.at(f"{self.place}: {self.table.name}", f"has no usable column {name}")
        return {name: found[name] for name in columns}


def _bindable(column: pa.ChunkedArray) -> list[Any]:
    """Key values as SQLite stores them."""
    if pa.types.is_date(column.type):
        return [value.isoformat() for value in column.to_pylist()]
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values
