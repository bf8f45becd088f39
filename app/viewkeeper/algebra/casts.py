"""CAST on single values. Whatever has no value in the target type becomes NULL (None).

- to text: integers and decimals plainly, floats as the shortest text that names them (``NaN``, ``Infinity``),
  booleans ``true``/``false``, dates ``2024-05-01``, timestamps ``2024-05-01T12:30:00.000001Z`` (the fraction
  only where there is one), binary as UTF-8.
- from text: surrounding white space is ignored; numbers in ASCII digits, as SQL writes them; booleans
  true/t/1 and false/f/0 in any case; dates and timestamps in ISO 8601, a timestamp without a zone is UTC.
- to integer: decimals and floats are rounded, half away from zero.
- to decimal: rounded to the scale, half away from zero; floats by their shortest text.
- date to timestamp is midnight UTC, timestamp to date is the day in UTC.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal, DecimalException
from typing import Any

from viewkeeper.algebra.types import Kind, Type, decimal

INTEGERS = range(-(2**63), 2**63)
EXACT = Context(prec=400, rounding=ROUND_HALF_UP, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Wide enough for the exact sum or product of any two values."""

_SPACE = " \t\n\r\f\v"
_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\Z")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")
_TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?"
    r" ?(?:([Zz])|([+-][0-9]{2})(?::?([0-9]{2}))?)?)?\Z"
)
_SPECIAL_FLOATS = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}
_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


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


def shortest(value: float) -> Decimal | None:
    """The decimal number with the shortest text that names the double; None for NaN and infinities."""
    return Decimal(repr(value)) if math.isfinite(value) else None


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
    return repr(floating(value))


def _float_to_decimal(value: float, target: Type) -> Decimal | None:
    exact = shortest(value)
    return fit(exact, target) if exact is not None else None


def _timestamp_to_text(value: datetime) -> str:
    return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def _binary_to_text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _to_integer(text: str) -> int | None:
    text = text.strip(_SPACE)
    if not _INTEGER.match(text):
        return None
    digits = text.lstrip("+-").lstrip("0") or "0"
    # Python refuses to read thousands of digits, and 64 bits hold none of those numbers.
    return integer(int(digits) * (-1 if text[0] == "-" else 1)) if len(digits) < 20 else None


def _to_float(text: str) -> float | None:
    text = text.strip(_SPACE)
    if _NUMBER.match(text):
        return floating(float(text))
    special = _SPECIAL_FLOATS.get(text.lower().lstrip("+-") if len(text) < 12 else "")
    if special is None or text[1:2] in ("+", "-"):
        return None
    return -special if text.startswith("-") else special


def _to_decimal(text: str, target: Type) -> Decimal | None:
    text = text.strip(_SPACE)
    if not _NUMBER.match(text):
        return None
    try:
        return fit(Decimal(text, context=EXACT), target)
    except DecimalException:
        return None


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


_CASTS: dict[tuple[Kind, Kind], Callable[[Any, Type], Any]] = {
    (Kind.INTEGER, Kind.FLOAT): lambda v, t: float(v),
    (Kind.INTEGER, Kind.DECIMAL): lambda v, t: fit(Decimal(v), t),
    (Kind.INTEGER, Kind.TEXT): lambda v, t: str(v),
    (Kind.INTEGER, Kind.BOOLEAN): lambda v, t: v != 0,
    (Kind.FLOAT, Kind.INTEGER): lambda v, t: _rounded_integer(shortest(v)),
    (Kind.FLOAT, Kind.DECIMAL): _float_to_decimal,
    (Kind.FLOAT, Kind.TEXT): lambda v, t: _float_to_text(v),
    (Kind.DECIMAL, Kind.INTEGER): lambda v, t: _rounded_integer(v),
    (Kind.DECIMAL, Kind.FLOAT): lambda v, t: floating(float(v)),
    (Kind.DECIMAL, Kind.DECIMAL): fit,
    (Kind.DECIMAL, Kind.TEXT): lambda v, t: format(v, "f"),
    (Kind.TEXT, Kind.INTEGER): lambda v, t: _to_integer(v),
    (Kind.TEXT, Kind.FLOAT): lambda v, t: _to_float(v),
    (Kind.TEXT, Kind.DECIMAL): _to_decimal,
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
    (Kind.BINARY, Kind.TEXT): lambda v, t: _binary_to_text(v),
}
