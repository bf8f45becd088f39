"""How Debezium's transactions are delivered: repeated, cut off, spoilt, larger than memory; and where a load stands."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.scale import scaled
from viewkeeper.messages import Reached
from viewkeeper.queue import spool
from viewkeeper.queue.update_queue import UpdateQueue

from .debezium_worlds import Committed, Event, came_out, compact, inlet, messages, rows, wrapped


def insert(xid: int, end: int, *ids: Any, follows: int | None = None) -> Committed:
    events = [Event("c", "ful", None, {"id": i, "a": "a", "b": "b"}, lsn=end - 50 + n) for n, i in enumerate(ids)]
    return Committed(xid, end, events, follows)


def barrier(xid: int, end: int, token: str, prefix: str = "viewkeeper") -> Committed:
    return Committed(xid, end, [Event("m", lsn=end - 1, content=token, prefix=prefix)])


def values(*transactions: Committed) -> list[bytes]:
    return [message for each in transactions for message in each.messages()]


def ids(received: Any) -> list[int]:
    return [row[0] for did in came_out(received) for row, _ in did.changes["ful"]]


# -- repetition


def test_a_tail_sent_again_from_inside_a_transaction_counts_once() -> None:
    first, second = insert(9, 100, 1, 2), insert(7, 200, 3, 4)
    sent = values(first, second)
    received = UpdateQueue([inlet()]).receive(messages(*sent[:6], *sent[2:]))
    assert ids(received) == [1, 2, 3, 4] and [u.position for u in received.updates] == [100, 200]
    assert received.updates[1].begins == 4 and received.updates[1].offset == 11


def test_an_open_transaction_survives_older_ones_that_are_repeated_between() -> None:
    older, cut_off = insert(9, 100, 1), insert(7, 200, 3, 4, follows=100)
    queue = UpdateQueue([inlet()])
    received = queue.receive(messages(*values(older), *cut_off.messages()[:2], *older.messages()[1:]))
    assert ids(received) == [1] and queue.offsets() == {"shop": 3}
    received = queue.receive(messages(*cut_off.messages(), first=7))
    assert ids(received) == [3, 4] and received.updates[0].begins == 3


def test_a_restart_waits_for_the_first_message_of_an_open_transaction() -> None:
    queue = UpdateQueue([inlet()])
    whole = values(insert(9, 100, 1), insert(7, 200, 2, 3))
    queue.receive(messages(*whole[:5]))
    assert queue.offsets() == {"shop": 3} and queue.positions() == {"shop": "100"}
    again = UpdateQueue([inlet(Reached(100), 3)])
    assert ids(again.receive(messages(*whole[3:], first=3))) == [2, 3]


def test_updates_that_are_in_a_cut_are_told_again_after_a_restart_each_once() -> None:
    sent = values(insert(9, 100, 1), insert(7, 200, 2), insert(8, 300, 3))
    queue = UpdateQueue([inlet(Reached(200))])
    received = queue.receive(messages(*sent[2:], *sent, *sent, first=2))
    assert ids(received) == [3]
    assert received.again is not None
    assert ids(received.again) == [2], "of the first, only a part came before the second"
    assert received.again.updates[0].first_offset == 3


def test_an_event_that_comes_twice_with_another_lsn_shows_that_some_are_missing() -> None:
    """A connector that starts again inside a COPY passes over rows that share an LSN, and numbers the rest anew."""
    rows = [Event("c", "ful", None, {"id": i, "a": "", "b": ""}, lsn=lsn) for i, lsn in enumerate([10, 10, 10, 20])]
    sent = Committed(7, 90, rows)
    shorter = Committed(7, 90, [rows[0], rows[3]])
    received = UpdateQueue([inlet()]).receive(messages(*sent.messages()[:3], *shorter.messages()[2:]))
    assert received.updates == [] and "some may be missing" in received.rejected[0].reason


def test_an_end_without_enough_events_is_refused_by_name() -> None:
    one = insert(7, 90, 1, 2, 3)
    begin, first, _, third, end = one.messages()
    for sent in ([begin, first, third, end], [third, end], [end], [begin, first, one.event(2), third, one.ending(2)]):
        queue = UpdateQueue([inlet()])
        received = queue.receive(messages(*sent))
        assert received.updates == [] and "transaction 7: it holds" in received.rejected[0].reason
        assert queue.positions() == {"shop": "0"}


# -- transactions that never end


def test_a_transaction_that_a_later_one_overtakes_is_lost_and_named() -> None:
    cut_off, later = insert(7, 200, 1, 2, follows=100), insert(8, 300, 3, follows=100)
    queue = UpdateQueue([inlet(Reached(100))])
    received = queue.receive(messages(*cut_off.messages()[:2], *later.messages()))
    assert received.updates == []
    assert received.rejected[0].offset == 0 and received.rejected[0].value == cut_off.begin()
    assert "transaction 7 has begun" in received.rejected[0].reason and "--reload" in received.rejected[0].reason
    assert queue.offsets() == {"shop": 0} and queue.positions() == {"shop": "100"}


def test_quarantine_sets_a_lost_transaction_aside_and_uses_the_later_one() -> None:
    queue = UpdateQueue([inlet()], quarantine=True)
    received = queue.receive(messages(*insert(7, 200, 1, 2).messages()[:2], *insert(8, 300, 3).messages()))
    assert ids(received) == [3] and [r.offset for r in received.rejected] == [0]
    assert queue.offsets() == {"shop": 5}


def test_what_only_repeats_old_transactions_is_not_lost_if_it_never_ends() -> None:
    """A connector is killed while it repeats, and the next one goes on behind what was repeated."""
    old = insert(6, 100, 1, 2, follows=50)
    for fragment in (old.messages()[:2], old.messages()[1:2], old.messages()[2:3]):
        queue = UpdateQueue([inlet(Reached(100))])
        received = queue.receive(messages(*fragment, *insert(7, 200, 3, follows=100).messages()))
        assert ids(received) == [3] and not received.rejected and queue.offsets() == {"shop": len(fragment) + 3}


def test_a_transaction_that_began_before_the_first_message_and_was_loaded_is_not_lost() -> None:
    loaded = insert(7, 100, 1, 2, 3)
    at = Reached(0, 150, "8:8:")
    received = UpdateQueue([inlet(at)]).receive(messages(*loaded.messages()[1:3], *insert(9, 200, 4).messages()))
    assert ids(received) == [4] and not received.rejected
    received = UpdateQueue([inlet(at)]).receive(messages(*loaded.messages()[3:], *insert(9, 200, 4).messages()))
    assert ids(received) == [4] and not received.rejected


# -- loads


def test_up_to_the_loads_end_visibility_decides_and_log_order_after_it() -> None:
    """7 was logged first, but the load's snapshot does not include it; 5 it does; 9 came later."""
    queue = UpdateQueue([inlet(Reached(0, 250, "7:9:7"))])
    sent = values(insert(7, 100, 1), insert(5, 200, 2), insert(9, 300, 3))
    first = queue.receive(messages(*sent[:3]))
    assert ids(first) == [1] and queue.positions() == {"shop": "100 250 7:9:7"}
    rest = queue.receive(messages(*sent[3:], first=3))
    assert ids(rest) == [3] and queue.positions() == {"shop": "300"} and rest.again is None


