"""One number for a row of several updates: exact for sweeps whatever the snapshots include; and REL."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from tests.scale import scaled
from viewkeeper.algebra.bag import COUNT
from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.types import INTEGER, Column
from viewkeeper.algebra.view import View
from viewkeeper.algorithms.sweep import Sweep, drive
from viewkeeper.integrator.arrange import Arranged, arrange, untouched
from viewkeeper.integrator.integrator import Batch, number, unnumbered
from viewkeeper.messages import ORDINAL, Answer, Ask, GlobalPart, Received, Truncation, Update
from viewkeeper.queue.unsettled import Unsettled

from . import worlds
from .worlds import Did, Included, World


def update(source: str, position: int, part_of: GlobalPart | None = None) -> Update:
    return Update(source, f"t{position}", position, f"{source}.updates", position, position, part_of)


def received(world: World, ks: Sequence[int], parts: dict[int, GlobalPart] | None = None) -> Received:
    """These updates of a history, with their places in it as positions."""
    told = [update(world.history[k - 1].source, k, (parts or {}).get(k)) for k in ks]
    changes = {}
    for name, relation in world.catalog.items():
        rows = [
            (*row, count, i)
            for i, k in enumerate(ks)
            if world.history[k - 1].source == relation.source
            for row, count in world.history[k - 1].changes.get(relation.name, Counter()).items()
            if count
        ]
        table = worlds.arrow([*relation.columns, Column(COUNT, INTEGER), Column(ORDINAL, INTEGER)], rows)
        if len(table):
            changes[name] = table
    return Received(told, changes, [])


# Rows ------------------------------------------------------------------------------------------------------------


def two_rows() -> tuple[World, Received]:
    relations = worlds.catalog(worlds.relation("shop", "orders", "id customer"), worlds.relation("crm", "people", "id"))
    world = World(
        relations,
        {name: Counter() for name in relations},
        [
            Did("shop", {"orders": Counter({(1, 7): 1})}),
            Did("shop", {"orders": Counter({(2, 7): 1})}),
            Did("crm", {"people": Counter({(7,): 1})}),
        ],
    )
    both = GlobalPart("G", frozenset({"shop", "crm"}))
    return world, received(world, [1, 2, 3], {1: both, 3: both})


def views(world: World, **sql: str) -> list[View]:
    return [parse_view(name, text, world.catalog) for name, text in sql.items()]


def test_updates_of_one_row_share_one_number() -> None:
    world, told = two_rows()
    orders, joined = views(
        world,
        orders="SELECT o.id FROM shop.orders o",
        joined="SELECT o.id, p.id AS person FROM shop.orders o JOIN crm.people p ON o.customer = p.id",
    )
    batch = number(arrange(told, {"shop", "crm"}), 10, [orders, joined])
    assert (batch.numbers, batch.last) == (range(11, 13), 12)
    assert batch.updates.select(["_update", "source", "txn"]).to_pylist() == [
        {"_update": 11, "source": "shop", "txn": "t1"},
        {"_update": 11, "source": "crm", "txn": "t3"},
        {"_update": 12, "source": "shop", "txn": "t2"},
    ]
    assert batch.number_of.tolist() == [11, 11, 12]
    assert batch.views == ("orders", "joined")
    assert batch.concerned.tolist() == [[True, True], [True, True]]
    assert batch.updates["views"].to_pylist() == [["orders", "joined"]] * 3, "REL of a row is that of all its updates"


def test_nothing_to_number_is_an_empty_batch() -> None:
    world, _ = two_rows()
    batch = number(untouched(received(world, [])), 4, views(world, v="SELECT o.id FROM shop.orders o"))
    assert (len(batch.numbers), batch.last, len(batch.updates), batch.concerned.shape) == (0, 4, 0, (0, 1))


def test_what_waits_is_taken_out_of_answers_that_contain_it() -> None:
    world, _ = two_rows()
    (view,) = views(world, v="SELECT o.id, p.id AS person FROM shop.orders o JOIN crm.people p ON o.customer = p.id")
    arranged = arrange(received(world, [3, 1], {1: GlobalPart("G", frozenset({"shop", "hr"}))}), {"shop", "crm", "hr"})
    assert [u.txn for u in arranged.waiting.updates] == ["t1"]
    batch = number(arranged, 0, [view])
    queue = batch.queue.and_older(unnumbered(arranged.waiting))
    changes = worlds.sweep_all(view, queue, batch.numbers, lambda ask: world.answer(ask, [1, 3]))
    assert changes == {}, "the order is in the answer, but has no number yet"
    assert worlds.sweep_all(view, batch.queue, batch.numbers, lambda ask: world.answer(ask, [1, 3])) != {}


def random_rows(rng: random.Random, ks: Sequence[int]) -> list[list[int]]:
    """Any runs of a history as rows: more than any cycle can give."""
    left, found = list(ks), []
    while left:
        size = min(len(left), rng.choice((1, 1, 2, 3, 5)))
        found.append(left[:size])
        left = left[size:]
    return found


def check_rows(seed: int) -> None:
    """Several batches of rows; each answer holds any subset of what its source did and is not settled yet."""
    rng = random.Random(seed)
    world = worlds.random_world(rng, updates=rng.randint(2, 14))
    view = worlds.random_view(rng, world)
    rows = random_rows(rng, range(1, len(world.history) + 1))
    state = worlds.recompute(view, world.initial, world.catalog)
    handled: list[int] = []
    older, last = Unsettled(), 0
    while rows:
        now, rows = rows[: (size := rng.randint(1, len(rows)))], rows[size:]
        ks = [k for row in now for k in row]
        ahead = [k for row in rows[:1] for k in row if rng.random() < 0.5]  # received, and waiting
        arranged = Arranged(received(world, ks), np.repeat(np.arange(len(now)), [len(row) for row in now]),
                            received(world, ahead))  # fmt: skip
        batch = number(arranged, last, [view])
        queue = batch.queue.and_older(unnumbered(arranged.waiting)).and_older(older.changes)
        settled = [k for k in handled if k not in {u.position for u in older.updates}]
        seen = {k for k in [*handled, *ks, *ahead] if k in settled or rng.random() < 0.5}

        def ask(question: Ask, seen: set[int] = seen) -> Answer:
            return world.answer(question, seen)

        changes = worlds.sweep_all(view, queue, batch.numbers, ask)
        for k, row in zip(batch.numbers, now, strict=True):
            handled += row
            state = worlds.plus(state, changes.get(k, Counter()))
            expected = worlds.recompute(view, world.state(handled), world.catalog)
            assert state == expected, f"seed {seed}: row {row} under number {k}, view {view.sql}"
            assert batch.concerned[k - batch.numbers.start, 0] or not changes.get(k), f"seed {seed}: REL of {k}"
        whole = worlds.per_update(view, drive(Sweep(view, queue).whole(batch.last), ask))
        assert whole.get(batch.last, Counter()) == state, f"seed {seed}: in full as of {batch.last}"
        contains = {source: Included(frozenset(seen)) for source in {s for s, _ in world.catalog}}
        older = older.plus(batch.received, batch.queue.changes).settled(contains, contains)
        last = batch.last


@pytest.mark.parametrize("block", range(4))
def test_oracle_rows_of_several_updates_at_snapshots_that_include_some_of_them(block: int) -> None:
    for seed in range(block, scaled(48, 400), 4):
        check_rows(seed)


def test_a_row_that_inserts_in_one_update_and_deletes_in_the_next_changes_nothing() -> None:
    relations = worlds.catalog(worlds.relation("s", "R", "a b"), worlds.relation("t", "S", "b"))
    did = [Did("s", {"R": Counter({(1, 2): 1})}), Did("s", {"R": Counter({(1, 2): -1})})]
    world = World(relations, {("s", "R"): Counter(), ("t", "S"): Counter({(2,): 1})}, did)
    (view,) = views(world, v="SELECT R.a FROM s.R AS R JOIN t.S AS S ON R.b = S.b")
    batch = number(Arranged(received(world, [1, 2]), np.array([0, 0]), received(world, [])), 0, [view])
    assert batch.concerned.tolist() == [[False]], "what nobody can see concerns nobody"
    for seen in ([], [1], [1, 2]):
        assert worlds.sweep_all(view, batch.queue, batch.numbers, lambda ask, seen=seen: world.answer(ask, seen)) == {}


# REL -------------------------------------------------------------------------------------------------------------

ORDERS = worlds.catalog(worlds.relation("shop", "orders", "id total note"), worlds.relation("shop", "lines", "id"))


def relevant(sql: str, *changes: dict[str, Counter[worlds.Row]], truncated: Sequence[Truncation] = ()) -> Batch:
    """One update per change of the shop, numbered for one view."""
    world = World(ORDERS, {name: Counter() for name in ORDERS}, [Did("shop", change) for change in changes])
    told = received(world, range(1, len(changes) + 1))
    told = Received(told.updates, told.changes, [], truncated)
    return number(untouched(told), 0, views(world, v=sql))


def orders(*moves: tuple[worlds.Row, int]) -> dict[str, Counter[worlds.Row]]:
    return {"orders": Counter(dict(moves))}


def test_an_update_of_another_relation_is_irrelevant() -> None:
    batch = relevant("SELECT o.id FROM shop.orders o", {"lines": Counter({(1,): 1})}, orders(((1, 5, 0), 1)))
    assert batch.concerned.tolist() == [[False], [True]]


def test_an_update_of_columns_that_a_view_does_not_use_is_irrelevant() -> None:
    changed_note = orders(((1, 5, 0), -1), ((1, 5, 9), 1))
    changed_total = orders(((1, 5, 0), -1), ((1, 6, 0), 1))
    batch = relevant("SELECT o.id, o.total FROM shop.orders o", changed_note, changed_total)
    assert batch.concerned.tolist() == [[False], [True]]
    batch = relevant("SELECT o.id FROM shop.orders o WHERE o.note > 3", changed_note, changed_total)
    assert batch.concerned.tolist() == [[True], [False]], "a column that is only selected by is used"


def test_an_update_that_cannot_satisfy_the_selection_is_irrelevant_and_one_that_crosses_it_is_not() -> None:
    batch = relevant(
        "SELECT o.id FROM shop.orders o WHERE o.total > 10",
        orders(((1, 5, 0), 1)),  # below it
        orders(((1, 5, 0), -1), ((1, 6, 0), 1)),  # moves below it
        orders(((1, 6, 0), -1), ((1, 11, 0), 1)),  # into it
        orders(((1, 11, 0), -1), ((1, 12, 0), 1)),  # within it: the view shows nothing of that
        orders(((1, 12, 0), -1), ((2, 12, 0), 1)),  # within it, and seen
        orders(((2, 12, 0), -1), ((2, 3, 0), 1)),  # out of it
        orders(((2, 3, 0), -1)),  # below it
        orders(((3, None, 0), 1)),  # NULL satisfies nothing
    )
    assert batch.concerned[:, 0].tolist() == [False, False, True, True, True, True, False, False]


def test_an_update_is_relevant_if_any_occurrence_of_its_relation_can_see_it() -> None:
    sql = "SELECT a.id FROM shop.orders a JOIN shop.orders b ON a.note = b.id WHERE a.total > 10 AND b.total < 0"
    batch = relevant(sql, orders(((1, 5, 0), 1)), orders(((1, -1, 0), 1)), orders(((1, 11, 0), 1)))
    assert batch.concerned[:, 0].tolist() == [False, True, True]


def test_a_selection_with_or_and_null_is_taken_as_sql_takes_it() -> None:
    sql = "SELECT o.id FROM shop.orders o WHERE o.total > 10 OR o.note IS NULL"
    batch = relevant(sql, orders(((1, None, None), 1)), orders(((1, 11, 0), 1)), orders(((1, None, 0), 1)))
    assert batch.concerned[:, 0].tolist() == [True, True, False]


def test_a_relation_that_was_emptied_concerns_every_view_over_it_at_its_rows_number() -> None:
    world = World(ORDERS, {name: Counter() for name in ORDERS}, [Did("shop", {"lines": Counter({(1,): 1})})] * 3)
    told = received(world, [1, 2, 3])
    told = Received(told.updates, told.changes, [], [Truncation(2, "shop", "orders")])
    rows = Arranged(told, np.array([0, 1, 1]), received(world, []))
    (view,) = views(world, v="SELECT o.id FROM shop.orders o")
    batch = number(rows, 0, [view])
    assert batch.concerned.tolist() == [[False], [True]] and batch.emptied == {"v": (batch.last, 0)}
    assert batch.updates["views"].to_pylist() == [[], ["v"], ["v"]]


def test_oracle_what_is_irrelevant_changes_no_view_in_any_state() -> None:
    """REL may be generous (a join may find nothing), but never leaves out a view that changes."""
    generous = 0
    for seed in range(scaled(40, 300)):
        rng = random.Random(seed)
        world = worlds.random_world(rng, updates=rng.randint(1, 10))
        view = worlds.random_view(rng, world)
        batch = number(untouched(received(world, range(1, len(world.history) + 1))), 0, [view])
        states = [worlds.recompute(view, world.state(range(1, k + 1)), world.catalog) for k in (0, *batch.numbers)]
        for k in batch.numbers:
            moved = states[k] != states[k - 1]
            assert batch.concerned[k - 1, 0] or not moved, f"seed {seed}: update {k} changes the view {view.sql}"
            generous += bool(batch.concerned[k - 1, 0]) and not moved
    assert generous, "the histories hold relevant updates that find nothing to join with"


def test_changes_keep_their_positions_under_a_shared_number() -> None:
    _, told = two_rows()
    batch = number(arrange(told, {"shop", "crm"}), 0, [])
    table = batch.queue.changes["shop", "orders"].sort_by("_position")
    assert table.select(["_update", "_position"]).to_pylist() == [
        {"_update": 1, "_position": 1},
        {"_update": 2, "_position": 2},
    ]
