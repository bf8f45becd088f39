"""CAST on single values. Whatever has no value in the target type becomes NULL (None).

- to text, as PostgreSQL writes it: integers and decimals plainly, floats as the shortest digits that name them (``1``,
  ``1e+15``, ``NaN``, ``Infinity``), booleans ``true``/``false``, dates ``2024-05-01``, binary ``\\x6162``. (Timestamps
  ``2024-05-01T12:30:00.000001Z``, but no view casts them: PostgreSQL writes those with and without zone differently.)
- from text, as PostgreSQL 16 reads it: surrounding white space is ignored; numbers in ASCII digits, integers and
  decimals also in hexadecimal, octal and binary ones and with ``_`` between digits; booleans by any beginning of true,
  false, yes, no, on (two letters), off (two letters), or 1 and 0. Dates and timestamps only in ISO 8601, a timestamp
  without a zone is UTC.
- to integer: rounded, decimals half away from zero, floats half to even.
- to decimal: rounded to the scale, half away from zero; floats by their first 15 significant digits.
- to numeric, which is of any number of digits: the same without rounding. NaN and infinities have no value there.
- date to timestamp is midnight UTC, timestamp to date is the day in UTC.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal, DecimalException
from typing import Any

import numpy as np

from viewkeeper.algebra.types import Kind, Type, decimal

INTEGERS = range(-(2**63), 2**63)
EXACT = Context(prec=400, rounding=ROUND_HALF_UP, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Wide enough for the exact sum or product of any two decimals."""
ANY_DIGITS = Context(prec=1_000_000, rounding=ROUND_HALF_UP, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Wide enough for any two of PostgreSQL's numerics: 131,072 digits before the point and 16,383 behind it."""

_MOST_BEFORE, _MOST_BEHIND = 131_072, 16_383
_SPACE = " \t\n\r\f\v"
_DIGITS = r"[0-9](?:_?[0-9])*"
_INTEGER = re.compile(
    rf"([+-]?)(?:0[xX]((?:_?[0-9a-fA-F])+)|0[oO]((?:_?[0-7])+)|0[bB]((?:_?[01])+)|({_DIGITS}))\Z", re.ASCII
)
_DECIMAL = re.compile(rf"[+-]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?\Z")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")
_HEXADECIMAL = re.compile(r"[+-]?0[xX]([0-9a-fA-F]+(\.[0-9a-fA-F]*)?|\.[0-9a-fA-F]+)([pP][+-]?[0-9]+)?\Z")
_BASES = (16, 8, 2, 10)
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")
_TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?"
    r" ?(?:([Zz])|([+-][0-9]{2})(?::?([0-9]{2}))?)?)?\Z"
)
_SPECIAL_FLOATS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}
_BOOLEANS = {
    **{"true"[:length]: True for length in range(1, 5)},
    **{"false"[:length]: False for length in range(1, 6)},
    **{"yes"[:length]: True for length in range(1, 4)},
    **dict.fromkeys(("on", "1"), True),
    **dict.fromkeys(("n", "no", "of", "off", "0"), False),
}


def integer(value: int) -> int | None:
    """The integer, if 64 bits hold it."""
    return value if value in INTEGERS else None


def floating(value: float) -> float:
    """The double, never −0.0."""
    return value + 0.0


def fit(value: Decimal, target: Type) -> Decimal | None:
    """The value rounded to the scale of ``target``, or None if its digits do not fit."""
    try:
        rounded = value.quantize(Decimal(1).scaleb(-target.scale), context=EXACT)
    except DecimalException:
        return None
    digits = abs(int(rounded.scaleb(target.scale, context=EXACT)))
    return rounded.copy_abs() if not digits else rounded if digits < 10**target.precision else None


def fifteen_digits(value: float) -> Decimal | None:
    """What the double is as an exact number in PostgreSQL; None for NaN and infinities."""
    return Decimal(f"{value:.15g}") if math.isfinite(value) else None


def numeric_text(value: Decimal) -> str:
    """An exact number as a text that only equal numbers have."""
    return format(value.normalize(ANY_DIGITS), "f") if value else "0"


def numeric_of(text: str) -> Decimal | None:
    """The exact number that the text names, as PostgreSQL reads it; None if it names none."""
    text = text.strip(_SPACE)
    whole = _to_whole(text)
    if whole is None and not _DECIMAL.match(text):
        return None
    try:
        value = Decimal(text.replace("_", ""), context=ANY_DIGITS) if whole is None else Decimal(whole)
    except DecimalException:
        return None
    return value if not value or -_MOST_BEHIND <= value.adjusted() < _MOST_BEFORE else None


