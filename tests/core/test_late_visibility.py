"""A keeper over sources that log a commit before they show it: every state of every view against recomputation."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest

from tests.scale import scaled
from viewkeeper.errors import SourceUnreachable
from viewkeeper.job.keeper import Keeper
from viewkeeper.job.patience import patiently
from viewkeeper.managers.pace import Pace
from viewkeeper.managers.sources.postgres_snapshot import PgSnapshot
from viewkeeper.messages import Received
from viewkeeper.queue.unsettled import Unsettled
from viewkeeper.queue.update_queue import UpdateQueue

from . import worlds
from .late_worlds import LateSource, Play, TopicDrain


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot that is void is simply taken again: nobody waits in a played world."""
    monkeypatch.setattr(threading.Event, "wait", lambda event, timeout=None: event.is_set())
    monkeypatch.setattr(Pace, "failed", lambda pace, error, now: setattr(pace, "error", error) or 0.0)


def played(seed: int, steps: int = 12) -> Play:
    """A run with kills, until everything that was logged is in a cut."""
    play = Play(seed)
    keeper = play.keeper()
    for _ in range(steps):
        for _ in range(play.rng.randint(0, 6)):
            play.act()
        if play.rng.random() < 0.25:
            keeper = play.keeper()  # killed: only the warehouse is left
        play.batch(keeper)
    for source in play.sources.values():
        while source.begun:
            source._log_one(source.begun.pop())
    settle(play, keeper)
    return play


def settle(play: Play, keeper: Keeper) -> None:
    """Everything becomes visible, everything is read."""
    for source in play.sources.values():
        source.quiet = True
        source.visible |= {t.xid for t in source.log}
    while any(keeper.queue.inlets[name].offset < len(s.topic) for name, s in play.sources.items()):
        play.batch(keeper)
    check(play)


def check(play: Play) -> None:
    """The numbered updates are those that were logged and not loaded, in log order; the views are right after each."""
    warehouse = play.warehouse
    done = [(source, ends(play.sources[source])[offset]) for source, offset in warehouse.updates]
    for name, source in play.sources.items():
        mine = [end for of, end in done if of == name]
        wanted = [t.end for t in source.log if t.xid not in play.loaded[name] and (t.changes or t.emptied)]
        assert mine == wanted[: len(mine)], f"{name}: each update once, in the order of the log"
    for name, view in warehouse.parsed.items():
        right = [worlds.recompute(view, play.state(done[:k]), play.catalog) for k in range(len(done) + 1)]
        assert warehouse.views[name] == right[-1], f"{view.sql} at the newest cut"
        state = right[0]
        for k in range(1, len(done) + 1):
            state = worlds.plus(state, warehouse.changes.get(name, {}).get(k, Counter()))
            if emptied_in_its_cut(play, done, k, view.relations):
                continue  # between the updates of that cut, the view stands still
            assert state == right[k], f"{view.sql} at update {k}"


def emptied_in_its_cut(play: Play, done: list[tuple[str, int]], k: int, relations: frozenset[tuple[str, str]]) -> bool:
    last = next(cut.last_update for cut in play.warehouse.cuts if cut.last_update >= k)
    first = max((cut.last_update for cut in play.warehouse.cuts if cut.last_update < k), default=0)
    logs = {(name, t.end): t for name, source in play.sources.items() for t in source.log}
    return k < last and any((s, r) in relations for s, end in done[first:last] for r in logs[s, end].emptied)


def ends(source: LateSource) -> dict[int, int]:
    """By offset of an END message its LSN."""
    found = {}
    for offset, value in enumerate(source.topic):
        if value.startswith(b'{"status":"END"'):
            found[offset] = int(value.split(b":")[3].split(b'"')[0])
    return found


@pytest.mark.parametrize("chunk", range(4))
def test_oracle_every_state_is_right_whatever_is_logged_shown_repeated_emptied_or_killed(chunk: int) -> None:
    for seed in range(chunk * 10_000, chunk * 10_000 + scaled(8, 50)):
        try:
            played(seed)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: played({seed})") from error


class GivesUpOnce(TopicDrain):
    """Gives a drain up once, after it has delivered something."""

    given_up = False

    def to_barriers(self, queue: UpdateQueue, tokens: Mapping[str, str], stop: threading.Event) -> Iterator[Received]:
        for received in super().to_barriers(queue, tokens, stop):
            yield received
            if received.updates and not self.given_up:
                self.given_up = True
                raise SourceUnreachable.at("source", "what was written to its log has not come out")


def test_oracle_a_standstill_that_is_tried_again_loses_nothing_of_what_was_drained() -> None:
    """As when a view is added: the sources are frozen at a cut, and a capture that stalls makes it try again."""
    for seed in range(scaled(10, 80)):
        play = Play(seed)
        keeper = play.keeper()
        keeper.rounds.drain = GivesUpOnce(play.rng, play.sources)
        for _ in range(12):
            play.act()
        play.batch(keeper)
        for _ in range(12):
            play.act()

        def attempt(keeper: Keeper = keeper) -> None:
            with keeper.standstill({}):
                pass

        try:
            patiently(attempt, seconds=30)
            settle(play, play.keeper())
        except BaseException as error:
            raise AssertionError(f"seed {seed}") from error


def by_log_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that was delivered counts as included, as if the order of the log decided."""
    monkeypatch.setattr(PgSnapshot, "includes", lambda self, xids: np.ones(len(xids), bool))


def nothing_unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in a cut counts as included in every later snapshot."""
    monkeypatch.setattr(Unsettled, "plus", lambda self, updates, changes: self)


def restart_past_the_unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unsettled, "offsets", lambda self, otherwise: dict(otherwise))


def no_word_of_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LateSource, "confirm", lambda self, snapshot: None)


def barriers_not_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopicDrain, "to_barriers", lambda self, queue, tokens, stop: iter(()))


@pytest.mark.parametrize(
    "mistake",
    [
        by_log_order,
        nothing_unsettled,
        restart_past_the_unsettled,
        no_word_of_rewrites,
        barriers_not_awaited,
    ],
)
def test_a_planted_mistake_is_caught(mistake: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    for seed in range(400):
        try:
            played(seed)
        except (AssertionError, SourceUnreachable):
            return
    raise AssertionError(f"{mistake.__name__} went through 400 histories unnoticed")