def test_a_restart_inside_the_load_still_knows_its_snapshot() -> None:
    queue = UpdateQueue([inlet(Reached.parse("100 250 7:9:7"), 3)])
    received = queue.receive(messages(*values(insert(5, 200, 2), insert(9, 300, 3)), first=3))
    assert ids(received) == [3]


def test_what_spoils_a_loaded_or_repeated_transaction_does_not_matter() -> None:
    bad = Committed(5, 100, [Event("u", "ful", None, {"id": 1, "a": "", "b": ""}, lsn=90)])
    wrong = insert(5, 100, "x")
    for one in (bad, wrong):
        for at in (Reached(0, 150, "8:8:"), Reached(100)):
            received = UpdateQueue([inlet(at)]).receive(messages(*values(one, insert(9, 200, 4))))
            assert ids(received) == [4] and not received.rejected and received.again is None


# -- barriers


def test_a_barrier_has_passed_at_its_end_and_not_before() -> None:
    queue = UpdateQueue([inlet()])
    sent = values(barrier(7, 100, "t1"), barrier(8, 200, "t2", prefix="other"))
    queue.receive(messages(*sent[:2]))
    assert not queue.passed_barrier("shop", "t1")
    received = queue.receive(messages(*sent[2:], first=2))
    assert queue.passed_barrier("shop", "t1") and not queue.passed_barrier("shop", "t2")
    assert received.updates == [] and queue.passed() == {"shop": "200"} == queue.positions()
    assert not queue.passed_barrier("crm", "t1")


def test_going_back_forgets_barriers_and_old_ones_are_dropped() -> None:
    queue = UpdateQueue([inlet()])
    queue.receive(messages(*values(*(barrier(i, i * 10, f"t{i}") for i in range(1, 1102)))))
    assert not queue.passed_barrier("shop", "t100") and queue.passed_barrier("shop", "t1101")
    queue.rewind({"shop": "0"}, {"shop": 0})
    assert not queue.passed_barrier("shop", "t1101")


