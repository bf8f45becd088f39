"""Mistakes that people make when they build this: the checkers catch each, on histories that the right form keeps.

A checker that lets a wrong algorithm pass would prove nothing about a right one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from viewkeeper.algebra.bag import COUNT, UPDATE
from viewkeeper.algebra.tiny import Bag, Part, TinyView, add, plus
from viewkeeper.algebra.view import Hop, Occurrence
from viewkeeper.algorithms.protocol import Process, Update
from viewkeeper.algorithms.sweep import Queue, Steps, Sweep
from viewkeeper.algorithms.sweep_sequential import SequentialSweep
from viewkeeper.consistency.levels import Level
from viewkeeper.messages import Answer
from viewkeeper.simulator.base import BaseWorld
from viewkeeper.simulator.laboratory import judged
from viewkeeper.simulator.schedule import run_randomly
from viewkeeper.simulator.tagged import TaggedWorld
from viewkeeper.simulator.workload import Shape, random_workload
from viewkeeper.simulator.world import World

HISTORIES = 30


class NoCompensation(SequentialSweep):
    def compensated(self, update: Update, part: Part, hop: Hop, answer: Part) -> Part:
        return answer


class WrongSign(SequentialSweep):
    def compensated(self, update: Update, part: Part, hop: Hop, answer: Part) -> Part:
        return plus(answer, plus(answer, super().compensated(update, part, hop, answer), -1))


class OnlyTheFirstOccurrence(SequentialSweep):
    def view_change(self, update: Update) -> Process:
        for occurrence in self.tiny.view.occurrences:
            rows = update.change(self.tiny, occurrence)
            if rows:
                total: Bag = {}
                add(total, self.tiny.output((yield from self.sweep_from(update, occurrence.index, rows))))
                return total
        return {}


class ColumnarNoCompensation(Sweep):
    def _known(self, occurrence: Occurrence, answer: Answer) -> tuple[pa.Table, np.ndarray]:
        changes, included = super()._known(occurrence, answer)
        return changes.slice(0, 0), included[:0]


class ColumnarWrongSign(Sweep):
    def _known(self, occurrence: Occurrence, answer: Answer) -> tuple[pa.Table, np.ndarray]:
        changes, included = super()._known(occurrence, answer)
        at = changes.column_names.index(COUNT)
        return changes.set_column(at, COUNT, pa.array(-changes[COUNT].to_numpy())), included


class ColumnarOnlyTheFirstOccurrence(Sweep):
    def changes(self, updates: range) -> Steps:
        seen: set[tuple[str, str]] = set()
        for occurrence in self.view.occurrences:
            if (occurrence.source, occurrence.relation) not in seen:
                seen.add((occurrence.source, occurrence.relation))
                starts = self.between(self.starts(occurrence.index), updates)
                assert UPDATE in starts.column_names
                yield from self.changes_from(occurrence.index, starts)


@dataclass(frozen=True)
class LogOrder:
    """A position that takes everything up to the newest visible update for included: LSN order."""

    ordinals: frozenset[int]

    def includes(self, positions: np.ndarray) -> np.ndarray:
        return positions <= max(self.ordinals, default=-1)


def columnar(sweep: type[Sweep]) -> Callable[[Any], BaseWorld]:
    def made(tiny: TinyView, queue: Queue) -> Sweep:
        return sweep(tiny.view, queue)

    return lambda workload: TaggedWorld(workload, sweep=made)


SELF_JOIN = Shape(sources=2, relations=2, updates=5, repeated=True, values=2)
CHAIN = Shape(sources=3, relations=3, updates=5, values=2)
BUSY = Shape(sources=2, relations=2, updates=12, values=1)

MISTAKES = {
    "no compensation": (lambda w: World(w, NoCompensation), lambda w: World(w, SequentialSweep), CHAIN),
    "wrong sign": (lambda w: World(w, WrongSign), lambda w: World(w, SequentialSweep), CHAIN),
    "second occurrence dropped": (
        lambda w: World(w, OnlyTheFirstOccurrence),
        lambda w: World(w, SequentialSweep),
        SELF_JOIN,
    ),
    "no compensation, columnar": (columnar(ColumnarNoCompensation), TaggedWorld, CHAIN),
    "wrong sign, columnar": (columnar(ColumnarWrongSign), TaggedWorld, CHAIN),
    "second occurrence dropped, columnar": (columnar(ColumnarOnlyTheFirstOccurrence), TaggedWorld, SELF_JOIN),
    "log order instead of visibility": (lambda w: TaggedWorld(w, position=LogOrder), TaggedWorld, BUSY),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_caught_and_its_right_form_is_not(mistake: str) -> None:
    wrong, right, shape = MISTAKES[mistake]
    caught = []
    for seed in range(HISTORIES):
        workload = random_workload(random.Random(seed), shape)
        for make, found in ((wrong, caught), (right, None)):
            world = make(workload)
            run_randomly(world, random.Random(seed))
            level = judged(world).level
            if found is None:
                assert level is Level.COMPLETE, f"seed {seed}: {mistake}, and the right form reaches only {level}"
            elif level is not Level.COMPLETE:
                found.append((seed, level))
    assert len(caught) >= 3, f"{mistake}: caught only in {caught}"
    assert Level.INCONSISTENT in {level for _, level in caught}, f"{mistake} is found to end in a wrong view"
