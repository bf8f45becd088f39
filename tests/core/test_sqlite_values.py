"""Declared types, and what stored values become."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from viewkeeper.algebra.types import (
    BINARY,
    BOOLEAN,
    DATE,
    FLOAT,
    INTEGER,
    TEXT,
    TIMESTAMP,
    UNKNOWN,
    Type,
    decimal,
)
from viewkeeper.managers.sources.sqlite_values import (
    BrokenText,
    Misfit,
    arrow_column,
    declared_type,
    json_value,
    misfits,
)
from viewkeeper.queue.values import json_column

MONEY = decimal(10, 2)


@pytest.mark.parametrize(
    ("declared", "type"),
    [
        ("INTEGER", INTEGER),
        ("unsigned big int", INTEGER),
        ("VARCHAR(20)", TEXT),
        ("NATIVE CHARACTER(70)", TEXT),
        ("clob", TEXT),
        ("BLOB", BINARY),
        ("DOUBLE PRECISION", FLOAT),
        ("float", FLOAT),
        ("BOOLEAN", BOOLEAN),
        ("bool", BOOLEAN),
        ("DATE", DATE),
        ("DATETIME", TIMESTAMP),
        ("timestamp with time zone", TIMESTAMP),
        ("DECIMAL(10, 2)", MONEY),
        ("numeric(5)", decimal(5, 0)),
        ("NUMERIC", decimal(38, 10)),
        ("DECIMAL(50,2)", UNKNOWN),
        ("", UNKNOWN),
        ("JSON", UNKNOWN),
    ],
)
def test_a_declared_type_means(declared: str, type: Type) -> None:
    assert declared_type(declared) == type


NOON = datetime(2024, 5, 6, 12, 30, 15, tzinfo=UTC)

FITTING: list[tuple[Type, Any, Any, Any]] = [
    (INTEGER, 2**63 - 1, 2**63 - 1, 2**63 - 1),
    (FLOAT, 0.1, 0.1, 0.1),
    (FLOAT, 3, 3.0, 3.0),
    (FLOAT, 2**60 + 1, 2.0**60, 2.0**60),
    (DATE, "0001-01-01", date(1, 1, 1), "0001-01-01"),
    (FLOAT, float("-inf"), float("-inf"), "-Infinity"),
    (TEXT, "ä\0b", "ä\0b", "ä\0b"),
    (BINARY, b"\0\xff", b"\0\xff", "AP8="),
    (BOOLEAN, 1, True, True),
    (DATE, "2024-05-06", date(2024, 5, 6), "2024-05-06"),
    (TIMESTAMP, "2024-05-06 12:30:15", NOON, "2024-05-06T12:30:15Z"),
    (TIMESTAMP, "2024-05-06T12:30:15Z", NOON, "2024-05-06T12:30:15Z"),
    (TIMESTAMP, "2024-05-06 14:30:15+02:00", NOON, "2024-05-06T12:30:15Z"),
    (TIMESTAMP, "2024-05-06T12:30:15.25", NOON.replace(microsecond=250000), "2024-05-06T12:30:15.250000Z"),
    (MONEY, 7, Decimal("7.00"), "7.00"),
    (MONEY, 0.1, Decimal("0.10"), "0.10"),
    (MONEY, 2.675, Decimal("2.68"), "2.68"),
    (MONEY, -2.675, Decimal("-2.68"), "-2.68"),
    (MONEY, "12.5", Decimal("12.50"), "12.50"),
    (MONEY, 1e-7, Decimal("0.00"), "0.00"),
    (MONEY, -0.001, Decimal("0.00"), "0.00"),
]


@pytest.mark.parametrize(("type", "stored", "value", "json"), FITTING)
def test_a_fitting_value_becomes_arrow_and_json(type: Type, stored: Any, value: Any, json: Any) -> None:
    array = arrow_column([stored, None], type)
    assert array.type == type.arrow
    assert array.to_pylist() == [value, None]
    assert json_value(stored, type) == json
    assert json_value(None, type) is None


@pytest.mark.parametrize(
    ("type", "stored"),
    [
        (INTEGER, "x"),
        (INTEGER, 1.5),
        (TEXT, b"x"),
        (TEXT, 1),
        (BINARY, "x"),
        (FLOAT, "x"),
        (BOOLEAN, 2),
        (BOOLEAN, "true"),
        (DATE, "2024-02-30"),
        (DATE, "2024-05-06 00:00:00"),
        (DATE, 20240506),
        (DATE, "0000-01-01"),
        (TIMESTAMP, "0000-12-31 23:59:59"),
        (TEXT, BrokenText(b"\xff")),
        (BINARY, BrokenText(b"\xff")),
        (MONEY, BrokenText(b"\xff")),
        (TIMESTAMP, "yesterday"),
        (TIMESTAMP, 1714998615),
        (TIMESTAMP, "2024-01-01 10"),
        (TIMESTAMP, "2024-01-01T10"),
        (MONEY, "x"),
        (MONEY, 1e9),
        (MONEY, float("inf")),
        (MONEY, b"1"),
    ],
)
def test_a_value_that_does_not_fit_is_named(type: Type, stored: Any) -> None:
    for convert in (lambda: arrow_column([None, stored], type), lambda: json_value(stored, type)):
        with pytest.raises(Misfit) as caught:
            convert()
        assert caught.value.value == stored
    assert list(misfits([None, stored, None], type)) == [1]


def test_minus_zero_is_zero() -> None:
    assert str(arrow_column([-0.0], FLOAT)[0].as_py()) == str(json_value(-0.0, FLOAT)) == "0.0"


@pytest.mark.parametrize("type", [INTEGER, FLOAT, TEXT, BINARY, BOOLEAN, DATE, TIMESTAMP, MONEY])
def test_nothing_but_nulls_has_the_columns_type(type: Type) -> None:
    assert arrow_column([None, None], type).type == type.arrow
    assert arrow_column([], type).equals(pa.array([], type.arrow))


_BASES = ["2024-01-01", "2024-01-01 10", "2024-01-01T10:00", "2024-01-01 10:00:00.5", "20240101", "12.50", "-0", "1e3"]
_PARTS = [*"-:.TZ+0123456789 ,e_", "2024", "0000", "+02:00", "24", "1234567", "inf", "nan", "true", "ü", "\0", "\n"]
_OTHERS = [0, 1, 2, -1, 2**63 - 1, 0.0, -0.0, 1.5, 1e300, float("inf"), 2.675, 1e16, b"", b"\xff", b"12"]


def some_value(random: Random) -> Any:
    """Something near a date, a timestamp or a number, or another storage class."""
    if random.random() < 0.2:
        return random.choice(_OTHERS)
    text = list(random.choice(_BASES))
    for _ in range(random.choice([0, 1, 1, 2])):
        at = random.randrange(len(text) + 1)
        text[at : at + random.choice([0, 1])] = random.choice([[], [random.choice(_PARTS)]])
    return "".join(text)


@pytest.mark.parametrize("type", [INTEGER, FLOAT, TEXT, BINARY, BOOLEAN, DATE, TIMESTAMP, MONEY])
def test_agree_a_load_and_an_update_take_the_same_values_for_the_same(type: Type) -> None:
    """A load makes Arrow of what is stored; an update goes through JSON."""
    random = Random(11)
    for value in {repr(v): v for v in (some_value(random) for _ in range(4000))}.values():
        try:
            sent = json_column([json_value(value, type)], type).to_pylist()
        except Misfit:
            with pytest.raises(Misfit):
                arrow_column([value], type)
        else:
            assert arrow_column([value], type).to_pylist() == sent, value
