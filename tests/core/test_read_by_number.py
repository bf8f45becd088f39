"""A view read at every update number, and judged by numbers: a step ends where it is the state of its number."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.core.test_managers import Play, named, shape_for
from tests.core.worlds import catalog, relation
from tests.scale import scaled
from viewkeeper.algebra.bag import COUNT, UPDATE
from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.tiny import Bag, Name, Row
from viewkeeper.algorithms.protocol import Install
from viewkeeper.algorithms.registry import ALGORITHMS, Scenario
from viewkeeper.consistency.by_number import NumberedStates
from viewkeeper.consistency.judge import judge
from viewkeeper.consistency.levels import Judgement, Level
from viewkeeper.job.judging import Recomputation, prefixes
from viewkeeper.job.past import Numbered, Past
from viewkeeper.managers.keeping import Keeping
from viewkeeper.managers.stepwise import steps
from viewkeeper.simulator.workload import random_workload
from viewkeeper.warehouse.cuts import WarehouseTransaction
from viewkeeper.warehouse.warehouse import Warehouse

KINDS = [
    Keeping("sweep_sequential", {"pipeline": 3}),
    Keeping("complete_n", {"complete_n": 3}),
    *(Keeping("nested_sweep", {"bound": bound}) for bound in (2, 3, 8)),
    *(Keeping(name) for name in ALGORITHMS if name not in ("sweep", "sweep_sequential", "complete_n", "convergent")),
]


class Kept(Play):
    """A play whose batches are cuts of a warehouse; ``steps`` are the numbers that something is stored under."""

    def __init__(self, keeping: Keeping, seed: str, root: Path):
        rng = random.Random(seed)
        shape = replace(shape_for(keeping, Scenario.SINGLE, rng), updates=rng.randint(8, 24))
        super().__init__(random_workload(rng, shape), keeping, rng)
        self.steps = {0}
        self.warehouse = Warehouse(root)
        self.warehouse.open()
        (table,) = (pa.Table.from_batches(self.batches(), self.schema),)
        self.warehouse.load("v", self.view.schema, "SELECT 1", [table], 0)
        self.warehouse.commit(WarehouseTransaction(0, {}, {}, "strong"))

    @property
    def schema(self) -> pa.Schema:
        return self.view.schema.append(pa.field(COUNT, pa.int64()))

    def run(self, together: bool = True) -> None:
        """Few and large batches: what gets in each other's way is what this is about."""
        begin = 1
        for end in sorted({*(self.rng.randint(1, len(self.order)) for _ in range(2)), len(self.order)}):
            self.batch(range(begin, end + 1))
            begin = end + 1

    def change(self, numbers: range) -> dict[int, Counter[Row]]:
        self.changes = super().change(numbers)
        return self.changes

    def batch(self, numbers: range) -> None:
        super().batch(numbers)
        self.steps |= {*self.changes, numbers[-1]}
        rows = [(*row, n, k) for k in sorted(self.changes) for row, n in self.changes[k].items()]
        fields = [*self.schema, pa.field(UPDATE, pa.int64())]
        table = pa.table([pa.array([row[i] for row in rows], f.type) for i, f in enumerate(fields)], pa.schema(fields))
        self.warehouse.commit(WarehouseTransaction(numbers[-1], {}, {}, "strong", changes={"v": [table]}))
        if self.rng.random() < 0.3:
            self.warehouse.fold()

    def read(self, number: int) -> Bag:
        table = self.warehouse.read("v", update=number).read_all()
        values = [table[f.name].to_pylist() for f in self.view.schema]
        counted = zip(*values, strict=True) if values else [()] * len(table)
        return dict(zip(counted, table[COUNT].to_pylist(), strict=True))


@pytest.mark.parametrize("keeping", KINDS, ids=lambda k: "-".join([named(k), *map(str, k.options.values())]))
def test_oracle_a_view_read_at_any_update_is_that_of_the_newest_step_up_to_it(keeping: Keeping, tmp_path: Path) -> None:
    for number in range(scaled(12, 60)):
        seed = f"{named(keeping)} {number}"
        kept = Kept(keeping, seed, tmp_path / str(number))
        kept.run()
        for k in range(len(kept.order) + 1):
            step = max(s for s in kept.steps if s <= k)
            assert kept.read(k) == kept.expected(step), f"Kept({keeping}, {seed!r}): update {k}, step {step}"


def install(*numbers: int, does: Any = None) -> Install:
    return Install(frozenset(numbers), (does,) if does else ())


