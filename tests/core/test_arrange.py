"""Whole transactions: what is numbered now, together with what, and what waits; against a fixpoint in plain Python."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tests.scale import scaled
from viewkeeper.integrator.arrange import Arranged, arrange, missing, untouched
from viewkeeper.messages import ORDINAL, GlobalPart, Received, Rejected, Truncation, Update

SOURCES = ("shop", "crm", "hr")


def update(source: str, position: int, id: str | None = None, sources: Iterable[str] = ()) -> Update:
    part_of = None if id is None else GlobalPart(id, frozenset(sources))
    return Update(source, f"{source}{position}", position, f"{source}.updates", position, position, part_of)


def received(updates: Sequence[Update]) -> Received:
    """The updates, each with one change that tells whose it is."""
    changes: dict[tuple[str, str], pa.Table] = {}
    for source in {u.source for u in updates}:
        mine = [i for i, u in enumerate(updates) if u.source == source]
        table = {"x": [updates[i].position for i in mine], "_count": [1] * len(mine), ORDINAL: mine}
        changes[source, "r"] = pa.table({name: pa.array(values, pa.int64()) for name, values in table.items()})
    return Received(updates, changes, [])


def history(text: str) -> list[Update]:
    """``shop:G1 shop crm:G1``: parts of G1 and an update of its own; a transaction spans every source that names it."""
    words = [word.partition(":")[::2] for word in text.split()]
    spans = {id: {source for source, other in words if other == id} for _, id in words if id}
    return [update(source, at, id or None, spans.get(id, ())) for at, (source, id) in enumerate(words, 1)]


def rows(arranged: Arranged) -> list[list[str]]:
    """The txns of each row, and a check that changes and truncations went where their updates did."""
    faithful(arranged.ready)
    faithful(arranged.waiting)
    assert list(arranged.rows) == sorted(arranged.rows) and len(arranged.rows) == len(arranged.ready.updates)
    assert sorted(set(arranged.rows.tolist())) == list(range(arranged.row_count))
    found: list[list[str]] = [[] for _ in range(arranged.row_count)]
    for row, each in zip(arranged.rows.tolist(), arranged.ready.updates, strict=True):
        found[row].append(each.txn)
    return found


def faithful(told: Received) -> None:
    for (source, _), table in told.changes.items():
        whose = [told.updates[i] for i in table[ORDINAL].to_pylist()]
        assert [u.position for u in whose] == table["x"].to_pylist() and {u.source for u in whose} <= {source}
    assert sum(len(table) for table in told.changes.values()) == len(told.updates)


def waiting(arranged: Arranged) -> list[str]:
    return [u.txn for u in arranged.waiting.updates]


# Named cases -----------------------------------------------------------------------------------------------------


def test_without_global_transactions_nothing_is_touched() -> None:
    told = received(history("shop crm shop"))
    arranged = arrange(told, SOURCES)
    assert arranged.ready is told and arranged.rows.tolist() == [0, 1, 2] and not arranged.waiting.updates


def test_a_transaction_over_two_sources_is_one_row_where_its_last_part_arrived() -> None:
    arranged = arrange(received(history("shop:G hr crm crm:G hr")), SOURCES)
    assert rows(arranged) == [["hr2"], ["crm3"], ["shop1", "crm4"], ["hr5"]]


def test_what_comes_later_from_a_source_waits_behind_what_waits_of_it() -> None:
    first = history("shop:G shop hr crm:G shop")
    arranged = arrange(received(first[:3]), SOURCES)
    assert rows(arranged) == [["hr3"]] and waiting(arranged) == ["shop1", "shop2"]
    arranged = arrange(arranged.waiting.and_then(received(first[3:])), SOURCES)
    assert rows(arranged) == [["shop1", "crm4"], ["shop2"], ["shop5"]] and not waiting(arranged)


def test_a_transaction_waits_if_another_of_its_sources_is_stuck() -> None:
    """shop waits for G1's part of hr; G2 has all its parts and still waits, and so does crm behind it."""
    told = history("shop:G1 shop:G2 crm crm:G2 crm hr:G1")
    arranged = arrange(received(told[:5]), SOURCES)
    assert rows(arranged) == [["crm3"]] and waiting(arranged) == ["shop1", "shop2", "crm4", "crm5"]
    assert missing(arranged.waiting, SOURCES) == [(told[0], frozenset({"hr"}))]
    assert rows(arrange(received(told), SOURCES)) == [["crm3"], ["shop1", "hr6"], ["shop2", "crm4"], ["crm5"]]


