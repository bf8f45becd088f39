"""ECA: the query of sweep-1997's summary step by step, transactions, self-joins, random histories."""

from __future__ import annotations

import random

import pytest

from tests.scale import scaled
from viewkeeper.algorithms.eca import Eca
from viewkeeper.algorithms.registry import ALGORITHMS, Scenario
from viewkeeper.consistency.levels import Level
from viewkeeper.simulator.history import Commit, Deliver, Evaluate, Workload
from viewkeeper.simulator.schedule import every_interleaving
from viewkeeper.simulator.workload import Shape, random_workload
from viewkeeper.simulator.world import World

from .lab_worlds import (
    algorithm,
    delete,
    insert,
    installs,
    judged,
    last_answer,
    questions,
    reaches_promise,
    relation,
    take,
    three_sources,
    workload,
)


def one_source(*transactions: dict, r1: list, r2: list, r3: list) -> Workload:
    """V = r1(A, B) ⋈ r2(B, C) ⋈ r3(C, D), all at x, without keys."""
    return workload(
        [relation("x", name, columns) for name, columns in (("r1", "A B"), ("r2", "B C"), ("r3", "C D"))],
        "SELECT r1.A, r2.B, r2.C, r3.D FROM x.r1, x.r2, x.r3 WHERE r1.B = r2.B AND r2.C = r3.C",
        {"r1": r1, "r2": r2, "r3": r3},
        *transactions,
    )


def test_the_second_query_makes_up_for_what_the_first_will_see_too_much() -> None:
    load = one_source({"x": [insert("r1", 1, 2)]}, {"x": [insert("r2", 2, 3)]}, r1=[(9, 2)], r2=[], r3=[(3, 4)])
    world = World(load, Eca)
    take(world, Commit(0), Deliver("x"))
    assert questions(world) == [("x", [{((1, 2), None, None): 1}])]  # Q_1 = ΔR_1 ⋈ R_2 ⋈ R_3
    take(world, Commit(1), Deliver("x"))
    # Q_2 = R_1 ⋈ ΔR_2 ⋈ R_3 − ΔR_1 ⋈ ΔR_2 ⋈ R_3
    assert questions(world)[1:] == [("x", [{(None, (2, 3), None): 1}, {((1, 2), (2, 3), None): -1}])]
    take(world, Evaluate("x"), Deliver("x"))
    assert last_answer(world) == ("x", [{((1, 2), (2, 3), (3, 4)): 1}])  # A_1 contains the effect of U_2
    assert algorithm(world).collect == {(1, 2, 3, 4): 1}
    assert installs(world) == []
    take(world, Evaluate("x"), Deliver("x"))
    assert last_answer(world)[1] == [
        {((1, 2), (2, 3), (3, 4)): 1, ((9, 2), (2, 3), (3, 4)): 1},
        {((1, 2), (2, 3), (3, 4)): -1},
    ]
    assert installs(world) == [({1, 2}, {(1, 2, 3, 4): 1, (9, 2, 3, 4): 1})]
    assert judged(world).reaches(Level.STRONG)


def test_a_deletion_that_meets_an_insertion_is_signed() -> None:
    load = one_source({"x": [insert("r1", 1, 2)]}, {"x": [delete("r2", 2, 3)]}, r1=[(9, 2)], r2=[(2, 3)], r3=[(3, 4)])
    for world, _ in every_interleaving(lambda: World(load, Eca)):
        assert world.view == {}
        assert judged(world).reaches(Level.STRONG)


def test_a_term_with_nothing_left_to_ask_is_collected_at_once() -> None:
    load = workload(
        [relation("x", "r1", "A B"), relation("x", "r2", "B C")],
        "SELECT r1.A, r2.C FROM x.r1, x.r2 WHERE r1.B = r2.B",
        {},
        {"x": [insert("r1", 1, 2), insert("r2", 2, 3)]},
    )
    world = World(load, Eca)
    take(world, Commit(0), Deliver("x"))
    assert questions(world) == [("x", [{((1, 2), None): 1}, {(None, (2, 3)): 1}])]  # − ΔR_1 ⋈ ΔR_2 needs no source
    take(world, Evaluate("x"), Deliver("x"))
    assert installs(world) == [({1}, {(1, 3): 1})]


def test_a_view_of_one_relation_asks_nothing() -> None:
    load = workload([relation("x", "r", "a")], "SELECT a FROM x.r", {"r": [(1,), (1,)]}, {"x": [delete("r", 1)]})
    world = World(load, Eca)
    take(world, Commit(0), Deliver("x"))
    assert (questions(world), installs(world)) == ([], [({1}, {(1,): 1})])


def test_a_relation_joined_with_itself_counts_the_new_pair_once() -> None:
    load = workload(
        [relation("x", "r", "a b")],
        "SELECT p.a, q.b FROM x.r p, x.r q WHERE p.b = q.a",
        {"r": [(1, 2)]},
        {"x": [insert("r", 2, 2)]},
        {"x": [insert("r", 2, 2)]},
    )
    for world, _ in every_interleaving(lambda: World(load, Eca)):
        assert world.view == {(1, 2): 2, (2, 2): 4}
        assert judged(world).reaches(Level.STRONG)


def test_one_question_is_sent_for_each_update() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        load = random_workload(rng, Shape(sources=1, relations=3, updates=6, keyed=False))
        world = World(load, Eca)
        while events := list(world.enabled()):
            world.take(rng.choice(events))
        assert world.costs.questions <= len(load.transactions), f"seed {seed}"


def test_a_view_over_several_sources_is_refused() -> None:
    [(what, remedy)] = ALGORITHMS["eca"].problems(three_sources().tiny)
    assert what == "its relations are in 3 sources (x, y, z)"
    assert remedy == "choose an algorithm for several sources, such as sweep"


@pytest.mark.parametrize("scenario", ALGORITHMS["eca"].promise)
def test_oracle_eca_is_strongly_consistent_on_random_histories(scenario: Scenario) -> None:
    reaches_promise("eca", scenario, range(scaled(40, 300)))


@pytest.mark.parametrize("scenario", ALGORITHMS["eca"].promise)
def test_oracle_eca_is_strongly_consistent_in_all_interleavings(scenario: Scenario) -> None:
    for seed in range(scaled(3, 12)):
        shape = Shape(sources=1, updates=3, values=2, keyed=False, scenario=scenario, repeated=seed % 3 == 0)
        load = random_workload(random.Random(seed), shape)
        for world, events in every_interleaving(lambda load=load: World(load, Eca)):
            assert judged(world).reaches(Level.STRONG), (seed, events)
