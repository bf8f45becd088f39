"""Every algorithm of the registry as the job runs it: whole batches, answers at arbitrary snapshots, crashes.

Only the databases and the disk are played. A snapshot holds everything from before the batch, any subset of the batch,
and any later updates, which it hands over as its tail. The judge is ``consistency.judge`` over recomputation.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from viewkeeper.algebra.bag import COUNT
from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.tiny import Bag, Row, add, plain, recompute
from viewkeeper.algebra.types import BINARY, BOOLEAN, DATE, FLOAT, INTEGER, TEXT, TIMESTAMP, Type, decimal
from viewkeeper.algebra.view import View
from viewkeeper.algorithms.protocol import Op
from viewkeeper.algorithms.registry import ALGORITHMS, Scenario
from viewkeeper.consistency.history import SourceHistory, Vector
from viewkeeper.consistency.judge import judge
from viewkeeper.consistency.levels import Level
from viewkeeper.managers.keeping import Keeping
from viewkeeper.managers.managers import Managers, Task, Work
from viewkeeper.merge.action_list import ActionList
from viewkeeper.messages import Answer, Ask, GlobalPart, Update
from viewkeeper.simulator.history import Workload
from viewkeeper.simulator.workload import Shape, random_workload

from . import worlds
from .worlds import Did, World

HISTORIES = 12

KINDS = [
    Keeping("sweep_sequential"),
    Keeping("sweep_sequential", {"parallel": True}),
    Keeping("sweep_sequential", {"pipeline": 3}),
    Keeping("complete_n", {"complete_n": 3}),
    *(Keeping(name) for name in ALGORITHMS if name not in ("sweep", "sweep_sequential", "complete_n")),
]


def named(keeping: Keeping) -> str:
    return "-".join([keeping.algorithm, *keeping.options])


@dataclass(frozen=True)
class Snapshot:
    included: frozenset[int]
    tail: frozenset[int]


@dataclass
class PlayedSource:
    """Answers as the world stood in a snapshot, and counts how often it was asked."""

    world: World
    asked: int = 0
    readers: int | None = None

    def ask(self, ask: Ask, snapshot: Snapshot) -> Answer:
        self.asked += 1
        return self.world.answer(ask, snapshot.included, sorted(snapshot.tail))


@dataclass(frozen=True)
class Delivered:
    """An update in delivery order."""

    source: str
    ordinal: int
    txn: str
    ops: tuple[Op, ...]
    parts: frozenset[str]


class Play:
    """A workload delivered in some order, kept in batches by the managers of the job."""

    def __init__(self, workload: Workload, keeping: Keeping, rng: random.Random):
        self.workload, self.keeping, self.rng = workload, keeping, rng
        self.view = workload.tiny.view
        self.order = list(delivery(workload, rng))
        initial = {name: Counter(workload.initial.get(name, ())) for name in workload.catalog}
        self.world = World(workload.catalog, initial, [did(update) for update in self.order])
        self.sources = {name: PlayedSource(self.world) for name in workload.sources}
        self.stored = self.expected(0)
        self.states = [self.stored]
        managers: Any = Managers(
            {"v": self.view}, {"v": keeping}, workload.catalog, self.sources, lambda _: self.batches(),
            run=rng.choice((1, 2, 4, 50)),
        )  # fmt: skip
        self.managers = managers

    def expected(self, k: int) -> Bag:
        return dict(worlds.recompute(self.view, self.world.state(range(1, k + 1)), self.workload.catalog))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The stored view, in pieces."""
        rows = sorted(self.stored.items(), key=repr)
        for low in range(0, len(rows), 2):
            some = rows[low : low + 2]
            arrays = [pa.array([row[i] for row, _ in some], f.type) for i, f in enumerate(self.view.schema)]
            counts = pa.array([count for _, count in some], pa.int64())
            schema = self.view.schema.append(pa.field(COUNT, pa.int64()))
            yield pa.RecordBatch.from_arrays([*arrays, counts], schema=schema)

    def received(self, numbers: range) -> list[Update]:
        updates = []
        for k in numbers:
            d = self.order[k - 1]
            part_of = GlobalPart(d.txn, d.parts) if d.parts else None
            updates.append(Update(d.source, f"{d.source}:{d.txn}", k, d.source, k, k, part_of))
        return updates

    def snapshots(self, numbers: range) -> dict[str, Snapshot]:
        taken = {}
        for source in self.sources:
            mine = [k for k, d in enumerate(self.order, 1) if d.source == source]
            seen = {k for k in mine if k < numbers.start or (k in numbers and self.rng.random() < 0.6)}
            tail = frozenset(k for k in mine if k >= numbers.stop and self.rng.random() < 0.5)
            taken[source] = Snapshot(frozenset(seen) | tail, tail)
        return taken

    def change(self, numbers: range) -> dict[int, Counter[Row]]:
        queue = self.world.queue(numbers)
        return answered(self.managers, Work(queue, self.received(numbers), np.array(numbers), self.snapshots(numbers)))

    def batch(self, numbers: range) -> None:
        """One batch; now and then it is done twice, as after a crash."""
        if self.rng.random() < 0.3:
            self.change(numbers)
        changes = self.change(numbers)
        assert changes.keys() <= set(numbers), "published states stay as they are"
        for label in sorted(changes):
            self.stored = dict(worlds.plus(Counter(self.stored), changes[label]))
            assert all(count > 0 for count in self.stored.values()), f"a negative count at update {label}"
            self.states.append(self.stored)

    def run(self, together: bool = True) -> None:
        """All batches, of any sizes; ``together`` keeps the parts of a global transaction in one batch."""
        begin = 1
        for end in range(1, len(self.order) + 1):
            open_parts = together and self._open(range(begin, end + 1))
            if end == len(self.order) or (not open_parts and self.rng.random() < 0.4):
                self.batch(range(begin, end + 1))
                if self.keeping.level > Level.INCONSISTENT:
                    assert self.stored == self.expected(end), f"after update {end}"
                begin = end + 1

    def _open(self, numbers: range) -> bool:
        arrived: dict[str, set[str]] = {}
        for k in numbers:
            d = self.order[k - 1]
            if d.parts:
                arrived.setdefault(d.txn, set(d.parts)).discard(d.source)
        return any(arrived.values())

    def history(self) -> SourceHistory:
        names = self.workload.sources
        lengths = tuple(sum(d.source == name for d in self.order) for name in names)
        together = {d.txn: d.parts for d in self.order if d.parts}
        places = {(d.txn, d.source): (names.index(d.source), d.ordinal) for d in self.order}
        globals_ = tuple(frozenset(places[txn, source] for source in parts) for txn, parts in together.items())
        order = tuple(names.index(d.source) for d in self.order)
        return SourceHistory(names, lengths, self._at, order, globals_)

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

    def level(self) -> Level:
        n = self.keeping.options.get("complete_n")
        return judge([frozenset(state.items()) for state in self.states], self.history(), n).level


