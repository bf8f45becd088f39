"""C-Strobe and C-TStrobe: Examples 5 and 6 of strobe-1996, what Algorithm 3 leaves open, bounds, random histories."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import factorial

import pytest

from tests.scale import scaled
from viewkeeper.algebra.tiny import Part, Row
from viewkeeper.algebra.view import Hop
from viewkeeper.algorithms.c_strobe import (
    CompleteStrobe,
    CompleteTransactionStrobe,
    Deletions,
    Event,
    Held,
    HoldingQueue,
)
from viewkeeper.algorithms.protocol import Insert, KeyDelete, Process, Update
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
    of_class,
    questions,
    reaches_promise,
    relation,
    take,
    three_sources,
    workload,
)

INSERT_THEN_DELETE = ({"y": [insert("r2", 2, 3)]}, {"x": [delete("r1", 1, 2)]})
"""U_1 and U_2 of strobe-1996, Examples 1, 3, 5 and 6."""

COMPLETE = [(name, scenario) for name in ("c_strobe", "c_t_strobe") for scenario in ALGORITHMS[name].promise]


# ---- the paper's examples


def test_example_5_the_answer_still_has_the_row_that_was_deleted() -> None:
    world = World(three_sources(*INSERT_THEN_DELETE), CompleteStrobe)
    take(world, Commit(0), Deliver("y"))
    assert questions(world) == [("x", [{(None, (2, 3), None): 1}])]
    take(world, Evaluate("x"), Deliver("x"))
    assert last_answer(world) == ("x", [{((1, 2), (2, 3), None): 1}])
    assert questions(world)[1:] == [("z", [{((1, 2), (2, 3), None): 1}])]
    take(world, Commit(1), Deliver("x"))
    assert [held.update.number for held in algorithm(world).held] == [2]
    take(world, Evaluate("z"), Deliver("z"))
    assert last_answer(world) == ("z", [{((1, 2), (2, 3), (3, 4)): 1}])
    assert questions(world)[2:] == [("z", [{((1, 2), (2, 3), None): 1}])]  # Q_{1,2,1}: [1, 2] ⋈ [2, 3] ⋈ r3
    assert installs(world) == []
    take(world, Evaluate("z"), Deliver("z"))
    assert last_answer(world) == ("z", [{((1, 2), (2, 3), (3, 4)): 1}])
    assert [h.kind for h in world.log if h.kind == "compensate"] == []  # a duplicate: Delta remains the same
    assert [install.actions for _, install in world.installed] == [
        (Insert(frozenset({(1, 2, 3, 4)})),),
        (KeyDelete((0,), (1,)),),
    ]
    assert installs(world) == [({1}, {(1, 2, 3, 4): 1}), ({2}, {})]
    assert judged(world).level is Level.COMPLETE


def test_example_6_the_deletion_comes_first_and_a_second_query_finds_what_it_hid() -> None:
    world = World(three_sources(*INSERT_THEN_DELETE), CompleteStrobe)
    take(world, Commit(0), Deliver("y"))
    assert questions(world) == [("x", [{(None, (2, 3), None): 1}])]
    take(world, Commit(1), Deliver("x"))
    assert [held.update.number for held in algorithm(world).held] == [2]
    take(world, Evaluate("x"), Deliver("x"))
    assert last_answer(world) == ("x", [{}])
    assert questions(world)[1:] == [("z", [{((1, 2), (2, 3), None): 1}])]  # Q_{1,2,1}; z is not asked for A_{1,1,0}
    take(world, Evaluate("z"), Deliver("z"))
    assert last_answer(world) == ("z", [{((1, 2), (2, 3), (3, 4)): 1}])
    assert [h.what.error for h in world.log if h.kind == "compensate"] == [{((1, 2), (2, 3), (3, 4)): -1}]
    assert installs(world) == [({1}, {(1, 2, 3, 4): 1}), ({2}, {})]
    assert judged(world).level is Level.COMPLETE


# ---- where Algorithm 3 as printed is vague: each wrong reading breaks, ours does not


class Reading(CompleteStrobe):
    """A reading of the rule "unless an earlier deletion refers to the same tuple"; ``past`` is all that was held."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.past: list[Held] = []

    def handle(self, held: Held) -> Process:
        self.past.append(held)
        yield from super().handle(held)


