"""What view topics carry: rows as JSON, one message per update, large ones in pieces."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from viewkeeper.messages import PIECE_BYTES, ViewUpdateMessage
from viewkeeper.warehouse.cuts import UpdateRow, update_table
from viewkeeper.warehouse.rendering import rendered_changes, row_objects
from viewkeeper.warehouse.view_messages import view_messages

VALUES: list[tuple[pa.DataType, Any, Any]] = [
    (pa.int64(), 2**63 - 1, 2**63 - 1),
    (pa.int64(), -(2**63), -(2**63)),
    (pa.float64(), 0.1 + 0.2, 0.1 + 0.2),
    (pa.float64(), 1e300, 1e300),
    (pa.float64(), 5e-324, 5e-324),
    (pa.float64(), float("nan"), "NaN"),
    (pa.float64(), float("-inf"), "-Infinity"),
    (pa.decimal128(38, 10), Decimal("-12345678901234567890.0000000001"), "-12345678901234567890.0000000001"),
    (pa.decimal128(10, 2), Decimal("0.10"), "0.10"),
    (pa.string(), "", ""),
    (pa.string(), 'quote " slash \\ line\n nul \x00 ', 'quote " slash \\ line\n nul \x00 '),
    (pa.string(), "čaj 🍵 \u2028", "čaj 🍵 \u2028"),
    (pa.bool_(), True, True),
    (pa.date32(), date(1, 2, 3), "0001-02-03"),
    (pa.timestamp("us", tz="UTC"), datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC), "2024-02-29T01:02:03Z"),
    (pa.timestamp("us", tz="UTC"), datetime(1969, 1, 1, 0, 0, 0, 7, UTC), "1969-01-01T00:00:00.000007Z"),
    (pa.binary(), b"\x00\xff", "AP8="),
]


@pytest.mark.parametrize(("kind", "value", "expected"), VALUES)
def test_a_value_survives_as_json(kind: pa.DataType, value: Any, expected: Any) -> None:
    table = pa.table({"x": pa.array([value, None], kind), "_count": [1, -2]})
    rendered = [json.loads(text) for text in rendered_changes(table)]
    assert rendered == [{"row": {"x": expected}, "count": 1}, {"row": {"x": None}, "count": -2}]
    assert list(row_objects(table)) == [{"x": expected}, {"x": None}]


def updates(last: int) -> pa.Table:
    return update_table(UpdateRow(k, "shop", f"t{k}", "topic", k) for k in range(1, last + 1))


def changes(*numbers: int, text: str = "x") -> pa.Table:
    return pa.table({"a b": [text] * len(numbers), "_count": [1] * len(numbers), "_update": list(numbers)})


def messages(last: int, *tables: pa.Table) -> list[ViewUpdateMessage]:
    return [ViewUpdateMessage(**json.loads(m)) for m in view_messages('v"', updates(last), tables)]


def test_an_update_that_spans_tables_is_one_message() -> None:
    sent = messages(9, changes(1, 3, 3), changes(3, 3), changes(3, 7))
    assert [(m.update, m.txn, len(m.changes), m.part) for m in sent] == [
        (1, "t1", 1, None),
        (3, "t3", 5, None),
        (7, "t7", 1, None),
    ]
    assert {m.view for m in sent} == {'v"'}


def test_updates_that_share_a_number_are_one_message_that_names_all_of_them() -> None:
    shared = [("shop", "s2", 8), ("crm", "c1", 3), ("shop", "s1", 7)]
    rows = [UpdateRow(4, "hr", "h1", "topic", 0), *(UpdateRow(5, s, txn, "topic", at) for s, txn, at in shared)]
    table = update_table([*rows, UpdateRow(6, "crm", "c2", "topic", 4)])
    sent = [ViewUpdateMessage(**json.loads(m)) for m in view_messages("v", table, [changes(4, 5, 5), changes(5, 6)])]
    assert [(m.update, m.source, m.txn, len(m.changes)) for m in sent] == [
        (4, "hr", "h1", 1),
        (5, "crm+shop", "c1+s1+s2", 3),
        (6, "crm", "c2", 1),
    ]


def test_pieces_stay_small_and_say_how_many_they_are() -> None:
    text = "y" * 1_000
    sent = messages(3, changes(1), changes(*[2] * 700, text=text), changes(*[2] * 700, 3, text=text), changes(3))
    assert [(m.update, m.part, m.parts) for m in sent] == [
        (1, None, None),
        *[(2, part, 3) for part in (1, 2, 3)],
        (3, None, None),
    ]
    assert [len(m.changes) for m in sent if m.update != 2] == [1, 2]
    assert sum(len(m.changes) for m in sent if m.update == 2) == 1_400
    assert all(len(m.model_dump_json()) < PIECE_BYTES + 200 for m in sent)


def test_a_row_larger_than_a_piece_is_a_piece_of_its_own() -> None:
    sent = messages(1, changes(1), changes(1, text="z" * (PIECE_BYTES + 1)), changes(1))
    assert [(m.part, m.parts, len(m.changes)) for m in sent] == [(1, 3, 1), (2, 3, 1), (3, 3, 1)]


def test_changes_out_of_order_are_never_sent() -> None:
    with pytest.raises(AssertionError, match="order of updates"):
        messages(3, changes(1, 3), changes(2))
