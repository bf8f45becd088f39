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

from viewkeeper.algebra import number_functions, text_functions, time_functions
from viewkeeper.algebra.casts import ANY_DIGITS, EXACT, cast, fit, floating, integer, widened
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
        return read(column(expr.occurrence, expr.column), expr.type)
    if isinstance(expr, Literal):
        return expr.value
    return apply(expr, [evaluate_row(child, column) for child in expr.children])


def read(value: Any, of: Type) -> Any:
    """A column's value as an operand: never −0.0, and a numeric, which is carried as a text, as a number."""
    if of.kind is Kind.NUMERIC and value is not None:
        return Decimal(value)
    return floating(value) if isinstance(value, float) else value


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
    regex, ends = like_regex(pattern, expr.escape)
    matches = bool(regex.match(value))
    return matches if ends else None if matches else False


@lru_cache(maxsize=4096)
def like_regex(pattern: str, escape: str | None) -> tuple[re.Pattern[str], bool]:
    """The regular expression of a LIKE pattern, and whether the pattern ends well, that is outside an escape.

    One that does not is an error in PostgreSQL, but only for texts that it is followed to its end for: those of which
    the rest of the pattern matches a beginning.
    """
    parts: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None:
                return re.compile("".join(parts) + ".", re.DOTALL), False
            parts.append(re.escape(escaped))
        else:
            parts.append({"%": ".*", "_": "."}.get(character) or re.escape(character))
    return re.compile("".join(parts) + r"\Z", re.DOTALL), True


def _case(expr: Case, values: Sequence[Any]) -> Any:
    count = len(expr.conditions)
    chosen = (values[count + i] for i in range(count) if values[i] is True)
    return _converted(expr, next(chosen, values[-1]))


def _converted(expr: Expr, chosen: Any) -> Any:
    """What was chosen among exact numbers of several types, as one of the type for all."""
    return fit(Decimal(chosen), expr.type) if expr.type.loose and chosen is not None else chosen


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
    if expr.type.kind is Kind.NUMERIC and expr.op != "/":
        return _numeric_arithmetic(expr.op, Decimal(left), Decimal(right))
    return _decimal_arithmetic(expr, Decimal(left), Decimal(right))


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
    """None where PostgreSQL reports an overflow or underflow: a result too large, or too small and not zero."""
    if op in "/%" and right == 0:
        return left if math.isnan(left) else None
    match op:
        case "+":
            found = left + right
        case "-":
            found = left - right
        case "*":
            found = left * right
        case "/":
            found = left / right
        case _:
            return math.nan if math.isinf(left) or math.isnan(right) else floating(math.fmod(left, right))
    vanished = op in "*/" and found == 0 and left != 0 and right != 0
    beyond = (vanished or math.isinf(found)) and math.isfinite(left) and math.isfinite(right)
    return None if beyond else floating(found)


def _numeric_arithmetic(op: str, left: Decimal, right: Decimal) -> Decimal | None:
    """Exact, however many digits that takes."""
    if op == "%" and right == 0:
        return None
    exactly = {"+": ANY_DIGITS.add, "-": ANY_DIGITS.subtract, "*": ANY_DIGITS.multiply, "%": ANY_DIGITS.remainder}
    return exactly[op](left, right)


def _decimal_arithmetic(expr: Arithmetic, left: Decimal, right: Decimal) -> Decimal | None:
    target = expr.type
    if expr.op in "/%" and right == 0:
        return None
    match expr.op:
        case "+":
            return fit(EXACT.add(left, right), target)
        case "-":
            return fit(EXACT.subtract(left, right), target)
        case "*":
            return fit(EXACT.multiply(left, right), target)
        case "/":
            scale = number_functions.quotient_scale(left, right, max(expr.left.type.scale, expr.right.type.scale))
            return number_functions.decimal_of(number_functions.quotient(left, right, scale), target)
        case _:
            return fit(EXACT.remainder(left, right), target)


def _call(expr: Call, values: Sequence[Any]) -> Any:
    if expr.function in _LENIENT:
        return _converted(expr, _LENIENT[expr.function](values))
    return None if None in values else _strict(expr, values)


def _concat(values: Sequence[str | None]) -> str:
    return "".join(value for value in values if value is not None)


def _coalesce(values: Sequence[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _extreme(op: str) -> Callable[[Sequence[Any]], Any]:
    """The greatest or least of the values that are not NULL."""

    def choose(values: Sequence[Any]) -> Any:
        chosen = None
        for value in values:
            if value is not None and (chosen is None or compare(op, value, chosen)):
                chosen = value
        return chosen

    return choose


_LENIENT: dict[str, Callable[[Sequence[Any]], Any]] = {
    "concat": _concat,
    "concat_ws": lambda values: text_functions.concat_ws(*values),
    "coalesce": _coalesce,
    "greatest": _extreme(">"),
    "least": _extreme("<"),
}
_STRICT: dict[str, Callable[..., Any]] = {
    "||": lambda expr, left, right: left + right,
    "extract": lambda expr, field, at: time_functions.extracted(field, at, expr.type),
    "date_part": lambda expr, field, at: time_functions.date_part(field, at),
    "date_trunc": lambda expr, field, at: time_functions.truncated(field, at),
    "make_date": lambda expr, *parts: time_functions.make_date(*parts),
    "to_char": lambda expr, at, form: time_functions.to_char(at, form),
    **number_functions.STRICT,
    "widened": lambda expr, value: widened(value),
}


def _strict(expr: Call, values: Sequence[Any]) -> Any:
    of_text = text_functions.STRICT.get(expr.function)
    return of_text(*values) if of_text else _STRICT[expr.function](expr, *values)


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
