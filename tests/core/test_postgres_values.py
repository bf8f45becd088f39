"""Debezium's JSON values and the values of answers become the same typed values, or are refused by name."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from viewkeeper.algebra.types import NUMERIC, UNKNOWN, Column, decimal
from viewkeeper.managers.sources.postgres_values import Misfits, answer_column, debezium_column, declared_type

NUMERIC_10_2 = (10 << 16 | 2) + 4


def column(declared: str, modifier: int = -1) -> Column:
    return Column("c", declared_type(declared, modifier)[0], declared)


def told(declared: str, *values: Any, modifier: int = -1) -> list[Any]:
    return list(debezium_column(list(values), column(declared, modifier)).to_pylist())


@pytest.mark.parametrize(
    ("declared", "values", "expected"),
    [
        ("int2", [1, -32768, None], [1, -32768, None]),
        ("int8", [2**63 - 1, -(2**63)], [2**63 - 1, -(2**63)]),
        ("bool", [True, False, None], [True, False, None]),
        ("text", ["", "ünï😀", "a\n\x01", None], ["", "ünï😀", "a\n\x01", None]),
        ("bpchar", ["ab   ", "     ", "  x  ", None], ["ab", "", "  x", None]),
        ("varchar", ["ab  "], ["ab  "]),
        ("bytea", ["", "3q2+7wD/", None], [b"", b"\xde\xad\xbe\xef\x00\xff", None]),
        ("date", ["2026-01-02Z", "0001-01-01Z", "9999-12-31Z"], [date(2026, 1, 2), date.min, date.max]),
        ("enum", ["ok"], ["ok"]),
        ("json", ['{"a":  1.50}'], ['{"a":  1.50}']),
    ],
)
def test_values_of_messages_become_typed_values(declared: str, values: list[Any], expected: list[Any]) -> None:
    assert told(declared, *values) == expected


def test_timestamps_with_and_without_time_zone_are_moments_in_utc() -> None:
    texts = ["2026-01-02T03:04:05.678901Z", "2026-01-02T03:04:05Z", "2026-01-02T03:04:05.6Z", "0001-01-01T00:00:00Z"]
    moments = [
        datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
        datetime(2026, 1, 2, 3, 4, 5, 0, UTC),
        datetime(2026, 1, 2, 3, 4, 5, 600000, UTC),
        datetime(1, 1, 1, tzinfo=UTC),
    ]
    assert told("timestamp", *texts) == told("timestamptz", *texts) == moments


def test_decimals_keep_their_digits() -> None:
    assert told("numeric", "0.00", "-99999999.99", None, modifier=NUMERIC_10_2) == [
        Decimal("0.00"), Decimal("-99999999.99"), None,
    ]  # fmt: skip


def test_floats_are_doubles_without_negative_zero() -> None:
    values = told("float8", 0.1, "NaN", "Infinity", "-Infinity", -0.0, 3, None)
    assert values[0] == 0.1
    assert values[1] != values[1]
    assert values[2:4] == [float("inf"), float("-inf")]
    assert [struct.pack("d", v) for v in values[4:6]] == [struct.pack("d", 0.0), struct.pack("d", 3.0)]


def test_a_float4_is_the_shortest_text_of_its_32_bits_however_java_printed_it() -> None:
    # Java 17 prints the least float4 as 1.4E-45, PostgreSQL as 1e-45: one number.
    assert told("float4", 1.1, 1.4e-45, 1e-45, 3.4028235e38, -0.0) == [1.1, 1e-45, 1e-45, 3.4028235e38, 0.0]


def test_agree_float4_of_messages_and_of_answers() -> None:
    bits = np.random.default_rng(5).integers(0, 2**32, 200_000, np.uint32)
    floats = bits.view(np.float32)
    floats = floats[np.isfinite(floats)]
    answers = answer_column(pa.array(floats), column("float4"))
    printed = [float(text) for text in pa.array(floats).cast(pa.string()).to_pylist()]
    exact = floats.astype(np.float64).tolist()
    assert debezium_column(printed, column("float4")).equals(answers)
    assert debezium_column(exact, column("float4")).equals(answers)  # as a printer of all digits would tell them
    assert np.array_equal(answers.to_numpy().astype(np.float32), floats)


def test_a_float4_whose_text_reads_as_the_middle_between_two_is_the_one_that_it_names() -> None:
    # Of all float4, the one whose shortest text, read as a double and rounded, gives its neighbour.
    value = np.array([0x15AE43FD], np.uint32).view(np.float32)
    assert np.float32(7.038531e-26) != value[0]
    assert (
        answer_column(pa.array(value), column("float4")).to_pylist() == told("float4", 7.038531e-26) == [7.038531e-26]
    )
    assert told("float4", -7.038531e-26, None) == [-7.038531e-26, None]


def test_a_number_that_may_mean_two_float4_is_refused() -> None:
    with pytest.raises(Misfits, match="between two numbers"):
        told("float4", 1.0, 1 + 2**-24)


def test_arrays_are_compact_json_text() -> None:
    assert told("_int4", [], [1, None, 3], None) == ["[]", "[1,null,3]", None]
    assert told("_text", ["a", "b c", None, "NULL", ""], ['q"\\', "ünï😀", "\n\x01\x7f/"]) == [
        '["a","b c",null,"NULL",""]', '["q\\"\\\\","ünï😀","\\n\\u0001\x7f/"]',
    ]  # fmt: skip
    assert told("_bool", [True, None]) == ["[true,null]"]


def test_agree_arrays_of_messages_and_of_answers() -> None:
    texts = ['["a", "\\u00e9", null]', "[]", None, '["\\b\\f\\u0001"]']
    answers = answer_column(pa.array(texts, pa.string()), column("_text"))
    assert answers.to_pylist() == told("_text", ["a", "é", None], [], None, ["\b\f\x01"])


@pytest.mark.parametrize(
    ("declared", "value", "why"),
    [
        ("date", "-5877611-06-21Z", "date"),  # infinity
        ("date", "0000-01-01Z", "outside the years 1 to 9999"),  # 1 BC
        ("date", "+10000-01-01Z", "date"),
        ("timestamp", "+294247-01-10T04:00:25.2Z", "timestamp"),  # infinity
        ("timestamptz", "infinity", "timestamp"),
        ("timestamptz", "-0043-03-15T00:00:00.000000Z", "timestamp"),
        ("int4", "1", "integer"),
        ("int4", True, "integer"),
        ("int8", 2**63, "integer"),
        ("bool", 1, "boolean"),
        ("text", 5, "text"),
        ("float8", "many", "float"),
        ("bytea", "%%", "binary"),
        ("_int4", [None, None], "array of NULLs alone"),  # what an array of two dimensions looks like
        ("_text", ["[Ljava.lang.String;@26f1e68a", "[Ljava.lang.String;@73e00699"], "several dimensions"),
        ("_int4", [[1], [2]], "array"),
        ("_int4", ["1"], "array"),
        ("_bool", [1], "array"),
    ],
)
def test_what_no_view_can_hold_is_refused_by_name(declared: str, value: Any, why: str) -> None:
    good = told(declared, None)
    with pytest.raises(Misfits, match=why) as refused:
        debezium_column([None, value, None], column(declared))
    assert refused.value.reasons.keys() == {1}
    assert good == [None]


@pytest.mark.parametrize("value", ["NAN", "POSITIVE_INFINITY", "NEGATIVE_INFINITY", "1.234", "999999999"])
def test_numbers_that_no_decimal_can_hold_are_refused_by_name(value: str) -> None:
    with pytest.raises(Misfits, match=f"'{value}' is no decimal"):
        debezium_column([value], column("numeric", NUMERIC_10_2))


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_answers_refuse_such_numbers_too(value: str) -> None:
    with pytest.raises(Misfits, match="is no decimal"):
        answer_column(pa.array(["1.00", value]), column("numeric", NUMERIC_10_2))


def test_answers_refuse_days_and_moments_outside_the_years_1_to_9999() -> None:
    with pytest.raises(Misfits, match="outside the years") as refused:
        answer_column(pa.array([0, -2147472692], pa.int32()).cast(pa.date32()), column("date"))
    assert refused.value.reasons.keys() == {1}
    with pytest.raises(Misfits, match="outside the years"):
        answer_column(pa.array([-9222425352054775809]).cast(pa.timestamp("us")), column("timestamp"))


@pytest.mark.parametrize(
    ("declared", "modifier", "why"),
    [
        ("name", -1, "do not arrive unchanged"),
        ("interval", -1, "type interval"),
        ("_uuid", -1, "type uuid[]"),
        ("public.shape", -1, "type public.shape"),
    ],
)
def test_other_types_are_refused_with_the_reason_and_a_remedy(declared: str, modifier: int, why: str) -> None:
    type, refused = declared_type(declared, modifier)
    assert type == UNKNOWN
    assert why in refused
    assert "; " in refused


@pytest.mark.parametrize("modifier", [-1, (40 << 16 | 2) + 4, (3 << 16 | (-2 & 0x7FF)) + 4])
def test_a_numeric_that_no_table_can_hold_may_have_any_number_of_digits(modifier: int) -> None:
    assert declared_type("numeric", modifier) == (NUMERIC, "")
    values = ["1.50", "1E-50", "-0.00", "1" + "0" * 60, "0012.0", None]
    one_form = ["1.5", "0." + "0" * 49 + "1", "0", "1" + "0" * 60, "12", None]
    assert told("numeric", *values, modifier=modifier) == one_form
    assert answer_column(pa.array(values), column("numeric", modifier)).to_pylist() == one_form


@pytest.mark.parametrize("value", ["NAN", "POSITIVE_INFINITY", "nan", "inf", "Infinity", ""])
def test_what_is_no_number_is_refused_by_name_where_digits_are_unlimited_too(value: str) -> None:
    with pytest.raises(Misfits, match=f"'{value}' is no numeric"):
        debezium_column(["1", value], column("numeric"))
    with pytest.raises(Misfits, match=f"'{value}' is no numeric"):
        answer_column(pa.array(["1", value]), column("numeric"))


def test_a_scale_beyond_the_precision_widens_the_decimal() -> None:
    assert declared_type("numeric", (2 << 16 | 4) + 4)[0] == decimal(4, 4)
    assert declared_type("numeric", NUMERIC_10_2)[0] == decimal(10, 2)
    assert declared_type("numeric", (5 << 16) + 4)[0] == decimal(5, 0)
