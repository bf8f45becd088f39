"""Expressions on single rows of Python values: the meaning of ``expressions``, as plainly as possible.

Values are int, float, Decimal, str, bool, date, datetime (UTC), bytes, and None for NULL.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any

from viewkeeper.algebra.casts import EXACT, cast, fit, floating, integer, shortest
from viewkeeper.algebra.expressions import (
    And,
    Arithmetic,
    Call,
    Case,
    Cast,
    ColumnRef,
    Compare,
    Expr,
    InList,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
)
from viewkeeper.algebra.types import Kind, Type


def evaluate_row(expr: Expr, column: Callable[[int, str], Any]) -> Any:
    """The value of ``expr`` on one row, where ``column(occurrence, name)`` gives the row's values."""
    if isinstance(expr, ColumnRef):
        value = column(expr.occurrence, expr.column)
        return floating(value) if isinstance(value, float) else value
    if isinstance(expr, Literal):
        return expr.value
    return apply(expr, [evaluate_row(child, column) for child in expr.children])


def apply(expr: Expr, values: Sequence[Any]) -> Any:
    """The value of ``expr`` given the values of its children."""
    return _APPLY[type(expr)](expr, values)


def compare(op: str, left: Any, right: Any) -> bool | None:
    """``left op right`` in three-valued logic."""
    if op.endswith("DISTINCT FROM"):
        same = left is right if left is None or right is None else _order(left, right) == 0
        return same is (op == "IS NOT DISTINCT FROM")
    return None if left is None or right is None else _ORDERINGS[op](_order(left, right))


def _order(left: Any, right: Any) -> int:
    """Negative, zero or positive as left is less, equal or greater; NaN is the greatest."""
    unordered = _is_nan(left) - _is_nan(right)
    if unordered or _is_nan(left):
        return unordered
    return (left > right) - (left < right)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


_ORDERINGS: dict[str, Callable[[int], bool]] = {
    "=": lambda order: order == 0,
    "<>": lambda order: order != 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
}


def _and(values: Sequence[bool | None]) -> bool | None:
    return False if False in values else None if None in values else True


def _or(values: Sequence[bool | None]) -> bool | None:
    return True if True in values else None if None in values else False


def _in_list(expr: InList, values: Sequence[Any]) -> bool | None:
    value, *items = values
    return _or([compare("=", value, item) for item in items])


def _like(expr: Like, values: Sequence[str | None]) -> bool | None:
    value, pattern = values
    if value is None or pattern is None:
        return None
    regex = like_regex(pattern, expr.escape)
    return bool(regex.match(value)) if regex else None


@lru_cache(maxsize=4096)
def like_regex(pattern: str, escape: str | None) -> re.Pattern[str] | None:
    """The regular expression of a LIKE pattern; None if the pattern ends inside an escape."""
    parts: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                return None
            parts.append(re.escape(escaped))
        else:
            parts.append({"%": ".*", "_": "."}.get(character) or re.escape(character))
    return re.compile("".join(parts) + r"\Z", re.DOTALL)


def _case(expr: Case, values: Sequence[Any]) -> Any:
    count = len(expr.conditions)
    chosen = (values[count + i] for i in range(count) if values[i] is True)
    return next(chosen, values[-1])


def _arithmetic(expr: Arithmetic, values: Sequence[Any]) -> Any:
    left, right = values
    if left is None or right is None:
        return None
    if expr.left.type.kind is Kind.DATE or expr.right.type.kind is Kind.DATE:
        return _date_arithmetic(expr.op, left, right)
    if expr.type.kind is Kind.INTEGER:
        return _integer_arithmetic(expr.op, left, right)
    if expr.type.kind is Kind.FLOAT:
        return _float_arithmetic(expr.op, left, right)
    return _decimal_arithmetic(expr.op, Decimal(left), Decimal(right), expr.type)


def _date_arithmetic(op: str, left: Any, right: Any) -> date | int | None:
    if isinstance(left, date) and isinstance(right, date):
        return (left - right).days
    day, days = (left, right) if isinstance(left, date) else (right, left)
    try:
        return day + timedelta(days=days if op == "+" else -days)
    except OverflowError:
        return None


def _integer_arithmetic(op: str, left: int, right: int) -> int | None:
    if op in "/%" and right == 0:
        return None
    match op:
        case "+":
            return integer(left + right)
        case "-":
            return integer(left - right)
        case "*":
            return integer(left * right)
        case "/":
            return integer(_truncated(left, right))
        case _:
            return left - right * _truncated(left, right)


