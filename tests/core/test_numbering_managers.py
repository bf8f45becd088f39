"""Every algorithm of the registry over rows of several updates: shown whole, at the algorithm's level.

Transactions span sources and are delivered in any order, cycles included; ``arrange`` makes rows of them. Snapshots
hold everything from before the batch and any subset of it, parts of rows included. The judge is recomputation.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.scale import scaled
from viewkeeper.algebra.bag import COUNT
from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.tiny import Bag, Row, add, recompute
from viewkeeper.algebra.view import View
from viewkeeper.algorithms.protocol import Op
from viewkeeper.algorithms.registry import ALGORITHMS, Scenario
from viewkeeper.consistency.history import SourceHistory, Vector
from viewkeeper.consistency.judge import judge
from viewkeeper.consistency.levels import Level
from viewkeeper.integrator.arrange import Arranged, arrange
from viewkeeper.integrator.integrator import Batch, number
from viewkeeper.managers.keeping import Keeping
from viewkeeper.managers.stepwise import StepwiseManager
from viewkeeper.messages import GlobalPart
from viewkeeper.simulator.history import Workload
from viewkeeper.simulator.workload import Shape, random_workload

from . import worlds
from .test_numbering import received
from .worlds import Did, World

KINDS = [
    Keeping("sweep_sequential", {"parallel": True}),
    Keeping("sweep_sequential", {"pipeline": 3}),
    Keeping("complete_n", {"complete_n": 3}),
    *(Keeping(name) for name, entry in ALGORITHMS.items() if entry.make and name not in ("complete_n", "refresh")),
]
JUDGED = [keeping for keeping in KINDS if keeping.algorithm != "convergent"]


def named(keeping: Keeping) -> str:
    return "-".join([keeping.algorithm, *keeping.options])


@dataclass(frozen=True)
class Delivered:
    source: str
    ordinal: int
    txn: str
    ops: tuple[Op, ...]
    parts: frozenset[str]

    @property
    def did(self) -> Did:
        changes: dict[str, Counter[Row]] = {}
        for op in self.ops:
            changes.setdefault(op.relation, Counter())[op.row] += op.count
        return Did(self.source, changes)


def delivery(workload: Workload, rng: random.Random) -> Iterator[Delivered]:
    """Any order; now and then a source commits two transactions the other way round, which makes cycles."""
    left = {name: swapped(list(workload.at(name)), rng) for name in workload.sources}
    done = dict.fromkeys(left, 0)
    while sources := [name for name in left if done[name] < len(left[name])]:
        source = rng.choice(sources)
        transaction, ops = left[source][done[source]]
        parts = frozenset(transaction.parts) if len(transaction.parts) > 1 else frozenset[str]()
        yield Delivered(source, done[source], transaction.id, ops, parts)
        done[source] += 1


def swapped(steps: list[Any], rng: random.Random) -> list[Any]:
    """Neighbours change places where neither touches a row of the other, so that each can still be done."""
    for i in range(len(steps) - 1):
        one, other = ({(op.relation, op.row[:1]) for op in ops} for _, ops in steps[i : i + 2])
        if not one & other and rng.random() < 0.5:
            steps[i : i + 2] = [steps[i + 1], steps[i]]
    return steps


@dataclass
class Play:
    """A workload delivered in some order and kept by one manager, row by row."""

    workload: Workload
    keeping: Keeping
    rng: random.Random
    order: list[Delivered] = field(init=False)
    states: list[Bag] = field(init=False)
    by_number: dict[int, Bag] = field(default_factory=dict)
    handled: list[int] = field(default_factory=list)
    numbered: dict[int, list[int]] = field(default_factory=dict)  # number → places in the delivery, from 1
    cycles: int = 0

    def __post_init__(self) -> None:
        self.order = list(delivery(self.workload, self.rng))
        initial = {name: Counter(self.workload.initial.get(name, ())) for name in self.workload.catalog}
        self.world = World(self.workload.catalog, initial, [each.did for each in self.order])
        self.view = self.workload.tiny.view
        self.states = [self.recomputed([])]

    def recomputed(self, ks: Iterable[int]) -> Bag:
        return dict(worlds.recompute(self.view, self.world.state(ks), self.workload.catalog))

    def run(self) -> None:
        waiting, begin = received(self.world, []), 1
        while begin <= len(self.order):
            end = self.rng.randint(begin, len(self.order))
            told = received(self.world, range(begin, end + 1), self.parts())
            arranged = arrange(waiting.and_then(told), self.workload.sources)
            waiting, begin = arranged.waiting, end + 1
            self.batch(arranged)
        assert not waiting.updates, "everything arrived, so nothing waits"

    def parts(self) -> dict[int, GlobalPart]:
        return {k: GlobalPart(d.txn, d.parts) for k, d in enumerate(self.order, 1) if d.parts}

    def batch(self, arranged: Arranged) -> None:
        batch = number(arranged, len(self.numbered), [self.view])
        for k, update in zip(batch.number_of.tolist(), batch.received, strict=True):
            self.numbered.setdefault(k, []).append(update.position)
        self.cycles += sum(self._is_cycle(k) for k in batch.numbers)
        changes = self.change(batch)
        assert changes.keys() <= set(batch.numbers), "published states stay as they are"
        for k in batch.numbers:
            self.handled += self.numbered[k]
            state = dict(worlds.plus(Counter(self.states[-1]), changes.get(k, Counter())))
            assert all(count > 0 for count in state.values()), f"a negative count at {k}"
            self.states.append(state)
        if self.keeping.level > Level.INCONSISTENT and len(batch.numbers):
            assert self.states[-1] == self.recomputed(self.handled), f"after {batch.last}"

    def change(self, batch: Batch) -> dict[int, Counter[Row]]:
        now = {update.position for update in batch.received}
        seen = frozenset({*self.handled, *(k for k in now if self.rng.random() < 0.6)})
        pieces = kept(self.world, self.view, self.keeping, batch, seen, self.stored, self.rng.choice((1, 2, 4, 50)))
        return worlds.per_update(self.view, pieces)

    def stored(self) -> Iterator[pa.RecordBatch]:
        rows = list(self.states[-1].items())
        arrays = [pa.array([row[i] for row, _ in rows], f.type) for i, f in enumerate(self.view.schema)]
        schema = self.view.schema.append(pa.field(COUNT, pa.int64()))
        yield pa.RecordBatch.from_arrays([*arrays, pa.array([n for _, n in rows], pa.int64())], schema=schema)

    def _is_cycle(self, k: int) -> bool:
        sources = [self.order[place - 1].source for place in self.numbered[k]]
        return len(sources) > len(set(sources))

    def level(self) -> Level:
        n = self.keeping.options.get("complete_n")
        return judge([frozenset(state.items()) for state in self.states], self.history(), n).level

    def history(self) -> SourceHistory:
        names = self.workload.sources
        together: dict[str, set[tuple[int, int]]] = {}
        for d in self.order:
            if d.parts:
                together.setdefault(d.txn, set()).add((names.index(d.source), d.ordinal))
        lengths = tuple(sum(d.source == name for d in self.order) for name in names)
        order = tuple(names.index(self.order[k - 1].source) for k in self.handled)
        return SourceHistory(names, lengths, self._at, order, tuple(map(frozenset, together.values())))

    def _at(self, vector: Vector) -> frozenset[tuple[Row, int]]:
        relations: dict[tuple[str, str], Bag] = {}
        for name, rows in self.workload.initial.items():
            for row in rows:
                add(relations.setdefault(name, {}), {row: 1})
        for d in self.order:
            if d.ordinal < vector[self.workload.sources.index(d.source)]:
                for op in d.ops:
                    add(relations.setdefault((d.source, op.relation), {}), {op.row: op.count})
        return frozenset(recompute(self.workload.tiny, relations).items())


def kept(
    world: World, view: View, keeping: Keeping, batch: Batch, seen: Iterable[int], stored: Any, run: int
) -> Iterator[pa.Table]:
    """What a manager makes of a batch, with every source at a snapshot that holds ``seen``."""

    manager = StepwiseManager(
        view, lambda ask: world.answer(ask, seen), keeping=keeping, catalog=world.catalog, stored=stored, run=run
    )
    return manager.change(batch.queue, batch.received, batch.number_of)


def shape_for(keeping: Keeping, rng: random.Random) -> Shape:
    """A shape that the algorithm can keep, with transactions over several sources if it keeps several."""
    shape = Shape(
        rng.choice((2, 3)), rng.choice((3, 3, 4)), rng.randint(3, 9), Scenario.GLOBAL, keyed=rng.random() < 0.5,
        grouped=rng.random() < 0.5, repeated=rng.random() < 0.2, rows=rng.choice((1, 2, 3)),
    )  # fmt: skip
    for candidate in (shape, replace(shape, keyed=True), replace(shape, sources=1)):
        if not keeping.entry.problems(random_workload(random.Random(1), candidate).tiny):
            return candidate
    raise AssertionError(f"no shape for {keeping}")


def play(keeping: Keeping, seed: int) -> Play:
    rng = random.Random(f"{named(keeping)} {seed}")
    played = Play(random_workload(rng, shape_for(keeping, rng)), keeping, rng)
    played.run()
    return played


@pytest.mark.parametrize("keeping", JUDGED, ids=named)
def test_oracle_each_algorithm_shows_rows_whole_and_reaches_its_level(keeping: Keeping) -> None:
    for seed in range(scaled(6, 40)):
        played = play(keeping, seed)
        reached = played.level()
        about = f"play({keeping}, {seed}): {reached}: {played.order} {played.states}"
        assert reached >= keeping.level, about
        if keeping.level >= Level.COMPLETE:
            for k in played.numbered:
                ks = [place for j in range(1, k + 1) for place in played.numbered[j]]
                assert played.states[k] == played.recomputed(ks), f"{about}: number {k}"


def test_the_plays_have_cycles_and_transactions_over_several_sources() -> None:
    keeping = Keeping("sweep_sequential")
    played = [play(keeping, seed) for seed in range(40)]
    assert sum(each.cycles for each in played) > 3
    assert sum(len(row) > 1 for each in played for row in each.numbered.values()) > 40


@pytest.mark.parametrize("keyed", [False, True])
def test_an_algorithm_that_promises_nothing_handles_rows_too(keyed: bool) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        shape = Shape(sources=2, relations=2, updates=10, scenario=Scenario.GLOBAL)
        Play(random_workload(rng, shape), Keeping("convergent", {"keyed": keyed}), rng).run()


def test_a_nested_sweep_does_not_take_in_a_row_of_several_sources_before_what_another_of_them_sent() -> None:
    """Row 3 changes r of a, and b sent update 2 before its own part of the row: no state shows 3 without 2."""
    catalog = worlds.catalog(worlds.relation("a", "r", "k x"), worlds.relation("b", "q", "k x"))
    view = parse_view("v", "SELECT x.k, y.k AS l FROM a.r x JOIN b.q y ON x.x = y.x", catalog)
    world = World(catalog, {("a", "r"): Counter(), ("b", "q"): Counter({(9, 1): 1})})
    world.history += [
        Did("b", {"q": Counter({(1, 1): 1})}),
        Did("b", {"q": Counter({(2, 1): 1})}),
        Did("a", {"r": Counter({(3, 1): 1})}),
        Did("b", {}),
        Did("a", {"r": Counter({(4, 1): 1})}),
    ]
    rows = Arranged(received(world, range(1, 6)), np.array([0, 1, 2, 2, 3]), received(world, []))
    batch = number(rows, 0, [view])
    keeping = Keeping("nested_sweep", {"bound": 2})
    pieces = kept(world, view, keeping, batch, range(1, 6), lambda: iter(()), run=50)
    everyone = (1, 2, 9)
    assert worlds.per_update(view, pieces) == {k: Counter({(k, other): 1 for other in everyone}) for k in (3, 4)}


def test_a_row_is_one_transaction_of_all_its_sources_to_the_algorithm() -> None:
    catalog = worlds.catalog(worlds.relation("a", "r", "k x"), worlds.relation("b", "r", "k x"))
    view = parse_view("v", "SELECT x.k, y.k AS l FROM a.r x JOIN b.r y ON x.x = y.x", catalog)
    world = World(catalog, {name: Counter() for name in catalog})
    world.history += [Did(source, {"r": Counter({(k, 1): 1})}) for k, source in enumerate("aba", 1)]
    batch = number(Arranged(received(world, [1, 2, 3]), np.array([0, 0, 1]), received(world, [])), 6, [view])
    manager: Any = StepwiseManager(
        view, {}, {}, keeping=Keeping("t_strobe"), catalog=world.catalog, stored=list, run=1
    )  # fmt: skip
    first, second = manager.updates(batch.queue, batch.received, batch.number_of)
    assert (first.number, first.source, first.sources, first.txn) == (7, "a+b", frozenset("ab"), "t1+t2")
    assert [first.change(manager.tiny, o) for o in view.occurrences] == [{(1, 1): 1}, {(2, 1): 1}]
    assert (second.number, second.source, second.sources) == (8, "a", frozenset("a"))