def answered(managers: Managers, work: Work) -> dict[int, Counter[Row]]:
    """What the manager of view ``v`` makes of these updates."""
    task = Task("v", int(work.numbers[0]) - 1, int(work.numbers[-1]), {})
    actions = managers.answer([task], work)["v"]
    assert isinstance(actions, ActionList), actions
    return worlds.per_update(managers.views["v"], actions.tables)


def delivery(workload: Workload, rng: random.Random) -> Iterator[Delivered]:
    """Any order that keeps each source's own."""
    left = {name: list(workload.at(name)) for name in workload.sources}
    done = dict.fromkeys(left, 0)
    while sources := [name for name in left if done[name] < len(left[name])]:
        source = rng.choice(sources)
        transaction, ops = left[source][done[source]]
        parts = frozenset(transaction.parts) if len(transaction.parts) > 1 else frozenset[str]()
        yield Delivered(source, done[source], transaction.id, ops, parts)
        done[source] += 1


def did(update: Delivered) -> Did:
    changes: dict[str, Counter[Row]] = {}
    for op in update.ops:
        changes.setdefault(op.relation, Counter())[op.row] += op.count
    return Did(update.source, changes)


def shape_for(keeping: Keeping, scenario: Scenario, rng: random.Random) -> Shape:
    """A shape that the algorithm can keep."""
    shape = Shape(
        rng.choice((2, 3)), rng.choice((3, 3, 4)), rng.randint(3, 9), scenario, keyed=rng.random() < 0.5,
        grouped=rng.random() < 0.5, repeated=rng.random() < 0.2, rows=rng.choice((1, 2, 3)),
    )  # fmt: skip
    for candidate in (shape, replace(shape, keyed=True), replace(shape, sources=1)):
        if not ALGORITHMS[keeping.algorithm].problems(random_workload(random.Random(1), candidate).tiny):
            return candidate
    raise AssertionError(f"no shape for {keeping}")


