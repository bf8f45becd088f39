"""A loaded view that means something else now: what has changed is shown, and why that may be."""

from __future__ import annotations

import pyarrow as pa

from viewkeeper.job.outlived import other_sql, other_types


def test_the_first_difference_of_two_definitions_is_shown_with_a_reason_for_who_changed_nothing() -> None:
    before = "SELECT o.id AS id, o.number AS number, o.total / 3 AS third FROM shop.orders AS o WHERE o.name LIKE 'a%'"
    now = before.replace("o.total / 3", "CAST(o.total / 3 AS DECIMAL(12, 4))")
    told = other_sql(before, now)
    assert "it was '…o.number AS number, o.total / 3 AS third FROM shop.orders" in told
    assert "and is '…o.number AS number, CAST(o.total / 3 AS DECIMAL(12, 4))" in told
    assert "where nobody changed it, this version reads it otherwise" in told and ";" not in told


def test_short_definitions_are_shown_whole() -> None:
    assert "it was 'SELECT 1' and is 'SELECT 2'" in other_sql("SELECT 1", "SELECT 2")


def test_other_types_of_columns_are_named() -> None:
    loaded = pa.schema([("id", pa.int64()), ("q", pa.decimal128(10, 2)), ("_count", pa.int64())])
    assert other_types(loaded, pa.schema([("id", pa.int64()), ("q", pa.decimal128(10, 2))])) == ""
    told = other_types(loaded, pa.schema([("id", pa.int64()), ("q", pa.decimal128(38, 6))]))
    assert "q was decimal128(10, 2) and is decimal128(38, 6)" in told