def _truncated(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _float_arithmetic(op: str, left: float, right: float) -> float | None:
    if op in "/%" and right == 0:
        return None
    match op:
        case "+":
            return floating(left + right)
        case "-":
            return floating(left - right)
        case "*":
            return floating(left * right)
        case "/":
            return floating(left / right)
        case _:
            return math.nan if math.isinf(left) or math.isnan(right) else floating(math.fmod(left, right))


def _decimal_arithmetic(op: str, left: Decimal, right: Decimal, target: Type) -> Decimal | None:
    if op in "/%" and right == 0:
        return None
    match op:
        case "+":
            return fit(EXACT.add(left, right), target)
        case "-":
            return fit(EXACT.subtract(left, right), target)
        case "*":
            return fit(EXACT.multiply(left, right), target)
        case "/":
            return fit(_quotient(left, right, target.scale), target)
        case _:
            return fit(EXACT.remainder(left, right), target)


def _quotient(left: Decimal, right: Decimal, scale: int) -> Decimal:
    """left / right rounded once, half away from zero, to ``scale`` digits behind the point."""
    over, under = EXACT.divide(left, Decimal(1).scaleb(-scale)), right
    (n1, d1), (n2, d2) = over.as_integer_ratio(), under.as_integer_ratio()
    numerator, denominator = abs(n1 * d2), abs(d1 * n2)
    rounded = (2 * numerator + denominator) // (2 * denominator)
    return Decimal(-rounded if (left < 0) != (right < 0) else rounded).scaleb(-scale, context=EXACT)


def _call(expr: Call, values: Sequence[Any]) -> Any:
    if expr.function in _LENIENT:
        return _LENIENT[expr.function](values)
    return None if None in values else _STRICT[expr.function](expr, *values)


def _concat(values: Sequence[str | None]) -> str:
    return "".join(value for value in values if value is not None)


def _coalesce(values: Sequence[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _negate(expr: Call, value: Any) -> Any:
    if isinstance(value, Decimal):
        return fit(-value, expr.type)
    return floating(-value) if isinstance(value, float) else integer(-value)


def _abs(expr: Call, value: Any) -> Any:
    return integer(abs(value)) if isinstance(value, int) else abs(value)


def _round(expr: Call, value: Any, places: int = 0) -> Any:
    exact = shortest(value) if isinstance(value, float) else Decimal(value)
    if exact is None or (expr.type.kind is Kind.FLOAT and -int(exact.as_tuple().exponent) <= places):
        return value
    rounded = _quotient(exact, Decimal(1), places)
    if expr.type.kind is Kind.INTEGER:
        return integer(int(rounded))
    return floating(float(rounded)) if expr.type.kind is Kind.FLOAT else fit(rounded, expr.type)


def _substr(expr: Call, text: Any, start: int, length: int | None = None) -> Any:
    if length is None:
        return text[max(start - 1, 0) :]
    return text[max(start - 1, 0) : max(start - 1 + length, 0)] if length >= 0 else None


_LENIENT: dict[str, Callable[[Sequence[Any]], Any]] = {"concat": _concat, "coalesce": _coalesce}
_STRICT: dict[str, Callable[..., Any]] = {
    "||": lambda expr, left, right: left + right,
    "negate": _negate,
    "abs": _abs,
    "round": _round,
    "substr": _substr,
    "lower": lambda expr, text: text.lower(),
    "upper": lambda expr, text: text.upper(),
    "length": lambda expr, text: len(text),
    "trim": lambda expr, text: text.strip(" "),
    "ltrim": lambda expr, text: text.lstrip(" "),
    "rtrim": lambda expr, text: text.rstrip(" "),
}
_APPLY: dict[type[Expr], Callable[[Any, Sequence[Any]], Any]] = {
    And: lambda expr, values: _and(values),
    Or: lambda expr, values: _or(values),
    Not: lambda expr, values: None if values[0] is None else not values[0],
    IsNull: lambda expr, values: values[0] is None,
    Compare: lambda expr, values: compare(expr.op, *values),
    InList: _in_list,
    Like: _like,
    Arithmetic: _arithmetic,
    Cast: lambda expr, values: cast(values[0], expr.arg.type, expr.type),
    Case: _case,
    Call: _call,
}
