"""Strobe, T-Strobe and G-Strobe: the examples of strobe-1996 step by step, keys, and random histories."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.scale import scaled
from viewkeeper.algorithms.g_strobe import GlobalStrobe
from viewkeeper.algorithms.keys import Deleted, Keys
from viewkeeper.algorithms.protocol import KeyDelete
from viewkeeper.algorithms.registry import ALGORITHMS, Scenario
from viewkeeper.algorithms.source_evaluate import Expressions
from viewkeeper.algorithms.strobe import Strobe
from viewkeeper.algorithms.t_strobe import TransactionStrobe
from viewkeeper.consistency.levels import Level
from viewkeeper.simulator.history import Commit, Crash, Deliver, Evaluate, Transaction, Workload
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

INSERT_THEN_DELETE = ({"y": [insert("r2", 2, 3)]}, {"x": [delete("r1", 1, 2)]})
"""U_1 and U_2 of strobe-1996, Examples 1, 3, 5 and 6."""

STROBES = [(name, scenario) for name in ("strobe", "t_strobe", "g_strobe") for scenario in ALGORITHMS[name].promise]


# ---- the paper's examples


def test_example_1_the_conventional_algorithm_keeps_a_row_that_was_deleted() -> None:
    world = World(three_sources(*INSERT_THEN_DELETE), lambda tiny: ALGORITHMS["convergent"].make(tiny, keyed=True))
    take(world, Commit(0), Deliver("y"))
    assert questions(world) == [("x", [{(None, (2, 3), None): 1}])]
    take(world, Evaluate("x"), Deliver("x"))
    assert last_answer(world) == ("x", [{((1, 2), (2, 3), None): 1}])
    assert questions(world)[1:] == [("z", [{((1, 2), (2, 3), None): 1}])]
    take(world, Commit(1), Deliver("x"))
    assert world.view == {}
    take(world, Evaluate("z"), Deliver("z"))
    assert last_answer(world) == ("z", [{((1, 2), (2, 3), (3, 4)): 1}])
    assert world.view == {(1, 2, 3, 4): 1}
    world.settle()
    assert judged(world).level is Level.INCONSISTENT


def test_example_2_next_source_follows_the_join_from_the_left() -> None:
    expressions = Expressions(three_sources().tiny)
    query = expressions.view_with(1, {(2, 3): 1})
    source, [hops] = expressions.next_source([query])
    assert (source, [hop.occurrence.alias for hop in hops]) == ("x", ["r1"])
    source, [hops] = expressions.next_source([{((1, 2), (2, 3), None): 1}])
    assert (source, [hop.occurrence.alias for hop in hops]) == ("z", ["r3"])


def test_example_3_strobe_remembers_the_deletion_until_the_query_ends() -> None:
    world = World(three_sources(*INSERT_THEN_DELETE), Strobe)
    strobe = algorithm(world)
    take(world, Commit(0), Deliver("y"))
    assert questions(world) == [("x", [{(None, (2, 3), None): 1}])]
    assert strobe.action_list == []
    take(world, Evaluate("x"), Deliver("x"))
    assert last_answer(world) == ("x", [{((1, 2), (2, 3), None): 1}])
    assert questions(world)[1:] == [("z", [{((1, 2), (2, 3), None): 1}])]
    take(world, Commit(1), Deliver("x"))
    assert [query.pending for query in strobe.unanswered] == [[Deleted(update=2, occurrence=0, key=(1,))]]
    assert strobe.action_list == [KeyDelete((0,), (1,))]
    assert installs(world) == []
    take(world, Evaluate("z"), Deliver("z"))
    assert last_answer(world) == ("z", [{((1, 2), (2, 3), (3, 4)): 1}])
    assert [h.what.error for h in world.log if h.kind == "compensate"] == [{((1, 2), (2, 3), (3, 4)): 1}]
    assert world.installed[-1][1].actions == (KeyDelete((0,), (1,)),)
    assert installs(world) == [({1, 2}, {})]
    assert (strobe.unanswered, strobe.action_list) == ([], [])
    assert judged(world).level is Level.COMPLETE  # the view was empty all along


def test_example_3_with_the_deletion_first_the_answer_is_empty_and_nothing_is_done() -> None:
    world = World(three_sources(*INSERT_THEN_DELETE), Strobe)
    take(world, Commit(0), Deliver("y"), Commit(1), Evaluate("x"), Deliver("x"), Deliver("x"))
    assert last_answer(world) == ("x", [{}])
    assert len(questions(world)) == 1  # z is not asked for nothing
    assert installs(world) == [({1, 2}, {})]


def one_relation(*transactions: dict) -> World:
    """strobe-1996, Example 4: V = r1(A, B), A is its key, and holds [1, 2]."""
    load = workload([relation("x", "r1", "A B", "A")], "SELECT A, B FROM x.r1", {"r1": [(1, 2)]}, *transactions)
    return World(load, Strobe)


def test_example_4_strobe_shows_the_middle_of_a_transaction() -> None:
    world = one_relation({"x": [delete("r1", 1, 2), insert("r1", 3, 4)]})
    take(world, Commit(0), Deliver("x"))
    assert installs(world) == [(set(), {}), ({1}, {(3, 4): 1})]
    assert judged(world).level is Level.CONVERGENT


def test_example_4_t_strobe_moves_from_before_to_after_the_transaction() -> None:
    load = one_relation({"x": [delete("r1", 1, 2), insert("r1", 3, 4)]}).workload
    world = World(load, TransactionStrobe)
    take(world, Commit(0), Deliver("x"))
    assert installs(world) == [({1}, {(3, 4): 1})]
    assert judged(world).level is Level.COMPLETE


# ---- keys that come back


def test_a_key_deleted_and_inserted_again_while_a_query_is_under_way_is_found_by_its_own_query() -> None:
    load = three_sources({"y": [insert("r2", 2, 3)]}, {"x": [delete("r1", 1, 2)]}, {"x": [insert("r1", 1, 2)]})
    world = World(load, Strobe)
    take(world, Commit(0), Deliver("y"), Commit(1), Commit(2), Evaluate("x"))  # the answer sees the second [1, 2]
    take(world, Deliver("x"), Deliver("x"), Deliver("x"))
    assert last_answer(world) == ("x", [{((1, 2), (2, 3), None): 1}])
    take(world, Evaluate("z"), Deliver("z"))
    assert installs(world) == []  # the query of the second insertion is still under way
    world.settle()
    assert installs(world)[0] == ({1, 2, 3}, {(1, 2, 3, 4): 1})
    assert judged(world).reaches(Level.STRONG)


def test_an_old_form_of_a_modified_row_never_stays_beside_the_new_one() -> None:
    load = three_sources({"y": [insert("r2", 2, 3)]}, {"z": [delete("r3", 3, 4), insert("r3", 3, 5)]})
    for made in (Strobe, TransactionStrobe, GlobalStrobe):
        for world, _ in every_interleaving(lambda made=made: World(load, made)):
            assert world.view == {(1, 2, 3, 5): 1}


def test_a_modification_is_one_deletion_and_one_query_in_t_strobe() -> None:
    load = three_sources({"y": [insert("r2", 2, 3)]}, {"z": [delete("r3", 3, 4), insert("r3", 3, 5)]})
    world = World(load, TransactionStrobe)
    take(world, Commit(0), Deliver("y"), Evaluate("x"), Deliver("x"), Evaluate("z"))  # the answer sees [3, 4]
    take(world, Deliver("z"), Commit(1), Deliver("z"))
    assert installs(world) == [({1}, {(1, 2, 3, 4): 1})]
    assert algorithm(world).action_list == [KeyDelete((2,), (3,))]
    assert questions(world)[2:] == [("y", [{(None, None, (3, 5)): 1}])]
    world.settle()
    assert installs(world)[1:] == [({2}, {(1, 2, 3, 5): 1})]


def test_what_a_transaction_inserted_and_deleted_again_asks_nothing() -> None:
    ops = [insert("r2", 2, 3), delete("r2", 2, 3), insert("r2", 2, 9), delete("r2", 2, 9)]
    world = World(three_sources({"y": ops}), TransactionStrobe)
    take(world, Commit(0), Deliver("y"))
    assert (questions(world), installs(world)) == ([], [({1}, {})])


def test_after_a_crash_the_updates_come_again_and_nothing_is_lost() -> None:
    world = World(three_sources(*INSERT_THEN_DELETE), Strobe)
    take(world, Commit(0), Deliver("y"), Evaluate("x"), Deliver("x"), Crash())
    assert algorithm(world).unanswered == []
    world.settle()
    assert judged(world).reaches(Level.STRONG)


def test_an_update_that_does_not_concern_the_view_is_reflected_too() -> None:
    sql = "SELECT A, B FROM x.r1 WHERE B > 0"
    load = workload([relation("x", "r1", "A B", "A")], sql, {}, {"x": []}, {"x": [insert("r1", 1, -1)]})
    for name in ("strobe", "t_strobe", "g_strobe", "c_strobe", "c_t_strobe", "eca"):
        world = World(load, ALGORITHMS[name].make)
        take(world, Commit(0), Deliver("x"), Commit(1), Deliver("x"))
        assert installs(world) == [({1}, {}), ({2}, {})]


# ---- source_evaluate


def test_hops_at_the_same_source_are_one_visit_and_terms_share_messages() -> None:
    load = workload(
        (relation("x", "r1", "A B", "A"), relation("x", "r2", "B C", "B"), relation("y", "r3", "C D", "C")),
        "SELECT r1.A, r2.B, r3.C, r3.D FROM x.r1, x.r2, y.r3 WHERE r1.B = r2.B AND r2.C = r3.C",
        {"r1": [(1, 2), (5, 2)], "r2": [(2, 3)]},
        {"y": [insert("r3", 3, 4), insert("r3", 8, 4)]},
    )
    world = World(load, TransactionStrobe)
    take(world, Commit(0), Deliver("y"))
    assert questions(world) == [("x", [{(None, None, (3, 4)): 1, (None, None, (8, 4)): 1}])]
    world.settle()
    assert world.view == {(1, 2, 3, 4): 1, (5, 2, 3, 4): 1}
    assert world.costs.questions == 1


def test_a_relation_that_occurs_twice_is_put_in_the_place_of_either() -> None:
    load = workload(
        [relation("x", "r", "a b", "a")],
        "SELECT l.a AS la, r.a AS ra, r.b AS rb FROM x.r l, x.r r WHERE l.b = r.a",
        {"r": [(1, 2)]},
        {"x": [insert("r", 2, 2)]},
        {"x": [delete("r", 1, 2)]},
    )
    for made in (Strobe, TransactionStrobe):
        world = World(load, made)
        take(world, Commit(0), Deliver("x"), Evaluate("x"), Deliver("x"))
        assert world.view == {(1, 2, 2): 1, (2, 2, 2): 1}
        world.settle()
        assert world.view == {(2, 2, 2): 1}


# ---- global transactions


def deletions_at_two_sources() -> Workload:
    """A global transaction that takes one row of the view away at x and the other at y."""
    return workload(
        (relation("x", "r1", "A B", "A"), relation("y", "r2", "B C", "B")),
        "SELECT r1.A, r1.B, r2.C FROM x.r1, y.r2 WHERE r1.B = r2.B",
        {"r1": [(1, 2), (5, 6)], "r2": [(2, 3), (6, 7)]},
        {"x": [delete("r1", 1, 2)], "y": [delete("r2", 6, 7)]},
    )


def test_t_strobe_shows_half_of_a_global_transaction_and_is_weakly_consistent() -> None:
    world = World(deletions_at_two_sources(), TransactionStrobe)
    take(world, Commit(0), Deliver("x"))
    assert installs(world) == [({1}, {(5, 6, 7): 1})]
    world.settle()
    assert judged(world).level is Level.WEAK


def test_g_strobe_waits_for_the_other_part() -> None:
    world = World(deletions_at_two_sources(), GlobalStrobe)
    take(world, Commit(0), Deliver("x"))
    assert algorithm(world).missing == {"t1": {"y"}}
    assert installs(world) == []
    take(world, Deliver("y"))
    assert installs(world) == [({1, 2}, {})]
    assert judged(world).level is Level.COMPLETE


def test_g_strobe_holds_back_what_follows_a_part_at_the_same_source() -> None:
    load = replace(
        deletions_at_two_sources(),
        transactions=(*deletions_at_two_sources().transactions, Transaction("t2", {"x": (delete("r1", 5, 6),)})),
    )
    world = World(load, GlobalStrobe)
    take(world, Commit(0), Commit(1), Deliver("x"), Deliver("x"))
    assert installs(world) == []
    take(world, Deliver("y"))
    assert installs(world) == [({1, 2, 3}, {})]


# ---- keys and assumptions


def problems(name: str, sql: str, *, key: str = "k") -> list[tuple[str, str]]:
    load = workload((relation("x", "r1", "k a", key), relation("y", "r2", "k b", "k")), sql, {})
    return ALGORITHMS[name].problems(load.tiny)


def test_a_view_that_hides_a_key_is_refused_with_the_column_to_add() -> None:
    sql = "SELECT p.k AS pk FROM x.r1 p, y.r2 q WHERE p.a = q.b"
    assert problems("strobe", sql) == [("it does not show q.k, part of a key", "add q.k to the SELECT list")]


def test_a_relation_without_a_key_is_refused_by_name() -> None:
    sql = "SELECT p.k AS pk, q.k AS qk FROM x.r1 p, y.r2 q WHERE p.a = q.b"
    [(what, _)] = problems("c_strobe", sql, key="")
    assert what == "x.r1 has no primary key"
    assert problems("c_strobe", sql) == []


def test_a_key_is_shown_by_a_column_that_a_join_makes_equal() -> None:
    assert problems("t_strobe", "SELECT p.k, p.a FROM x.r1 p, y.r2 q WHERE p.a = q.k") == []


def test_a_computed_column_shows_no_key() -> None:
    sql = "SELECT p.k + 0 AS pk, q.k AS qk FROM x.r1 p, y.r2 q WHERE p.a = q.b"
    assert problems("g_strobe", sql)[0][1] == "add p.k to the SELECT list"


def test_keys_of_several_columns_are_taken_in_the_order_of_the_key() -> None:
    load = workload([relation("x", "r", "a b c", "c a")], "SELECT a, b, c FROM x.r", {})
    keys = Keys.of(load.tiny)
    assert keys.key(0, (1, 2, 3)) == (3, 1)
    assert keys.action(Deleted(1, 0, (3, 1))) == KeyDelete((2, 0), (3, 1))


# ---- random and all histories


@pytest.mark.parametrize(("name", "scenario"), STROBES)
def test_oracle_each_strobe_reaches_its_level_on_random_histories(name: str, scenario: Scenario) -> None:
    reaches_promise(name, scenario, range(scaled(40, 300)))


@pytest.mark.parametrize(("name", "scenario"), [case for case in STROBES if case[1] is Scenario.SINGLE])
def test_oracle_each_strobe_reaches_its_level_in_all_interleavings(name: str, scenario: Scenario) -> None:
    for seed in range(scaled(3, 12)):
        load = random_workload(random.Random(seed), Shape(updates=3, values=2, scenario=scenario))
        for world, events in every_interleaving(lambda load=load: World(load, ALGORITHMS[name].make)):
            assert judged(world).reaches(ALGORITHMS[name].promise[scenario]), (seed, events)