def promises() -> list[Any]:
    return [
        pytest.param(keeping, scenario, level, id=f"{named(keeping)}-{scenario}")
        for keeping in KINDS
        for scenario, level in ALGORITHMS[keeping.algorithm].promise.items()
        if scenario is not Scenario.GLOBAL  # see test_numbering_managers
    ]


def plays(keeping: Keeping, scenario: Scenario, seeds: Iterable[int]) -> Iterator[tuple[str, Play]]:
    for number in seeds:
        seed = f"{named(keeping)} {scenario} {number}"
        rng = random.Random(seed)
        yield seed, Play(random_workload(rng, shape_for(keeping, scenario, rng)), keeping, rng)


@pytest.mark.parametrize(("keeping", "scenario", "level"), promises())
def test_each_algorithm_reaches_its_level_in_batches(keeping: Keeping, scenario: Scenario, level: Level) -> None:
    for seed, play in plays(keeping, scenario, range(HISTORIES)):
        play.run()
        reached = play.level()
        assert reached >= level, f"plays({keeping}, {seed!r}): {reached}: {play.order} {play.states}"


@pytest.mark.parametrize("keyed", [False, True])
def test_an_algorithm_that_promises_nothing_still_leaves_a_view_that_can_be_stored(keyed: bool) -> None:
    keeping = Keeping("convergent", {"keyed": keyed})
    wrong = 0
    for seed in range(3 * HISTORIES):
        rng = random.Random(seed)
        play = Play(random_workload(rng, Shape(sources=2, relations=2, updates=20)), keeping, rng)
        play.run()
        wrong += play.stored != play.expected(len(play.order))
    assert wrong, "updates of one batch meet, and nothing is compensated"


@pytest.mark.parametrize(
    "algorithm", ["sweep_sequential", "sweep_sites", "complete_n", "nested_sweep", "eca", "convergent"]
)
def test_rows_that_are_not_a_number_are_counted_each(algorithm: str) -> None:
    catalog = worlds.catalog(worlds.relation("s", "r", "x y", FLOAT))
    world = World(catalog, {name: Counter() for name in catalog})
    world.history.append(Did("s", {"r": Counter({(math.inf, math.inf): 1, (-math.inf, -math.inf): 1})}))
    view = parse_view("v", "SELECT r.x - r.y AS d FROM s.r r", catalog)
    source: Any = PlayedSource(world)
    managers = Managers({"v": view}, {"v": Keeping(algorithm)}, catalog, {"s": source}, lambda _: [])
    received = [Update("s", "1", 1, "t", 1, 1)]
    seen = {"s": Snapshot(frozenset({1}), frozenset())}
    changes = answered(managers, Work(world.queue([1]), received, np.array([1]), seen))
    assert one_nan(changes) == {1: Counter({(math.nan,): 2})}