def test_before_a_barrier_came_rows_of_open_and_repeated_transactions_too() -> None:
    """A connector without stored offsets confirms rows of the first transaction that it sends, before its END."""
    late = Committed(5, 900, [Event("c", "ful", None, {"id": n, "a": "", "b": ""}, lsn=n) for n in (700, 60, 800)])
    sent = (
        values(insert(9, 100, 1), barrier(7, 210, "first")) + late.messages()[:-1] + values(barrier(8, 990, "second"))
    )
    queue = UpdateQueue([inlet()])
    queue.receive(messages(*sent[:-1]))
    assert queue.before_barrier("shop", "first") == 100, "not the barrier's own row"
    assert queue.before_barrier("shop", "second") is None
    wrong = Committed(6, 950, [Event("c", "ful", None, {"id": "x", "a": "", "b": ""}, lsn=940)])
    queue = UpdateQueue([inlet()], quarantine=True)
    queue.receive(messages(*sent[:-3], late.ending(), *values(wrong), *sent[-3:]))
    assert queue.before_barrier("shop", "second") == 950, "what was quarantined came, too"
    queue.rewind({"shop": str(Reached(100, 500, "8:8:"))}, {"shop": 20})
    queue.receive(messages(*values(barrier(8, 990, "second")), first=20))
    assert queue.before_barrier("shop", "second") == 500, "what was loaded"
    queue.rewind({"shop": "100"}, {"shop": 20})
    rows = late.messages()
    queue.receive(messages(*rows[1:4], *values(barrier(8, 850, "second")), first=20))
    assert queue.before_barrier("shop", "second") == 800, "rows whose END has not come"


# -- TRUNCATE


def test_of_a_truncated_table_only_what_was_done_afterwards_counts() -> None:
    def row(i: int) -> dict[str, Any]:
        return {"id": i, "a": None, "b": None}

    def line(i: int) -> dict[str, Any]:
        return {"oid": i, "line": i, "qty": i}

    events = [
        Event("c", "ful", None, row(1), 1),
        Event("c", "ord", None, line(1), 2),
        Event("t", "ful", lsn=3),
        Event("c", "ful", None, row(2), 4),
        Event("u", "ful", row(2), row(3), 5),
    ]
    received = UpdateQueue([inlet()]).receive(messages(*values(insert(6, 60, 9), Committed(7, 90, events))))
    assert [(t.ordinal, t.source, t.relation) for t in received.truncated] == [(1, "shop", "ful")]
    assert came_out(received)[1].changes == {
        "ful": [((2, None, None), 1), ((2, None, None), -1), ((3, None, None), 1)],
        "ord": [((1, 1, 1), 1)],
    }


# -- values of the wrong type


def test_a_wrong_value_stops_before_its_transaction_and_all_of_it_stays() -> None:
    queue = UpdateQueue([inlet()])
    received = queue.receive(messages(*values(insert(5, 100, 1), insert(6, 200, 2, "x", 3), insert(7, 300, 4))))
    assert ids(received) == [1]
    assert [r.offset for r in received.rejected] == [7]
    assert received.rejected[0].reason.startswith("transaction 6: ful.id: 'x' is no integer")
    assert queue.positions() == {"shop": "100"} and queue.offsets() == {"shop": 3}


def test_quarantine_sets_whole_transactions_aside_and_never_counts_them_as_the_last() -> None:
    queue = UpdateQueue([inlet()], quarantine=True)
    sent = values(insert(5, 100, 1), insert(6, 200, 2, "x", 3), insert(7, 300, 4), insert(8, 400, "y"))
    received = queue.receive(messages(*sent))
    assert ids(received) == [1, 4] and [r.offset for r in received.rejected] == [7, 13]
    assert queue.positions() == {"shop": "300"} and queue.passed() == {"shop": "400"}
    assert queue.offsets() == {"shop": 14}


def test_quarantine_of_a_message_spoils_its_transaction_too() -> None:
    queue = UpdateQueue([inlet()], quarantine=True)
    sent = values(insert(5, 100, 1), insert(6, 200, 2, 3), insert(7, 300, 4))
    sent[4] = b"{"
    received = queue.receive(messages(*sent))
    assert ids(received) == [1, 4] and [r.offset for r in received.rejected] == [4, 6]
    assert queue.offsets() == {"shop": 10}


