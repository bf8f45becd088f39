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
    """All but ``%``, which is ``float_modulo``; NULL where the result is too large, or too small and not zero."""
    if op == "/":
        right = pc.if_else(pc.is_nan(left), right, without_zero(right))
    operation = {"+": pc.add, "-": pc.subtract, "*": pc.multiply, "/": pc.divide}[op]
    found = operation(left, right)
    finite = pc.and_(pc.is_finite(left), pc.is_finite(right))
    beyond = pc.and_(pc.is_inf(found), finite)
    if op in "*/":
        nonzero = pc.and_(pc.not_equal(left, 0.0), pc.not_equal(right, 0.0))
        beyond = pc.or_(beyond, pc.and_(pc.equal(found, 0.0), pc.and_(nonzero, finite)))
    return unsigned_zero(pc.if_else(beyond, pa.scalar(None, pa.float64()), found))


def unsigned_zero(floats: Value) -> Value:
    """The same floats with 0.0 for −0.0."""
    return pc.add(floats, 0.0)


def decimal_arithmetic(op: str, left: Value, right: Value, result: Type) -> Value | None:
    if op not in "+-*":
        return None
    operation = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}[op]
    precision, scale = _natural(op, left.type, right.type)
    assert scale == result.scale, "no digit behind the point is given up"
    if precision <= 38:
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
    """NULL where the digits do not fit; the scale is the result's already."""
    bound = pa.scalar(Decimal(10 ** (result.precision - result.scale)), wide.type)
    return pc.if_else(pc.less(pc.abs(wide), bound), wide, pa.scalar(None, wide.type)).cast(result.arrow)


def round_decimal(decimals: pa.Array, places: int, result: Type) -> pa.Array | None:
    """``round(decimals, places)``, half away from zero; None unless it can be done in 64-bit integers."""
    digits, shift = _unscaled(decimals), decimals.type.scale - result.scale
    dropped = 10 ** max(decimals.type.scale - places, 0)
    if digits is None or dropped > _SAFE or (shift < 0 and np.abs(digits).max(initial=0) >= _SAFE // 10**-shift):
        return None
    quotient, remainder = np.divmod(np.abs(digits), dropped)
    quotient += remainder >= dropped - remainder
    units = quotient * (dropped // 10**shift) if shift >= 0 else quotient * 10**-shift
    if np.abs(units).max(initial=0) >= 10 ** min(result.precision, 18):
        return None
    return _from_unscaled(np.where(digits < 0, -units, units), _nulls(decimals), result)


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


def round_floats(floats: pa.Array) -> pa.Array:
    """The nearest whole numbers, halves to the even one."""
    return pa.array(np.rint(floats.fill_null(0.0).to_numpy()) + 0.0, mask=_nulls(floats))


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
    right = pc.if_else(pc.is_nan(left), right, without_zero(right))
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
