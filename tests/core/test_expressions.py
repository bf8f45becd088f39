"""What expressions mean, by example. Every example runs through both evaluators."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from viewkeeper.algebra.evaluate import evaluate, holds
from viewkeeper.algebra.rows import evaluate_row
from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.types import (
    BINARY,
    BOOLEAN,
    DATE,
    FLOAT,
    INTEGER,
    TEXT,
    TIMESTAMP,
    Column,
    Relation,
    decimal,
)

TYPES = {"n": INTEGER, "m": INTEGER, "f": FLOAT, "g": FLOAT, "d": decimal(10, 2), "t": TEXT, "p": TEXT}
TYPES |= {"b": BOOLEAN, "c": BOOLEAN, "day": DATE, "at": TIMESTAMP, "raw": BINARY, "wide": decimal(38, 2)}
CATALOG = {("s", "r"): Relation("s", "r", tuple(Column(name, of) for name, of in TYPES.items()))}
NAN, INFINITY = math.nan, math.inf
MOST, LEAST = 2**63 - 1, -(2**63)


def value(sql: str, **row: Any) -> Any:
    """The value of an SQL expression on one row, once both evaluators agree on it."""
    expr = parse_view("v", f"SELECT {sql} AS x FROM s.r AS r", CATALOG).outputs[0].expr
    arrays = {name: pa.array([row.get(name)] * 2, of.arrow) for name, of in TYPES.items()}
    first, second = evaluate(expr, lambda _, name: arrays[name], 2).to_pylist()
    plain = evaluate_row(expr, lambda _, name: row.get(name))
    assert repr(first) == repr(second) and type(first) is type(plain), (first, plain)
    assert first == plain or (first != first and plain != plain), (first, plain)
    return first


@pytest.mark.parametrize(
    ("sql", "row", "expected"),
    [
        ("n + m", {"n": 1, "m": 2}, 3),
        ("n + 1", {"n": MOST}, None),
        ("n - 1", {"n": LEAST}, None),
        ("n * m", {"n": 2**32, "m": 2**31}, None),
        ("n * m", {"n": -(2**32), "m": 2**31}, LEAST),
        ("-n", {"n": LEAST}, None),
        ("abs(n)", {"n": LEAST}, None),
        ("abs(n)", {"n": -3}, 3),
        ("n / m", {"n": 7, "m": 2}, 3),
        ("n / m", {"n": -7, "m": 2}, -3),
        ("n / m", {"n": LEAST, "m": -1}, None),
        ("n % m", {"n": LEAST, "m": -1}, 0),
        ("n % m", {"n": -7, "m": 2}, -1),
        ("n % m", {"n": 7, "m": -2}, 1),
        ("n / m", {"n": 7, "m": 0}, None),
        ("n % m", {"n": 7, "m": 0}, None),
        ("n / m", {"n": None, "m": 0}, None),
        ("-9223372036854775808 + n", {"n": 0}, LEAST),
        ("round(n, -2)", {"n": 150}, 200),
        ("round(n, -2)", {"n": -150}, -200),
        ("round(n, -2)", {"n": MOST}, 9223372036854775800),
        ("round(n, -3)", {"n": MOST}, 9223372036854776000),
    ],
)
def test_integers_never_wrap_and_divide_toward_zero(sql: str, row: dict[str, Any], expected: Any) -> None:
    assert value(sql, **row) == expected


@pytest.mark.parametrize(
    ("sql", "row", "expected"),
    [
        ("d + 1", {"d": Decimal("1.25")}, "2.25"),
        ("d * 1.5", {"d": Decimal("1.25")}, "1.875"),
        ("d * d", {"d": Decimal("-1.25")}, "1.5625"),
        ("d / 3", {"d": Decimal("2.00")}, "0.666666666666666666670000"),
        ("d / 3", {"d": Decimal("-2.00")}, "-0.666666666666666666670000"),
        ("d / 3", {"d": Decimal("99999999.99")}, "33333333.330000000000000000000000"),
        ("cast(d / n as decimal(38, 30))", {"d": Decimal("1.00"), "n": 10**10}, "1.00000000000000000000E-10"),
        ("d / 0", {"d": Decimal("2.00")}, None),
        ("d % 0.3", {"d": Decimal("-1.00")}, "-0.10"),
        ("wide + wide", {"wide": Decimal("9" * 36 + ".99")}, None),
        ("wide - wide", {"wide": Decimal("9" * 36 + ".99")}, "0.00"),
        ("wide * wide", {"wide": Decimal("9" * 36 + ".99")}, None),
        ("wide * 10", {"wide": Decimal("1.25")}, "12.50"),
        ("round(d)", {"d": Decimal("-2.50")}, "-3"),
        ("round(d, 1)", {"d": Decimal("2.25")}, "2.3"),
        ("round(d, 5)", {"d": Decimal("2.25")}, "2.25000"),
        ("round(9223372036854775806.9999999999999999999, 1)", {}, "9223372036854775807.0"),
        ("round(wide, 1)", {"wide": Decimal("9" * 36 + ".94")}, "9" * 36 + ".9"),
        ("round(wide, 1)", {"wide": Decimal("-" + "8" * 36 + ".95")}, "-" + "8" * 35 + "9.0"),
        ("round(wide, -20)", {"wide": Decimal("-" + "8" * 36 + ".95")}, "-" + "8" * 15 + "9" + "0" * 20),
        ("round(d, -1)", {"d": Decimal("-15.00")}, "-20"),
        ("-d", {"d": Decimal("0.00")}, "0.00"),
        ("n + 0.5", {"n": 2}, "2.5"),
        ("cast(n as decimal(3, 1))", {"n": 99}, "99.0"),
        ("cast(n as decimal(3, 1))", {"n": 100}, None),
        ("cast(d as decimal(4, 1))", {"d": Decimal("-0.05")}, "-0.1"),
        ("cast(f as decimal(5, 2))", {"f": 2.675}, "2.68"),
        ("cast(f as decimal(5, 2))", {"f": NAN}, None),
        ("coalesce(d, n)", {"n": 7}, "7.00"),
    ],
)
def test_decimals_are_exact_and_round_half_away_from_zero(sql: str, row: dict[str, Any], expected: str | None) -> None:
    got = value(sql, **row)
    assert (None if got is None else str(got)) == expected


@pytest.mark.parametrize(
    ("sql", "row", "expected"),
    [
        ("f + n", {"f": 0.5, "n": 1}, 1.5),
        ("f * d", {"f": 0.5, "d": Decimal("3.00")}, 1.5),
        ("f / g", {"f": 1.0, "g": 0.0}, None),
        ("f / g", {"f": 1.0, "g": -0.0}, None),
        ("f % g", {"f": -7.5, "g": 2.0}, -1.5),
        ("f % g", {"f": INFINITY, "g": 2.0}, NAN),
        ("f % g", {"f": 1.0, "g": 0.0}, None),
        ("f", {"f": -0.0}, 0.0),
        ("-f", {"f": 0.0}, 0.0),
        ("f * g", {"f": -1.0, "g": 0.0}, 0.0),
        ("f - g", {"f": INFINITY, "g": INFINITY}, NAN),
        ("round(f)", {"f": 0.5}, 0.0),
        ("round(f)", {"f": 1.5}, 2.0),
        ("round(f)", {"f": 2.5}, 2.0),
        ("round(f)", {"f": -2.5}, -2.0),
        ("f * g", {"f": 1e300, "g": 1e300}, None),
        ("f / g", {"f": 5e-324, "g": 2.0}, None),
        ("f / g", {"f": 1.0, "g": INFINITY}, 0.0),
        ("round(f)", {"f": -0.4}, 0.0),
        ("round(f, 2)", {"f": 2.675}, 2.68),
        ("round(f, -1)", {"f": 15.0}, 20.0),
        ("round(f)", {"f": NAN}, NAN),
        ("cast(d as float)", {"d": Decimal("0.10")}, 0.1),
        ("cast(wide as float)", {"wide": Decimal("12345678901234567890.12")}, 12345678901234567890.12),
        ("cast(n as float)", {"n": MOST}, 2.0**63),
    ],
)
def test_floats_are_ieee_without_negative_zero(sql: str, row: dict[str, Any], expected: Any) -> None:
    got = value(sql, **row)
    assert repr(got) == repr(expected)


@pytest.mark.parametrize(
    ("sql", "row", "expected"),
    [
        ("f = g", {"f": NAN, "g": NAN}, True),
        ("f > g", {"f": NAN, "g": INFINITY}, True),
        ("f < g", {"f": NAN, "g": 1.0}, False),
        ("f <> g", {"f": NAN, "g": 1.0}, True),
        ("f in (1, g)", {"f": NAN, "g": NAN}, True),
        ("n < f", {"n": 5, "f": NAN}, True),
        ("f = 0", {"f": -0.0}, True),
        ("n = f", {"n": 2**53 + 1, "f": 2.0**53}, True),
        ("n > f", {"n": 2**53 + 1, "f": 2.0**53}, False),
        ("n < f", {"n": MOST, "f": 2.0**63}, False),
        ("f <= n", {"n": LEAST, "f": -(2.0**63)}, True),
        ("n = d", {"n": 2, "d": Decimal("2.00")}, True),
        ("wide > n", {"wide": Decimal("9" * 36 + ".99"), "n": MOST}, True),
        ("f = 0.1", {"f": 0.1}, True),
        ("t < p", {"t": "Z", "p": "a"}, True),
        ("t < p", {"t": "\ufffd", "p": "😀"}, True),
        ("t = p", {"t": "é", "p": "e\u0301"}, False),
        ("t = p", {"t": "a", "p": "a "}, False),
        ("b < c", {"b": False, "c": True}, True),
        ("raw < X'ff'", {"raw": b"\x7f"}, True),
        ("day = at", {"day": date(2024, 5, 1), "at": datetime(2024, 5, 1, tzinfo=UTC)}, True),
        ("day < timestamp '2024-05-01 00:00:01'", {"day": date(2024, 5, 1)}, True),
        ("at >= '2024-05-01'", {"at": datetime(2024, 5, 1, tzinfo=UTC)}, True),
    ],
)
def test_comparisons_are_exact(sql: str, row: dict[str, Any], expected: bool) -> None:
    assert value(sql, **row) is expected


@pytest.mark.parametrize(
    ("sql", "row", "expected"),
    [
        ("n = m", {"n": None, "m": None}, None),
        ("b and c", {"b": None, "c": False}, False),
        ("b and c", {"b": None, "c": True}, None),
        ("b or c", {"b": None, "c": True}, True),
        ("b or c", {"b": None, "c": False}, None),
        ("not b", {"b": None}, None),
        ("n in (1, null)", {"n": 1}, True),
        ("n in (1, null)", {"n": 2}, None),
        ("n not in (1, null)", {"n": 2}, None),
        ("n not in (1, 2)", {"n": None}, None),
        ("n between m and 5", {"n": 9, "m": None}, False),
        ("n between m and 5", {"n": 3, "m": None}, None),
        ("n is distinct from m", {"n": None, "m": None}, False),
        ("n is distinct from m", {"n": 1, "m": None}, True),
        ("n is not distinct from null", {"n": None}, True),
        ("n is null", {"n": None}, True),
        ("n is not null", {"n": None}, False),
        ("b is true", {"b": None}, False),
        ("b is not true", {"b": None}, True),
        ("n = null", {"n": 1}, None),
        ("case when b then 1 else 2 end", {"b": None}, 2),
        ("case n when null then 1 when 3 then 4 end", {"n": 3}, 4),
        ("case n when null then 1 end", {"n": None}, None),
        ("coalesce(n, m, 7)", {}, 7),
        ("nullif(n, 3)", {"n": 3}, None),
        ("nullif(n, m)", {"n": 3}, 3),
        ("t || p", {"t": "a"}, None),
        ("concat(t, p, n)", {"t": "a", "n": 1}, "a1"),
        ("concat(t, p)", {}, ""),
        ("t like p", {"t": "a"}, None),
        ("substr(t, n)", {"t": "abc"}, None),
    ],
)
def test_null_is_sqls_unknown(sql: str, row: dict[str, Any], expected: Any) -> None:
    got = value(sql, **row)
    assert got is expected or got == expected


@pytest.mark.parametrize(
    ("sql", "row", "expected"),
    [
        ("upper(t)", {"t": "straße"}, "STRASSE"),
        ("lower(t)", {"t": "ΣΑΣ"}, "σας"),
        ("lower(t)", {"t": "ABC"}, "abc"),
        ("length(t)", {"t": "a😀é"}, 3),
        ("length(raw)", {"raw": b"\xff\x00"}, 2),
        ("substr(t, 2, 2)", {"t": "a😀éb"}, "😀é"),
        ("substring(t from 2 for 1)", {"t": "abc"}, "b"),
        ("substr(t, 0, 2)", {"t": "abc"}, "a"),
        ("substr(t, -1, 3)", {"t": "abc"}, "a"),
        ("substr(t, -5)", {"t": "abc"}, "abc"),
        ("substr(t, 9)", {"t": "abc"}, ""),
        ("substr(t, 1, -1)", {"t": "abc"}, None),
        ("substr(t, n, m)", {"t": "abc", "n": 2, "m": MOST}, "bc"),
        ("trim(t)", {"t": "  a\t "}, "a\t"),
        ("ltrim(t)", {"t": "  a "}, "a "),
        ("t || '-' || n", {"t": "a", "n": 1}, "a-1"),
        ("t like 'a%'", {"t": "abc"}, True),
        ("t like 'A%'", {"t": "abc"}, False),
        ("t like '%\n%'", {"t": "a\nb"}, True),
        ("t like 'a_c'", {"t": "a😀c"}, True),
        ("t like 'a.c'", {"t": "abc"}, False),
        ("t like '%%'", {"t": ""}, True),
        ("t like ''", {"t": ""}, True),
        ("t like '10!%' escape '!'", {"t": "10%"}, True),
        ("t like '10!%' escape '!'", {"t": "100"}, False),
        ("t not like '10!%' escape '!'", {"t": "100"}, True),
        ("t like p", {"t": "a\\b", "p": "a\\_"}, False),
        ("t like p", {"t": "a_", "p": "a\\_"}, True),
        ("t like p", {"t": "a\\", "p": "a\\\\"}, True),
        ("t like p escape ''", {"t": "a\\b", "p": "a\\_"}, True),
        ("t like '50\\%'", {"t": "50%"}, True),
        ("t like '50\\%'", {"t": "500"}, False),
        ("t like '50\\%' escape ''", {"t": "50\\0"}, True),
        ("t like p escape '!'", {"t": "a!", "p": "a!"}, None),
        ("t like p", {"t": "b", "p": "a\\"}, False),
        ("t like p", {"t": "a", "p": "a\\"}, False),
    ],
)
def test_text_is_code_points(sql: str, row: dict[str, Any], expected: Any) -> None:
    assert value(sql, **row) == expected


@pytest.mark.parametrize(
    ("sql", "row", "expected"),
    [
        ("cast(t as integer)", {"t": " -12 "}, -12),
        ("cast(t as integer)", {"t": "12.0"}, None),
        ("cast(t as integer)", {"t": "9223372036854775808"}, None),
        ("cast(t as integer)", {"t": "0" * 5000 + "7"}, 7),
        ("cast(t as integer)", {"t": "9" * 5000}, None),
        ("cast(t as integer)", {"t": "٣"}, None),
        ("cast(t as integer)", {"t": "0x10"}, 16),
        ("cast(t as integer)", {"t": "-0b1_01"}, -5),
        ("cast(t as integer)", {"t": "1__0"}, None),
        ("cast(t as decimal(4, 1))", {"t": "1_0.2_5"}, Decimal("10.3")),
        ("cast(t as boolean)", {"t": " YE "}, True),
        ("cast(t as boolean)", {"t": "of"}, False),
        ("cast(t as boolean)", {"t": "o"}, None),
        ("cast(t as float)", {"t": "0x1p-2"}, 0.25),
        ("cast(t as float)", {"t": "1e-999"}, None),
        ("cast(t as varchar(3))", {"t": "12345"}, "123"),
        ("cast(n as varchar(2))", {"n": -123}, "-1"),
        ("cast(t as integer)", {"t": ""}, None),
        ("cast(t as float)", {"t": "-Infinity"}, -INFINITY),
        ("cast(t as float)", {"t": "1e999"}, None),
        ("cast(t as float)", {"t": "1_0"}, None),
        ("cast(t as float)", {"t": "-+inf"}, None),
        ("cast(t as decimal(5, 2))", {"t": "1.005"}, Decimal("1.01")),
        ("cast(t as decimal(5, 2))", {"t": "1e9999999999999999999"}, None),
        ("cast(t as boolean)", {"t": "True"}, True),
        ("cast(t as boolean)", {"t": "maybe"}, None),
        ("try_cast(t as date)", {"t": "2024-02-29"}, date(2024, 2, 29)),
        ("try_cast(t as date)", {"t": "2023-02-29"}, None),
        ("try_cast(t as date)", {"t": "20240229"}, None),
        ("try_cast(t as timestamp)", {"t": "2024-01-01 12:00:00.5+02:00"}, datetime(2024, 1, 1, 10, 0, 0, 500000, UTC)),
        ("try_cast(t as timestamp)", {"t": "0001-01-01T00:00:00+01:00"}, None),
        ("cast(f as integer)", {"f": 2.5}, 2),
        ("cast(f as integer)", {"f": 3.5}, 4),
        ("cast(d as integer)", {"d": Decimal("2.50")}, 3),
        ("cast(cast(f as decimal(38, 18)) as text)", {"f": 0.1 + 0.2}, "0.300000000000000000"),
        ("cast(f as integer)", {"f": 1e19}, None),
        ("cast(d as integer)", {"d": Decimal("-2.50")}, -3),
        ("cast(f as text)", {"f": 0.1}, "0.1"),
        ("cast(f as text)", {"f": -0.0}, "0"),
        ("cast(f as text)", {"f": 1e15}, "1e+15"),
        ("cast(f as text)", {"f": 1e22}, "1e+22"),
        ("cast(f as text)", {"f": 1e23}, "9.999999999999999e+22"),
        ("cast(f as text)", {"f": -31525197391593472.0}, "-3.1525197391593472e+16"),
        ("cast(f as text)", {"f": 1.7976931348623157e308}, "1.7976931348623157e+308"),
        ("cast(f as text)", {"f": 1e20}, "1e+20"),
        ("cast(f as text)", {"f": 123456789012345.0}, "123456789012345"),
        ("cast(f as text)", {"f": -1.5e-5}, "-1.5e-05"),
        ("cast(f as text)", {"f": 0.0001}, "0.0001"),
        ("concat(b, t, c)", {"b": True, "t": "-", "c": False}, "t-f"),
        ("cast(f as text)", {"f": NAN}, "NaN"),
        ("cast(b as text)", {"b": True}, "true"),
        ("cast(b as integer)", {"b": True}, 1),
        ("cast(n as boolean)", {"n": -2}, True),
        ("cast(d as text)", {"d": Decimal("1.50")}, "1.50"),
        ("cast(day as text)", {"day": date(33, 4, 3)}, "0033-04-03"),
        ("cast(at as date)", {"at": datetime(1969, 12, 31, 23, 59, tzinfo=UTC)}, date(1969, 12, 31)),
        ("cast(raw as text)", {"raw": b"a\xff"}, "\\x61ff"),
        ("cast(t as binary)", {"t": "é"}, b"\xc3\xa9"),
        ("day + 1", {"day": date(2024, 2, 28)}, date(2024, 2, 29)),
        ("day - n", {"day": date(2024, 1, 1), "n": MOST}, None),
        ("day + 1", {"day": date.max}, None),
        ("day - date '2023-12-31'", {"day": date(2024, 1, 1)}, 1),
    ],
)
def test_a_cast_without_a_value_is_null(sql: str, row: dict[str, Any], expected: Any) -> None:
    assert value(sql, **row) == expected


def test_a_predicate_that_is_null_does_not_hold() -> None:
    expr = parse_view("v", "SELECT n > 1 AS x FROM s.r", CATALOG).outputs[0].expr
    column = pa.chunked_array([[1, None], [2]], pa.int64())
    assert holds(expr, lambda _, name: column, 3).to_pylist() == [False, False, True]


def test_an_array_may_be_a_slice_of_a_larger_one() -> None:
    expr = parse_view("v", "SELECT cast(d as float) % 2e0 AS x FROM s.r", CATALOG).outputs[0].expr
    column = pa.array([Decimal("1.25"), None, Decimal("3.50")], pa.decimal128(10, 2)).slice(1)
    assert evaluate(expr, lambda _, name: column, 2).to_pylist() == [None, 1.5]
