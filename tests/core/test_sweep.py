"""SWEEP against the paper's own example and against recomputation on random histories."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scale import scaled
from viewkeeper.algebra import sizes
from viewkeeper.algebra.sql import parse_view
from viewkeeper.algorithms.sweep import Queue, Sweep, drive
from viewkeeper.messages import Answer, Ask

from . import worlds
from .worlds import Did, World


def figure_5() -> World:
    """sweep-1997, Figure 5: the initial state and the three updates ΔR2, ΔR3, ΔR1."""
    relations = worlds.catalog(
        worlds.relation("one", "R1", "A B"),
        worlds.relation("two", "R2", "C D"),
        worlds.relation("three", "R3", "E F"),
    )
    initial = {
        ("one", "R1"): Counter({(1, 3): 1, (2, 3): 1}),
        ("two", "R2"): Counter({(3, 7): 1}),
        ("three", "R3"): Counter({(5, 6): 1, (7, 8): 1}),
    }
    history = [
        Did("two", {"R2": Counter({(3, 5): 1})}),
        Did("three", {"R3": Counter({(7, 8): -1})}),
        Did("one", {"R1": Counter({(2, 3): -1})}),
    ]
    return World(relations, initial, history)


FIGURE_5_VIEW = "SELECT R2.D, R3.F FROM one.R1 AS R1, two.R2 AS R2, three.R3 AS R3 WHERE R1.B = R2.C AND R2.D = R3.E"
FIGURE_5_STATES = [{(7, 8): 2}, {(5, 6): 2, (7, 8): 2}, {(5, 6): 2}, {(5, 6): 1}]


def test_figure_5_every_state_when_all_three_updates_are_concurrent() -> None:
    world = figure_5()
    view = parse_view("v", FIGURE_5_VIEW, world.catalog)
    changes = worlds.sweep_all(view, world.queue([1, 2, 3]), range(1, 4), lambda ask: world.answer(ask, [1, 2, 3]))
    state = worlds.recompute(view, world.initial, world.catalog)
    assert state == Counter(FIGURE_5_STATES[0])
    for k in (1, 2, 3):
        state = worlds.plus(state, changes.get(k, Counter()))
        assert state == Counter(FIGURE_5_STATES[k]), f"after update {k}"


def test_figure_5_every_state_when_the_updates_come_one_after_another() -> None:
    world = figure_5()
    view = parse_view("v", FIGURE_5_VIEW, world.catalog)
    state = Counter(FIGURE_5_STATES[0])
    for k in (1, 2, 3):
        changes = worlds.sweep_all(
            view, world.queue([k]), range(k, k + 1), lambda ask, k=k: world.answer(ask, range(1, k + 1))
        )
        state = worlds.plus(state, changes.get(k, Counter()))
        assert state == Counter(FIGURE_5_STATES[k])


def test_figure_5_the_answer_from_r1_is_compensated_and_counted() -> None:
    world = figure_5()
    view = parse_view("v", FIGURE_5_VIEW, world.catalog)
    heard: list[str] = []
    sweep = Sweep(view, world.queue([1, 2, 3]), on_compensated=heard.append)
    list(drive(sweep.changes(range(1, 2)), lambda ask: world.answer(ask, [1, 2, 3])))
    assert "one" in heard


def test_a_self_join_gains_the_row_that_replacing_every_copy_would_lose() -> None:
    """revisit-2001, Lemma 1 is false as printed: R = {(1,2)}, ΔR = +(2,3) must give (1,2,3)."""
    relations = worlds.catalog(worlds.relation("s", "R", "a b"))
    world = World(relations, {("s", "R"): Counter({(1, 2): 1})}, [Did("s", {"R": Counter({(2, 3): 1})})])
    view = parse_view("v", "SELECT x.a, x.b, y.b AS d FROM s.R x JOIN s.R y ON x.b = y.a", relations)
    changes = worlds.sweep_all(view, world.queue([1]), range(1, 2), lambda ask: world.answer(ask, [1]))
    assert changes == {1: Counter({(1, 2, 3): 1})}


def test_a_second_copy_needs_rows_the_partial_result_does_not_hold() -> None:
    """revisit-2001, Theorem 2 is false as printed: S ⋈ R ⋈ R with ΔS = +(0,1)."""
    relations = worlds.catalog(worlds.relation("s", "R", "y z"), worlds.relation("t", "S", "x y"))
    world = World(
        relations,
        {("s", "R"): Counter({(1, 2): 1, (2, 3): 1}), ("t", "S"): Counter()},
        [Did("t", {"S": Counter({(0, 1): 1})})],
    )
    sql = "SELECT S.x, S.y, p.z, q.z AS w FROM t.S AS S JOIN s.R p ON S.y = p.y JOIN s.R q ON p.z = q.y"
    view = parse_view("v", sql, relations)
    changes = worlds.sweep_all(view, world.queue([1]), range(1, 2), lambda ask: world.answer(ask, [1]))
    assert changes == {1: Counter({(0, 1, 2, 3): 1})}


def test_a_null_key_is_never_asked_for_and_joins_nothing() -> None:
    relations = worlds.catalog(worlds.relation("s", "R", "a"), worlds.relation("t", "S", "a"))
    world = World(
        relations,
        {("s", "R"): Counter(), ("t", "S"): Counter({(None,): 1})},
        [Did("s", {"R": Counter({(None,): 1})})],
    )
    view = parse_view("v", "SELECT R.a FROM s.R AS R JOIN t.S AS S ON R.a = S.a", relations)
    asked: list[Ask] = []

    def ask(question: Ask) -> Answer:
        asked.append(question)
        return world.answer(question, [1])

    assert worlds.sweep_all(view, world.queue([1]), range(1, 2), ask) == {}
    assert asked == []


def check_random_history(seed: int, points: int) -> None:
    """Several batches; each answer contains an arbitrary subset of what its source did and is not settled yet."""
    rng = random.Random(seed)
    world = worlds.random_world(rng, updates=rng.randint(1, 12))
    view = worlds.random_view(rng, world)
    total = len(world.history)
    handled = 0
    settled = 0  # every answer is sure to contain updates up to here: the queue may forget them
    state = worlds.recompute(view, world.initial, world.catalog)
    while handled < total:
        last = rng.randint(handled + 1, total)
        delivered = rng.randint(last, total)  # read ahead, not numbered yet
        known = range(settled + 1, delivered + 1)
        queue = world.queue([k for k in known if k <= last], [k for k in known if k > last])

        def ask(question: Ask, known: range = known, settled: int = settled, delivered: int = delivered) -> Answer:
            tail = [k for k in range(delivered + 1, total + 1) if rng.random() < 0.5]
            seen = [k for k in known if rng.random() < 0.6]
            return world.answer(question, [*range(1, settled + 1), *seen, *tail], tail)

        changes = worlds.sweep_all(view, queue, range(handled + 1, last + 1), ask, points)
        for k in range(handled + 1, last + 1):
            state = worlds.plus(state, changes.get(k, Counter()))
            expected = worlds.recompute(view, world.state(range(1, k + 1)), world.catalog)
            assert state == expected, f"seed {seed}, update {k}, view {view.sql}"
        whole = worlds.per_update(view, drive(Sweep(view, queue, points).whole(last), ask))
        assert whole.get(last, Counter()) == state, f"seed {seed}: in full as of {last}"
        handled = last
        settled = rng.randint(settled, handled)


@pytest.mark.parametrize("block", range(4))
def test_oracle_random_histories_with_arbitrary_snapshots(block: int) -> None:
    for seed in range(block, scaled(160, 600), 4):
        check_random_history(seed, points=200_000)


@given(st.integers(1_000_000, 2_000_000), st.integers(1, 7))
@settings(max_examples=scaled(30, 150), deadline=None)
def test_oracle_any_slice_size_gives_the_same_change(seed: int, points: int) -> None:
    check_random_history(seed, points)


@pytest.mark.parametrize("seed", range(scaled(10, 60)))
def test_oracle_a_bound_of_few_bytes_gives_the_same_change(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every slice is a row or two, and no chunks are ever put together."""
    monkeypatch.setattr(sizes, "PIECE_BYTES", 40)
    monkeypatch.setattr(sizes, "_TOGETHER", 0)
    check_random_history(seed, points=200_000)


