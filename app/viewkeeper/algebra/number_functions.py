"""PostgreSQL's functions of numbers, and its division of decimals, on single values.

Doubles are rounded half to even, decimals half away from zero; a double becomes a decimal by its first 15 significant
digits. What PostgreSQL reports as an error is NULL (None).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, ROUND_HALF_UP, Decimal
from typing import Any

from viewkeeper.algebra.casts import ANY_DIGITS, EXACT, fifteen_digits, fit, floating, integer
from viewkeeper.algebra.expressions import Call
from viewkeeper.algebra.types import Kind, Type

LEAST_DIGITS = 16
"""A quotient has at least so many significant digits (PostgreSQL's NUMERIC_MIN_SIG_DIGITS)."""

DIGITS_AT_ONCE = 4
"""PostgreSQL keeps a numeric in digits of base 10,000 and counts in them."""

MOST_SCALE = 1000

_ROUNDINGS = {"round": ROUND_HALF_UP, "trunc": ROUND_DOWN, "floor": ROUND_FLOOR, "ceil": ROUND_CEILING}
_WHOLE: dict[str, Callable[[float], int]] = {
    "round": round,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
}


def weight(value: Decimal) -> int:
    """The place of the first digit of base 10,000; 0 of zero."""
    return value.adjusted() // DIGITS_AT_ONCE if value else 0


def _first_digit(value: Decimal) -> int:
    return int(abs(value).scaleb(-DIGITS_AT_ONCE * weight(value), context=ANY_DIGITS))


def quotient_scale(left: Decimal, right: Decimal, scale: int) -> int:
    """How many digits behind the point PostgreSQL gives a quotient; ``scale`` is the larger one of its operands."""
    place = weight(left) - weight(right)
    if _first_digit(left) <= _first_digit(right):
        place -= 1
    return min(max(LEAST_DIGITS - place * DIGITS_AT_ONCE, scale, 0), MOST_SCALE)


def quotient(left: Decimal, right: Decimal, scale: int) -> Decimal:
    """left / right rounded once, half away from zero, to ``scale`` digits behind the point."""
    over, under = EXACT.divide(left, Decimal(1).scaleb(-scale)), right
    (n1, d1), (n2, d2) = over.as_integer_ratio(), under.as_integer_ratio()
    numerator, denominator = abs(n1 * d2), abs(d1 * n2)
    rounded = (2 * numerator + denominator) // (2 * denominator)
    return Decimal(-rounded if (left < 0) != (right < 0) else rounded).scaleb(-scale, context=EXACT)


def decimal_of(value: Decimal, target: Type) -> Decimal | None:
    """An exact number as ``target``, a decimal or a numeric."""
    return fit(value, target) if target.kind is Kind.DECIMAL else value


def rounded(expr: Call, value: Any, places: int | None = None) -> Any:
    """round, trunc, floor and ceil."""
    if isinstance(value, float):
        return _rounded_float(expr.function, value, places)
    exact = value.quantize(Decimal(1).scaleb(-(places or 0)), _ROUNDINGS[expr.function], ANY_DIGITS)
    return decimal_of(exact, expr.type)


def _rounded_float(function: str, value: float, places: int | None) -> float:
    if not math.isfinite(value):
        return value
    if places is not None:
        exact = fifteen_digits(value)
        if exact is None or -int(exact.as_tuple().exponent) <= places:
            return value
        return floating(float(exact.quantize(Decimal(1).scaleb(-places), _ROUNDINGS[function], ANY_DIGITS)))
    return floating(float(_WHOLE[function](value)))


def negated(expr: Call, value: Any) -> Any:
    if isinstance(value, Decimal):
        return decimal_of(ANY_DIGITS.minus(value), expr.type)
    return floating(-value) if isinstance(value, float) else integer(-value)


def absolute(expr: Call, value: Any) -> Any:
    return (
        integer(abs(value))
        if isinstance(value, int)
        else value.copy_abs()
        if isinstance(value, Decimal)
        else abs(value)
    )


def sign(expr: Call, value: Any) -> Any:
    direction = (value > 0) - (value < 0)
    return float(direction) if isinstance(value, float) else Decimal(direction)


def square_root(expr: Call, value: float) -> float | None:
    return None if value < 0 else math.sqrt(value)


STRICT = {
    "negate": negated,
    "abs": absolute,
    "sign": sign,
    "sqrt": square_root,
    **dict.fromkeys(_ROUNDINGS, rounded),
}