class DeletedAtAnyTime(Reading):
    """Spares a tuple that was ever deleted, even before U_i."""

    def without_later(self, number: int, delta: Part) -> Part:
        for at in range(len(self.tiny.view.occurrences)):
            gone = {r for h in (*self.past, *self.held) for r, n in h.changes.get(at, {}).items() if n < 0}
            later = {r for h in self.held for r, n in h.changes.get(at, {}).items() if n > 0} - gone
            delta = {c: n for c, n in delta.items() if c[at] not in later}
        return delta


class DeletedByKey(Reading):
    """Takes tuples with the same key for the same tuple."""

    def without_later(self, number: int, delta: Part) -> Part:
        for at in range(len(self.tiny.view.occurrences)):
            firsts: dict[object, bool] = {}
            for held in self.held:
                for row, count in held.changes.get(at, {}).items():
                    firsts.setdefault(self.keys.key(at, row), count > 0)
            later = {r for h in self.held for r in h.changes.get(at, {}) if firsts[self.keys.key(at, r)]}
            delta = {c: n for c, n in delta.items() if c[at] not in later}
        return delta


class ComparedAsShown(CompleteStrobe):
    """key_delete* on rows of the view that show nothing but keys."""

    def without_later(self, number: int, delta: Part) -> Part:
        for at in range(len(self.tiny.view.occurrences)):
            later = {self.keys.key(at, row) for row, first in self.first_events(at).items() if not first.deletes}
            delta = {c: n for c, n in delta.items() if (row := c[at]) and self.keys.key(at, row) not in later}
        return delta


def test_a_row_deleted_before_the_insertion_and_inserted_after_it_is_not_in_the_state_between() -> None:
    load = three_sources({"x": [delete("r1", 1, 2)]}, {"y": [insert("r2", 2, 3)]}, {"x": [insert("r1", 1, 2)]})
    events = (Commit(0), Deliver("x"), Commit(1), Deliver("y"), Commit(2), Evaluate("x"), Deliver("x"), Deliver("x"))
    right, wrong = (of_class(made, load, events) for made in (CompleteStrobe, DeletedAtAnyTime))
    assert installs(right) == [({1}, {}), ({2}, {}), ({3}, {(1, 2, 3, 4): 1})]
    assert installs(wrong)[1] == ({2}, {(1, 2, 3, 4): 1})


def test_a_modified_row_has_its_old_form_in_the_state_before_the_modification() -> None:
    load = three_sources({"y": [insert("r2", 2, 3)]}, {"z": [delete("r3", 3, 4)]}, {"z": [insert("r3", 3, 5)]})
    events = (Commit(0), Deliver("y"), Evaluate("x"), Deliver("x"), Commit(1), Commit(2), Evaluate("z"))
    right, wrong = (of_class(made, load, events) for made in (CompleteStrobe, DeletedByKey))
    assert installs(right) == [({1}, {(1, 2, 3, 4): 1}), ({2}, {}), ({3}, {(1, 2, 3, 5): 1})]
    assert installs(wrong)[0] == ({1}, {(1, 2, 3, 4): 1, (1, 2, 3, 5): 1})  # one key, two rows


def test_rows_are_told_apart_by_columns_that_the_view_does_not_show() -> None:
    load = workload(
        (relation("x", "r1", "k j", "k"), relation("y", "r2", "m j", "m")),
        "SELECT r1.k, r2.m FROM x.r1, y.r2 WHERE r1.j = r2.j",
        {"r1": [(1, 1)]},
        {"y": [insert("r2", 5, 1)]},
        {"x": [delete("r1", 1, 1)]},
        {"x": [insert("r1", 1, 2)]},
    )
    events = (Commit(0), Deliver("y"), Commit(1), Deliver("x"), Commit(2), Deliver("x"))
    right, wrong = (of_class(made, load, events) for made in (CompleteStrobe, ComparedAsShown))
    assert installs(right) == [({1}, {(1, 5): 1}), ({2}, {}), ({3}, {})]
    assert installs(wrong)[0] == ({1}, {})  # k = 1 was inserted later, but with another j


# ---- transactions