def test_two_transactions_that_wait_for_each_other_are_one_row() -> None:
    arranged = arrange(received(history("shop:G1 shop:G2 crm:G2 crm:G1 shop")), SOURCES)
    assert rows(arranged) == [["shop1", "shop2", "crm3", "crm4"], ["shop5"]]


def test_a_single_update_caught_between_two_parts_of_a_cycle_belongs_to_its_row() -> None:
    arranged = arrange(received(history("shop shop:G1 shop shop:G2 shop crm:G2 crm crm:G1 crm")), SOURCES)
    assert rows(arranged) == [["shop1"], ["shop2", "shop3", "shop4", "crm6", "crm7", "crm8"], ["shop5"], ["crm9"]]


def test_a_cycle_of_three_is_one_row() -> None:
    arranged = arrange(received(history("shop:A shop:B crm:B crm:C hr:C hr:A")), SOURCES)
    assert rows(arranged) == [["shop1", "shop2", "crm3", "crm4", "hr5", "hr6"]]


def test_a_transaction_caught_within_a_cycle_belongs_to_its_row_with_all_its_parts() -> None:
    arranged = arrange(received(history("hr:X shop:A shop:X shop:B crm:B crm:A hr")), SOURCES)
    assert rows(arranged) == [["hr1", "shop2", "shop3", "shop4", "crm5", "crm6"], ["hr7"]]


def test_half_a_cycle_waits_for_the_rest() -> None:
    told = history("shop:G1 shop:G2 crm:G2 crm:G1")
    assert waiting(arrange(received(told[:3]), SOURCES)) == ["shop1", "shop2", "crm3"]


def test_a_chain_of_ten_thousand_transactions_each_in_the_way_of_the_next_is_one_row() -> None:
    """shop: G0 G1 G2 …, crm: … G2 G1 G0; no recursion is deep enough for that."""
    size = 10_000
    parts = [("shop", g) for g in range(size)] + [("crm", g) for g in reversed(range(size))]
    told = [update(source, i, f"G{g}", ("shop", "crm")) for i, (source, g) in enumerate(parts)]
    assert arrange(received(told), SOURCES).row_count == 1


def test_only_parts_at_the_groups_sources_are_waited_for() -> None:
    told = received([update("shop", 1, "G", ("shop", "crm", "hr")), update("shop", 2), update("crm", 3)])
    assert rows(arrange(told, {"shop"})) == [["shop1"], ["shop2"], ["crm3"]]
    assert waiting(arrange(told, {"shop", "hr"})) == ["shop1", "shop2"]
    assert waiting(arrange(told, {"shop", "crm"})) == ["shop1", "shop2"]


def test_a_part_that_does_not_name_its_own_source_is_a_part_all_the_same() -> None:
    told = received([update("shop", 1, "G", ("crm",)), update("crm", 2, "G", ("shop",))])
    assert rows(arrange(told, SOURCES)) == [["shop1", "crm2"]]


def test_an_id_used_again_is_another_transaction_however_the_delivery_is_cut() -> None:
    both = ("shop", "crm")
    told = [update("shop", 1, "G", both), update("shop", 2, "G", both), update("crm", 3, "G", both), update("crm", 4)]
    whole = arrange(received(told), SOURCES)
    assert rows(whole) == [["shop1", "crm3"], ["crm4"]] and waiting(whole) == ["shop2"]
    first = arrange(received([told[0], told[2]]), SOURCES)
    assert rows(first) == [["shop1", "crm3"]]
    assert waiting(arrange(first.waiting.and_then(received([told[1], told[3]])), SOURCES)) == ["shop2"]
    assert rows(arrange(received([*told, update("crm", 5, "G", both)]), SOURCES)) == [
        ["shop1", "crm3"], ["crm4"], ["shop2", "crm5"],
    ]  # fmt: skip


def test_parts_that_name_different_sources_are_not_parts_of_one_transaction() -> None:
    told = [update("shop", 1, "G", ("shop", "crm")), update("crm", 2, "G", ("shop", "crm", "hr"))]
    assert waiting(arrange(received(told), SOURCES)) == ["shop1", "crm2"]


