"""Debezium's messages, form by form, as they were recorded: what each means for the updates that come out."""

from __future__ import annotations

import base64
import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from viewkeeper.algebra.types import TEXT, Column
from viewkeeper.messages import Reached
from viewkeeper.queue.debezium_placeholder import placeholder_of
from viewkeeper.queue.update_queue import Inlet, UpdateQueue

from .debezium_worlds import (
    ACC,
    RELATIONS,
    Committed,
    Event,
    came_out,
    compact,
    inlet,
    messages,
    recorded,
    rows,
    wrapped,
)

EVENTS = "events-postgres.txt"
TYPES = "events-postgres-types.txt"


def only_keys() -> Inlet:
    """Views use nothing of acc but its key, which is all that its log tells of old rows."""
    keyed = RELATIONS | {"acc": replace(ACC, logged=frozenset({"id"}))}
    return Inlet("shop", "shop.updates", keyed, {"acc": ["id"]}, Reached(0), 0, format="debezium")


def insert(xid: int, end: int, *ids: Any, follows: int | None = None) -> Committed:
    events = [Event("c", "ful", None, {"id": i, "a": "a", "b": "b"}, lsn=end - 50 + n) for n, i in enumerate(ids)]
    return Committed(xid, end, events, follows)


# -- what is recorded


def test_a_transaction_is_one_update_with_its_end_as_position_and_its_xid_as_tag() -> None:
    received = UpdateQueue([inlet(acc=("id", "owner", "bal", "ts"))]).receive(messages(*recorded(EVENTS, 0, 1, 2)))
    (update,) = received.updates
    assert (update.txn, update.position, update.tag) == ("447083", 636519072, 447083)
    assert (update.offset, update.begins, update.timestamp) == (2, 0, 1002)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert rows(received, "acc") == {(1, "a", Decimal("10.50"), moment): 1}


def test_all_recorded_transactions_come_out_in_order_and_irrelevant_ones_get_no_number() -> None:
    queue = UpdateQueue([inlet()])
    received = queue.receive(messages(*recorded(EVENTS)))
    assert [u.txn for u in received.updates] == ["447084", "447086", "447088", "447096"]
    assert [did.changes for did in came_out(received)] == [
        {"ful": [((1, "a", "b"), 1), ((1, "a", "b"), -1), ((1, "a", "c"), 1)]},
        {"ful": [((1, "a", "c"), -1)]},
        {"ord": [((1, 1, 5), 1)]},
        {},
    ]
    assert queue.positions() == queue.passed() == {"shop": "636555168"}
    assert queue.offsets() == {"shop": 37}


def test_an_update_without_its_old_row_is_refused_and_names_the_statement() -> None:
    queue = UpdateQueue([inlet(acc=("id", "owner"))])
    received = queue.receive(messages(*recorded(EVENTS)))
    assert [u.txn for u in received.updates] == ["447083"]
    (rejected,) = received.rejected
    assert rejected.offset == 7 and "transaction 447084: event 1" in rejected.reason
    assert "ALTER TABLE public.acc REPLICA IDENTITY FULL" in rejected.reason


def test_where_only_key_columns_are_used_the_key_is_all_that_must_be_known() -> None:
    received = UpdateQueue([only_keys()]).receive(messages(*recorded(EVENTS, *range(16))))
    assert [did.changes for did in came_out(received)] == [
        {"acc": [((1,), 1)]},
        {},  # another column changed
        {"acc": [((1,), -1), ((2,), 1)]},  # the key changed: a delete and an insert with one LSN
        {"acc": [((2,), -1)]},
    ]


def test_a_delete_that_tells_only_the_key_is_refused_if_more_is_used() -> None:
    described = RELATIONS | {"acc": replace(ACC, logged=frozenset({"id"}))}
    using = Inlet("shop", "shop.updates", described, {"acc": ["id", "owner"]}, Reached(0), 0, format="debezium")
    received = UpdateQueue([using]).receive(messages(*recorded(EVENTS, 12, 13, 14, 15)))
    assert received.updates == [] and "REPLICA IDENTITY FULL" in received.rejected[0].reason


