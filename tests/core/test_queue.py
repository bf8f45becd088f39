"""The update queue: whole updates in delivery order, each once, and a clear word about what cannot be used."""

from __future__ import annotations

import json
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
    Column,
    Relation,
    Type,
    decimal,
)
from viewkeeper.messages import Reached, Received
from viewkeeper.queue.consumer import MESSAGES
from viewkeeper.queue.update_queue import Inlet, UpdateQueue
from viewkeeper.queue.values import WrongType, json_column

ORDERS = Relation("shop", "orders", (Column("id", INTEGER), Column("note", TEXT)))
OTHER = Relation("shop", "other", (Column("x", INTEGER),))


def inlet(**more: Any) -> Inlet:
    settings: dict[str, Any] = {"position": Reached(0), "offset": 0, **more}
    relations = {"orders": ORDERS, "other": OTHER}
    return Inlet("shop", "shop.updates", relations, {"orders": ["id", "note"]}, **settings)


def insert(number: int, *ids: Any, **more: Any) -> bytes:
    rows = [{"relation": "orders", "op": "insert", "after": {"id": i, "note": "n"}} for i in ids]
    message = {"source": "shop", "txn": str(number), "position": number, "global_txn": None, "changes": rows}
    return json.dumps(message | more).encode()


def messages(*values: bytes | None, first: int = 0, topic: str = "shop.updates") -> pa.Table:
    rows = [
        {"topic": topic, "offset": first + i, "value": value, "timestamp": 1000 + i} for i, value in enumerate(values)
    ]
    return pa.Table.from_pylist(rows, MESSAGES)


def ids(received: Received) -> list[int]:
    table = received.changes.get(("shop", "orders"))
    return [] if table is None else table["id"].to_pylist()


def test_a_repeated_message_is_dropped_by_its_position() -> None:
    queue = UpdateQueue([inlet()])
    received = queue.receive(messages(insert(5, 1), insert(5, 1), insert(3, 9), insert(6, 2)))
    assert [u.position for u in received.updates] == [5, 6]
    assert ids(received) == [1, 2]
    assert queue.offsets() == {"shop": 4}


def test_an_update_that_a_load_includes_gets_no_number() -> None:
    received = UpdateQueue([inlet(position=Reached(5))]).receive(messages(insert(4, 1), insert(5, 1), insert(6, 2)))
    assert [u.position for u in received.updates] == [6]


def test_pieces_become_one_update_even_across_batches() -> None:
    queue = UpdateQueue([inlet()])
    first = queue.receive(messages(insert(1, 1), insert(7, 2, part=1, parts=3)))
    assert [u.position for u in first.updates] == [1]
    assert queue.offsets() == {"shop": 1}, "a restart must read the first piece again"
    rest = queue.receive(messages(insert(7, 3, part=2, parts=3), insert(7, 4, part=3, parts=3), first=2))
    assert ids(rest) == [2, 3, 4] and len(rest.updates) == 1
    assert queue.offsets() == {"shop": 4}


def test_rewinding_to_a_cut_reads_again_what_it_does_not_hold() -> None:
    queue = UpdateQueue([inlet()])
    queue.receive(messages(insert(1, 1), insert(7, 2, part=1, parts=2)))
    queue.rewind({"shop": "0"}, {"shop": 0})
    whole = queue.receive(messages(insert(1, 1), insert(7, 2, part=1, parts=2), insert(7, 3, part=2, parts=2)))
    assert ids(whole) == [1, 2, 3]


def test_a_barrier_and_an_unused_relation_get_no_number() -> None:
    barrier = json.dumps({"source": "shop", "barrier": "t"}).encode()
    change = {"relation": "other", "op": "insert", "after": {"x": 1}}
    received = UpdateQueue([inlet()]).receive(messages(barrier, insert(1, changes=[change])))
    assert received.updates == [] and received.rejected == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{", "not JSON"),
        (None, "empty"),
        (b"[]", "dictionary"),
        (insert(2, 1, source="crm"), "'crm'"),
        (insert(2, 1, surprise=1), "surprise"),
        (insert(2, 1, position="2"), "position"),
        (insert(2**63, 1), "position"),
        (insert(-1, 1), "position"),
        (insert(2, changes=[{"relation": "gone", "op": "insert", "after": {}}]), "unknown relation 'gone'"),
        (insert(2, changes=[{"relation": "orders", "op": "insert", "after": {"id": 1}}]), "'note' is missing"),
        (insert(2, "x"), "orders.id: 'x' is no integer"),
        (insert(2, True), "orders.id: True is no integer"),
        (insert(2, 2**63), "is no integer"),
        (insert(2, changes=[{"relation": "orders", "op": "delete", "after": {}}]), "must carry before"),
        (insert(2, changes=[{"relation": "orders", "op": "upsert", "after": {}}]), "op"),
        (insert(2, 1, part=2, parts=2), "does not follow"),
    ],
)
def test_a_message_that_cannot_be_used_stops_its_topic_there(value: bytes | None, reason: str) -> None:
    queue = UpdateQueue([inlet()])
    received = queue.receive(messages(insert(1, 1), value, insert(9, 9)))
    assert ids(received) == [1], "everything before it counts, nothing after it"
    assert [r.offset for r in received.rejected] == [1]
    assert reason in received.rejected[0].reason
    assert queue.offsets() == {"shop": 1} and queue.positions() == {"shop": "1"}
    error = str(received.rejected[0].error())
    assert "topic shop.updates partition 0 offset 1" in error


