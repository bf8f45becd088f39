"""PostgreSQL's values: which types views may use, and how a value becomes an Arrow value on each of its two ways.

A value comes in a message (Debezium's JSON: ``debezium_column``) or in an answer (a question's SQL expression, then
``answer_column``). Law: both ways give the same typed value for the same stored value, byte for byte, or both refuse
it by name; -0.0 is 0.0. What Debezium cannot tell apart is therefore refused on both ways:

- infinite dates and timestamps, and years outside 1 to 9999, arrive as garbage;
- an array of several dimensions arrives as one of NULLs, or of Java's object names; its lower bounds are lost;
- ``name`` and others arrive as NULL. Such types are ``UNKNOWN``, with the reason, and ``check`` refuses their columns.

A float4 is the double with the shortest decimal text that names it (1.1, not 1.10000002384). Java does not always
print that text, so both ways go through the 32-bit number. ``char(n)`` has no trailing spaces, as in PostgreSQL's own
cast to text.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.algebra.casts import numeric_of, numeric_text
from viewkeeper.algebra.types import (
    BINARY,
    BOOLEAN,
    DATE,
    FLOAT,
    INTEGER,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    UNKNOWN,
    Column,
    Kind,
    Type,
    decimal,
)

ENUM = "enum"
"""What ``Column.declared`` says of every enumeration."""

_NONE = type(None)
_REFUSALS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError, TypeError)
_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_MOST_DIGITS = 38
_DAYS = ((date.min - date(1970, 1, 1)).days, (date.max - date(1970, 1, 1)).days)
_MICROSECONDS = (_DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1)
_JAVA_OBJECT = re.compile(r"\[+[A-Z][\w.$]*;?@[0-9a-f]+")


class Misfits(ValueError):
    """Values that do not fit their column: their indexes, and for each the reason."""

    def __init__(self, reasons: dict[int, str]):
        super().__init__(next(iter(reasons.values())))
        self.reasons = reasons


FromJson = Callable[[list[Any], Type], pa.Array]
FromAnswer = Callable[[pa.Array, Type], pa.Array]


@dataclass(frozen=True)
class PgType:
    """How a type of PostgreSQL is used.

    ``shown`` is the SQL of a value in a question, ``{}`` its column. ``equated`` is the type whose equality decides
    keys: it may be looser than ours, never stricter; None where there is no such equality. ``by_text`` says that
    it is the column's text that is compared, which no index on the column helps.
    """

    type: Type
    shown: str
    from_json: FromJson
    from_answer: FromAnswer
    equated: str | None
    by_text: bool = False


def _only(values: list[Any], *allowed: type) -> None:
    strange = set(map(type, values)) - {_NONE, *allowed}
    if strange:
        raise TypeError(f"unexpected {strange}")


def _plain(*allowed: type) -> FromJson:
    def convert(values: list[Any], expected: Type) -> pa.Array:
        _only(values, *allowed)
        return pa.array(values, expected.arrow)

    return convert


def _as_is(values: pa.Array, expected: Type) -> pa.Array:
    return values.cast(expected.arrow)


# ---- numbers


def _json_doubles(values: list[Any]) -> pa.Array:
    if str in set(map(type, values)):
        values = [_NUMBERS[v] if isinstance(v, str) else v for v in _known_numbers(values)]
    _only(values, float, int)
    return pa.array(values, pa.float64(), from_pandas=False)


def _known_numbers(values: list[Any]) -> list[Any]:
    for value in values:
        if isinstance(value, str) and value not in _NUMBERS:
            raise ValueError(f"{value!r} is no number")
    return values


def _json_float8(values: list[Any], expected: Type) -> pa.Array:
    return _float8(_json_doubles(values), expected)


def _float8(values: pa.Array, expected: Type) -> pa.Array:
    return pc.add(values, 0.0)  # −0.0 + 0.0 = 0.0


def _json_float4(values: list[Any], expected: Type) -> pa.Array:
    """By way of the float4 next to the double that the text was read as.

    A text so near to the middle between two float4 that the double is that middle may mean either: it means the one
    whose shortest text it is.
    """
    doubles = _json_doubles(values)
    found = _float4(pc.cast(doubles, pa.float32(), safe=False), expected)
    told = doubles.to_numpy(zero_copy_only=False)
    middle = _middles(told)
    if len(middle) == 0:
        return found
    chosen = found.to_numpy(zero_copy_only=False).copy()
    for index in middle:
        chosen[index] = _meant(told[index])
    return pa.array(chosen, pa.float64(), mask=pc.is_null(doubles).to_numpy(zero_copy_only=False))


def _middles(doubles: np.ndarray) -> np.ndarray:
    """The indexes of those that are exactly in the middle between two float4."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        near = doubles.astype(np.float32)
        beyond = np.nextafter(near, np.where(doubles > near, np.inf, -np.inf).astype(np.float32))
        return np.flatnonzero((doubles != near) & (doubles == (near.astype(np.float64) + beyond) / 2))


