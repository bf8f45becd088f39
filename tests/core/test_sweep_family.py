"""The paper's SWEEP, its relatives and what they share: worked examples, bounds, and agreement of two evaluators."""

from __future__ import annotations

import random
from typing import Any

import pytest

from viewkeeper.algorithms.complete_n import CompleteN
from viewkeeper.algorithms.nested_sweep import NestedSweep
from viewkeeper.algorithms.refresh import Refresh
from viewkeeper.algorithms.registry import Scenario
from viewkeeper.algorithms.sweep_sequential import SequentialSweep
from viewkeeper.algorithms.sweep_sites import SiteSweep
from viewkeeper.simulator.history import Commit, Delay, Deliver, Evaluate
from viewkeeper.simulator.schedule import Faults, every_interleaving, run_randomly
from viewkeeper.simulator.tagged import TaggedWorld
from viewkeeper.simulator.workload import Shape, random_workload
from viewkeeper.simulator.world import World, run

from . import papers


def happened(world: World, kind: str) -> list[Any]:
    return [each.what for each in world.log if each.kind == kind]


def rows(part: dict[Any, int]) -> dict[Any, int]:
    """Partial rows as the paper writes them: joined columns in a row, each shared one once."""
    return {
        tuple(v for i, row in enumerate(filter(None, combination)) for v in (row if i == 0 else row[1:])): count
        for combination, count in part.items()
    }


def deliver_all(world: World) -> World:
    """Every transaction commits, then each update is delivered, in the order of the workload."""
    for index in range(len(world.workload.transactions)):
        world.take(Commit(index))
    for transaction in world.workload.transactions:
        for source in transaction.parts:
            world.take(Deliver(source))
    return world


def without_a(world: World) -> list[dict[Any, int]]:
    states = []
    for state in world.states:
        states.append({row[1:]: 0 for row in state})
        for row, count in state.items():
            states[-1][row[1:]] += count
    return states


def test_section_5_2_of_sweep_1997_with_every_value_on_the_way() -> None:
    # The paper's partial rows hold all of R1; a view that does not show A would leave it out of its questions.
    world = World(papers.figure_5("R1.A, R2.D, R3.F"), SequentialSweep)
    deliver_all(world)  # ΔR2 is the first to be delivered and is swept at once
    (asked,) = happened(world, "send")
    assert asked.query.source == "one" and rows(asked.query.terms[0].part) == {(3, 5): 1}

    world.take(Evaluate("one"))
    world.take(Deliver("one"))
    (reply,) = happened(world, "answer")
    assert rows(reply.answer[0][0]) == {(1, 3, 5): 1}, "the answer lacks what ΔR1 deleted"
    (first,) = happened(world, "compensate")
    assert first.because == (3,) and rows(first.error) == {(2, 3, 5): -1}
    assert rows(happened(world, "send")[1].query.terms[0].part) == {(1, 3, 5): 1, (2, 3, 5): 1}

    world.take(Evaluate("three"))
    world.take(Deliver("three"))
    assert rows(happened(world, "answer")[1].answer[0][0]) == {(1, 3, 5, 6): 1, (2, 3, 5, 6): 1}
    assert len(happened(world, "compensate")) == 1, "ΔR3 does not join: its error term is empty"
    assert without_a(world) == papers.FIGURE_5_STATES[:2]

    world.take(Evaluate("two"))  # now ΔR3, −(7, 8), sweeps left
    world.take(Deliver("two"))
    assert rows(happened(world, "answer")[2].answer[0][0]) == {(3, 7, 8): -1}
    world.take(Evaluate("one"))
    world.take(Deliver("one"))
    assert rows(happened(world, "answer")[3].answer[0][0]) == {(1, 3, 7, 8): -1}
    assert rows(happened(world, "compensate")[1].error) == {(2, 3, 7, 8): 1}
    assert without_a(world) == papers.FIGURE_5_STATES[:3]

    world.settle()
    assert without_a(world) == papers.FIGURE_5_STATES


