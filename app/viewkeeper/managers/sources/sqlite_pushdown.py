"""Which part of a selection SQLite may decide itself.

Law: the condition given to SQLite is *implied* by the predicate. It may keep rows that the predicate refuses (the
asker applies the predicate again) but never drops one that it accepts. A row counts only if its stored values fit
their declared types (``sqlite_values`` stops at others), which is what makes these comparisons certain:

- integers, booleans (0 and 1) and floats are compared as numbers, exactly, also an integer with a float;
- text is compared for equality only, by COLLATE BINARY whatever the column declares: SQLite's order of text depends
  on the database's encoding;
- dates are stored as ``YYYY-MM-DD``, whose order as text is the order of the days;
- a value is NULL here exactly where it is stored as NULL.

Decimals and timestamps have several stored forms for one value and are never compared by SQLite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from viewkeeper.algebra.expressions import And, ColumnRef, Compare, Expr, InList, IsNull, Literal, Not, Or, conjuncts
from viewkeeper.algebra.types import Kind

Condition = tuple[str, list[Any]]

MOST_PARAMETERS = 200
"""Longer conditions cost SQLite more than they save, and it limits the depth of expressions."""

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OPPOSITE = {"=": "<>", "<>": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_NUMBERS = {Kind.INTEGER, Kind.FLOAT}


def certain_sql(predicate: Expr, column: Callable[[str], str]) -> Condition | None:
    """A condition for SQLite that the predicate implies, with its parameters; None if there is no such part.

    ``column`` gives the SQL that names a column.
    """
    parts: list[Condition] = []
    for conjunct in conjuncts(predicate):
        part = _certain(conjunct, column)
        if part and sum(len(parameters) + 1 for _, parameters in (*parts, part)) <= MOST_PARAMETERS:
            parts.append(part)
    return _joined(" AND ", parts) if parts else None


def _joined(word: str, parts: Sequence[Condition]) -> Condition:
    return word.join(f"({sql})" for sql, _ in parts), [p for _, parameters in parts for p in parameters]


def _certain(predicate: Expr, column: Callable[[str], str]) -> Condition | None:
    match predicate:
        case And():
            return certain_sql(predicate, column)
        case Or():
            branches = [_certain(arg, column) for arg in predicate.args]
            known = [branch for branch in branches if branch]
            return _joined(" OR ", known) if len(known) == len(branches) else None
        case ColumnRef():
            return f"{column(predicate.column)} = 1", []
        case IsNull(ColumnRef(column=name)):
            return f"{column(name)} IS NULL", []
        case Not():
            return _negated(predicate.arg, column)
        case Compare():
            return _comparison(predicate, column)
        case InList():
            return _in_list(predicate, column)
    return None


def _negated(predicate: Expr, column: Callable[[str], str]) -> Condition | None:
    match predicate:
        case ColumnRef():
            return f"{column(predicate.column)} = 0", []
        case IsNull(ColumnRef(column=name)):
            return f"{column(name)} IS NOT NULL", []
        case Not():
            return _certain(predicate.arg, column)
        case Compare(op, left, right) if op in _OPPOSITE:
            return _comparison(Compare(_OPPOSITE[op], left, right), column)  # type: ignore[arg-type]
    return None


def _comparison(predicate: Compare, column: Callable[[str], str]) -> Condition | None:
    op: str = "=" if predicate.op == "IS NOT DISTINCT FROM" else predicate.op
    match predicate.left, predicate.right:
        case ColumnRef() as ref, Literal() as literal:
            return _compared(ref, op, literal, column)
        case Literal() as literal, ColumnRef() as ref:
            return _compared(ref, _MIRRORED.get(op, op), literal, column)
    return None


def _compared(ref: ColumnRef, op: str, literal: Literal, column: Callable[[str], str]) -> Condition | None:
    if ref.type.kind is Kind.TEXT and op != "=":
        return None
    if op not in _OPPOSITE:
        return None
    stored = _stored(ref, op, literal.value)
    return (f"{_name(ref, column)} {op} ?", [stored]) if stored is not None else None


def _in_list(predicate: InList, column: Callable[[str], str]) -> Condition | None:
    """NULL among the items makes nothing true, so it is left out."""
    ref, items = predicate.value, predicate.items
    if not isinstance(ref, ColumnRef) or not all(isinstance(item, Literal) for item in items):
        return None
    wanted = [item.value for item in items if isinstance(item, Literal) and item.value is not None]
    stored = [_stored(ref, "=", value) for value in wanted]
    if not stored or None in stored:
        return None
    return f"{_name(ref, column)} IN ({', '.join('?' * len(stored))})", stored


def _name(ref: ColumnRef, column: Callable[[str], str]) -> str:
    collated = ref.type.kind in (Kind.TEXT, Kind.DATE)
    return f"{column(ref.column)} COLLATE BINARY" if collated else column(ref.column)


def _stored(ref: ColumnRef, op: str, value: Any) -> int | float | str | None:
    """What SQLite has to compare the column with; None where that is not certain."""
    kind = ref.type.kind
    if kind is Kind.BOOLEAN and isinstance(value, bool):
        return int(value)
    if kind in _NUMBERS and isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return _whole(op, value) if kind is Kind.INTEGER else _number(value)
    if kind is Kind.DATE and isinstance(value, date) and not isinstance(value, datetime):
        return value.isoformat()
    if kind is Kind.TEXT and isinstance(value, str) and value.isprintable():
        return value
    return None


def _whole(op: str, bound: int | float | Decimal) -> int | None:
    """The integer that bounds integers as ``bound`` does: ``n > 1.5`` is ``n > 1``, ``n < 1.5`` is ``n < 2``."""
    if not math.isfinite(bound):
        return None
    whole = math.floor(bound) if op in (">", "<=") else math.ceil(bound)
    if op in ("=", "<>") and whole != bound:
        return None
    return whole if -(2**63) <= whole < 2**63 else None


def _number(value: int | float | Decimal) -> int | float | None:
    return None if isinstance(value, Decimal) or not math.isfinite(value) else value
