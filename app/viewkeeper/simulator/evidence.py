"""What is wrong with a run, in terms of its view states: which one, and what it should have been."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from viewkeeper.algorithms.protocol import Install, Update
from viewkeeper.consistency.history import Vector
from viewkeeper.consistency.levels import Judgement, Level, Verdict
from viewkeeper.simulator.base import BaseWorld
from viewkeeper.simulator.laboratory import FrozenBag, Oracle, frozen
from viewkeeper.simulator.wording import bag_text, listed


@dataclass(frozen=True)
class Fault:
    """Why a run does not reach a level: the view state to blame, by its index, and what it should have been."""

    level: Level
    state: int | None
    should: FrozenBag | None
    words: str

    @property
    def is_lie(self) -> bool:
        """Whether the view showed what never was; otherwise it only left something out."""
        return self.level <= Level.STRONG


def fault_of(world: BaseWorld, judgement: Judgement, level: Level, oracle: Oracle) -> Fault | None:
    """What keeps a run from a level, or None if it reaches it or nothing could be said."""
    if judgement.reaches(level) or level not in judgement.verdicts or judgement.verdicts[level].holds is not False:
        return None
    lowest = min(name for name, verdict in judgement.verdicts.items() if verdict.holds is False)
    verdict = judgement.verdicts[lowest]
    if lowest > Level.STRONG and verdict.missing is not None:
        return Fault(lowest, verdict.first_without, None, _skipped(world, verdict, oracle))
    if verdict.first_without is None:
        return Fault(lowest, None, None, verdict.reason)
    return _wrong_state(world, lowest, verdict.first_without, oracle)


def _wrong_state(world: BaseWorld, level: Level, index: int, oracle: Oracle) -> Fault:
    if level is Level.CONVERGENT:
        should = oracle(world.judged_by().last if index else world.judged_by().first)
        return Fault(
            level, index, should, f"the view should be {bag_text(should)} {'in the end' if index else 'at first'}"
        )
    vector = list(reflected(world))[index]
    should = oracle(vector)
    if should != frozen(world.states[index]):
        return Fault(level, index, should, f"the view should be {bag_text(should)} here")
    halves = _halves(world, vector)
    words = f"only a part of {', '.join(halves)} is in it" if halves else "no serial schedule leads here"
    return Fault(level, index, None, words)


def _halves(world: BaseWorld, vector: Vector) -> list[str]:
    """The global transactions that a vector holds a part of, but not the whole."""
    left = dict(zip(world.workload.sources, vector, strict=True))
    halves = []
    for transaction in world.workload.transactions:
        held = [left[source] > 0 for source in transaction.parts]
        if any(held) and not all(held):
            halves.append(transaction.id)
        for source in transaction.parts:
            left[source] -= 1
    return halves


def _skipped(world: BaseWorld, verdict: Verdict, oracle: Oracle) -> str:
    assert verdict.missing is not None
    shown = bag_text(oracle(verdict.missing))
    return f"the view never shows {shown}, the state after {_after(world.workload.sources, verdict.missing)}"


def _after(sources: Sequence[str], vector: Vector) -> str:
    """``1 transaction of s1, 2 of s2 and 0 of s3``"""
    first, *more = zip(sources, vector, strict=True)
    words = [f"{first[1]:,} transaction{'s' * (first[1] != 1)} of {first[0]}"]
    words += [f"{count:,} of {source}" for source, count in more]
    return listed(words)


def reflected(world: BaseWorld) -> Iterator[Vector]:
    """Per view state: how many updates of each source the view says it reflects."""
    counts = dict.fromkeys(world.workload.sources, 0)
    sources: dict[int, str] = {}  # of the updates, by number; after a crash numbers are given anew
    yield tuple(counts.values())
    for happened in world.log:
        if happened.kind == "update":
            update: Update = happened.what
            sources[update.number] = update.source
        elif happened.kind == "install":
            install: Install = happened.what[0]
            for number in install.updates:
                counts[sources[number]] += 1
            yield tuple(counts.values())
