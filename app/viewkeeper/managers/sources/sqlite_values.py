"""SQLite's values: what a declared type means, and how a stored value becomes an Arrow value or a JSON value.

SQLite declares types but does not enforce them, so every conversion checks. Law: two stored values that convert to
equal typed values are the same value to every view; -0.0 is 0.0. In JSON the infinities are the texts ``Infinity``
and ``-Infinity`` (SQLite cannot store NaN).
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.algebra.types import (
    BINARY,
    BOOLEAN,
    DATE,
    FLOAT,
    INTEGER,
    TEXT,
    TIMESTAMP,
    UNKNOWN,
    Kind,
    Type,
    decimal,
)

Stored = int | float | str | bytes | None
"""What SQLite's storage classes are in Python."""

ONE_FORM = frozenset({Kind.INTEGER, Kind.TEXT, Kind.FLOAT, Kind.BOOLEAN, Kind.DATE, Kind.BINARY})
"""Types whose equal values are equal to SQLite too. Of decimals (which are rounded) and timestamps many are not."""

_PRECISION = re.compile(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d(?::?\d\d)?)?)?")
_ONLY_TIMESTAMPS = rf"\A(?:{_TIMESTAMP.pattern})\z"
_ARITHMETIC = Context(prec=60, rounding=ROUND_HALF_UP)
_DAY = 86_400_000_000  # in microseconds
_FIRST_DAY = (date.min - date(1970, 1, 1)).days  # Arrow reads a year 0000, which Python's dates do not have


class BrokenText(bytes):
    """Text that is no UTF-8: it fits no type."""


def decoded(stored: bytes) -> str | BrokenText:
    """A ``text_factory`` that lets broken text through, to be found as a misfit."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return BrokenText(stored)


class Misfit(ValueError):
    """A stored value that does not fit its column's declared type."""

    def __init__(self, value: Stored, type: Type):
        shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "…"
        super().__init__(f"{shown} is no {type}")
        self.value = value


def declared_type(declared: str) -> Type:
    """The type that a column declaration means; ``UNKNOWN`` when it says nothing we know."""
    name = declared.upper()
    if "BOOL" in name:
        return BOOLEAN
    if "DATETIME" in name or "TIMESTAMP" in name:
        return TIMESTAMP
    if "INT" in name:
        return INTEGER
    if any(word in name for word in ("CHAR", "CLOB", "TEXT")):
        return TEXT
    if "BLOB" in name:
        return BINARY
    if any(word in name for word in ("REAL", "FLOA", "DOUB")):
        return FLOAT
    if "DEC" in name or "NUMERIC" in name:
        return _declared_decimal(name)
    return DATE if re.match(r"\s*DATE\b", name) else UNKNOWN


def _declared_decimal(name: str) -> Type:
    found = _PRECISION.search(name)
    if not found:
        return decimal(38, 10)
    precision, scale = int(found[1]), int(found[2] or 0)
    return decimal(precision, scale) if 1 <= precision <= 38 and scale <= precision else UNKNOWN


# ---- stored values → Arrow


def arrow_column(values: Sequence[Stored], type: Type) -> pa.Array:
    """The stored values as an Arrow array of ``type``; raises ``Misfit`` at the first that does not fit."""
    present = set(map(_class, values)) if not isinstance(values, list) else {v.__class__ for v in values}
    present.discard(None.__class__)
    return _TO_ARROW[type.kind](values, present, type)


def misfits(values: Sequence[Stored], type: Type) -> dict[int, Misfit]:
    """Those of the values that do not fit, by their index; ``arrow_column`` takes the others."""
    found = {}
    for index, value in enumerate(values):
        try:
            json_value(value, type)
        except Misfit as misfit:
            found[index] = misfit
    return found


def _class(value: Stored) -> Any:
    return value.__class__


def _plain(wanted: Any) -> Callable[[Sequence[Stored], set[Any], Type], pa.Array]:
    def convert(values: Sequence[Stored], present: set[Any], type: Type) -> pa.Array:
        if not present <= {wanted}:
            raise Misfit(next(v for v in values if v is not None and v.__class__ is not wanted), type)
        try:
            return pa.array(values, type.arrow)
        except (pa.ArrowInvalid, UnicodeEncodeError) as error:
            raise Misfit(_first_bad(values, type), type) from error

    return convert


def _floats(values: Sequence[Stored], present: set[Any], type: Type) -> pa.Array:
    if not present <= {float, int}:
        raise Misfit(next(v for v in values if v is not None and v.__class__ not in (float, int)), type)
    if int in present:  # Arrow refuses integers that a double would round
        values = [None if v is None else float(v) for v in values]
    return pc.add(pa.array(values, pa.float64(), from_pandas=False), 0.0)  # −0.0 + 0.0 = 0.0


def _booleans(values: Sequence[Stored], present: set[Any], type: Type) -> pa.Array:
    numbers = _plain(int)(values, present, INTEGER if present <= {int} else type)
    ends = pc.min_max(numbers).as_py()
    if ends["min"] is not None and (ends["min"] < 0 or ends["max"] > 1):
        raise Misfit(next(v for v in values if v not in (None, 0, 1)), type)
    return numbers.cast(pa.bool_())


def _dates(values: Sequence[Stored], present: set[Any], type: Type) -> pa.Array:
    try:
        if present <= {str}:
            days = pa.array(values, pa.string()).cast(pa.date32())
            if not _begins_before(days.cast(pa.int32()), _FIRST_DAY):
                return days
    except (pa.ArrowInvalid, UnicodeEncodeError):
        pass
    return pa.array([_date(v) if v is not None else None for v in values], pa.date32())