def test_c_strobe_shows_the_middle_of_a_transaction_and_c_t_strobe_does_not() -> None:
    load = three_sources({"y": [insert("r2", 2, 3)]}, {"z": [delete("r3", 3, 4), insert("r3", 3, 5)]})
    events = (Commit(0), Deliver("y"), Commit(1), Deliver("z"))
    single, whole = (of_class(made, load, events) for made in (CompleteStrobe, CompleteTransactionStrobe))
    assert installs(single) == [({1}, {(1, 2, 3, 4): 1}), (set(), {}), ({2}, {(1, 2, 3, 5): 1})]
    assert installs(whole) == [({1}, {(1, 2, 3, 4): 1}), ({2}, {(1, 2, 3, 5): 1})]


def test_rows_that_one_transaction_deletes_at_several_occurrences_are_substituted_together() -> None:
    load = workload(
        (relation("x", "r1", "k j", "k"), relation("y", "r2", "k j", "k"), relation("y", "r3", "k j", "k")),
        "SELECT r1.k AS k1, r2.k AS k2, r3.k AS k3 FROM x.r1, y.r2, y.r3 WHERE r1.j = r2.j AND r2.j = r3.j",
        {"r2": [(2, 1)], "r3": [(3, 1)]},
        {"x": [insert("r1", 1, 1)]},
        {"y": [delete("r2", 2, 1), delete("r3", 3, 1)]},
    )
    for made in (CompleteStrobe, CompleteTransactionStrobe):
        world = of_class(made, load, (Commit(0), Deliver("x"), Commit(1), Deliver("y")))
        assert installs(world)[0] == ({1}, {(1, 2, 3): 1})
        assert world.view == {}


# ---- how many questions


def star(relations: int, rows: int) -> Workload:
    """Relations at as many sources, whose rows all join; r1 gets a row, then every other row is deleted."""
    names = [f"r{i + 1}" for i in range(relations)]
    shown = ", ".join(f"{name}.k AS k_{name}" for name in names)
    joined = " AND ".join(f"r1.j = {name}.j" for name in names[1:])
    tables = ", ".join(f"s{name}.{name} {name}" for name in names)
    return workload(
        [relation(f"s{name}", name, "k j", "k") for name in names],
        f"SELECT {shown} FROM {tables} WHERE {joined}",
        {name: [(k, 1) for k in range(rows)] for name in names[1:]},
        {"sr1": [insert("r1", 1, 1)]},
        *({f"s{name}": [delete(name, k, 1)]} for k in range(rows) for name in names[1:]),
    )


class Counted(CompleteStrobe):
    """Counts its queries, those that no source has to be asked for left out."""

    queries = 0

    def compensated(self, number: int, parts: list[Part], path: tuple[int, ...]) -> Process:
        self.queries += any(self.expressions.open(part) for part in parts)
        return (yield from super().compensated(number, parts, path))


