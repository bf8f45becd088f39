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
from viewkeeper.job.whole_transactions import Unfinished
from viewkeeper.messages import Reached, Received
from viewkeeper.queue import images, spool
from viewkeeper.queue.consumer import MESSAGES
from viewkeeper.queue.update_queue import Inlet, UpdateQueue
from viewkeeper.queue.values import WrongType, json_column

ORDERS = Relation("shop", "orders", (Column("id", INTEGER), Column("note", TEXT)))
OTHER = Relation("shop", "other", (Column("x", INTEGER),))


def inlet(topic: str = "shop.updates", **more: Any) -> Inlet:
    settings: dict[str, Any] = {"position": Reached(0), "offset": 0, **more}
    relations = {"orders": ORDERS, "other": OTHER}
    return Inlet("shop", topic, relations, {"orders": ["id", "note"]}, **settings)


def insert(number: int, *ids: Any, note: str = "n", **more: Any) -> bytes:
    rows = [{"relation": "orders", "op": "insert", "after": {"id": i, "note": note}} for i in ids]
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


def part(number: int, of: int, position: int = 7, **fields: object) -> bytes:
    """A part whose row has the part's number as its id."""
    return insert(position, number, part=number, parts=of, **fields)


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        ([part(1, 3), part(2, 3), part(1, 3), part(2, 3), part(3, 3)], [1, 2, 3]),
        ([part(1, 3), part(1, 3), part(2, 3), part(3, 3)], [1, 2, 3]),
        ([part(1, 3), part(2, 3), part(1, 2), part(2, 2)], [1, 2]),
        ([part(1, 3), insert(7, 5)], [5]),
        ([part(1, 2), insert(1, 9), part(2, 2)], [1, 2]),
        ([part(1, 2), part(2, 2), part(1, 2), part(2, 2)], [1, 2]),
        ([part(1, 2), json.dumps({"source": "shop", "barrier": "t"}).encode(), part(2, 2)], [1, 2]),
    ],
    ids=["killed", "killed-early", "in-other-pieces", "in-one-piece", "old-between", "twice", "barrier-between"],
)
@pytest.mark.parametrize("at_once", [1, 100])
def test_an_update_sent_again_from_its_first_part_is_taken_once(
    sent: list[bytes], taken: list[int], at_once: int
) -> None:
    queue = UpdateQueue([inlet(position=Reached(1))])
    found: list[int] = []
    for first in range(0, len(sent), at_once):
        received = queue.receive(messages(*sent[first : first + at_once], first=first))
        assert received.rejected == []
        found += ids(received)
    assert found == taken
    assert queue.offsets() == {"shop": len(sent)} and queue.positions() == {"shop": "7"}


@pytest.mark.parametrize(
    ("sent", "place", "reason"),
    [
        ([part(1, 3), insert(8, 8)], 0, "part 1 of 3 of transaction 7 came last, and then transaction 8 instead of"),
        ([part(1, 2), part(1, 2, 8), part(2, 2, 8)], 0, "and then part 1 of transaction 8 instead of part 2"),
        ([part(1, 2), part(2, 2, 8)], 0, "and then part 2 of transaction 8 instead of part 2"),
        ([part(1, 2), part(2, 2, 7, txn="other")], 0, "and then part 2 of transaction other"),
        ([part(1, 3), part(3, 3)], 1, "part 3 of transaction 7 does not follow part 2; part 1 of 3"),
        ([part(1, 3), part(2, 3), part(2, 3)], 2, "part 2 of transaction 7 does not follow part 1; part 2 of 3"),
        ([part(1, 3), part(2, 4)], 1, "the number of parts has changed"),
        ([part(2, 3), part(3, 3)], 0, "part 2 of transaction 7 does not follow part 1"),
    ],
    ids=["dropped", "two-begun", "other-position", "other-txn", "gap", "repeated", "count-changed", "no-first"],
)
@pytest.mark.parametrize("at_once", [1, 100])
def test_parts_that_do_not_make_an_update_are_refused_by_name(
    sent: list[bytes], place: int, reason: str, at_once: int
) -> None:
    queue = UpdateQueue([inlet()])
    refused = []
    for first in range(0, len(sent), at_once):
        received = queue.receive(messages(*sent[first : first + at_once], first=first))
        assert received.updates == []
        refused += received.rejected
    assert [r.offset for r in refused] == [place]
    assert reason in refused[0].reason
    assert queue.positions() == {"shop": "0"}


