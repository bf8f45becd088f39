"""Rows as JSON: integers as numbers, decimals as text, dates and timestamps ISO 8601 (UTC), binary base64.

Doubles that JSON cannot write are the texts ``NaN``, ``Infinity`` and ``-Infinity``. Whole columns are written at
once: a row is then a join of texts, and no object per row is made.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.algebra.bag import COUNT, UPDATE

_TO_ESCAPE = r'["\\\x00-\x1f]'
_NUMBERED = {COUNT, UPDATE}


def json_values(column: pa.ChunkedArray) -> list[Any]:
    """The column's values as JSON has them, ready for a JSON writer."""
    kind = column.type
    if pa.types.is_decimal(kind) or pa.types.is_date(kind):
        return pc.cast(column, pa.string()).to_pylist()
    if pa.types.is_timestamp(kind):
        return [None if v is None else v.isoformat().replace("+00:00", "Z") for v in column.to_pylist()]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return [None if v is None else b64encode(v).decode() for v in column.to_pylist()]
    if pa.types.is_floating(kind) and _has_strange_numbers(column):
        return [_number(v) for v in column.to_pylist()]
    return column.to_pylist()


def row_objects(table: pa.Table) -> Iterator[dict[str, Any]]:
    """One object per row, without the columns that count and number it."""
    names = [name for name in table.column_names if name not in _NUMBERED]
    columns = [json_values(table[name]) for name in names]
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def rendered_changes(table: pa.Table) -> list[bytes]:
    """Per row ``{"row": {…}, "count": n}``, as a view's message lists it."""
    table = table.combine_chunks()
    texts: list[Any] = []
    lead = '{"row":{'
    for name in table.column_names:
        if name not in _NUMBERED:
            texts += [f"{lead}{orjson.dumps(name).decode()}:", _json_texts(table[name])]
            lead = ","
    texts += ['},"count":', _json_texts(table[COUNT]), "}", ""]  # the last one is the separator
    return pc.binary_join_element_wise(*texts).cast(pa.binary()).to_pylist()


def _json_texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column's values as JSON texts; NULL is ``null``."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return pc.fill_null(pc.cast(column, pa.string()), "null")
    if pa.types.is_floating(kind) and not _has_strange_numbers(column):
        # The JSON writer's shortest text that reads back as the same double; no number holds a comma.
        return pa.chunked_array([orjson.dumps(column.to_pylist())[1:-1].decode().split(",")], pa.string())
    if pa.types.is_decimal(kind) or pa.types.is_date(kind):
        return _quoted(pc.cast(column, pa.string()))
    if pa.types.is_string(kind) and not pc.any(pc.match_substring_regex(column, _TO_ESCAPE)).as_py():
        return _quoted(column)
    return pa.chunked_array([[orjson.dumps(v).decode() for v in json_values(column)]], pa.string())


def _quoted(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(pc.binary_join_element_wise('"', texts, '"', ""), "null")


def _has_strange_numbers(column: pa.ChunkedArray) -> bool:
    return pc.all(pc.is_finite(column)).as_py() is False


def _number(value: float | None) -> float | str | None:
    if value is None or np.isfinite(value):
        return value
    return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