def test_a_hot_key_costs_its_changes_not_their_product() -> None:
    """20,000 changes of one customer beside 20,000 order changes: plain joins would meet 400 million pairs."""
    relations = worlds.catalog(
        worlds.relation("s", "orders", "id customer"), worlds.relation("t", "customers", "id level")
    )
    size = 20_000
    history: list[Did] = []
    for i in range(size):
        history.append(Did("t", {"customers": Counter({(7, i): -1, (7, i + 1): 1})}))
        history.append(Did("s", {"orders": Counter({(i, 7): -1, (i + 1, 7): 1})}))
    world = World(relations, {("s", "orders"): Counter({(0, 7): 1}), ("t", "customers"): Counter({(7, 0): 1})}, history)
    view = parse_view("v", "SELECT o.id, c.level FROM s.orders o JOIN t.customers c ON o.customer = c.id", relations)
    final = {("s", "orders"): (size, 7), ("t", "customers"): (7, size)}
    everything = frozenset(range(1, 2 * size + 1))

    def ask(question: Ask) -> Answer:
        row = final[(question.source, question.relation)]
        table = worlds.arrow(
            [
                *relations[(question.source, question.relation)].columns,
                worlds.Column("_count", worlds.INTEGER),
            ],
            [(*row, 1)],
        )
        return Answer(table.select([*question.columns, "_count"]), worlds.Included(everything))

    changes = worlds.sweep_all(view, world.queue(range(1, 2 * size + 1)), range(1, 2 * size + 1), ask)
    assert all(sum(map(abs, bag.values())) == 2 for bag in changes.values())
    assert len(changes) == 2 * size


def test_an_empty_queue_changes_nothing() -> None:
    world = figure_5()
    view = parse_view("v", FIGURE_5_VIEW, world.catalog)
    assert worlds.sweep_all(view, Queue(), range(1, 2), lambda ask: world.answer(ask, [])) == {}
    assert np.array_equal(worlds.Included(frozenset({1})).includes(np.array([1, 2])), [True, False])