def _meant(told: np.float64) -> float:
    near = np.float32(told)
    around = pa.array([near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))])
    for double in _float4(around, FLOAT).to_pylist():
        if double == told:
            return float(double)
    raise ValueError("between two numbers")


def _float4(values: pa.Array, expected: Type) -> pa.Array:
    return pc.add(values.cast(pa.string()).cast(pa.float64()), 0.0)


def _json_numeric(values: list[Any], expected: Type) -> pa.Array:
    _only(values, str, int)
    return _numeric(pa.array([None if v is None else str(v) for v in values], pa.string()), expected)


def _numeric(values: pa.Array, expected: Type) -> pa.Array:
    """From texts, or from what the driver makes of ``numeric``, which are texts too."""
    texts = values.storage if isinstance(values, pa.ExtensionArray) else values
    if expected != NUMERIC:
        return texts.cast(expected.arrow)
    return pa.array([None if text is None else _any_digits(text) for text in texts.to_pylist()], expected.arrow)


def _any_digits(text: str) -> str:
    """The one text of a number: 1.50 and 1.5 are equal, and so is what they join with."""
    number = numeric_of(text)
    if number is None:
        raise ValueError(f"{text} is no number")
    return numeric_text(number)


# ---- texts and bytes


def _json_bpchar(values: list[Any], expected: Type) -> pa.Array:
    return pc.utf8_rtrim(_plain(str)(values, expected), characters=" ")


def _json_bytea(values: list[Any], expected: Type) -> pa.Array:
    _only(values, str)
    blobs = [None if v is None else binascii.a2b_base64(v, strict_mode=bool(v)) for v in values]
    return pa.array(blobs, expected.arrow)


# ---- days and moments


def _json_date(values: list[Any], expected: Type) -> pa.Array:
    _only(values, str)
    texts = pc.utf8_rtrim(pa.array(values, pa.string()), characters="Z")
    return _date(texts.cast(pa.date32()), expected)


def _date(values: pa.Array, expected: Type) -> pa.Array:
    return _within(values, values.cast(pa.int32()), _DAYS)


def _json_timestamp(values: list[Any], expected: Type) -> pa.Array:
    _only(values, str)
    return _timestamp(pa.array(values, pa.string()).cast(expected.arrow), expected)


def _timestamp(values: pa.Array, expected: Type) -> pa.Array:
    """A timestamp without time zone is taken for one in UTC."""
    moments = values if values.type.tz else pc.assume_timezone(values, "UTC")
    return _within(moments, moments.cast(pa.int64()), _MICROSECONDS)


def _within(values: pa.Array, numbers: pa.Array, ends: tuple[int, int]) -> pa.Array:
    found = pc.min_max(numbers).as_py()
    if found["min"] is not None and (found["min"] < ends[0] or found["max"] > ends[1]):
        raise ValueError("outside the years 1 to 9999")
    return values


# ---- arrays, as compact JSON text


def _json_array(*allowed: type) -> FromJson:
    def convert(values: list[Any], expected: Type) -> pa.Array:
        _only(values, list)
        return pa.array([None if v is None else _array_text(v, allowed) for v in values], expected.arrow)

    return convert


def _array(*allowed: type) -> FromAnswer:
    convert = _json_array(*allowed)

    def parse(values: pa.Array, expected: Type) -> pa.Array:
        return convert([None if v is None else orjson.loads(v) for v in values.to_pylist()], expected)

    return parse


def _array_text(items: list[Any], allowed: tuple[type, ...]) -> str:
    if not {type(item) for item in items} <= {_NONE, *allowed}:
        raise TypeError("an array of several dimensions, or of other values")
    if items and (set(items) == {None} or all(isinstance(i, str) and _JAVA_OBJECT.fullmatch(i) for i in items)):
        raise ValueError("an array of NULLs alone, or of several dimensions, which look alike in messages")
    return orjson.dumps(items).decode()


# ---- the table


def _text_like(equated: str = "text", by_text: bool = False) -> PgType:
    return PgType(TEXT, "{}::text", _plain(str), _as_is, equated, by_text)


def _array_of(*allowed: type) -> PgType:
    return PgType(TEXT, "pg_catalog.to_json({})::text", _json_array(*allowed), _array(*allowed), None)


_INTEGER = PgType(INTEGER, "{}::int8", _plain(int), _as_is, "int8")