def test_truncations_go_with_their_updates_and_refusals_with_what_is_ready() -> None:
    both = ("shop", "crm")
    told = received([update("shop", 1, "G", both), update("shop", 2), update("hr", 3), update("crm", 4, "H", both)])
    truncated = [Truncation(0, "shop", "r"), Truncation(1, "shop", "q"), Truncation(2, "hr", "r")]
    refused = [Rejected("crm", "crm.updates", 9, None, "odd")]
    told = replace(told, rejected=refused, truncated=truncated, again=received([update("hr", 1)]))
    told = told.and_then(received([update("crm", 5, "G", both)]))
    arranged = arrange(told, SOURCES)
    assert rows(arranged) == [["hr3"]] and waiting(arranged) == ["shop1", "shop2", "crm4", "crm5"]
    assert arranged.ready.truncated == [Truncation(0, "hr", "r")]
    assert arranged.waiting.truncated == [Truncation(0, "shop", "r"), Truncation(1, "shop", "q")]
    assert (arranged.ready.rejected, arranged.waiting.rejected) == (told.rejected, [])
    assert (arranged.ready.again, arranged.waiting.again) == (told.again, None)


def test_nothing_received_is_nothing_ready() -> None:
    for arranged in (arrange(received([]), SOURCES), untouched(received([]))):
        assert (arranged.row_count, len(arranged.rows), arranged.waiting.updates) == (0, 0, [])


def test_all_may_wait() -> None:
    arranged = arrange(received([update("shop", 1, "G", ("shop", "crm"))]), SOURCES)
    assert (rows(arranged), arranged.rows.dtype.kind, waiting(arranged)) == ([], "i", ["shop1"])


# Random histories ------------------------------------------------------------------------------------------------


def random_delivery(rng: random.Random) -> list[Update]:
    """Sources commit in orders of their own, so cycles happen; the end of each source's updates may be missing."""
    sources = [f"s{i}" for i in range(rng.randint(2, 4))]
    spans = {f"G{g}": rng.sample(sources, rng.randint(1, len(sources))) for g in range(rng.randint(1, 6))}
    planned: dict[str, list[str | None]] = {source: [None] * rng.randint(0, 4) for source in sources}
    steps = sorted(spans)
    for source, plan in planned.items():
        mine = [id for id in steps if source in spans[id]]
        if rng.random() < 0.5:
            rng.shuffle(mine)
        for id in mine:
            plan.append(id)
        if rng.random() < 0.5:
            singles = [rng.randint(0, len(plan)) for _ in range(2)]
            for at in singles:
                plan.insert(at, None)
        if rng.random() < 0.2 and mine:
            plan.append(rng.choice(mine))
        del plan[len(plan) - rng.choice((0, 0, 0, 1, 2)) or None :]
    at = 0
    delivered = []
    while any(planned.values()):
        source = rng.choice([s for s in sources if planned[s]])
        id = planned[source].pop(0)
        at += 1
        delivered.append(update(source, at, id, spans.get(id or "", ())))
    return delivered


def uses(delivered: Sequence[Update]) -> list[tuple[str, int] | None]:
    """Per update the transaction it is a part of, if that spans sources: its id, and which use of it."""
    seen: dict[tuple[str, str], int] = {}
    found: list[tuple[str, int] | None] = []
    for u in delivered:
        if u.part_of is None or len(u.part_of.sources) == 1:
            found.append(None)
            continue
        seen[u.source, u.part_of.id] = seen.get((u.source, u.part_of.id), -1) + 1
        found.append((u.part_of.id, seen[u.source, u.part_of.id]))
    return found


def fixpoint(delivered: Sequence[Update]) -> tuple[set[int], list[set[int]]]:
    """What must wait, by applying the two rules until nothing changes; and the rows, by reachability."""
    parts = uses(delivered)
    waits: set[int] = set()
    while True:
        new = set()
        for i, u in enumerate(delivered):
            there = [j for j, part in enumerate(parts) if part == parts[i] is not None]
            incomplete = parts[i] is not None and len(there) < len(u.part_of.sources if u.part_of else ())
            behind = any(j in waits and delivered[j].source == u.source for j in range(i))
            if incomplete or behind or waits & set(there):
                new.add(i)
        if new == waits:
            break
        waits = new
    ready = [i for i in range(len(delivered)) if i not in waits]
    follows = {
        i: {
            j
            for j in ready
            if (j > i and delivered[j].source == delivered[i].source) or parts[j] == parts[i] is not None
        }
        for i in ready
    }
    reach = {i: _closure(i, follows) for i in ready}
    return waits, [{j for j in ready if j in reach[i] and i in reach[j]} for i in ready]


def _closure(start: int, follows: dict[int, set[int]]) -> set[int]:
    seen, todo = {start}, [start]
    while todo:
        for other in follows[todo.pop()] - seen:
            seen.add(other)
            todo.append(other)
    return seen