def test_truncate_empties_each_table_it_names() -> None:
    received = UpdateQueue([inlet(acc=("id",), ord=("oid",))]).receive(messages(*recorded(EVENTS, 33, 34, 35, 36)))
    assert [(t.ordinal, t.relation) for t in received.truncated] == [(0, "acc"), (0, "ord")]
    assert len(received.updates) == 1 and received.changes == {}


def test_messages_count_as_events_and_come_without_a_transaction_too() -> None:
    queue = UpdateQueue([inlet(acc=("id",))])
    received = queue.receive(messages(*recorded(EVENTS, *range(25, 33))))
    assert [u.txn for u in received.updates] == ["447095"]
    assert queue.passed() == {"shop": "636522328"}


def test_a_large_value_that_did_not_change_must_be_known_from_the_old_row() -> None:
    columns = (Column("id", ACC.columns[0].type, "int4"), Column("bg", ACC.columns[1].type, "text"))
    described = {"ty": replace(ACC, name="ty", columns=columns)}
    begin, update, end = recorded(TYPES, 52, 53, 54)

    def taken(used: list[str], before: dict[str, Any] | None) -> Any:
        event = json.loads(update) | {"before": before}
        topic = Inlet("shop", "shop.updates", described, {"ty": used}, Reached(0), 0, format="debezium")
        return UpdateQueue([topic]).receive(messages(begin, compact(event), end))

    assert rows(taken(["id"], {"id": 50, "bg": "long"}), "ty") == {(50,): 0}
    assert "REPLICA IDENTITY FULL" in taken(["id", "bg"], None).rejected[0].reason


CONNECTOR, ANOTHER = (f"shop.updates.vk-{digit * 32}" for digit in "a7")
OWN = placeholder_of(CONNECTOR).text


@pytest.mark.parametrize("connector", [CONNECTOR, "shop"])
@pytest.mark.parametrize("typed", ["__debezium_unavailable_value", OWN[:-1], placeholder_of(ANOTHER).text])
def test_a_text_that_a_user_types_is_never_taken_for_a_value_left_out(typed: str, connector: str) -> None:
    """Whatever it is, unless it is the random one that this message's connector writes."""
    events = [
        Event("u", "ful", {"id": 1, "a": "x", "b": "y"}, {"id": 1, "a": typed, "b": "y"}, lsn=5),
        Event("u", "ful", {"id": 1, "a": typed, "b": "y"}, {"id": 1, "a": typed, "b": "z"}, lsn=6),
        Event("c", "ful", None, {"id": 2, "a": typed, "b": "y"}, lsn=7),
        Event("d", "ful", {"id": 3, "a": typed, "b": "y"}, None, lsn=8),
    ]
    received = UpdateQueue([inlet()]).receive(messages(*Committed(7, 9, events, connector=connector).messages()))
    assert not received.rejected
    assert +rows(received, "ful") == Counter({(1, typed, "z"): 1, (2, typed, "y"): 1})
    assert -rows(received, "ful") == Counter({(1, "x", "y"): 1, (3, typed, "y"): 1})


def test_messages_of_several_connectors_each_have_their_own_placeholder() -> None:
    """A connector that is started anew has another; what the topic held before is understood as ever."""
    whole = []
    for number, connector in enumerate([CONNECTOR, ANOTHER, CONNECTOR], 1):
        left_out = placeholder_of(connector).text
        event = Event("u", "ful", {"id": 1, "a": "x", "b": "y"}, {"id": 1, "a": left_out, "b": "z"}, lsn=10 * number)
        whole += Committed(number, 10 * number + 5, [event], connector=connector).messages()
    received = UpdateQueue([inlet()]).receive(messages(*whole))
    assert [did.changes["ful"][1] for did in came_out(received)] == [((1, "x", "z"), 1)] * 3