TYPES: dict[str, PgType] = {
    "int2": _INTEGER,
    "int4": _INTEGER,
    "int8": _INTEGER,
    "float8": PgType(FLOAT, "{}::float8", _json_float8, _float8, "float8"),
    "float4": PgType(FLOAT, "{}::float4", _json_float4, _float4, "float4"),
    "numeric": PgType(NUMERIC, "{}::numeric", _json_numeric, _numeric, "numeric"),
    "bool": PgType(BOOLEAN, "{}::bool", _plain(bool), _as_is, "bool"),
    "text": _text_like(),
    "varchar": _text_like(),
    "bpchar": PgType(TEXT, "{}::text", _json_bpchar, _as_is, "bpchar"),
    "citext": _text_like("citext"),
    "uuid": _text_like("uuid"),
    ENUM: _text_like(by_text=True),
    "json": _text_like(by_text=True),
    "jsonb": _text_like(by_text=True),
    "bytea": PgType(BINARY, "{}::bytea", _json_bytea, _as_is, "bytea"),
    "date": PgType(DATE, "{}::date", _json_date, _date, "date"),
    "timestamp": PgType(TIMESTAMP, "{}::timestamp", _json_timestamp, _timestamp, "timestamp"),
    "timestamptz": PgType(TIMESTAMP, "{}::timestamptz", _json_timestamp, _timestamp, "timestamptz"),
    "_int2": _array_of(int),
    "_int4": _array_of(int),
    "_int8": _array_of(int),
    "_text": _array_of(str),
    "_varchar": _array_of(str),
    "_bool": _array_of(bool),
}


def declared_type(declared: str, modifier: int) -> tuple[Type, str]:
    """The type that a catalog entry (a base type's name, and its modifier) means; or ``UNKNOWN``, and why."""
    if declared == "numeric":
        return _declared_numeric(modifier), ""
    if declared in TYPES:
        return TYPES[declared].type, ""
    shown = f"{declared[1:]}[]" if declared.startswith("_") else declared
    why = "its values do not arrive unchanged" if declared == "name" else "no view can hold it"
    return UNKNOWN, f"is of type {shown}, and {why}; leave it out, or give it another type such as text"


def _declared_numeric(modifier: int) -> Type:
    """What is declared with digits that no table can hold, or without, may have any number of them."""
    if modifier < 0:
        return NUMERIC
    precision, scale = ((modifier - 4) >> 16) & 0xFFFF, (((modifier - 4) & 0x7FF) ^ 1024) - 1024
    if scale < 0 or max(precision, scale) > _MOST_DIGITS:
        return NUMERIC
    return decimal(max(precision, scale), scale)


# ---- both ways


def debezium_column(values: list[Any], column: Column) -> pa.Array:
    """An Arrow column of the JSON values in Debezium's messages; raises ``Misfits`` naming each that does not fit."""
    convert = TYPES[column.declared].from_json
    try:
        return convert(values, column.type)
    except _REFUSALS:
        raise _misfits(values, lambda value: convert([value], column.type), column) from None


def answer_column(values: pa.Array, column: Column) -> pa.Array:
    """An Arrow column of the values that a question got; raises ``Misfits`` naming each that does not fit."""
    convert = TYPES[column.declared].from_answer
    try:
        return convert(values, column.type)
    except _REFUSALS:
        ones = [values.slice(index, 1) for index in range(len(values))]
        raise _misfits(ones, lambda one: convert(one, column.type), column) from None


def _misfits(values: list[Any], convert: Callable[[Any], Any], column: Column) -> Misfits:
    reasons = {}
    for index, value in enumerate(values):
        try:
            convert(value)
        except _REFUSALS as error:
            reasons[index] = f"{_named(value)} is no {_expected(column)}{_because(error)}"
    assert reasons, f"values of {column.name} fit one by one, but not together"
    return Misfits(reasons)


def _expected(column: Column) -> str:
    return f"array that can be kept ({column.declared[1:]}[])" if column.declared.startswith("_") else str(column.type)


def _because(error: Exception) -> str:
    return (
        f": it is {error}"
        if type(error) is ValueError and str(error).startswith(("outside", "between", "an array"))
        else ""
    )


def _named(value: Any) -> str:
    if isinstance(value, pa.Array):
        value = _shown(value)
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _shown(one: pa.Array) -> Any:
    """The value of an array of one, as far as Python has it: of days and moments, the years 1 to 9999."""
    storage = one.storage if isinstance(one, pa.ExtensionArray) else one
    try:
        return storage[0].as_py()
    except (ValueError, OverflowError):
        return "infinity, or another century"


def is_key(value_type: pa.DataType, column: Column) -> bool:
    """May PostgreSQL compare the column with keys of this Arrow type?"""
    if column.declared not in TYPES or TYPES[column.declared].equated is None:
        return False
    if column.type.kind is Kind.DECIMAL:
        return bool(pa.types.is_decimal(value_type) or pa.types.is_integer(value_type))
    return bool(value_type == column.type.arrow)