def widened(value: float) -> float:
    """The double of the 32-bit float whose shortest text the value was read from."""
    if not math.isfinite(value):
        return value
    near = np.float32(value)
    if float(str(near)) == value:
        return floating(float(near))
    # The double is in the middle between two of them, and was rounded to the other one.
    around = (np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf)))
    return floating(float(next((each for each in around if float(str(each)) == value), near)))


def cast(value: Any, source: Type, target: Type) -> Any:
    """``CAST(value AS target)``; the pair must be one that ``castable`` allows."""
    if value is None or source == target:
        return value
    return _CASTS[source.kind, target.kind](value, target)


def castable(source: Type, target: Type) -> bool:
    return source == target or (source.kind, target.kind) in _CASTS


def _rounded_integer(value: Decimal | None) -> int | None:
    whole = fit(value, decimal(38, 0)) if value is not None else None
    return integer(int(whole)) if whole is not None else None


def _float_to_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return _digits_text(_shortest(floating(value)))


def _shortest(value: float) -> Decimal:
    """The fewest digits that are nearer to this double than to any other.

    Python's may stand in the middle between two, which round to the even one; PostgreSQL takes one digit more then. A
    middle has so few digits only among integers from 2⁵³ on.
    """
    found = Decimal(repr(value))
    if abs(value) < 2.0**53:
        return found
    around = [int(each) for each in (math.nextafter(value, 0), math.nextafter(value, value * 2)) if math.isfinite(each)]
    middles = [int(value) + each for each in around]  # twice as large
    digits = len(found.as_tuple().digits)
    while 2 * int(found) in middles:
        found = Decimal(f"{value:.{digits}e}")
        digits += 1
    return found


def _digits_text(value: Decimal) -> str:
    """A finite double's shortest digits in PostgreSQL's layout: from 0.0001 to 15 digits plainly, else by exponent."""
    sign, digits, exponent = value.normalize(EXACT).as_tuple()
    assert isinstance(exponent, int)
    power = len(digits) + exponent - 1 if value else 0
    if -4 <= power < 15:
        return format(value.normalize(EXACT), "f")
    first, rest = str(digits[0]), "".join(map(str, digits[1:]))
    return f"{'-' if sign else ''}{first}{'.' if rest else ''}{rest}e{'-' if power < 0 else '+'}{abs(power):02}"


def _float_to_decimal(value: float, target: Type) -> Decimal | None:
    exact = fifteen_digits(value)
    return fit(exact, target) if exact is not None else None


def _float_to_integer(value: float) -> int | None:
    return integer(round(value)) if math.isfinite(value) else None


def _numeric_to_float(value: Decimal) -> float | None:
    """None where the number is too large; or too small, and not zero."""
    found = float(value)
    return None if math.isinf(found) or (value and not found) else floating(found)


def _timestamp_to_text(value: datetime) -> str:
    return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def _based(digits: str, base: int) -> int | None:
    """The number that the digits mean; None for so many that no type holds it, which Python would refuse to read."""
    plain = digits.replace("_", "").lstrip("0") or "0"
    return int(plain, base) if len(plain) < 400 else None


def _to_whole(text: str) -> int | None:
    """An integer of any size."""
    match = _INTEGER.match(text.strip(_SPACE))
    if not match:
        return None
    sign, *written = match.groups()
    value = next(_based(digits, base) for digits, base in zip(written, _BASES, strict=True) if digits)
    return -value if value and sign == "-" else value


def _to_integer(text: str) -> int | None:
    value = _to_whole(text)
    return integer(value) if value is not None else None


def _to_float(text: str) -> float | None:
    text = text.strip(_SPACE)
    if number := _NUMBER.match(text):
        return _in_range(float(text), number[1])
    if number := _HEXADECIMAL.match(text):
        return _hexadecimal(text, number[1])
    special = _SPECIAL_FLOATS.get(text.lower().lstrip("+-") if len(text) < 12 else "")
    if special is None or text[1:2] in ("+", "-"):
        return None
    return -special if text.startswith("-") else special


def _in_range(value: float, digits: str) -> float | None:
    """The double that these digits and an exponent mean; None where it is too large, or too small, for any."""
    vanished = value == 0.0 and digits.strip("0.") != ""
    return None if vanished or math.isinf(value) else floating(value)


def _hexadecimal(text: str, digits: str) -> float | None:
    try:
        return _in_range(float.fromhex(text), digits)
    except OverflowError:
        return None


