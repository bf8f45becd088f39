"""Arithmetic and comparison on Arrow numbers, exactly as ``rows`` does them on Python's.

Operands are arrays or scalars. Functions that return None have no fast way for these operands; the caller
then goes value by value.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.algebra.types import DATE, Type

Value: TypeAlias = "pa.Array | pa.Scalar"

_WIDEST = 76  # digits of decimal256
_EPOCH = date(1970, 1, 1).toordinal()
_FIRST_DAY, _LAST_DAY = 1 - _EPOCH, date.max.toordinal() - _EPOCH
_SAFE = 2**62  # twice as much still fits 64 bits
_FAR = 2**40  # days: further than any two dates are apart
_ORDERINGS: dict[str, Callable[[Value, Value], Value]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def compare(op: str, left: Value, right: Value) -> Value:
    """``left op right`` for the six orderings; the sides are as ``expressions.Compare`` promises."""
    kinds = (_letter(left.type), _letter(right.type))
    if kinds == ("f", "f"):
        return _compare_floats(op, left, right)
    if "f" in kinds:
        return _compare_integer_with_float(op, left, right)
    if "d" in kinds and left.type != right.type:
        scale = max(getattr(left.type, "scale", 0), getattr(right.type, "scale", 0))
        wide = pa.decimal256(_WIDEST, scale)
        left, right = left.cast(wide), right.cast(wide)
    return _ORDERINGS[op](left, right)


def _letter(of: pa.DataType) -> str:
    return "f" if pa.types.is_floating(of) else "d" if pa.types.is_decimal(of) else "i"


def _compare_floats(op: str, left: Value, right: Value) -> Value:
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    plain = _ORDERINGS[op](left, right)
    if not (_any(left_nan) or _any(right_nan)):
        return plain
    # NaN is the greatest: compare "is NaN" where one side is, and the numbers where neither is.
    order_of_nans = _ORDERINGS[op](left_nan, right_nan)
    return pc.if_else(pc.or_(left_nan, right_nan), order_of_nans, plain)


def _any(flags: Value) -> bool:
    return bool(pc.any(flags).as_py() if isinstance(flags, pa.Array) else flags.as_py())


def _compare_integer_with_float(op: str, left: Value, right: Value) -> Value:
    """Exact: converting the integer rounds it, but rounding is monotone, so only ties need a second look."""
    if pa.types.is_floating(left.type):
        mirrored = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(op, op)
        return _compare_integer_with_float(mirrored, right, left)
    rounded = pc.cast(left, pa.float64(), safe=False)
    tie = pc.equal(rounded, right)
    if not _any(tie):
        return _compare_floats(op, rounded, right)
    # In a tie the float is a whole number: the integer's own rounding. 2**63 alone is no 64-bit integer.
    beyond = pc.greater_equal(rounded, 2.0**63)
    whole = pc.cast(pc.if_else(beyond, 0.0, rounded), pa.int64(), safe=False)
    exact = pc.if_else(beyond, _ORDERINGS[op](0, 1), _ORDERINGS[op](left, whole))
    return pc.if_else(tie, exact, _compare_floats(op, rounded, right))


def integer_arithmetic(op: str, left: Value, right: Value) -> Value | None:
    try:
        return _INTEGER[op](left, right)
    except pa.ArrowInvalid:  # an overflow somewhere: those rows become NULL one by one
        return None


def _divide(left: Value, right: Value) -> Value:
    return pc.divide_checked(left, without_zero(right))


def _modulo(left: Value, right: Value) -> Value:
    return pc.subtract(left, pc.multiply(right, _divide(left, right)))


_INTEGER: dict[str, Callable[[Value, Value], Value]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
    "/": _divide,
    "%": _modulo,
}


def without_zero(divisor: Value) -> Value:
    """The divisor, NULL where it is zero."""
    return pc.if_else(pc.equal(divisor, pa.scalar(0, divisor.type)), pa.scalar(None, divisor.type), divisor)


def float_arithmetic(op: str, left: Value, right: Value) -> Value:
    """All but ``%``, which is ``float_modulo``."""
    operation = {"+": pc.add, "-": pc.subtract, "*": pc.multiply, "/": pc.divide}[op]
    return unsigned_zero(operation(left, without_zero(right) if op == "/" else right))


def unsigned_zero(floats: Value) -> Value:
    """The same floats with 0.0 for −0.0."""
    return pc.add(floats, 0.0)


def decimal_arithmetic(op: str, left: Value, right: Value, result: Type) -> Value | None:
    if op == "/":
        return _divide_decimals(left, right, result)
    if op not in "+-*":
        return None
    operation = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}[op]
    precision, scale = _natural(op, left.type, right.type)
    if precision <= 38 and scale == result.scale:
        return operation(left, right).cast(result.arrow)
    if precision > _WIDEST:
        return None
    wide = operation(_wide(left), _wide(right)).cast(pa.decimal256(_WIDEST, scale))
    return _fit(wide, result)


def _natural(op: str, left: pa.DataType, right: pa.DataType) -> tuple[int, int]:
    """Precision and scale that Arrow gives the result."""
    if op == "*":
        return left.precision + right.precision + 1, left.scale + right.scale
    scale = max(left.scale, right.scale)
    return max(left.precision - left.scale, right.precision - right.scale) + scale + 1, scale


def _wide(decimals: Value) -> Value:
    return decimals.cast(pa.decimal256(decimals.type.precision, decimals.type.scale))


def _fit(wide: Value, result: Type) -> Value:
    """Rounded to the scale of the result, NULL where the digits do not fit."""
    if wide.type.scale > result.scale:
        wide = pc.round(wide, ndigits=result.scale, round_mode="half_towards_infinity")
    wide = wide.cast(pa.decimal256(_WIDEST, result.scale))
    bound = pa.scalar(Decimal(10 ** (result.precision - result.scale)), wide.type)
    return pc.if_else(pc.less(pc.abs(wide), bound), wide, pa.scalar(None, wide.type)).cast(result.arrow)


def round_decimal(decimals: Value, places: int, result: Type) -> Value:
    """``round(decimals, places)``, half away from zero."""
    wide = decimals.cast(pa.decimal256(_WIDEST, decimals.type.scale))
    return _fit(pc.round(wide, ndigits=places, round_mode="half_towards_infinity"), result)


def _divide_decimals(left: Value, right: Value, result: Type) -> pa.Array | None:
    """Half away from zero; None unless the division can be done in 64-bit integers."""
    shift = result.scale + right.type.scale - left.type.scale
    length = max(len(side) for side in (left, right) if isinstance(side, pa.Array))
    divisor = _array(without_zero(right), length)
    over, under = _unscaled(_array(left, length)), _unscaled(divisor)
    if over is None or under is None or shift > 18 or np.abs(over).max(initial=0) >= _SAFE // 10**shift:
        return None
    numerator, denominator = np.abs(over) * 10**shift, np.maximum(np.abs(under), 1)
    quotient, remainder = np.divmod(numerator, denominator)
    quotient += remainder >= denominator - remainder
    signed = np.where((over < 0) != (under < 0), -quotient, quotient)
    return _from_unscaled(signed, _nulls(_array(left, length)) | _nulls(divisor), result)


def _array(values: Value, length: int) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.repeat(values, length)


def _unscaled(decimals: pa.Array) -> np.ndarray | None:
    """The digits of the decimals as integers (anything where NULL); None if 64 bits do not hold them all."""
    words = np.frombuffer(decimals.buffers()[1] or b"", np.int64)[2 * decimals.offset :][: 2 * len(decimals)]
    low = np.where(_nulls(decimals), 0, words[::2])
    high = np.where(_nulls(decimals), 0, words[1::2])
    held = (high == low >> 63) & (low < _SAFE) & (low > -_SAFE)
    return low if held.all() else None


def _from_unscaled(digits: np.ndarray, nulls: np.ndarray, result: Type) -> pa.Array:
    """Decimals with these digits; they must fit the precision."""
    words = np.stack([digits, digits >> 63], axis=1).astype(np.int64, copy=False)
    valid = pa.array(~nulls, pa.bool_()).buffers()[1]
    return pa.Array.from_buffers(result.arrow, len(digits), [valid, pa.py_buffer(words.tobytes())])


def round_floats(floats: pa.Array, places: int) -> tuple[pa.Array, np.ndarray] | None:
    """``round(floats, places)``, and which of them are too close to a tie, or too large, to be decided here.

    Away from a tie the rounded number of units is certain in spite of the product's own rounding; dividing it by
    an exact power of ten then rounds once, to the double nearest to the decimal result.
    """
    if not 0 <= places <= 15:
        return None
    numbers = floats.fill_null(0.0).to_numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        units = numbers * 10.0**places
        nearest = np.rint(units)
        unsure = ~((np.abs(units) < 2.0**31) & (np.abs(np.abs(units - nearest) - 0.5) > 1e-3))
        rounded = np.where(unsure, 0.0, nearest) / 10.0**places + 0.0
    return pa.array(rounded, mask=_nulls(floats)), unsure


def decimal_to_float(decimals: pa.Array) -> pa.Array | None:
    """The nearest doubles, or None where there are too many digits.

    Up to 15 digits and a power of ten up to 10²² are exact doubles, so their division rounds only once.
    """
    if decimals.type.precision > 15 or decimals.type.scale > 22:
        return None
    digits = _unscaled(decimals)
    assert digits is not None
    return pa.array(digits / 10.0**decimals.type.scale + 0.0, mask=_nulls(decimals))


def float_modulo(left: pa.Array, right: pa.Array) -> pa.Array:
    """C's fmod, which is exact and has the sign of the dividend."""
    right = without_zero(right)
    with np.errstate(invalid="ignore"):
        remainders = np.fmod(*(side.fill_null(1.0).to_numpy() for side in (left, right)))
    return pa.array(remainders + 0.0, mask=_nulls(left) | _nulls(right))


def _nulls(values: pa.Array) -> np.ndarray:
    return pc.is_null(values).to_numpy(zero_copy_only=False)


def date_arithmetic(op: str, left: Value, right: Value) -> Value:
    """``date ± days`` and ``date − date``."""
    left_days, right_days = _days(left), _days(right)
    days = (pc.add if op == "+" else pc.subtract)(left_days, right_days)
    if left.type == right.type:
        return days
    inside = pc.and_(pc.greater_equal(days, _FIRST_DAY), pc.less_equal(days, _LAST_DAY))
    return pc.if_else(inside, days, pa.scalar(None, pa.int64())).cast(pa.int32()).cast(DATE.arrow)


def _days(values: Value) -> Value:
    """Days as 64-bit integers, cut off far past the last date, so that no sum of two overflows."""
    if values.type == DATE.arrow:
        return values.cast(pa.int32()).cast(pa.int64())
    near = pc.max_element_wise(values, -_FAR, skip_nulls=False)
    return pc.min_element_wise(near, _FAR, skip_nulls=False)
