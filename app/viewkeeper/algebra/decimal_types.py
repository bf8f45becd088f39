"""How many digits the results of decimal arithmetic have: as many as PostgreSQL gives them.

A sum has the larger scale of its operands, a product the sum of their scales, a quotient the scale that PostgreSQL
chooses for each row (``number_functions.quotient_scale``). Where one type of at most 38 digits cannot hold every such
result, the result is ``NUMERIC``: it may be compared, computed with and rounded, but an output must say its digits.
"""

from __future__ import annotations

from decimal import Decimal

from viewkeeper.algebra.number_functions import DIGITS_AT_ONCE, LEAST_DIGITS, weight
from viewkeeper.algebra.types import NUMERIC, Kind, Type, decimal

DIGITS = 38
INTEGER_DIGITS = 19
_ROOM = 19  # digits before the point that are never given up silently

Operand = tuple[Type, Decimal | None]
"""A decimal type, and the value where it is a constant."""


def as_decimal_type(of: Type) -> Type:
    """The decimal type that holds every value of an integer or decimal type."""
    return decimal(INTEGER_DIGITS, 0) if of.kind is Kind.INTEGER else of


def common_decimal(one: Type, other: Type) -> Type:
    """The type for either of two: the numbers are the same, the scales of their texts may not be."""
    whole = max(one.precision - one.scale, other.precision - other.scale)
    loose = one.loose or other.loose or one.scale != other.scale
    return _with_room(whole, max(one.scale, other.scale), loose)


def result_type(op: str, left: Type, right: Type) -> Type:
    """The type of a sum, difference, product or remainder."""
    scale, loose = max(left.scale, right.scale), left.loose or right.loose
    whole_left, whole_right = left.precision - left.scale, right.precision - right.scale
    match op:
        case "*":
            return _with_room(whole_left + whole_right, left.scale + right.scale, loose)
        case "%":
            return decimal(max(min(whole_left, whole_right) + scale, 1), scale, loose)
        case _:
            return _with_room(max(whole_left, whole_right) + 1, scale, loose)


def _with_room(whole: int, scale: int, loose: bool) -> Type:
    """All digits behind the point are kept; before it, what no 38 digits can hold is NULL, but only beyond 10¹⁹."""
    if DIGITS - scale < min(whole, _ROOM):
        return NUMERIC
    return decimal(max(min(whole + scale, DIGITS), 1), scale, loose)


def quotient_type(left: Operand, right: Operand) -> Type | None:
    """The type of a quotient; None where its digits depend on scales that loose operands do not tell."""
    least_left, most_left = _weights(*left)
    least_right, most_right = _weights(*right)
    scale = max(left[0].scale, right[0].scale)
    fewest = LEAST_DIGITS - (most_left - least_right) * DIGITS_AT_ONCE
    if (left[0].loose or right[0].loose) and scale > fewest:
        return None
    most = max(LEAST_DIGITS - (least_left - most_right - 1) * DIGITS_AT_ONCE, scale)
    whole = _whole(left, right)
    return decimal(whole + most, most, loose=True) if whole + most <= DIGITS else NUMERIC


def _weights(of: Type, value: Decimal | None) -> tuple[int, int]:
    """Between which places the first digit of base 10,000 is."""
    if value is not None:
        return weight(value), weight(value)
    return -((of.scale + 3) // DIGITS_AT_ONCE), max((of.precision - of.scale - 1) // DIGITS_AT_ONCE, 0)


def _whole(left: Operand, right: Operand) -> int:
    """How many digits the quotient has before the point, at most."""
    of, value = right
    largest = 10 ** (left[0].precision - left[0].scale)
    if value:
        return len(str(int(largest / abs(value)))) if abs(value) < largest else 1
    return left[0].precision - left[0].scale + of.scale


def rounded_type(of: Type, places: int, carries: bool = True) -> Type:
    """The type of a decimal with so many digits behind the point; 9.9 rounds to 10, so with one more before it."""
    scale, whole = max(places, 0), of.precision - of.scale
    if places >= of.scale:
        return decimal(whole + scale, scale) if whole + scale <= DIGITS else decimal(of.precision, of.scale, loose=True)
    return decimal(max(min(whole + (1 if carries else 0) + scale, DIGITS), 1), scale)