def in_the_worst_case(relations: int) -> tuple[int, int]:
    """Queries and messages for U_1 if a row is deleted at a source whenever it is about to answer."""
    world = World(star(relations, rows=most_messages(relations) // (relations - 1)), Counted)
    take(world, Commit(0), Deliver("sr1"))
    counted = algorithm(world)
    while not world.installed:
        event = next(e for e in world.enabled() if isinstance(e, Evaluate | Deliver))
        if isinstance(event, Evaluate):
            commit = next(
                e
                for e in world.enabled()
                if isinstance(e, Commit) and event.source in world.workload.transactions[e.index].parts
            )
            take(world, commit)
        take(world, event)
    assert isinstance(counted, Counted)
    return counted.queries, world.costs.questions


def most_queries(n: int) -> int:
    """1 + (n−1) + (n−1)(n−2) + … + (n−1)!/1!: one term per number of rows substituted beside the insertion."""
    return sum(factorial(n - 1) // factorial(n - 1 - k) for k in range(n - 1))


def most_messages(n: int) -> int:
    """The same, each query with one message for every relation that is left."""
    return sum((n - 1 - k) * (factorial(n - 1) // factorial(n - 1 - k)) for k in range(n - 1))


@pytest.mark.parametrize("relations", [2, 3, 4])
def test_the_worst_case_takes_as_many_queries_as_the_bound_says(relations: int) -> None:
    queries, messages = in_the_worst_case(relations)
    assert queries == most_queries(relations)
    assert messages == most_messages(relations)


def test_the_papers_bound_counts_the_last_queries_only() -> None:
    assert [most_queries(n) for n in (2, 3, 4, 5)] == [1, 3, 10, 41]
    assert [factorial(n - 1) for n in (2, 3, 4, 5)] == [1, 2, 6, 24]


def test_no_update_of_a_random_history_takes_more_messages_than_the_bound() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        world = World(random_workload(rng, Shape(4, 4, 8, values=1, rows=3)), CompleteStrobe)
        while events := [e for e in world.enabled() if isinstance(e, Commit)] or list(world.enabled()):
            world.take(rng.choice(events))
        sent = 0
        for happened in world.log:
            sent += happened.kind == "send"
            if happened.kind == "install":
                assert sent <= most_messages(4), f"seed {seed}"
                sent = 0


# ---- the holding queue


def walked(queue: HoldingQueue, occurrence: int) -> dict[Row, Event]:
    """What the queue says first about each row, by a walk through all of it."""
    firsts: dict[Row, Event] = {}
    for held in queue:
        for row, count in held.changes.get(occurrence, {}).items():
            firsts.setdefault(row, Event(held.place, held.update.number, count < 0))
    return firsts


@pytest.mark.parametrize("seed", range(20))
def test_agree_the_holding_queue_and_a_walk_through_it(seed: int) -> None:
    rng = random.Random(seed)
    tiny = algorithm(World(three_sources(), CompleteStrobe)).tiny
    hops = [hop for first in range(3) for hop in tiny.view.hops_in((first, *({0, 1, 2} - {first})))[1:]]
    queue = HoldingQueue(tiny)
    for place in range(150):
        if len(queue) and rng.random() < 0.45:
            oldest = next(iter(queue))
            assert queue.popleft() is oldest
        else:
            rows = [(rng.randrange(3), rng.randrange(3)) for _ in range(rng.randrange(4))]
            changes = {rng.randrange(3): {row: rng.choice((1, -1)) for row in rows}}
            queue.append(Held(place, Update(place, "x", "t", ()), changes, frozenset()))
        for at in range(3):
            assert queue[at].first == walked(queue, at)
        hop = rng.choice(hops)
        gone = [row for row, first in walked(queue, hop.occurrence.index).items() if first.deletes]
        for value in range(3):
            found = queue[hop.occurrence.index].deleted.matching(hop, (value,) * len(hop.key))
            key_of = tiny.key_of(hop)
            assert dict(found) == {row: 1 for row in gone if key_of(row) == (value,) * len(hop.key)}


def test_a_long_transaction_is_handled_without_a_walk_through_the_holding_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each insertion is compensated for the one deletion that concerns it, and the others are not looked at."""
    looked_at = 0
    matching = Deletions.matching

    def counted(self: Deletions, hop: Hop, key: Row) -> list[tuple[Row, int]]:
        nonlocal looked_at
        found = list(matching(self, hop, key))
        looked_at += len(found)
        return found

    def walk(self: HoldingQueue) -> Iterator[Held]:
        raise AssertionError("a walk through the holding queue")

    monkeypatch.setattr(Deletions, "matching", counted)
    monkeypatch.setattr(HoldingQueue, "__iter__", walk)
    many = range(300)
    load = workload(
        (relation("x", "r1", "k j", "k"), relation("y", "r2", "k j", "k")),
        "SELECT r1.k AS k1, r2.k AS k2 FROM x.r1, y.r2 WHERE r1.j = r2.j",
        {"r2": [(i, i) for i in many]},
        {"x": [insert("r1", i, i) for i in many]},
        {"y": [delete("r2", i, i) for i in many]},
    )
    world = of_class(CompleteStrobe, load, (Commit(0), Deliver("x"), Commit(1), Deliver("y")))
    assert looked_at == len(many)
    assert len(world.installed) == 2 * len(many)
    assert world.view == {}


# ---- random and all histories


@pytest.mark.parametrize(("name", "scenario"), COMPLETE)
def test_oracle_complete_strobes_reach_their_level_on_random_histories(name: str, scenario: Scenario) -> None:
    reaches_promise(name, scenario, range(scaled(40, 300)))


@pytest.mark.parametrize("name", ["c_strobe", "c_t_strobe"])
def test_oracle_complete_strobes_show_every_state_in_all_interleavings(name: str) -> None:
    for seed in range(scaled(3, 12)):
        load = random_workload(random.Random(seed), Shape(updates=3, values=2))
        for world, events in every_interleaving(lambda load=load: World(load, ALGORITHMS[name].make)):
            assert judged(world).level is Level.COMPLETE, (seed, events)
