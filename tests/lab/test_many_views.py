"""Many views keep their promise together: on thousands of random histories, and in all orders of small ones."""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest

from tests.core.many_views_worlds import broken_promise, keep_their_promise, small
from viewkeeper.algorithms.registry import Scenario
from viewkeeper.simulator.many_views import ManyViews
from viewkeeper.simulator.many_views_judging import Truth
from viewkeeper.simulator.many_views_schedule import COMPLETE, STRONG, Kind, every_merge

HISTORIES = 1_000
BLOCKS = 2
A_PAIR = 40
GROUPS = 4

MANAGERS = {"complete": COMPLETE, "strong": STRONG, "all kinds": (*COMPLETE, *STRONG)}
PAIRS = list(combinations_with_replacement((*COMPLETE, *STRONG), 2))


def named(kinds: object) -> str:
    return str(kinds).translate(str.maketrans("", "", "(){}'"))


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize("scenario", Scenario)
@pytest.mark.parametrize("managers", MANAGERS)
def test_promises_hold_on_random_histories(managers: str, scenario: Scenario, block: int) -> None:
    """Thousands in all; every third one has rows that all join, so that hardly any mistake stays unseen."""
    seeds = range(block, HISTORIES, BLOCKS)
    keep_their_promise(MANAGERS[managers], scenario, [seed for seed in seeds if seed % 3])
    keep_their_promise(MANAGERS[managers], scenario, [seed for seed in seeds if seed % 3 == 0], busy=True)


@pytest.mark.parametrize("pair", PAIRS, ids=named)
def test_any_two_kinds_of_managers_agree(pair: tuple[Kind, ...]) -> None:
    """Beside SWEEP, which may keep any view where those two may not."""
    for scenario in Scenario:
        keep_their_promise((*pair, COMPLETE[0]), scenario, range(A_PAIR))


@pytest.mark.parametrize("scenario", Scenario)
@pytest.mark.parametrize("managers", MANAGERS)
def test_promises_hold_in_every_order_of_messages_and_commits(managers: str, scenario: Scenario) -> None:
    for seed in range(GROUPS):
        group = small(MANAGERS[managers], scenario, seed, views=3)
        truth = Truth(group)
        for world, events in every_merge(lambda group=group: ManyViews(group)):  # type: ignore[misc]
            broken = broken_promise(world, truth)
            assert broken is None, f"seed {seed}: {broken}\nreplay: replayed(ManyViews({group}), {events})"
