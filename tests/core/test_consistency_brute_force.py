"""The checkers against one that enumerates every serial schedule and every mapping, on tiny lattices."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from itertools import combinations, groupby, product
from typing import Any

import pytest

from tests.core.test_consistency import recheck
from tests.scale import scaled
from viewkeeper.consistency.history import SourceHistory, Vector
from viewkeeper.consistency.judge import Level, judge

CASES = scaled(400, 1500)


def below(one: Vector, other: Vector) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def box(history: SourceHistory) -> list[Vector]:
    return list(product(*(range(length + 1) for length in history.lengths)))


def schedules(history: SourceHistory) -> Iterator[list[Vector]]:
    """Every path to the end that takes the next larger source state each time: what a serial schedule goes through."""
    whole = [v for v in box(history) if all(len({v[x] > o for x, o in g}) == 1 for g in history.together)]

    def paths(v: Vector) -> Iterator[list[Vector]]:
        above = [w for w in whole if below(v, w)]
        if not above:
            yield [v]
        for step in above:
            if not any(below(w, step) for w in above):
                yield from ([v, *rest] for rest in paths(step))

    return paths(history.first)


def squeezed(states: Sequence[Any]) -> list[Any]:
    return [state for state, _ in groupby(states)]


def shows(states: Sequence[Any], path: Sequence[Any], n: int) -> bool:
    """Is there a choice of the path's states, every n-th among them, that is the warehouse's sequence?"""
    end = len(path) - 1
    due = {i for i in range(end + 1) if i % n == 0} | {end}
    free = [i for i in range(end + 1) if i not in due]
    return any(
        squeezed([path[i] for i in sorted(due | set(more))]) == squeezed(states)
        for size in range(len(free) + 1)
        for more in combinations(free, size)
    )


def by_force(states: Sequence[Any], history: SourceHistory, n: int) -> dict[Level, bool]:
    paths = [[history.view(v) for v in path] for path in schedules(history)]
    convergent = states[0] == history.view(history.first) and states[-1] == history.view(history.last)
    return {
        Level.CONVERGENT: convergent,
        Level.WEAK: convergent and all(any(history.view(v) == s for v in box(history)) for s in states),
        Level.STRONG: any(shows(states, path, 99) for path in paths),
        Level.COMPLETE_N: any(shows(states, path, n) for path in paths),
        Level.COMPLETE: any(squeezed(states) == squeezed(path) for path in paths),
    }


def random_history(rng: random.Random) -> SourceHistory:
    """Up to five transactions at three sources; few different states, so that most of them are met more than once."""
    order = [rng.randrange(3) for _ in range(rng.randint(1, 5))]
    lengths = tuple(order.count(x) for x in range(3))
    parts = [(x, o) for x, length in enumerate(lengths) for o in range(length)]
    together = tuple(frozenset(rng.sample(parts, 2)) for _ in range(rng.choice((0, 0, 1, 2))) if len(parts) > 1)
    colours = rng.randint(2, 9)
    table = {v: rng.randrange(colours) for v in product(*(range(length + 1) for length in lengths))}
    return SourceHistory(
        tuple(f"s{x}" for x in range(len(lengths))),
        lengths,
        table.__getitem__,
        tuple(order if rng.random() < 0.5 else ()),
        together,
    )


def random_states(rng: random.Random, history: SourceHistory) -> list[int]:
    """The states of some schedule, spoilt a little: some left out, repeated, exchanged or made up."""
    path = rng.choice(list(schedules(history)))
    states = [history.view(v) for v in path]
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        i = rng.randrange(len(states))
        match rng.randrange(8):
            case 0:
                states.insert(i, states[i])
            case 1:
                states[i] = rng.randrange(9)
            case 2:
                states.insert(1, rng.choice(states))
            case _ if 0 < i < len(states) - 1:
                del states[i]
    return states


@pytest.mark.parametrize("seed", range(4))
def test_agree_with_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    reached: dict[Level, int] = dict.fromkeys(Level, 0)
    for case in range(CASES):
        history = random_history(rng)
        states, n = random_states(rng, history), rng.randint(1, 4)
        judgement = judge(states, history, n)
        said = {level: verdict.holds for level, verdict in judgement.verdicts.items()}
        told = (
            f"seed {seed}, case {case}: {states} over lengths {history.lengths}, order {history.order}, "
            f"together {history.together}, n {n}, view { {v: history.view(v) for v in box(history)} }"
        )
        assert said == by_force(states, history, n), told
        recheck(states, history, judgement)
        reached[judgement.level] += 1
    assert min(reached.values()) > CASES // 80, reached


def test_a_small_history_is_judged_in_well_under_a_millisecond() -> None:
    rng = random.Random(7)
    order = tuple(rng.choice((0, 1, 2)) for _ in range(8))
    lengths = tuple(order.count(x) for x in range(3))
    history = SourceHistory(("a", "b", "c"), lengths, lambda v: v, order)
    skipped = [*history.schedule[:3], *history.schedule[4:]]
    other_way = next(schedules(SourceHistory(("a", "b", "c"), lengths, lambda v: v)))
    for states in (list(history.schedule), skipped, other_way):
        best = min(_seconds(states, history) for _ in range(20))
        assert best < 0.001, f"{best * 1000:.2f} ms"


def _seconds(states: Sequence[Any], history: SourceHistory) -> float:
    begin = time.perf_counter()
    judge(states, history)
    return time.perf_counter() - begin