def test_a_deletion_of_which_only_the_key_was_logged_is_not_taken_for_a_row_of_nulls() -> None:
    """The table's REPLICA IDENTITY was set to DEFAULT and back: nothing but the message tells it."""
    relations = {"ful": replace(RELATIONS["ful"], key=("id",), required=frozenset({"id", "b"}))}

    def taken(before: dict[str, Any]) -> Any:
        topic = Inlet("shop", "shop.updates", relations, {"ful": ["id", "a"]}, Reached(0), 0, format="debezium")
        event = Event("d", "ful", before, None, lsn=5)
        return UpdateQueue([topic]).receive(messages(*Committed(7, 9, [event]).messages()))

    assert "the old row is not known" in taken({"id": 1, "a": None, "b": None}).rejected[0].reason
    assert rows(taken({"id": 1, "a": None, "b": "y"}), "ful") == {(1, None): -1}


def test_a_changed_key_does_not_turn_a_value_left_out_into_a_text() -> None:
    """Debezium sends an UPDATE of the key as a delete and an insert: that insert may lack a value."""
    events = [
        Event("d", "ful", {"id": 1, "a": "x", "b": "y"}, None, lsn=5),
        Event("c", "ful", None, {"id": 2, "a": OWN, "b": "y"}, lsn=5),
    ]
    received = UpdateQueue([inlet()]).receive(messages(*Committed(7, 9, events, connector=CONNECTOR).messages()))
    assert "ful.a: a large value that did not change was left out" in received.rejected[0].reason


def test_a_large_key_that_did_not_change_is_no_change_where_only_the_key_is_logged() -> None:
    columns = (Column("id", TEXT, "text"), Column("n", TEXT, "text"))
    described = {"ty": replace(ACC, name="ty", columns=columns, key=("id",), logged=frozenset({"id"}))}
    topic = Inlet("shop", "shop.updates", described, {"ty": ["id"]}, Reached(0), 0, format="debezium")
    event = Event("u", "ty", None, {"id": OWN, "n": "new"}, lsn=5)
    received = UpdateQueue([topic]).receive(messages(*Committed(7, 9, [event], connector=CONNECTOR).messages()))
    assert not received.rejected and rows(received, "ty") == {}


