"""From log rows to messages to the queue's columns: what capture sends is what the job reads, or is refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from viewkeeper.algebra.types import BOOLEAN, DATE, FLOAT, INTEGER, TEXT, TIMESTAMP, Kind, Type
from viewkeeper.capture.update_pieces import encode_updates
from viewkeeper.managers.sources.sqlite_log import Captured, Layout
from viewkeeper.managers.sources.sqlite_values import BrokenText, arrow_column, declared_type
from viewkeeper.queue.values import WrongType, json_column

DECLARED = ["INTEGER", "REAL", "TEXT", "BLOB", "BOOLEAN", "DATE", "DATETIME", "DECIMAL(10,2)"]
STORED: list[Any] = [None, 0, 1, 2, 20240101, 1.5, "1", "abcd", "AAE=", "2024-01-01", "20240101", "2024-W01-1", "true"]
STORED += ["2024-01-01 10:00", "2024-01-01T100000", "Infinity", "12.5", b"\x00\x01", b"abcd", BrokenText(b"\xff")]


def message(declared: str, value: Any, used: tuple[str, ...] = ()) -> Any:
    """The value of column ``x`` in the message that capture sends for it."""
    captured = Captured(1, used, (Layout(0, (("x", declared),)),))
    (update,) = encode_updates("shop", [(1, "t", "insert", None, value)], {"t": captured}, 1)
    with update.file:
        (text,) = update.messages()
    return orjson.loads(text)["changes"][0]["after"]["x"]


def stored_means(value: Any, type: Type) -> Any:
    try:
        return arrow_column([value], type).to_pylist()
    except ValueError:
        return "refused"


def sent_means(sent: Any, type: Type) -> Any:
    try:
        return json_column([sent], type).to_pylist()
    except WrongType:
        return "refused"


@pytest.mark.parametrize("declared", DECLARED)
@pytest.mark.parametrize("value", STORED, ids=repr)
def test_agree_a_stored_value_means_the_same_in_an_answer_and_in_a_message(declared: str, value: Any) -> None:
    type = declared_type(declared)
    assert sent_means(message(declared, value), type) == stored_means(value, type)


@pytest.mark.parametrize("type", [INTEGER, FLOAT, TEXT, BOOLEAN, DATE, TIMESTAMP], ids=str)
def test_no_type_takes_a_misfit(type: Type) -> None:
    with pytest.raises(WrongType):
        json_column([{"misfit": "AAE="}], type)


@pytest.mark.parametrize(("declared", "value", "json"), [("BOOLEAN", 1, True), ("DECIMAL(8,2)", 2.5, "2.50")])
def test_a_column_that_no_view_uses_is_sent_in_its_type(declared: str, value: Any, json: Any) -> None:
    assert message(declared, value) == message(declared, value, used=("x",)) == json


def test_a_column_whose_type_says_nothing_is_sent_naturally() -> None:
    assert declared_type("JSON").kind is Kind.UNKNOWN
    assert [message("JSON", value) for value in (1, "a", b"\x00", float("inf"))] == [1, "a", "AA==", "Infinity"]