def test_quarantine_goes_on_after_every_bad_message() -> None:
    queue = UpdateQueue([inlet()], quarantine=True)
    received = queue.receive(messages(b"{", insert(2, "x"), insert(3, 3), insert(4, None, 1.5), insert(5, 5)))
    assert ids(received) == [3, 5]
    assert sorted(r.offset for r in received.rejected) == [0, 1, 3]
    assert queue.offsets() == {"shop": 5} and queue.positions() == {"shop": "5"}


def test_a_message_set_aside_counts_as_passed_but_moves_no_position() -> None:
    queue = UpdateQueue([inlet()], quarantine=True)
    queue.receive(messages(insert(3, 3), insert(9, "x"), b"{"))
    assert queue.positions() == {"shop": "3"} and queue.passed() == {"shop": "9"}


def test_topics_merge_by_time_and_keep_their_own_order() -> None:
    crm = Inlet(
        "crm", "crm.updates", {"c": Relation("crm", "c", (Column("id", INTEGER),))}, {"c": ["id"]}, Reached(0), 0
    )
    change = [{"relation": "c", "op": "insert", "after": {"id": 1}}]
    late = pa.Table.from_pylist(
        [
            {"topic": "crm.updates", "offset": 0, "value": insert(1, source="crm", changes=change), "timestamp": 1001},
            # Its producer's clock went back; it still comes after its predecessor.
            {"topic": "crm.updates", "offset": 1, "value": insert(2, source="crm", changes=change), "timestamp": 5},
        ],
        MESSAGES,
    )
    queue = UpdateQueue([inlet(), crm])
    both = pa.concat_tables([late, messages(insert(1, 1), insert(2, 2), insert(3, 3))])
    order = [(u.source, u.position) for u in queue.receive(both).updates]
    assert order == [("shop", 1), ("crm", 1), ("crm", 2), ("shop", 2), ("shop", 3)] or order == [
        ("shop", 1),
        ("crm", 1),
        ("shop", 2),
        ("crm", 2),
        ("shop", 3),
    ]
    assert [p for s, p in order if s == "crm"] == [1, 2]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (INTEGER, -(2**63), "-9223372036854775808"),
        (FLOAT, 1, "1.0"),
        (FLOAT, -0.0, "0.0"),
        (FLOAT, "-Infinity", "-inf"),
        (decimal(10, 2), "12.5", "12.50"),
        (decimal(10, 2), 12, "12.00"),
        (BOOLEAN, True, "True"),
        (DATE, "2024-02-29", "2024-02-29"),
        (TIMESTAMP, "2024-01-01T12:00:00+02:00", "2024-01-01 10:00:00+00:00"),
        (TIMESTAMP, "2024-01-01 12:00:00", "2024-01-01 12:00:00+00:00"),
        (BINARY, "AP8=", "b'\\x00\\xff'"),
        (TEXT, "", ""),
    ],
)
def test_json_values_become_what_they_mean(kind: Type, value: Any, expected: str) -> None:
    column = json_column([value, None], kind)
    assert column.type == kind.arrow
    assert str(column[0].as_py()) == expected and column[1].as_py() is None


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (INTEGER, 1.0),
        (INTEGER, True),
        (FLOAT, "1.5"),
        (FLOAT, True),
        (decimal(4, 2), "1.234"),
        (decimal(4, 2), "12345"),
        (decimal(4, 2), 1.5),
        (BOOLEAN, 1),
        (DATE, "2024-02-30"),
        (TIMESTAMP, "yesterday"),
        (BINARY, "***"),
        (TEXT, 5),
    ],
)
def test_json_values_of_another_type_are_refused_by_index(kind: Type, value: Any) -> None:
    with pytest.raises(WrongType) as refused:
        json_column([None, value], kind)
    assert list(refused.value.reasons) == [1]