def _to_decimal(text: str, target: Type) -> Decimal | None:
    value = numeric_of(text)
    return fit(value, target) if value is not None else None


def _to_date(text: str) -> date | None:
    text = text.strip(_SPACE)
    try:
        return date.fromisoformat(text) if _DATE.match(text) else None
    except ValueError:
        return None


def _to_timestamp(text: str) -> datetime | None:
    match = _TIMESTAMP.match(text.strip(_SPACE))
    if not match:
        return None
    day, hour, minute, second, fraction, _, zone_hours, zone_minutes = match.groups()
    east = timedelta(hours=int(zone_hours or 0))
    east += timedelta(minutes=int((zone_hours or "+")[0] + (zone_minutes or "0")))
    try:
        start = datetime.combine(date.fromisoformat(day), datetime.min.time(), UTC)
        local = start.replace(
            hour=int(hour or 0),
            minute=int(minute or 0),
            second=int(second or 0),
            microsecond=int((fraction or "0").ljust(6, "0")),
        )
        return local - east
    except (ValueError, OverflowError):
        return None


def zoned(text: str) -> bool:
    """Does the text of a timestamp name a time zone other than UTC?"""
    match = _TIMESTAMP.match(text.strip(_SPACE))
    return match is not None and any(int(part or 0) for part in match.groups()[-2:])


_CASTS: dict[tuple[Kind, Kind], Callable[[Any, Type], Any]] = {
    (Kind.INTEGER, Kind.FLOAT): lambda v, t: float(v),
    (Kind.INTEGER, Kind.DECIMAL): lambda v, t: fit(Decimal(v), t),
    (Kind.INTEGER, Kind.TEXT): lambda v, t: str(v),
    (Kind.INTEGER, Kind.BOOLEAN): lambda v, t: v != 0,
    (Kind.INTEGER, Kind.NUMERIC): lambda v, t: Decimal(v),
    (Kind.FLOAT, Kind.INTEGER): lambda v, t: _float_to_integer(v),
    (Kind.FLOAT, Kind.NUMERIC): lambda v, t: fifteen_digits(v),
    (Kind.FLOAT, Kind.DECIMAL): _float_to_decimal,
    (Kind.FLOAT, Kind.TEXT): lambda v, t: _float_to_text(v),
    (Kind.DECIMAL, Kind.INTEGER): lambda v, t: _rounded_integer(v),
    (Kind.DECIMAL, Kind.FLOAT): lambda v, t: floating(float(v)),
    (Kind.DECIMAL, Kind.DECIMAL): fit,
    (Kind.DECIMAL, Kind.NUMERIC): lambda v, t: v,
    (Kind.NUMERIC, Kind.INTEGER): lambda v, t: _rounded_integer(v),
    (Kind.NUMERIC, Kind.FLOAT): lambda v, t: _numeric_to_float(v),
    (Kind.NUMERIC, Kind.DECIMAL): fit,
    (Kind.DECIMAL, Kind.TEXT): lambda v, t: format(v, "f"),
    (Kind.TEXT, Kind.INTEGER): lambda v, t: _to_integer(v),
    (Kind.TEXT, Kind.FLOAT): lambda v, t: _to_float(v),
    (Kind.TEXT, Kind.DECIMAL): _to_decimal,
    (Kind.TEXT, Kind.NUMERIC): lambda v, t: numeric_of(v),
    (Kind.TEXT, Kind.BOOLEAN): lambda v, t: _BOOLEANS.get(v.strip(_SPACE).lower()),
    (Kind.TEXT, Kind.DATE): lambda v, t: _to_date(v),
    (Kind.TEXT, Kind.TIMESTAMP): lambda v, t: _to_timestamp(v),
    (Kind.TEXT, Kind.BINARY): lambda v, t: v.encode(),
    (Kind.BOOLEAN, Kind.INTEGER): lambda v, t: int(v),
    (Kind.BOOLEAN, Kind.TEXT): lambda v, t: "true" if v else "false",
    (Kind.DATE, Kind.TIMESTAMP): lambda v, t: datetime.combine(v, datetime.min.time(), UTC),
    (Kind.DATE, Kind.TEXT): lambda v, t: v.isoformat(),
    (Kind.TIMESTAMP, Kind.DATE): lambda v, t: v.astimezone(UTC).date(),
    (Kind.TIMESTAMP, Kind.TEXT): lambda v, t: _timestamp_to_text(v),
    (Kind.BINARY, Kind.TEXT): lambda v, t: f"\\x{v.hex()}",
}
