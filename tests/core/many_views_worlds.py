"""Warehouses of many views: Example 1 by literal data, random ones, and the mistakes that are planted in them."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from typing import Any

from viewkeeper.algorithms.registry import Scenario
from viewkeeper.merge.painting import Applied
from viewkeeper.merge.view_update_table import Told
from viewkeeper.simulator.base import Message
from viewkeeper.simulator.history import Transaction, Workload
from viewkeeper.simulator.many_views import Group, ManagedView, ManyEvent, ManyViews
from viewkeeper.simulator.many_views_judging import Truth, judged_together, wrong_cut
from viewkeeper.simulator.many_views_schedule import (
    GroupShape,
    Kind,
    promised,
    random_group,
    random_shape,
    run_many_randomly,
)
from viewkeeper.simulator.many_views_stations import Actions, Integrator
from viewkeeper.simulator.many_views_transactions import Sequencer, Submitted
from viewkeeper.simulator.workload import Shape

from .lab_worlds import insert, relation
from .painting_worlds import Printed


def example_1() -> Group:
    """V1 = R ⋈ S and V2 = S ⋈ T; [2, 3] is inserted into S."""
    relations = (relation("x", "R", "A B"), relation("y", "S", "B C"), relation("z", "T", "C D"))
    initial = {("x", "R"): ((1, 2),), ("y", "S"): (), ("z", "T"): ((3, 4),)}
    v1 = "SELECT R.A, R.B, S.C FROM x.R R JOIN y.S S ON R.B = S.B"
    v2 = "SELECT S.B, S.C, T.D FROM y.S S JOIN z.T T ON S.C = T.C"
    return Group(
        Workload(relations, v1, initial, (Transaction("U1", {"y": (insert("S", 2, 3),)}),)),
        (ManagedView("V1", v1, "sweep_sequential"), ManagedView("V2", v2, "sweep_sequential")),
    )


def one_source_two_views() -> Group:
    """V1 = R and V2 = Q, both in x; [1, 1] is inserted into R, then [2, 2] into Q."""
    relations = (relation("x", "R", "A B"), relation("x", "Q", "A B"))
    v1, v2 = ("SELECT t.A, t.B FROM x.R t", "SELECT t.A, t.B FROM x.Q t")
    transactions = (
        Transaction("U1", {"x": (insert("R", 1, 1),)}),
        Transaction("U2", {"x": (insert("Q", 2, 2),)}),
    )
    return Group(
        Workload(relations, v1, {("x", "R"): (), ("x", "Q"): ()}, transactions),
        (ManagedView("V1", v1, "sweep_sequential"), ManagedView("V2", v2, "sweep_sequential")),
    )


def random_world(
    kinds: tuple[Kind, ...], scenario: Scenario, seed: int, busy: bool = False, **planted: Any
) -> tuple[ManyViews, tuple[ManyEvent, ...]]:
    """A finished history of a random group; the arguments replay it. Where it is ``busy``, all rows join."""
    rng = random.Random(f"{scenario} {seed}")
    shape = random_shape(rng, kinds, scenario)
    if busy:
        crowded = Shape(sources=2, relations=3, updates=7, scenario=scenario, values=1)
        shape = GroupShape(crowded, views=4, kinds=kinds)
    world = ManyViews(random_group(rng, shape), **planted)
    return world, run_many_randomly(world, rng)


def small(kinds: tuple[Kind, ...], scenario: Scenario, seed: int, views: int) -> Group:
    """Two updates: few enough messages to try all orders."""
    shape = Shape(sources=2, relations=3, updates=2, scenario=scenario, values=1, grouped=True)
    return random_group(random.Random(seed), GroupShape(shape, views=views, kinds=kinds))


def broken_promise(world: ManyViews, truth: Truth) -> str | None:
    """What a finished world failed to keep: every update reflected, the level of all views together, exact cuts."""
    concerned = {number for number, row in world.rows.items() if row.views}
    if sorted(world.reflected) != sorted(concerned):
        return f"only {sorted(world.reflected)} of {sorted(concerned)} were ever reflected"
    judgement, promise = judged_together(world, truth), promised(world.group)
    if not judgement.reaches(promise):
        return f"{promise} was promised, {judgement.level} reached: {judgement.obstacle}"
    cut = wrong_cut(world, truth)
    return None if cut is None else f"the cut at {cut} is not the state after the updates up to it"


def keep_their_promise(kinds: tuple[Kind, ...], scenario: Scenario, seeds: Iterable[int], **options: Any) -> int:
    """Fails with what replays the first history that breaks a promise; gives how many transactions committed."""
    committed = 0
    for seed in seeds:
        world, events = random_world(kinds, scenario, seed, **options)
        broken = broken_promise(world, Truth(world.group))
        committed += len(world.states) - 1
        assert broken is None, (
            f"seed {seed}: {broken}\nreplay: random_world({kinds}, Scenario.{scenario.name}, {seed}, **{options})\n"
            f"or: replayed(ManyViews({world.group}), {events})"
        )
    return committed


class AnyOrder(Sequencer[Actions]):
    """Planted: transactions commit in any order."""

    def start(self) -> list[Submitted[Actions]]:
        taken, self._waiting = self._waiting, []
        return [self._started(transaction) for transaction in taken]


class PassAlong:
    """Planted: there is no merge; every action list is applied when it comes."""

    applied_prefix = 0

    def relevant(self, number: int, views: Collection[str]) -> list[Applied[Actions]]:
        return []

    def actions(self, view: str, number: int, actions: Actions) -> list[Applied[Actions]]:
        return [Applied((number,), (Told(view, number, actions),))]


class Split(Integrator):
    """Planted: the parts of a global transaction do not wait for each other."""

    def waits_for(self, message: Message) -> Iterable[str]:
        return [message.source]


def without_line(line: int) -> Printed:
    """Planted: Algorithm 2, mended, with a line left out."""
    return Printed(nested=False, stale=False, without=frozenset({line}))
