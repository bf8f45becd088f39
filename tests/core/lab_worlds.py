"""Small worlds of the laboratory by literal data, as the papers draw them, and random ones for a given algorithm."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import Any

from viewkeeper.algebra.tiny import Bag, Part, Row
from viewkeeper.algebra.types import INTEGER, Column, Relation
from viewkeeper.algorithms.protocol import Algorithm, Install, Op
from viewkeeper.algorithms.registry import ALGORITHMS, Scenario
from viewkeeper.algorithms.runner import Asked
from viewkeeper.consistency.judge import Judgement, judge
from viewkeeper.simulator.history import Event, Transaction, Workload
from viewkeeper.simulator.schedule import Faults, run_randomly
from viewkeeper.simulator.workload import Shape, random_workload
from viewkeeper.simulator.world import Reply, World


def relation(source: str, name: str, columns: str, key: str = "") -> Relation:
    """``relation("x", "r1", "A B", key="A")``: all columns are integers."""
    return Relation(source, name, tuple(Column(c, INTEGER) for c in columns.split()), tuple(key.split()))


def insert(name: str, *row: Any) -> Op:
    return Op(name, row, 1)


def delete(name: str, *row: Any) -> Op:
    return Op(name, row, -1)


def workload(
    relations: Iterable[Relation], sql: str, initial: Mapping[str, list[Row]], *transactions: Mapping[str, list[Op]]
) -> Workload:
    """Transactions t1, t2, …, each as what it does per source; ``initial`` gives the first rows per relation."""
    known = tuple(relations)
    rows = {(r.source, r.name): tuple(initial.get(r.name, ())) for r in known}
    done = tuple(
        Transaction(f"t{i}", {source: tuple(ops) for source, ops in parts.items()})
        for i, parts in enumerate(transactions, 1)
    )
    return Workload(known, sql, rows, done)


def three_sources(*transactions: Mapping[str, list[Op]]) -> Workload:
    """strobe-1996, Example 1: r1(A, B) at x, r2(B, C) at y, r3(C, D) at z; V = r1 ⋈ r2 ⋈ r3."""
    return workload(
        (relation("x", "r1", "A B", "A"), relation("y", "r2", "B C", "B"), relation("z", "r3", "C D", "C")),
        "SELECT r1.A, r1.B, r2.C, r3.D FROM x.r1 r1, y.r2 r2, z.r3 r3 WHERE r1.B = r2.B AND r2.C = r3.C",
        {"r1": [(1, 2)], "r3": [(3, 4)]},
        *transactions,
    )


def take(world: World, *events: Event) -> None:
    for event in events:
        assert world.possible(event), f"{event} is not possible"
        world.take(event)


def algorithm(world: World) -> Any:
    """The algorithm at work, whose fields a test may look at."""
    return world.runner.algorithm


def questions(world: World) -> list[tuple[str, list[Part]]]:
    """Every question sent so far: where to, and the partial rows of its terms."""
    sent: list[Asked] = [h.what for h in world.log if h.kind == "send"]
    return [(asked.query.source, [term.part for term in asked.query.terms]) for asked in sent]


def last_answer(world: World) -> tuple[str, list[Part]]:
    """The answer received last: where from, and the partial rows per term."""
    last = next(h for h in reversed(world.log) if h.kind == "answer")
    reply: Reply = last.what
    return reply.query.source, [part for (part,) in reply.answer]


def installs(world: World) -> list[tuple[set[int], Bag]]:
    """Every install: the updates it made the view reflect, and the view after it."""
    done: list[tuple[Install, Bag]] = [h.what for h in world.log if h.kind == "install"]
    return [(set(install.updates), view) for install, view in done]


def judged(world: World) -> Judgement:
    """The levels that a finished world reached; every update is reflected by then."""
    reflected = sum(len(install.updates) for _, install in world.installed)
    assert reflected == sum(len(t.parts) for t in world.workload.transactions), "an update was never reflected"
    return judge(world.states, world.judged_by())


def random_shape(rng: random.Random, name: str, scenario: Scenario) -> Shape:
    """A shape of workload that the algorithm's assumptions allow."""
    relations = rng.choice((1, 2, 3, 3, 4))
    one_source = name == "eca"
    return Shape(
        sources=1 if one_source else rng.randint(1, relations),
        relations=relations,
        updates=rng.randint(1, 6),
        scenario=scenario,
        keyed=not one_source or rng.random() < 0.5,
        grouped=rng.random() < 0.5,
        repeated=relations > 1 and rng.random() < 0.3,
        rows=rng.randint(0, 3),
        values=rng.randint(1, 3),
    )


def random_world(name: str, scenario: Scenario, seed: int) -> tuple[World, tuple[Event, ...]]:
    """A random history of an algorithm, half of them with crashes and duplicates; the arguments replay it."""
    rng = random.Random(f"{name} {scenario} {seed}")
    world = World(random_workload(rng, random_shape(rng, name, scenario)), ALGORITHMS[name].make)
    events = run_randomly(world, rng, rng.choice((Faults(), Faults(crash=0.03, duplicate=0.05))))
    return world, events


def reaches_promise(name: str, scenario: Scenario, seeds: range) -> None:
    """Fails with what replays the first history in which an algorithm breaks its promise."""
    promise = ALGORITHMS[name].promise[scenario]
    for seed in seeds:
        world, events = random_world(name, scenario, seed)
        judgement = judged(world)
        assert judgement.reaches(promise), (
            f"{name} promises {promise}, reached {judgement.level}: {judgement.obstacle}\n{world.workload}\n{events}\n"
            f"replay: lab_worlds.random_world({name!r}, Scenario.{scenario.name}, {seed})"
        )


def of_class(made: type[Algorithm], load: Workload, events: Iterable[Event]) -> World:
    """A world in which these events happened to an algorithm, and then everything else."""
    world = World(load, made)
    take(world, *events)
    world.settle()
    return world