def test_quarantine_sets_a_torn_update_aside_and_goes_on_with_the_one_after_it() -> None:
    queue = UpdateQueue([inlet()], quarantine=True)
    received = queue.receive(messages(insert(1, 1), part(1, 3), part(2, 3), insert(8, 8), part(1, 2, 9), part(2, 2, 9)))
    assert ids(received) == [1, 8, 1, 2]
    assert [(r.offset, r.value) for r in received.rejected] == [(1, part(1, 3))]
    assert queue.offsets() == {"shop": 6}


def test_an_update_whose_last_part_has_not_come_is_told() -> None:
    queue = UpdateQueue([inlet()])
    queue.receive(messages(insert(1, 1), part(1, 3), part(2, 3)))
    assert queue.unfinished() == {"shop": "part 2 of 3 of transaction 7"}
    queue.receive(messages(part(3, 3), first=3))
    assert queue.unfinished() == {}


def test_a_part_that_does_not_come_is_told_after_a_while_and_no_longer_once_another_came() -> None:
    clock = [100.0]
    watch, queue = Unfinished(60, lambda: clock[0]), UpdateQueue([inlet()])
    queue.receive(messages(part(1, 3)))
    assert not watch.look(queue.unfinished())
    clock[0] += 59
    assert not watch.look(queue.unfinished())
    clock[0] += 2
    assert watch.look(queue.unfinished())
    assert watch.late == ["source shop: part 1 of 3 of transaction 7 came 61 s ago, and the rest of it does not come"]
    queue.receive(messages(part(2, 3), first=1))
    assert not watch.look(queue.unfinished()) and watch.late == []


def test_the_parts_of_a_large_update_are_not_kept_as_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "IN_MEMORY", 2)
    queue = UpdateQueue([inlet()])
    assert ids(queue.receive(messages(*(part(n, 9) for n in range(1, 7))))) == []
    assert ids(queue.receive(messages(*(part(n, 9) for n in range(7, 10)), insert(8, "x"), first=6))) == [*range(1, 10)]


@pytest.mark.parametrize("at_once", [1_000, 100_000])
def test_what_large_updates_changed_is_mapped_from_a_file(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "SPOOL_BYTES", 1_000_000)
    monkeypatch.setattr(images, "BYTES_AT_ONCE", at_once)
    before = pa.total_allocated_bytes()
    received = UpdateQueue([inlet()]).receive(messages(*(insert(n, n, note=f"{n}" * 3000) for n in range(1, 2001))))
    table = received.changes["shop", "orders"]
    assert table["id"].to_pylist() == [*range(1, 2001)] and table["note"][1776].as_py() == "1777" * 3000
    assert table.nbytes > 10_000_000 > pa.total_allocated_bytes() - before
    wrong = UpdateQueue([inlet()], quarantine=True).receive(
        messages(*(insert(n, "x" if n == 999 else n, note=f"{n}" * 3000) for n in range(1, 2001)))
    )
    assert len(wrong.updates) == 1999 and [r.offset for r in wrong.rejected] == [998]


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
        (insert(2, 1, part=2, parts=2), "part 2 of transaction 2 does not follow part 1"),
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


def test_changes_logged_before_a_view_used_a_column_lack_it() -> None:
    old = [
        {"relation": "orders", "op": "insert", "after": {"id": 1}},
        {"relation": "orders", "op": "update", "before": {"id": 1}, "after": {"id": 2, "note": "n"}},
    ]
    received = UpdateQueue([inlet(fresh={"orders": {"note"}})]).receive(messages(insert(1, changes=old), insert(2, 3)))
    assert not received.rejected
    assert received.changes["shop", "orders"].select(["id", "note"]).to_pylist() == [
        {"id": 1, "note": None},
        {"id": 1, "note": None},
        {"id": 2, "note": "n"},
        {"id": 3, "note": "n"},
    ]


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