def test_action_lists_are_tied_until_they_reflect_everything_up_to_a_number() -> None:
    found = steps([4, 5, 6, 7, 8], [install(4), install(6, 7), install(5), install(), install(8), install()])
    told = [(step.label, set(step.install.updates)) for step in found]
    assert told == [(4, {4}), (7, {5, 6, 7}), (8, {8}), (8, set())]


def test_tied_action_lists_keep_their_order() -> None:
    (step,) = steps([1, 2], [install(2, does="a"), install(1, does="b")])
    assert step.install.actions == ("a", "b")


R, S = ("a", "r"), ("b", "s")
RELATIONS = catalog(relation("a", "r", "x y"), relation("b", "s", "y z"))
VIEW = parse_view("v", "SELECT r.x, s.z FROM a.r r JOIN b.s s ON r.y = s.y", RELATIONS)
NOW: dict[Name, Bag] = {R: {(1, 3): 1, (2, 3): 1}, S: {(3, 5): 1, (3, 6): 1}}
UPDATES = [
    Numbered(1, "a", "t1", {R: {(1, 3): 1}}),
    Numbered(2, "b", "t1", {S: {(3, 5): 1}}),
    Numbered(3, "b", "t2", {S: {(3, 6): 1}}),
    Numbered(4, "a", "t2", {R: {(2, 3): 1}}),
]
NOTHING, ONE, TWO, ALL = (), ("15",), ("15", "16"), ("15", "16", "25", "26")
AHEAD = ("15", "25")
"""Both updates of a and the first of b: a state of the sources in another order than that of the numbers."""


def judged(states: list[tuple[str, ...]], published: tuple[int, ...] = (0, 4), n: int | None = None) -> Judgement:
    history = Recomputation({"v": VIEW}, Past(0, UPDATES, NOW), RELATIONS).history(["v"], 0)
    rows = [(frozenset(((int(x), int(z)), 1) for x, z in state),) for state in states]
    after = prefixes(history, [update.number for update in UPDATES], 0)
    numbered = NumberedStates([*rows, rows[-1]], range(5), 0, after, published, history)
    by_vectors = judge([*rows, rows[-1]], history)
    assert by_vectors.level >= numbered.judge(n).level
    return numbered.judge(n)


def test_a_state_with_one_source_further_than_its_number_is_weak_by_numbers() -> None:
    judgement = judged([NOTHING, NOTHING, ONE, AHEAD, ALL])
    assert judgement.level is Level.WEAK
    assert judgement.verdicts[Level.STRONG].first_without == 3


def test_states_that_come_before_their_updates_are_not_strong() -> None:
    judgement = judged([NOTHING, ONE, TWO, ALL, ALL])
    assert judgement.level is Level.WEAK and judgement.verdicts[Level.STRONG].first_without == 1


def test_steps_of_several_updates_are_strong_and_every_nth_number_shown_is_complete_n() -> None:
    late = [NOTHING, NOTHING, NOTHING, TWO, ALL]
    assert judged(late).level is Level.STRONG
    assert judged(late, n=3).level is Level.COMPLETE_N
    skipping = judged(late, n=2)
    assert skipping.level is Level.STRONG and skipping.verdicts[Level.COMPLETE_N].missing == (1, 1)
    assert judged([NOTHING, NOTHING, ONE, TWO, ALL], n=2).level is Level.COMPLETE


def test_numbers_between_those_that_are_judged_count_for_completeness() -> None:
    history = Recomputation({"v": VIEW}, Past(0, UPDATES, NOW), RELATIONS).history(["v"], 0)
    after = prefixes(history, [update.number for update in UPDATES], 0)
    states = [history.view(after[k]) for k in (0, 3, 4, 4)]
    judgement = NumberedStates(states, [0, 3, 4], 0, after, (0, 3, 4), history).judge()
    assert judgement.level is Level.STRONG and judgement.verdicts[Level.COMPLETE].missing == (1, 1)


def test_a_published_state_that_is_behind_its_number_is_not_strong() -> None:
    late = [NOTHING, NOTHING, ONE, ONE, ALL]
    assert judged(late).level is Level.STRONG
    behind = judged(late, published=(0, 3, 4))
    assert behind.level is Level.WEAK and behind.verdicts[Level.STRONG].first_without == 3


def test_a_view_that_goes_back_is_not_strong_and_one_that_ends_wrong_is_nothing() -> None:
    assert judged([NOTHING, NOTHING, ONE, NOTHING, ALL]).level is Level.WEAK
    wrong = judged([NOTHING, NOTHING, ONE, TWO, TWO])
    assert wrong.level is Level.INCONSISTENT and wrong.verdicts[Level.COMPLETE].first_without == 4