def _timestamps(values: Sequence[Stored], present: set[Any], type: Type) -> pa.Array:
    try:
        if present <= {str}:
            texts = pa.array(values, pa.string())
            naive = texts.cast(pa.timestamp("us"))
            # Arrow takes more forms of a text than a single value may have: both must be judged by one rule.
            if pc.all(pc.match_substring_regex(texts, _ONLY_TIMESTAMPS)).as_py() is not False and not _begins_before(
                naive.cast(pa.int64()), _FIRST_DAY * _DAY
            ):
                return pc.assume_timezone(naive, "UTC")
    except (pa.ArrowInvalid, UnicodeEncodeError):
        pass  # zones, or more than six digits: value by value
    return pa.array([_timestamp(v) if v is not None else None for v in values], type.arrow)


def _begins_before(numbers: pa.Array, first: int) -> bool:
    least = pc.min(numbers).as_py()
    return least is not None and least < first


def _decimals(values: Sequence[Stored], present: set[Any], type: Type) -> pa.Array:
    try:
        if present <= {int, float}:
            texts = pa.array([None if v is None else repr(v) for v in values], pa.string())
            return texts.cast(type.arrow)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass  # something to round, or something that does not fit: value by value
    return pa.array([_decimal(v, type) if v is not None else None for v in values], type.arrow)


def _unknown(values: Sequence[Stored], present: set[Any], type: Type) -> pa.Array:
    raise TypeError("a column of unknown type is usable by no view")


_TO_ARROW: dict[Kind, Callable[[Sequence[Stored], set[Any], Type], pa.Array]] = {
    Kind.INTEGER: _plain(int),
    Kind.TEXT: _plain(str),
    Kind.BINARY: _plain(bytes),
    Kind.FLOAT: _floats,
    Kind.BOOLEAN: _booleans,
    Kind.DATE: _dates,
    Kind.TIMESTAMP: _timestamps,
    Kind.DECIMAL: _decimals,
    Kind.UNKNOWN: _unknown,
}


def _first_bad(values: Iterable[Stored], type: Type) -> Stored:
    for value in values:
        try:
            pa.array([value], type.arrow)
        except (pa.ArrowInvalid, UnicodeEncodeError):
            return value
    return None


# ---- single values


def _date(value: Stored) -> date:
    if isinstance(value, str) and _DATE.fullmatch(value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    raise Misfit(value, DATE)


def _timestamp(value: Stored) -> datetime:
    if isinstance(value, str) and _TIMESTAMP.fullmatch(value):
        try:
            moment = datetime.fromisoformat(value)
            return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (ValueError, OverflowError):
            pass
    raise Misfit(value, TIMESTAMP)


def _decimal(value: Stored, type: Type) -> Decimal:
    """The value rounded half-up to the type's scale; a double goes by its shortest text."""
    if isinstance(value, bytes) or value is None:
        raise Misfit(value, type)
    try:
        number = Decimal(repr(value) if isinstance(value, float) else value)
        if not number.is_finite():
            raise Misfit(value, type)
        rounded = number.quantize(Decimal(1).scaleb(-type.scale), context=_ARITHMETIC)
    except (InvalidOperation, ValueError) as error:
        raise Misfit(value, type) from error
    if len(rounded.as_tuple().digits) > type.precision and rounded:
        raise Misfit(value, type)
    return rounded + 0  # no negative zero


def json_value(value: Stored, type: Type) -> Any:
    """The stored value as an update message carries it; raises ``Misfit``."""
    return None if value is None else _TO_JSON[type.kind](value, type)


def natural_json(value: Stored) -> Any:
    """A value whose declared type says nothing about it, as JSON: blobs as base64, infinities as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        return _json_float(value, FLOAT)
    return value


def _json_plain(wanted: Any) -> Callable[[Any, Type], Any]:
    def convert(value: Any, type: Type) -> Any:
        if value.__class__ is not wanted:
            raise Misfit(value, type)
        return value

    return convert


def _json_float(value: Any, type: Type) -> Any:
    if value.__class__ not in (float, int):
        raise Misfit(value, type)
    number = float(value) + 0.0
    return number if math.isfinite(number) else ("Infinity" if number > 0 else "-Infinity")


def _json_boolean(value: Any, type: Type) -> bool:
    if value.__class__ is not int or value not in (0, 1):
        raise Misfit(value, type)
    return bool(value)


def _json_timestamp(value: Any, type: Type) -> str:
    return _timestamp(value).isoformat().replace("+00:00", "Z")


def _json_binary(value: Any, type: Type) -> str:
    if value.__class__ is not bytes:
        raise Misfit(value, type)
    return base64.b64encode(value).decode()


_TO_JSON: dict[Kind, Callable[[Any, Type], Any]] = {
    Kind.INTEGER: _json_plain(int),
    Kind.TEXT: _json_plain(str),
    Kind.BINARY: _json_binary,
    Kind.FLOAT: _json_float,
    Kind.BOOLEAN: _json_boolean,
    Kind.DATE: lambda value, type: _date(value).isoformat(),
    Kind.TIMESTAMP: _json_timestamp,
    Kind.DECIMAL: lambda value, type: format(_decimal(value, type), "f"),
    Kind.UNKNOWN: lambda value, type: natural_json(value),
}
