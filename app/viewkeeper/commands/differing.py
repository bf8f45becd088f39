"""Rows that a view has too often or too seldom, as ``verify`` prints them: the JSON of ``read``, with signed counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson
import pyarrow as pa

from viewkeeper.algebra.tiny import Row
from viewkeeper.warehouse.rendering import row_objects


def differing(schema: pa.Schema, rows: Sequence[tuple[Row, int]], of: str = "") -> Iterator[str]:
    """A text for each row (values in the order of the schema, count); ``of`` names its view."""
    columns = list(zip(*(row for row, _ in rows), strict=True)) or [()] * len(schema)
    table = pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
    for (_, count), values in zip(rows, row_objects(table), strict=True):
        yield f"{'+' if count > 0 else '−'}{abs(count)} {of + ' ' if of else ''}{orjson.dumps(values).decode()}"
