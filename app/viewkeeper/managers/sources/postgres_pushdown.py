"""Which part of a selection PostgreSQL may decide itself.

Law: the condition given to PostgreSQL is *implied* by the predicate. It may keep rows that the predicate refuses (the
asker applies the predicate again) but never drops one that it accepts. What makes a comparison certain:

- integers, decimals, float8, booleans, dates and timestamps are compared as here: NaN equals NaN and is the greatest,
  −0.0 is 0.0, a timestamp without time zone is one in UTC;
- text is compared by COLLATE "C", which is the order of code points in a UTF-8 database; other databases compare it
  for equality only. Of types that are text here only, it is their text that is compared;
- a value is NULL here exactly where it is NULL there.

A float4 is another double here than there, and arrays are another text: they are never compared by PostgreSQL.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from viewkeeper.algebra.expressions import And, ColumnRef, Compare, Expr, InList, IsNull, Literal, Not, Or, conjuncts
from viewkeeper.algebra.types import Column, Kind
from viewkeeper.managers.sources.postgres_catalog import quoted
from viewkeeper.managers.sources.postgres_encodings import UTF8, can_hold

MOST_LITERALS = 1_000
"""Longer conditions cost more than they save."""

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPPOSITE = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_PLAIN_TEXT = ("text", "varchar")


@dataclass(frozen=True)
class Pushdown:
    """Translates selections on one table; ``encoding`` is how its database keeps text."""

    column: Callable[[str], Column]
    alias: str
    encoding: str = UTF8

    def certain_sql(self, predicate: Expr | None) -> str | None:
        """A condition for PostgreSQL that the predicate implies; None if there is no such part."""
        parts = [part for conjunct in conjuncts(predicate) if (part := self._certain(conjunct))]
        return _joined(" AND ", parts) if parts else None

    def _certain(self, predicate: Expr) -> str | None:
        match predicate:
            case And():
                return self.certain_sql(predicate)
            case Or():
                branches = [self._certain(arg) for arg in predicate.args]
                known = [branch for branch in branches if branch]
                return _joined(" OR ", known) if len(known) == len(branches) else None
            case ColumnRef():
                return self._name(predicate.column)
            case IsNull(ColumnRef(column=name)):
                return f"{self._name(name)} IS NULL"
            case Not():
                return self._negated(predicate.arg)
            case Compare():
                return self._comparison(predicate)
            case InList():
                return self._in_list(predicate)
        return None

    def _negated(self, predicate: Expr) -> str | None:
        match predicate:
            case ColumnRef():
                return f"NOT {self._name(predicate.column)}"
            case IsNull(ColumnRef(column=name)):
                return f"{self._name(name)} IS NOT NULL"
            case Not():
                return self._certain(predicate.arg)
            case Compare(op, left, right) if op in _OPPOSITE:
                return self._comparison(Compare(_OPPOSITE[op], left, right))  # type: ignore[arg-type]
        return None

    def _comparison(self, predicate: Compare) -> str | None:
        op: str = "=" if predicate.op == "IS NOT DISTINCT FROM" else predicate.op
        match predicate.left, predicate.right:
            case ColumnRef() as ref, Literal() as literal:
                return self._compared(ref, op, literal)
            case Literal() as literal, ColumnRef() as ref:
                return self._compared(ref, _MIRRORED.get(op, op), literal)
        return None

    def _compared(self, ref: ColumnRef, op: str, literal: Literal) -> str | None:
        if op not in _OPPOSITE or (ref.type.kind is Kind.TEXT and op not in ("=", "<>") and self.encoding != UTF8):
            return None
        value = self._literal(ref, op, literal.value)
        return None if value is None else f"{self._operand(ref, op)} {op} {value}"

    def _in_list(self, predicate: InList) -> str | None:
        """NULL among the items makes nothing true, so it is left out."""
        ref, items = predicate.value, predicate.items
        if not isinstance(ref, ColumnRef) or len(items) > MOST_LITERALS:
            return None
        if not all(isinstance(item, Literal) for item in items):
            return None
        wanted = [item.value for item in items if isinstance(item, Literal) and item.value is not None]
        found = [self._literal(ref, "=", value) for value in wanted]
        known = [value for value in found if value is not None]
        return f"{self._operand(ref, '=')} IN ({', '.join(known)})" if known and len(known) == len(found) else None

    def _name(self, column: str) -> str:
        return f"{self.alias}.{quoted(column)}"

    def _operand(self, ref: ColumnRef, op: str) -> str:
        name = self._name(ref.column)
        if ref.type.kind is not Kind.TEXT:
            return name
        if self.column(ref.column).declared in _PLAIN_TEXT and op == "=":
            return name  # as the column's own collation has it, so that an index helps: perhaps looser
        return f'{name}::text COLLATE "C"'

    def _literal(self, ref: ColumnRef, op: str, value: Any) -> str | None:
        """What PostgreSQL has to compare the column with; None where that is not certain."""
        declared = self.column(ref.column).declared
        if value is None or declared == "float4" or declared.startswith("_"):
            return None
        if isinstance(value, str) and not can_hold(self.encoding, value):
            return None
        return _LITERALS[ref.type.kind](value, op, declared)


def _joined(word: str, parts: Sequence[str]) -> str:
    return word.join(f"({part})" for part in parts)


def literal_text(text: str) -> str:
    """A text as a constant of SQL, by standard_conforming_strings."""
    return "'" + text.replace("'", "''") + "'"


def _integer(value: Any, op: str, declared: str) -> str | None:
    """The integer that bounds integers as the value does: ``n > 1.5`` is ``n > 1``, ``n < 1.5`` is ``n < 2``."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not math.isfinite(value):
        return None
    whole = math.floor(value) if op in (">", "<=") else math.ceil(value)
    if op in ("=", "<>") and whole != value:
        return None
    return f"'{whole}'::int8" if -(2**63) <= whole < 2**63 else None


def _float(value: Any, op: str, declared: str) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and (abs(value) > 2**1000 or int(float(value)) != value):
        return None
    return f"'{float(value)!r}'::float8"


def _decimal(value: Any, op: str, declared: str) -> str | None:
    exact = isinstance(value, int | Decimal) and not isinstance(value, bool) and math.isfinite(value)
    return f"'{value}'::numeric" if exact else None


def _text(value: Any, op: str, declared: str) -> str | None:
    return literal_text(value) if isinstance(value, str) else None


def _boolean(value: Any, op: str, declared: str) -> str | None:
    return str(value).lower() if isinstance(value, bool) else None


def _date(value: Any, op: str, declared: str) -> str | None:
    is_date = isinstance(value, date) and not isinstance(value, datetime)
    return f"'{value.isoformat()}'::date" if is_date else None


def _timestamp(value: Any, op: str, declared: str) -> str | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    moment = value.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
    return f"'{moment}+00'::timestamptz" if declared == "timestamptz" else f"'{moment}'::timestamp"


def _binary(value: Any, op: str, declared: str) -> str | None:
    return f"'\\x{value.hex()}'::bytea" if isinstance(value, bytes) and op == "=" else None


_LITERALS: dict[Kind, Callable[[Any, str, str], str | None]] = {
    Kind.INTEGER: _integer,
    Kind.FLOAT: _float,
    Kind.DECIMAL: _decimal,
    Kind.NUMERIC: _decimal,
    Kind.TEXT: _text,
    Kind.BOOLEAN: _boolean,
    Kind.DATE: _date,
    Kind.TIMESTAMP: _timestamp,
    Kind.BINARY: _binary,
    Kind.UNKNOWN: lambda value, op, declared: None,
}