@pytest.mark.parametrize("in_memory", [2, 3, 1000])
@pytest.mark.parametrize("quarantine", [True, False])
def test_taking_a_batch_again_leaves_open_transactions_as_they_were(
    in_memory: int, quarantine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The open one ends, a spoilt one follows, another begins: all of that happens twice."""
    monkeypatch.setattr(spool, "IN_MEMORY", in_memory)
    opened, spoilt, next_one = insert(5, 100, *range(1, 12)), insert(6, 200, 20, "x"), insert(7, 300, *range(30, 40))
    sent = values(opened, spoilt, next_one)
    for split in range(1, 13):
        queue = UpdateQueue([inlet()], quarantine)
        queue.receive(messages(*sent[:split]))
        received = queue.receive(messages(*sent[split:20], first=split))
        assert ids(received) == list(range(1, 12)) and [r.offset for r in received.rejected] == [16]
        if quarantine:
            received = queue.receive(messages(*sent[20:], first=20))
            assert ids(received) == list(range(30, 40)) and received.updates[0].begins == 17
        else:
            assert queue.offsets() == {"shop": 13} and queue.positions() == {"shop": "100"}


def test_a_batch_taken_again_inside_an_open_transaction_counts_its_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "IN_MEMORY", 2)
    opened = insert(6, 200, *range(1, 30), "bad")
    queue = UpdateQueue([inlet()], quarantine=True)
    queue.receive(messages(*opened.messages()[:12]))
    received = queue.receive(messages(*opened.messages()[12:], *insert(7, 300, 31, 32).messages()[:2], first=12))
    assert received.updates == [] and queue.offsets() == {"shop": 32}
    assert ids(queue.receive(messages(*insert(7, 300, 31, 32).messages()[2:], first=34))) == [31, 32]


# -- transactions larger than memory


def large(rows: int) -> Iterator[list[bytes]]:
    """One transaction, in batches."""
    batch = [Committed(7, 10**9, ()).begin()]
    for number in range(1, rows + 1):
        about = b'{"id":"7:%d","total_order":%d,"data_collection_order":%d}' % (number, number, number)
        source = b'{"schema":"public","table":"ord","lsn":%d,"snapshot":null,"sequence":null}' % number
        after = b'{"oid":%d,"line":1,"qty":%d}' % (number, number % 7)
        batch.append(b'{"before":null,"after":%b,"source":%b,"transaction":%b,"op":"c"}' % (after, source, about))
        if len(batch) == 20_000:
            yield batch
            batch = []
    yield [*batch, Committed(7, 10**9, ()).ending(rows)]


def resident() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


def test_a_transaction_larger_than_memory_goes_through_whole() -> None:
    """60,000 rows here, a million in a thorough run; only its Arrow columns grow with it."""
    count = scaled(60_000, 1_000_000)
    queue = UpdateQueue([inlet(ord=("oid", "qty"))])
    first, grown, last = 0, 0.0, None
    for batch in large(count):
        table = messages(*batch, first=first)
        before = resident()
        last = queue.receive(table)
        grown += max(0.0, resident() - before)
        first += len(batch)
    assert last is not None and len(last.updates) == 1
    changes = last.changes["shop", "ord"]
    assert changes["oid"].to_pylist() == list(range(1, count + 1))
    assert changes["qty"].to_pylist() == [i % 7 for i in range(1, count + 1)]
    assert grown < 150 + 3 * changes.nbytes / 1e6, f"{grown:.0f} MB more"
    assert queue.offsets() == {"shop": count + 2}


def test_a_spooled_transaction_leaves_no_file_behind_when_the_queue_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "IN_MEMORY", 10)
    queue = UpdateQueue([inlet(ord=("oid", "qty"))])
    before = open_files()
    queue.receive(messages(*next(large(100))[:50]))
    assert len(open_files()) == len(before) + 1
    queue.rewind({"shop": "0"}, {"shop": 0})
    assert open_files() == before


def open_files() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


def test_topics_that_come_mixed_up_are_read_in_order() -> None:
    table = messages(*values(insert(5, 100, 1), insert(6, 200, 2)))
    received = UpdateQueue([inlet()]).receive(table.take(list(reversed(range(len(table))))))
    assert ids(received) == [1, 2]


def test_schema_wrapped_messages_can_be_set_aside() -> None:
    queue = UpdateQueue([inlet()], quarantine=True)
    queue.receive(messages(*map(wrapped, insert(6, 200, "x").messages())))
    assert queue.passed() == {"shop": "200"} and queue.positions() == {"shop": "0"}


def test_numbers_beyond_64_bits_are_refused_not_rounded() -> None:
    event = json.loads(insert(6, 200, 1).event(1))
    event["after"]["id"] = 2**70
    begin, _, end = insert(6, 200, 1).messages()
    received = UpdateQueue([inlet()]).receive(messages(begin, compact(event), end))
    assert received.updates == [] and "is no integer" in received.rejected[0].reason
    assert rows(received, "ful") == {}