# Any view, any type: against the columnar sweep ------------------------------------------------------------------


def kept(world: World, view: View, numbers: range, keeping: Keeping, rng: random.Random) -> dict[int, Counter[Row]]:
    """The change of a view that is not stored yet, as a manager makes it out of one batch."""

    def nothing_stored(_: str) -> list[pa.RecordBatch]:
        raise AssertionError("plain changes do not read the view")

    source: Any = PlayedSource(world)
    sources = {name: source for name, _ in world.catalog}
    received = [Update(world.history[k - 1].source, str(k), k, "t", k, k) for k in numbers]
    queue = world.queue(numbers)
    managers = Managers({"v": view}, {"v": keeping}, world.catalog, sources, nothing_stored, run=rng.choice((1, 3, 50)))
    seen = frozenset(k for k in numbers if rng.random() < 0.5)
    snapshots = dict.fromkeys(sources, Snapshot(seen, frozenset()))
    return answered(managers, Work(queue, received, np.array(numbers), snapshots))


def swept(world: World, view: View, numbers: range) -> dict[int, Counter[Row]]:
    changes = worlds.sweep_all(view, world.queue(numbers), numbers, lambda ask: world.answer(ask, ()))
    return {k: change for k, change in changes.items() if change}


@pytest.mark.parametrize("algorithm", ["sweep_sequential", "sweep_sites"])
def test_agree_with_the_columnar_sweep_on_any_view(algorithm: str) -> None:
    for seed in range(60):
        rng = random.Random(seed)
        world = worlds.random_world(rng, updates=rng.randint(1, 8))
        view = worlds.random_view(rng, world)
        numbers = range(1, len(world.history) + 1)
        assert kept(world, view, numbers, Keeping(algorithm), rng) == swept(world, view, numbers), f"seed {seed}"


VALUES: list[tuple[Type, list[Any]]] = [
    (INTEGER, [2**62, -1]),
    (FLOAT, [0.1, -0.0]),
    (FLOAT, [math.nan, 1.5]),
    (TEXT, ["", "ä"]),
    (BOOLEAN, [True, False]),
    (DATE, [date(1, 1, 1), date(2024, 2, 29)]),
    (TIMESTAMP, [datetime(2024, 2, 29, 1, 2, 3, 4, UTC), datetime(1970, 1, 1, tzinfo=UTC)]),
    (BINARY, [b"", b"\x00\xff"]),
    (decimal(10, 2), [Decimal("-1.50"), Decimal("99999999.99")]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_agree_with_the_columnar_sweep_on_keys_of_every_type(kind: Type, values: list[Any]) -> None:
    catalog = worlds.catalog(worlds.relation("s", "r", "a b", kind), worlds.relation("u", "q", "a b", kind))
    pairs = [(x, y) for x in (*values, None) for y in (*values, None)]
    world = World(catalog, {name: Counter(pairs) for name in catalog})
    world.history += [
        Did("s", {"r": Counter({(values[0], values[1]): 2, (None, values[0]): -1})}),
        Did("u", {"q": Counter({(values[1], values[1]): -1, (values[0], None): 1})}),
    ]
    for where in ("x.a = y.a", "x.a = y.b AND x.b = y.a"):
        view = parse_view("v", f"SELECT x.a, x.b, y.b AS c FROM s.r x, u.q y WHERE {where}", catalog)
        wanted = swept(world, view, range(1, 3))
        assert wanted
        result = kept(world, view, range(1, 3), Keeping("sweep_sequential"), random.Random(1))
        assert one_nan(result) == one_nan(wanted)


def one_nan(changes: dict[int, Counter[Row]]) -> dict[int, Counter[Row]]:
    return {k: Counter({plain(row): count for row, count in change.items()}) for k, change in changes.items()}
