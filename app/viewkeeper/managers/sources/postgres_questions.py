"""Questions as SQL. Keys are written into them as array constants: no driver binds arrays and answers in Arrow.

By one column with a btree, the keys are an array that the planner does not look into: judging tens of thousands of
values would take it longer than looking them up. All else is EXISTS over the keys, which a row passes once however
many keys it equals (in PostgreSQL's eyes: 'a' and 'a ' are one ``char(2)``, 'a' and 'A' one ``citext``). Except that
PostgreSQL lets it pass twice where a collation takes two keys for equal; so there EXISTS compares by COLLATE "C".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.algebra.types import Column, Kind
from viewkeeper.managers.sources.postgres_catalog import PgTable, quoted
from viewkeeper.managers.sources.postgres_encodings import UTF8, holdable, is_sure
from viewkeeper.managers.sources.postgres_pushdown import Pushdown
from viewkeeper.managers.sources.postgres_values import TYPES, is_key
from viewkeeper.messages import Ask

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_KEY_BYTES = 32_000_000  # in one statement, which the server reads in one piece
_UNQUOTED = {Kind.INTEGER, Kind.FLOAT, Kind.DECIMAL, Kind.BOOLEAN}


@dataclass(frozen=True)
class Question:
    """An ``Ask`` of one table, as SQL; ``encoding`` is how the database keeps text."""

    ask: Ask
    table: PgTable
    schema: str
    encoding: str = UTF8

    @property
    def columns(self) -> list[Column]:
        return [self.table.column(name) for name in self.ask.columns]

    @cached_property
    def keyed(self) -> bool:
        """May PostgreSQL compare the keys? If not, all rows are read, and the asker chooses."""
        keys = self.ask.keys
        return keys is not None and all(self._is_key(keys[name], self.table.column(name)) for name in self.ask.key)

    def _is_key(self, keys: pa.ChunkedArray, column: Column) -> bool:
        known = column.type.kind is not Kind.TEXT or is_sure(self.encoding, keys)
        return known and is_key(keys.type, column)

    @cached_property
    def looked_up(self) -> bool:
        """Whether there is an index that leads to the keys."""
        usable = self.table.lookups.keys() - (frozenset() if self._one_array else self.table.loose)
        return self.keyed and not usable.isdisjoint(self.ask.key)

    @property
    def _one_array(self) -> bool:
        return len(self.ask.key) == 1 and self.table.lookups.get(self.ask.key[0]) == "btree"

    def statements(self, at_once: int) -> Iterator[str]:
        """The SQL that answers it, in one statement or one for every so many keys.

        Without an index the table is read once for all keys together, unless they are very long.
        """
        if not self.keyed:
            yield self._select(None)
            return
        keys = self._keys()
        fit = len(keys) * _KEY_BYTES // max(keys.nbytes, 1)
        step = max(1, min(fit, at_once if self.looked_up else len(keys)))
        for start in range(0, len(keys), step):
            yield self._select(self._matches(keys.slice(start, step)))

    def _select(self, condition: str | None) -> str:
        shown = [f"{TYPES[c.declared].shown.format(_named(c.name))} AS c{i}" for i, c in enumerate(self.columns)]
        certain = Pushdown(self.table.column, "t", self.encoding).certain_sql(self.ask.selection)
        where = " AND ".join(f"({part})" for part in (condition, certain) if part)
        source = f"ONLY {quoted(self.schema, self.table.relation.name)} AS t"
        return f"SELECT {', '.join(shown) or 'true AS c'} FROM {source}{f' WHERE {where}' if where else ''}"

    def _keys(self) -> pa.Table:
        """The keys, sorted, as PostgreSQL can read them; those that equal nothing there are left out."""
        assert self.ask.keys is not None
        keys = self.ask.keys.select(list(self.ask.key)).drop_null()
        for name in self.ask.key:
            possible = _possible(keys[name], self.table.column(name), self.encoding)
            keys = keys if possible is None else keys.filter(possible)
        return keys.sort_by([(name, "ascending") for name in self.ask.key])

    def _matches(self, keys: pa.Table) -> str:
        arrays = [f"{array_constant(keys[n], self.table.column(n))}::{self._equated(n)}[]" for n in self.ask.key]
        if self._one_array:
            name = self.ask.key[0]
            return f"{_named(name)} = ANY((SELECT {arrays[0]})::{self._equated(name)}[])"
        operands = [self._operand(name) for name in self.ask.key]
        names = [f"k{i}" for i in range(len(arrays))]
        listed = f"ROWS FROM ({', '.join(f'pg_catalog.unnest({array})' for array in arrays)})"
        equal = " AND ".join(f"{operand} = k.{name}" for operand, name in zip(operands, names, strict=True))
        return f"EXISTS (SELECT FROM {listed} AS k({', '.join(names)}) WHERE {equal})"

    def _equated(self, name: str) -> str:
        if name in self.table.loose and not self._one_array:
            return "text"
        return self.table.equated.get(name) or str(TYPES[self.table.column(name).declared].equated)

    def _operand(self, name: str) -> str:
        if name in self.table.loose:
            return f'{_named(name)}::text COLLATE "C"'
        return f"{_named(name)}::text" if TYPES[self.table.column(name).declared].by_text else _named(name)


def _named(column: str) -> str:
    return f"t.{quoted(column)}"


def _possible(keys: pa.ChunkedArray, column: Column, encoding: str) -> pa.Array | None:
    """Which keys the column could hold at all; None for all of them."""
    if column.declared == "uuid":
        return pa.array([_UUID.fullmatch(key) is not None for key in keys.to_pylist()], pa.bool_())
    if column.type.kind is Kind.TEXT:
        return holdable(encoding, keys)
    return None


def array_constant(keys: pa.ChunkedArray, column: Column) -> str:
    """The keys as a constant that PostgreSQL reads as an array."""
    kind = column.type.kind
    if kind is Kind.BINARY:
        items = [f'"\\\\x{key.hex()}"' for key in keys.to_pylist()]
        return f"'{{{','.join(items)}}}'"
    if column.declared == "float4":
        keys = pc.cast(keys, pa.float32(), safe=False)
    if column.declared == "timestamp":
        keys = keys.cast(pa.timestamp("us"))
    texts = keys.cast(pa.string())
    if kind in _UNQUOTED:
        return f"'{{{','.join(texts.to_pylist())}}}'"
    for special, escaped in (("\\", "\\\\"), ('"', '\\"'), ("'", "''")):
        texts = pc.replace_substring(texts, special, escaped)
    inside = '","'.join(texts.to_pylist())
    return f"'{{\"{inside}\"}}'"
