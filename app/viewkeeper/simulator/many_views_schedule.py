"""Many views at random: groups of views with managers of all kinds, and the orders in which everything happens."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from viewkeeper.algorithms.registry import ALGORITHMS, Options, Scenario
from viewkeeper.consistency.levels import Level
from viewkeeper.simulator.history import Commit, Deliver, Evaluate
from viewkeeper.simulator.many_views import Finish, Group, Hear, ManagedView, ManyEvent, ManyViews, Receive
from viewkeeper.simulator.workload import Shape, chain_sql, random_workload

Kind = tuple[str, Options]
"""An algorithm with its options."""

COMPLETE: tuple[Kind, ...] = (
    ("sweep_sequential", {}),
    ("sweep_sequential", {"parallel": True}),
    ("sweep_sequential", {"pipeline": 3}),
    ("sweep_sites", {}),
    ("c_t_strobe", {}),
)
STRONG: tuple[Kind, ...] = (
    ("nested_sweep", {}),
    ("t_strobe", {}),
    ("refresh", {"every": 2}),
    ("refresh", {"every": 3}),
    ("complete_n", {"complete_n": 2}),
    ("eca", {}),
)


@dataclass(frozen=True)
class GroupShape:
    """What a group looks like: its sources' workload, how many views, and what managers there may be."""

    workload: Shape
    views: int = 3
    kinds: tuple[Kind, ...] = COMPLETE


def random_group(rng: random.Random, shape: GroupShape) -> Group:
    """Views over random parts of a chain of relations, each kept by an algorithm that may keep it."""
    workload = random_workload(rng, shape.workload)
    views = []
    for number in range(1, shape.views + 1):
        first = rng.randrange(len(workload.relations))
        last = rng.randint(first, min(len(workload.relations), first + 3) - 1)
        sql = chain_sql(workload.relations[first : last + 1])
        tiny = replace(workload, sql=sql).tiny
        able = [kind for kind in shape.kinds if not ALGORITHMS[kind[0]].problems(tiny)]
        name, options = rng.choice(able)
        views.append(ManagedView(f"V{number}", sql, name, options))
    return Group(workload, tuple(views))


def random_shape(rng: random.Random, kinds: tuple[Kind, ...], scenario: Scenario) -> GroupShape:
    """A few views over a few relations and sources."""
    relations = rng.randint(1, 4)
    return GroupShape(
        Shape(
            sources=rng.randint(1, relations),
            relations=relations,
            updates=rng.randint(2, 7),
            scenario=scenario,
            keyed=rng.random() < 0.7,
            grouped=rng.random() < 0.5,
            values=rng.randint(1, 3),
        ),
        views=rng.randint(2, 4),
        kinds=kinds,
    )


def promised(group: Group) -> Level:
    """What the warehouse promises of all views together: complete if SPA merges, strong if PA does."""
    return Level.COMPLETE if group.level is Level.COMPLETE else Level.STRONG


def run_many_randomly(world: ManyViews, rng: random.Random) -> tuple[ManyEvent, ...]:
    """Draws possible events until none is left; gives those that happened.

    Each history has its own temper: some stations are slow against others, some managers never flush before the end.
    """
    kinds: tuple[type, ...] = (Commit, Evaluate, Deliver, Receive, Hear, Finish)
    pace = {kind: rng.choice((0.1, 1.0, 1.0, 5.0)) for kind in kinds}
    slow = {name: rng.choice((0.05, 1.0, 1.0)) for name in (*world.sources, *world.to_merge)}
    flushing = rng.choice((0.0, 0.05, 0.3))
    happened: list[ManyEvent] = []
    while events := list(world.enabled()):
        flushes = list(world.flushes()) if rng.random() < flushing else []
        if flushes:
            event = rng.choice(flushes)
        else:
            event = rng.choices(events, [pace[type(e)] * slow.get(_where(e), 1.0) for e in events])[0]
        world.take(event)
        happened.append(event)
    world.settle()
    return tuple(happened)


def _where(event: ManyEvent) -> str:
    match event:
        case Evaluate(name) | Deliver(name) | Receive(name) | Hear(name):
            return name
    return ""


def every_merge(make: Callable[[], ManyViews]) -> Iterator[tuple[ManyViews, tuple[ManyEvent, ...]]]:
    """Runs a small world through every order in which its merge process can hear and its warehouse can commit.

    What sources and managers do happens first, in a fixed order: the merge process sees only what comes of it.
    """
    told = make()
    before = _tell(told)
    untried: list[tuple[ManyEvent, ...]] = [()]
    while untried:
        taken = untried.pop()
        world = make()
        world.hear_what_was_told_in(told)
        for event in taken:
            world.take(event)
        while choices := list(world.enabled()):
            first, *others = choices
            untried += [(*taken, other) for other in reversed(others)]
            world.take(first)
            taken = (*taken, first)
        yield world, (*before, *taken)


def _tell(world: ManyViews) -> tuple[ManyEvent, ...]:
    """Lets everything happen that happens before the merge process hears of it; gives what did."""
    happened: list[ManyEvent] = []
    while True:
        upstream = (e for e in world.enabled() if not isinstance(e, Hear | Finish))
        event = next(upstream, None) or next(world.flushes(), None)
        if event is None:
            return tuple(happened)
        world.take(event)
        happened.append(event)