def check(delivered: Sequence[Update], seed: int) -> None:
    about = f"seed {seed}: {[(u.txn, u.part_of and u.part_of.id) for u in delivered]}"
    waits, together = fixpoint(delivered)
    arranged = arrange(received(delivered), {u.source for u in delivered} | {f"s{i}" for i in range(4)})
    found = rows(arranged)
    txns = [u.txn for u in delivered]
    assert waiting(arranged) == [txns[i] for i in sorted(waits)], about
    assert {frozenset(row) for row in found} == {frozenset(txns[i] for i in row) for row in together}, about
    order = [txn for row in found for txn in row]
    for source in {u.source for u in delivered}:
        ready = [u.txn for i, u in enumerate(delivered) if u.source == source and i not in waits]
        assert [txn for txn in order if txn.startswith(source)] == ready, f"{about}: {source}'s order"
    placed_late_enough(delivered, found, about)


def placed_late_enough(delivered: Sequence[Update], found: list[list[str]], about: str) -> None:
    """A row that stands before one that was whole earlier is there because its sources hold that one behind it."""
    at = {u.txn: i for i, u in enumerate(delivered)}
    whole = [max(at[txn] for txn in row) for row in found]
    for i in range(1, len(found)):
        if whole[i] < whole[i - 1]:
            before = {
                delivered[at[txn]].source for row in found[:i] for txn in row if max(at[t] for t in row) > whole[i]
            }
            assert before & {delivered[at[txn]].source for txn in found[i]}, f"{about}: {found[i]} could stand earlier"


@pytest.mark.parametrize("block", range(4))
def test_oracle_random_deliveries_agree_with_the_fixpoint(block: int) -> None:
    for seed in range(block, scaled(200, 2000), 4):
        check(random_delivery(random.Random(seed)), seed)


def test_the_random_deliveries_have_cycles_and_waiting_ones() -> None:
    sizes, waits = [], 0
    for seed in range(200):
        delivered = random_delivery(random.Random(seed))
        arranged = arrange(received(delivered), {f"s{i}" for i in range(4)})
        spans = [len({t.split("s")[1][0] for t in row}) < len(row) for row in rows(arranged)]
        sizes += [spans.count(True)]
        waits += bool(arranged.waiting.updates)
    assert sum(map(bool, sizes)) > 30 and 30 < waits < 190


def test_oracle_the_cut_into_batches_decides_nothing_but_the_order() -> None:
    sources = {f"s{i}" for i in range(4)}
    for seed in range(scaled(100, 1000)):
        rng = random.Random(seed)
        delivered = random_delivery(rng)
        at_once = arrange(received(delivered), sources)
        left = received([])
        found: list[list[str]] = []
        begin = 0
        while begin < len(delivered):
            end = rng.randint(begin + 1, len(delivered))
            arranged = arrange(left.and_then(received(delivered[begin:end])), sources)
            found += rows(arranged)
            left, begin = arranged.waiting, end
        about = f"seed {seed}: {[(u.txn, u.part_of and u.part_of.id) for u in delivered]}"
        assert {frozenset(row) for row in found} == {frozenset(row) for row in rows(at_once)}, about
        assert sorted(u.txn for u in left.updates) == sorted(waiting(at_once)), about
        for source in sources:
            order = [txn for row in found for txn in row if txn.startswith(source)]
            assert order == [u.txn for u in delivered if u.source == source][: len(order)], about


def test_a_hundred_thousand_updates_are_arranged_in_a_fraction_of_a_second() -> None:
    told = received(large(100_000, random.Random(1)))
    begin = time.process_time()
    arranged = arrange(told, SOURCES)
    took = time.process_time() - begin
    assert len(arranged.ready.updates) > 90_000
    assert took < 4, f"{took:.2f} s"  # 0.3 s when nothing else runs; the square of the updates would take minutes


def large(size: int, rng: random.Random) -> list[Update]:
    """One in twenty is the first part of a transaction whose second comes some updates later."""
    told: list[Update] = []
    due: deque[str] = deque()
    for i in range(size):
        if due and rng.random() < 0.05:
            told.append(update("crm", i, due.popleft(), ("shop", "crm")))
        elif rng.random() < 0.05:
            due.append(f"G{i}")
            told.append(update("shop", i, due[-1], ("shop", "crm")))
        else:
            told.append(update(rng.choice(SOURCES), i))
    return told


def test_a_batch_without_global_transactions_costs_a_look() -> None:
    told = received([update("shop", i) for i in range(100_000)])
    begin = time.process_time()
    arranged = arrange(told, SOURCES)
    assert time.process_time() - begin < 1 and np.array_equal(arranged.rows, np.arange(100_000))
