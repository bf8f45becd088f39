"""JSON values of update messages → Arrow columns of a declared type, strictly: nothing is guessed."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.algebra.casts import numeric_of, numeric_text
from viewkeeper.algebra.types import Kind, Type

_NONE = type(None)
_NUMBERS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


_REFUSALS = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError, TypeError)


class WrongType(ValueError):
    """Values that are not of the column's type: their indexes, and for each the reason."""

    def __init__(self, reasons: dict[int, str]):
        super().__init__(next(iter(reasons.values())))
        self.reasons = reasons


def json_column(values: list[Any], expected: Type) -> pa.Array:
    """An Arrow column of these JSON values; raises WrongType naming every one that does not fit."""
    column = _COLUMN[expected.kind]
    try:
        return column(values, expected)
    except _REFUSALS:
        reasons = {}
        for index, value in enumerate(values):
            try:
                column([value], expected)
            except _REFUSALS:
                reasons[index] = f"{value!r} is no {expected}"
        if not reasons:
            raise
        raise WrongType(reasons) from None


def _only(values: list[Any], *allowed: type) -> None:
    strange = set(map(type, values)) - {_NONE, *allowed}
    if strange:
        raise TypeError(f"unexpected {strange}")


def _plain(*allowed: type) -> Callable[[list[Any], Type], pa.Array]:
    def column(values: list[Any], expected: Type) -> pa.Array:
        _only(values, *allowed)
        return pa.array(values, expected.arrow)

    return column


def _float(values: list[Any], expected: Type) -> pa.Array:
    if str in set(map(type, values)):
        values = [_NUMBERS[v] if isinstance(v, str) and v in _NUMBERS else v for v in values]
    _only(values, float, int)
    # Adding zero turns −0.0 into 0.0, so that equal numbers are equal rows.
    return pc.add(pa.array(values, expected.arrow), 0.0)


def _decimal(values: list[Any], expected: Type) -> pa.Array:
    _only(values, str, int)
    text = [None if v is None else str(v) for v in values]
    return pc.cast(pa.array(text, pa.string()), expected.arrow)


def _numeric(values: list[Any], expected: Type) -> pa.Array:
    _only(values, str, int)
    return pa.array([None if v is None else numeric_text(_number(str(v))) for v in values], expected.arrow)


def _number(text: str) -> Decimal:
    value = numeric_of(text)
    if value is None:
        raise ValueError(f"{text} is no number")
    return value


def _date(values: list[Any], expected: Type) -> pa.Array:
    _only(values, str)
    return pa.array([None if v is None else date.fromisoformat(v) for v in values], expected.arrow)


def _timestamp(values: list[Any], expected: Type) -> pa.Array:
    _only(values, str)
    return pa.array([None if v is None else _instant(v) for v in values], expected.arrow)


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def _binary(values: list[Any], expected: Type) -> pa.Array:
    _only(values, str)
    try:
        blobs = [None if v is None else base64.b64decode(v, validate=True) for v in values]
    except binascii.Error as error:
        raise ValueError("not base64") from error
    return pa.array(blobs, expected.arrow)


_COLUMN: dict[Kind, Callable[[list[Any], Type], pa.Array]] = {
    Kind.INTEGER: _plain(int),
    Kind.TEXT: _plain(str),
    Kind.BOOLEAN: _plain(bool),
    Kind.FLOAT: _float,
    Kind.DECIMAL: _decimal,
    Kind.NUMERIC: _numeric,
    Kind.DATE: _date,
    Kind.TIMESTAMP: _timestamp,
    Kind.BINARY: _binary,
}