@pytest.mark.parametrize("options", [{}, {"parallel": True}, {"pipeline": 3}, {"parallel": True, "pipeline": 2}])
def test_figure_5_passes_through_every_state_in_every_interleaving(options: dict[str, Any]) -> None:
    seen = set()
    for world, _ in every_interleaving(lambda: World(papers.figure_5(), lambda tiny: SequentialSweep(tiny, **options))):
        names = world.workload.sources
        done = [0] * len(names)
        expected = [world.judged_by().view(tuple(done))]
        for source, _ in world.order:
            done[names.index(source)] += 1
            expected.append(world.judged_by().view(tuple(done)))
        assert world.states == expected
        seen.add(tuple(source for source, _ in world.order))
    assert len(seen) == 6, "every order of the three updates"


@pytest.mark.parametrize("algorithm", [SequentialSweep, SiteSweep, NestedSweep, CompleteN, Refresh])
def test_a_self_join_gains_the_row_that_replacing_every_copy_would_lose(algorithm: Any) -> None:
    assert run(World(papers.lemma_1(), algorithm), ()).view == {(1, 2, 3): 1}


@pytest.mark.parametrize("algorithm", [SequentialSweep, SiteSweep, NestedSweep, CompleteN, Refresh])
def test_a_second_copy_gets_rows_that_the_partial_result_does_not_hold(algorithm: Any) -> None:
    assert run(World(papers.theorem_2(), algorithm), ()).view == {(0, 1, 2, 3): 1}


def test_a_site_is_visited_once_for_both_copies_of_its_relation() -> None:
    assert run(World(papers.theorem_2(), SiteSweep), ()).costs.questions == 1
    assert run(World(papers.theorem_2(), SequentialSweep), ()).costs.questions == 2


def contaminated() -> World:
    """Theorem 2's view; the site's relation changes between the question and its answer."""
    w = papers.workload(
        papers.theorem_2().sql,
        {papers.relation("t", "S", "x y"): [], papers.relation("s", "R", "a b"): [(1, 2), (2, 3)]},
        ("t", "+", "S", (0, 1)),
        ("s", "-", "R", (1, 2)),
    )
    world = World(w, SiteSweep)
    for event in (Commit(0), Deliver("t"), Commit(1), Evaluate("s"), Deliver("s"), Deliver("s")):
        world.take(event)
    return world


def test_a_contaminated_visit_is_repaired_and_repeated_only_from_where_it_went_wrong() -> None:
    world = contaminated()
    visits = happened(world, "send")
    assert [len(asked.query.terms[0].hops) for asked in visits[:2]] == [2, 1]
    world.settle()
    assert world.states == [{}, {(0, 1, 2, 3): 1}, {}]


def test_nested_sweep_takes_concurrent_updates_into_one_sweep_and_asks_less() -> None:
    nested, plain = (World(papers.figure_5(), each) for each in (NestedSweep, SequentialSweep))
    for world in (nested, plain):
        deliver_all(world).settle()
    assert nested.states == [papers.FIGURE_5_STATES[0], papers.FIGURE_5_STATES[3]]
    assert [sorted(install.updates) for _, install in nested.installed] == [[1, 2, 3]]
    assert nested.costs.questions < plain.costs.questions


def oscillating(bound: int) -> World:
    """Two relations whose updates always meet a sweep under way: updates never pause until the stream ends."""
    updates = [("x", "+", "L", (k, 1)) if k % 2 else ("y", "+", "R", (1, k)) for k in range(1, 41)]
    w = papers.workload(
        "SELECT L.a, R.b FROM x.L L JOIN y.R R ON L.k = R.k",
        {papers.relation("x", "L", "a k"): [], papers.relation("y", "R", "k b"): []},
        *updates,
    )
    world = World(w, lambda tiny: NestedSweep(tiny, bound=bound))
    for index in range(40):
        world.take(Commit(index))
        source = "y" if index % 2 else "x"
        world.take(Deliver(source))
        if world.sources[source].inbox:
            world.take(Evaluate(source))
            world.take(Deliver(source))
    return world