@pytest.mark.parametrize(
    ("declared", "absent", "connector"),
    [
        ("bytea", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==", "shop"),
        ("_text", ["__debezium_unavailable_value"], "shop"),
        ("_int4", list(b"__debezium_unavailable_value"), "shop"),
        ("_uuid", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"], "shop"),
        ("jsonb", "__debezium_unavailable_value", "shop"),
        ("bytea", base64.b64encode(OWN.encode()).decode(), CONNECTOR),
        ("_text", [OWN], CONNECTOR),
        ("_int8", list(OWN.encode()), CONNECTOR),
        ("jsonb", OWN, CONNECTOR),
    ],
)
def test_every_type_has_its_own_word_for_a_value_left_out(declared: str, absent: Any, connector: str) -> None:
    columns = (ACC.columns[0], Column("big", ACC.columns[1].type, declared))
    topic = Inlet(
        "shop",
        "shop.updates",
        {"ty": replace(ACC, name="ty", columns=columns)},
        {"ty": ["id", "big"]},
        Reached(0),
        0,
        format="debezium",
    )
    event = Event("u", "ty", None, {"id": 1, "big": absent}, lsn=5)
    received = UpdateQueue([topic]).receive(messages(*Committed(7, 9, [event], connector=connector).messages()))
    assert "ty.big: a large value" in received.rejected[0].reason


def test_an_added_column_that_no_view_uses_changes_nothing() -> None:
    columns = (Column("id", ACC.columns[0].type, "int4"), Column("m", ACC.columns[2].type, "numeric"))
    described = {"ty": replace(ACC, name="ty", columns=columns)}
    topic = Inlet("shop", "shop.updates", described, {"ty": ["id", "m"]}, Reached(0), 0, format="debezium")
    values = recorded(TYPES, 55, 56, 57)
    event = json.loads(values[1])
    event["before"] = event["after"] | {"m": "1.10"}
    received = UpdateQueue([topic]).receive(messages(values[0], compact(event), values[2]))
    assert rows(received, "ty") == {(1, Decimal("1.10")): -1, (1, Decimal("8.00")): 1}


def test_what_was_logged_before_a_column_was_added_lacks_it_only_for_views_that_are_not_loaded_yet() -> None:
    before, after = {"id": 1, "a": "x"}, {"id": 1, "a": "y"}
    one = Committed(7, 90, [Event("u", "ful", before, after, lsn=80), Event("d", "ful", after, lsn=81)])
    topic = inlet()
    topic.fresh = {"ful": {"b"}}
    received = UpdateQueue([topic]).receive(messages(*one.messages()))
    assert not received.rejected
    assert rows(received, "ful") == {(1, "x", None): -1, (1, "y", None): 0}


def test_a_used_column_that_was_dropped_stops_the_job_at_its_transaction() -> None:
    one = Committed(7, 90, [Event("c", "ful", None, {"id": 1, "a": "x"}, lsn=80)])
    received = UpdateQueue([inlet()]).receive(messages(*one.messages()))
    assert received.rejected[0].offset == 2 and "ful: column 'b' is missing" in received.rejected[0].reason


# -- forms that carry no update


def test_tombstones_heartbeats_and_empty_payloads_pass_unnoticed() -> None:
    queue = UpdateQueue([inlet()])
    heartbeat = compact({"ts_ms": 1794796630390})
    received = queue.receive(messages(None, wrapped(None), heartbeat, wrapped(heartbeat)))
    assert received.updates == [] and received.rejected == []
    assert queue.offsets() == {"shop": 4}


def test_messages_may_carry_their_schemas() -> None:
    plain = UpdateQueue([inlet()]).receive(messages(*recorded(EVENTS)))
    with_schemas = UpdateQueue([inlet()]).receive(messages(*map(wrapped, recorded(EVENTS))))
    assert came_out(plain) == came_out(with_schemas) and plain.updates == with_schemas.updates


@pytest.mark.parametrize("marker", ["true", "first", "last", "incremental", None])
def test_the_connectors_own_first_load_is_ignored(marker: str | None) -> None:
    source = {"schema": "public", "table": "ful", "lsn": 5, "txId": 3, "snapshot": marker}
    alone = {"op": "r", "before": None, "after": {"id": 1}, "source": source, "transaction": None}
    queue = UpdateQueue([inlet()])
    received = queue.receive(messages(compact(alone), *insert(7, 90, 1).messages()))
    assert [u.txn for u in received.updates] == ["7"] and not received.rejected


def test_the_connectors_own_first_load_is_no_transaction_even_if_it_looks_like_one() -> None:
    one = Committed(3, 10**9, [Event("r", "ful", None, {"id": 1, "a": "", "b": ""}, lsn=5)])
    queue = UpdateQueue([inlet()])
    received = queue.receive(messages(*one.messages()[:2], *insert(7, 90, 1).messages()))
    assert [u.txn for u in received.updates] == ["7"] and not received.rejected, "it may never end"
    received = queue.receive(messages(*one.messages(), *insert(8, 190, 1).messages(), first=5))
    assert [u.txn for u in received.updates] == ["8"], "its END says nothing about order"


def test_rows_that_the_connector_reads_again_inside_a_transaction_are_counted_and_ignored() -> None:
    row = {"id": 1, "a": "", "b": ""}
    events = [Event("r", "ful", None, row, lsn=5), Event("c", "ful", None, row, lsn=6), Event("r", "ful", None, row, 7)]
    received = UpdateQueue([inlet()]).receive(messages(*Committed(7, 90, events).messages()))
    assert rows(received, "ful") == {(1, "", ""): 1}


def test_other_schemas_and_tables_are_counted_and_only_their_names_are_kept() -> None:
    """Who knows the source can tell whether one of them was a captured table, under another name."""
    events = [
        Event("c", "ful", None, {"id": 1, "a": "other"}, lsn=81, schema="private"),
        Event("u", "elsewhere", None, {"z": 1}, lsn=82),
        Event("t", "elsewhere", lsn=83),
    ]
    queue = UpdateQueue([inlet()])
    received = queue.receive(messages(*Committed(7, 90, events).messages()))
    assert received.updates == [] and received.rejected == [] and received.truncated == []
    assert queue.positions() == {"shop": "90"}
    expected = {("private", "ful"): (81, "7"), ("public", "elsewhere"): (82, "7")}
    assert queue.inlets["shop.updates"].strangers == expected
    queue.receive(messages(*Committed(7, 90, events).messages(), first=9))
    loaded = UpdateQueue([inlet(Reached(0, 95, "9:9:"))])
    loaded.receive(messages(*Committed(7, 90, events).messages()))
    assert not loaded.inlets["shop.updates"].strangers, "what a load includes does not matter"


@pytest.mark.parametrize("op", ["c", "u", "d", "t"])
def test_an_event_that_names_no_transaction_is_refused_with_the_setting_that_helps(op: str) -> None:
    event = json.loads(insert(7, 90, 1).event(1)) | {"op": op, "transaction": None}
    received = UpdateQueue([inlet()]).receive(messages(compact(event)))
    assert "provide.transaction.metadata=true" in received.rejected[0].reason
    event["source"]["table"] = "elsewhere"
    assert UpdateQueue([inlet()]).receive(messages(compact(event))).rejected == []


@pytest.mark.parametrize(
    "value",
    [
        b"{",
        b"[]",
        b"1",
        b'{"a":1}',
        b'{"schema":{},"payload":[]}',
        b'{"status":"BEGIN","id":"x"}',
        b'{"status":"END","id":"7"}',
        b'{"status":"END","id":"7:-1","event_count":0}',
        b'{"status":"END","id":"7:9","event_count":null}',
        b'{"status":"END","id":"7:99999999999999999999","event_count":0}',
        b'{"status":"OTHER","id":"7:9"}',
        b'{"op":"c"}',
        b'{"op":"c","source":{"schema":"public","table":"ful","lsn":1},"transaction":{"id":"7:1"}}',
        b'{"op":"c","source":{"schema":"public","table":"ful"},"transaction":{"id":"7:1","total_order":1}}',
        b'{"op":"c","source":{"schema":"public","table":"ful","lsn":1},"transaction":{"id":"7:1","total_order":"1"}}',
        b'{"op":"c","source":{"schema":"public","table":"ful","lsn":1},"transaction":{"id":"7:1","total_order":0}}',
        b'{"op":"c","source":{"schema":"public","table":["ful"],"lsn":1},"transaction":null}',
        b'{"op":"c","source":{"schema":"public","table":"ful","lsn":1},"transaction":{"id":"x:1","total_order":1}}',
        b'{"op":"c","source":{"schema":"public","table":"ful","lsn":1},"transaction":{"id":7,"total_order":1}}',
        b"\xff\xfe",
    ],
)
def test_what_is_no_message_of_debeziums_stops_the_topic_there(value: bytes) -> None:
    queue = UpdateQueue([inlet()])
    received = queue.receive(messages(*insert(5, 50, 1).messages(), value, *insert(8, 100, 2).messages()))
    assert [u.txn for u in received.updates] == ["5"]
    assert [r.offset for r in received.rejected] == [3]
    assert queue.offsets() == {"shop": 3} and queue.positions() == {"shop": "50"}


@pytest.mark.parametrize(
    "event",
    [
        Event("c", "ful", {"id": 1}, None, lsn=5),
        Event("d", "ful", None, {"id": 1}, lsn=5),
        Event("u", "ful", {"id": 1, "a": "", "b": ""}, None, lsn=5),
        Event("x", "ful", None, None, lsn=5),
    ],
)
def test_an_event_without_its_row_spoils_its_transaction(event: Event) -> None:
    received = UpdateQueue([inlet()]).receive(messages(*Committed(7, 90, [event]).messages()))
    assert received.updates == [] and received.rejected[0].reason.startswith("transaction 7: event 1: ful: ")
