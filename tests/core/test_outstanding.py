"""What a topic holds past a cut, counted: updates and nothing else."""

from __future__ import annotations

from pathlib import Path

import orjson

from viewkeeper.capture.presence import Presence
from viewkeeper.messages import FURTHEST, Reached
from viewkeeper.queue.outstanding import Outstanding, Told, told


def native(*contents: object) -> list[tuple[int, bytes | None]]:
    return [(offset, orjson.dumps(content)) for offset, content in enumerate(contents)]


def update(position: int, *relations: str, **more: object) -> dict[str, object]:
    changes = [{"relation": relation, "op": "insert", "after": {}} for relation in relations]
    return {"source": "shop", "txn": "1", "position": position, "changes": changes, **more}


def marker(status: str, xid: int, lsn: int) -> dict[str, object]:
    return {"status": status, "id": f"{xid}:{lsn}", "event_count": 1}


def event(xid: int, op: str = "c", table: str = "orders") -> dict[str, object]:
    return {"op": op, "source": {"schema": "public", "table": table}, "transaction": {"id": f"{xid}:1"}}


def test_barriers_and_pieces_are_no_updates() -> None:
    pieces = [update(8, "a", part=1, parts=2), update(8, "b", part=2, parts=2)]
    found = told("native", native(update(7, "Orders"), {"source": "shop", "barrier": "x"}, *pieces, update(9)))
    assert found == [
        Told(0, 7, 1, frozenset({"orders"})),
        Told(3, 8, 2, frozenset({"a", "b"})),
        Told(4, 9, 1, frozenset()),
    ]
    assert [t.concerns({"orders"}) for t in found] == [True, False, False]


def test_a_part_of_a_transaction_over_several_sources_concerns_everybody() -> None:
    (part,) = told("native", native(update(7, global_txn={"id": "g", "sources": ["shop", "crm"]})))
    assert part.concerns({"orders"})


def test_an_idle_topic_of_debezium_holds_no_update() -> None:
    """Barriers are transactions of their own; heartbeats and tombstones come in between."""
    barrier = [marker("BEGIN", 5, 100), event(5, "m", ""), marker("END", 5, 101)]
    messages = [*native(*barrier, {"ts_ms": 1}, *barrier), (9, None)]
    assert told("debezium", messages) == []


def test_transactions_of_debezium_are_updates_once_they_touch_a_table() -> None:
    found = told(
        "debezium",
        native(
            *(marker("BEGIN", 5, 100), event(5), event(5, "u", "lines"), marker("END", 5, 110)),
            {"schema": {}, "payload": marker("BEGIN", 6, 120)},
            {"schema": {}, "payload": event(6)},
        ),
    )
    assert found[0] == Told(3, 110, 2, frozenset({"orders", "lines"}), 5)
    assert found[1] == Told(5, FURTHEST, 1, frozenset({"orders"})), "the rest of it is on its way"


def test_what_cannot_be_read_is_not_passed_over() -> None:
    assert [t.position for t in told("native", [(0, b"{"), (1, None), (2, b"[]")])] == [FURTHEST] * 3
    assert [t.position for t in told("debezium", [(0, b"{"), (1, b'{"op":"c"}')])] == [FURTHEST] * 2


def test_what_the_load_included_is_not_behind() -> None:
    topic = Outstanding([Told(n, 100 + n, 1, frozenset({"t"}), 50 + n) for n in range(6)])
    loaded = Reached(101, until=104, snapshot="53:55:53")
    assert [t.offset for t in topic.past(0, loaded)] == [3, 5], "53 was running when it was loaded"
    assert [t.offset for t in topic.past(4, Reached(0))] == [4, 5]
    assert topic.last == 105


def test_a_capture_is_present_as_long_as_it_holds_its_file(tmp_path: Path) -> None:
    presence = Presence.of(tmp_path / "warehouse", "shop")
    assert not presence.is_held()
    with presence.held():
        assert presence.is_held()
        with presence.held():
            assert presence.is_held()
        assert presence.is_held()
    assert not presence.is_held()
