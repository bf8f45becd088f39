"""A group's keeper through everything that may go wrong: every cut, and every update, against recomputation."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.scale import scaled
from viewkeeper.consistency.levels import Level
from viewkeeper.errors import WarehouseUnreachable
from viewkeeper.integrator import arrange as arranging
from viewkeeper.job import rounds as rounds_module
from viewkeeper.job.keeper import Keeper
from viewkeeper.job.patience import patiently
from viewkeeper.job.rounds import Rounds
from viewkeeper.managers.pace import Pace
from viewkeeper.merge.merge import Merge
from viewkeeper.queue.consumer import MESSAGES
from viewkeeper.queue.unsettled import Unsettled

from . import worlds
from .group_worlds import Play


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again at once: nobody waits in a played world."""
    monkeypatch.setattr(threading.Event, "wait", lambda event, timeout=None: event.is_set())
    monkeypatch.setattr(Pace, "failed", lambda pace, error, now: setattr(pace, "error", error) or 0.0)


def played(seed: int, steps: int = 14) -> Play:
    """A run with kills and outages, until everything that was logged is in a cut."""
    play = Play(seed)
    keeper = play.keeper()
    for _ in range(steps):
        for _ in range(play.rng.randint(0, 10)):
            play.act()
        if play.rng.random() < 0.15:
            keeper = play.keeper()  # killed: only the warehouse is left
        play.batch(keeper)
        for _ in range(play.rng.randint(0, 2)):
            keeper.release()
    settle(play, keeper)
    return play


def settle(play: Play, keeper: Keeper) -> None:
    """Everything is sent, everything is read, nobody is away."""
    play.trouble(0.0)
    play.end()
    if play.rng.random() < 0.3:
        keeper = play.keeper()
    while any(keeper.queue.inlets[name].offset < len(s.topic) for name, s in play.sources.items()):
        play.batch(keeper)
    keeper.targets = {name: str(s.log[-1].position) if s.log else "0" for name, s in play.sources.items()}
    for _ in range(4):
        keeper.release()
    assert not keeper.behind(keeper.targets), "everything is in a cut"
    check(play)


def check(play: Play) -> None:
    warehouse = play.warehouse
    last = warehouse.cuts[-1].last_update
    done = play.done(last)
    for name, source in play.sources.items():
        logged = [e for e in source.log if e.changes or e.part_of]
        assert [e.position for e in done[name]] == [e.position for e in logged], f"{name}: each update once, in order"
    whole(play)
    right = {
        view: [worlds.recompute(v, play.state(play.done(k)), play.catalog) for k in range(last + 1)]
        for view, v in warehouse.parsed.items()
    }
    for view, states in right.items():
        state, every = states[0], play.keeping[view].level is Level.COMPLETE
        cuts = {cut.last_update for cut in warehouse.cuts}
        for k in range(1, last + 1):
            state = worlds.plus(state, warehouse.changes.get(view, {}).get(k, Counter()))
            if every or k in cuts:
                assert state == states[k], f"{view} ({play.keeping[view].algorithm}) at update {k}"
        assert warehouse.views[view] == states[-1]


def whole(play: Play) -> None:
    """The parts of a transaction over several sources have one number."""
    numbers: dict[str, set[int]] = {}
    by_place = {(n, e.offset): e for n, s in play.sources.items() for e in s.log}
    for number, place in zip(play.warehouse.numbers, play.warehouse.updates, strict=True):
        part_of = by_place[place].part_of
        if part_of is not None:
            numbers.setdefault(part_of[0], set()).add(number)
    assert all(len(each) == 1 for each in numbers.values()), numbers


@pytest.mark.parametrize("chunk", range(4))
def test_oracle_every_cut_is_right_whoever_is_away_slow_killed_or_waits(chunk: int) -> None:
    for seed in range(chunk * 10_000, chunk * 10_000 + scaled(3, 60)):
        try:
            played(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: played({seed})") from error


def test_histories_are_not_all_easy() -> None:
    plays = [played(seed) for seed in range(10)]
    assert sum(len(set(p.warehouse.numbers)) < len(p.warehouse.numbers) for p in plays) > 1, "numbers that are shared"
    assert sum(len(p.warehouse.cuts) for p in plays) > 40


@pytest.mark.parametrize("is_through", [False, True])
def test_a_commit_that_fails_at_a_standstill_is_not_forgotten(is_through: bool) -> None:
    """Found by review: what it had written stayed, and was written again under the same cut."""
    for seed in range(6):
        play = Play(seed, troubles=0.0)
        for _ in range(30):
            play.act()
        keeper, commit, failures = play.keeper(), play.warehouse.commit, [WarehouseUnreachable.at("warehouse", "full")]

        def failing(transaction: Any, commit: Any = commit, failures: Any = failures) -> Any:
            cut = commit(transaction) if is_through or not failures else None
            if failures:
                raise failures.pop()
            return cut

        play.warehouse.commit = failing  # type: ignore[method-assign]
        rows = [
            {"topic": name, "offset": i, "value": value, "timestamp": i}
            for name, source in play.sources.items()
            for i, value in enumerate(source.topic)
        ]
        keeper.rounds.take(keeper.queue.receive(pa.Table.from_pylist(rows, MESSAGES)))
        patiently(lambda keeper=keeper: _stands_still(keeper), seconds=30)
        settle(play, keeper)


def _stands_still(keeper: Keeper) -> None:
    with keeper.standstill({}):
        assert not keeper.rounds.pending.batches


MISTAKES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a global transaction is split": lambda patch: patch.setattr(
        rounds_module, "arrange", lambda received, sources: arranging.untouched(received)
    ),
    "action lists may be reached across": lambda patch: patch.setattr(
        Merge, "prefix", property(lambda merge: min(merge.answered(view) for view in merge._columns))
    ),
    "what waits is not compensated for": lambda patch: patch.setattr(rounds_module, "unnumbered", lambda received: {}),
    "offsets do not wait for what is pending": lambda patch: patch.setattr(
        Keeper, "_offsets", lambda keeper, rest, unsettled: Unsettled().offsets(keeper.queue.offsets())
    ),
    "what waits is no part of what a manager builds on": lambda patch: patch.setattr(
        Merge, "change", lambda merge, view: iter(())
    ),
    "a manager that failed is left behind": lambda patch: patch.setattr(
        Rounds, "_failed", lambda rounds, task, error: rounds.merge.actions(_nothing(task))
    ),
}


def _nothing(task: Any) -> Any:
    from viewkeeper.merge.action_list import ActionList

    return ActionList(task.view, task.after, task.until, [])


@pytest.mark.parametrize("mistake", MISTAKES)
def test_planted_mistake_is_caught(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MISTAKES[mistake](monkeypatch)
    for seed in range(300):
        try:
            played(seed)
        except Exception:
            return
    raise AssertionError(f"{mistake}: nobody noticed")