def test_alternating_updates_hold_an_unbounded_nested_sweep_back_and_the_bound_forces_an_end() -> None:
    assert not oscillating(bound=1_000).installed
    bounded = oscillating(bound=8)
    assert max(len(install.updates) for _, install in bounded.installed) == 8
    assert len(bounded.installed) >= 4


def test_a_pipeline_asks_for_the_next_update_before_the_last_answer_and_installs_in_order() -> None:
    world = World(papers.figure_5(), lambda tiny: SequentialSweep(tiny, pipeline=2))
    for event in (Commit(0), Deliver("two"), Commit(1), Deliver("three")):
        world.take(event)
    assert [asked.query.source for asked in happened(world, "send")] == ["one", "two"]
    for event in (Evaluate("two"), Deliver("two"), Evaluate("one"), Deliver("one"), Evaluate("one"), Deliver("one")):
        world.take(event)
    world.settle()
    assert [install.updates for _, install in world.installed] == [{1}, {2}, {3}]
    assert world.states == papers.FIGURE_5_STATES


def test_a_delayed_source_is_heard_again_when_its_time_is_over_or_nothing_else_can_happen() -> None:
    world = World(papers.figure_5(), SequentialSweep)
    for event in (Commit(0), Delay("two", 2)):
        world.take(event)
    assert Deliver("two") not in list(world.enabled()) and world.possible(Commit(1))
    world.take(Commit(1))
    world.take(Commit(2))
    assert world.possible(Deliver("two")), "two events have passed"
    world.take(Delay("two", 1_000))
    world.settle()
    assert world.view == papers.FIGURE_5_STATES[3]
    assert world.order[-1] == ("two", 0), "all others were heard first"


def test_both_sides_are_asked_at_once_when_sweeping_in_parallel() -> None:
    world = World(papers.figure_5(), lambda tiny: SequentialSweep(tiny, parallel=True))
    world.take(Commit(0))
    world.take(Deliver("two"))
    assert {asked.query.source for asked in happened(world, "send")} == {"one", "three"}


def test_complete_n_installs_runs_of_n_and_flushes_the_rest() -> None:
    world = deliver_all(World(papers.figure_5(), lambda tiny: CompleteN(tiny, complete_n=2)))
    world.settle()
    assert [sorted(install.updates) for _, install in world.installed] == [[1, 2], [3]]
    assert world.states == [papers.FIGURE_5_STATES[k] for k in (0, 2, 3)]


def test_refresh_shows_the_state_at_which_its_computation_began() -> None:
    world = World(papers.figure_5(), lambda tiny: Refresh(tiny, every=1))
    for event in (Commit(0), Deliver("two"), Commit(1), Commit(2), Deliver("three"), Deliver("one")):
        world.take(event)
    world.settle()
    assert world.states == [papers.FIGURE_5_STATES[k] for k in (0, 1, 3)]


@pytest.mark.parametrize("block", range(4))
def test_agree_the_columnar_and_the_sequential_sweep_on_every_state(block: int) -> None:
    for seed in range(20 * block, 20 * block + 20):
        rng = random.Random(seed)
        shape = Shape(
            rng.randint(1, 3), rng.randint(1, 4), 5, rng.choice(list(Scenario)),
            rng.random() < 0.5, rng.random() < 0.5, rng.random() < 0.3,
        )  # fmt: skip
        workload = random_workload(rng, shape)
        columnar, sequential = TaggedWorld(workload), World(workload, SequentialSweep)
        run_randomly(columnar, rng, Faults(crash=0.01, duplicate=0.05, delay=0.03))
        for index in range(len(workload.transactions)):
            sequential.take(Commit(index))
        for source, _ in columnar.order:  # the same delivery order
            sequential.take(Deliver(source))
        sequential.settle()
        assert columnar.states == sequential.states, f"seed {seed}, {shape}"
