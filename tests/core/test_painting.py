"""SPA and PA against the law they rest on, by brute force: correct, prompt, in the smallest steps, in any order."""

from __future__ import annotations

import gc
import random
import time
from collections import deque
from collections.abc import Callable
from itertools import chain, islice, product

import pytest

from tests.scale import scaled
from viewkeeper.consistency.levels import Level
from viewkeeper.merge.painting import Painter, Painting, SimplePainting, _Block, painter_for
from viewkeeper.merge.view_update_table import Color, Row

from .painting_worlds import (
    REL,
    VIEWS,
    Merges,
    Printed,
    Scenario,
    every_order,
    every_scenario,
    problem,
    random_order,
    random_scenario,
    run,
)


def mended(without: int | None = None) -> Printed:
    """Algorithm 2 with its two mistakes mended, or with a line left out besides."""
    return Printed(nested=False, stale=False, without=frozenset() if without is None else frozenset({without}))


@pytest.mark.parametrize("kind", [SimplePainting, Painting])
def test_oracle_random_orders(kind: type[Painter]) -> None:
    for seed in range(scaled(1_000, 10_000)):
        rng = random.Random(seed)
        scenario = random_scenario(rng, complete=kind is SimplePainting)
        order = random_order(rng, scenario)
        wrong = problem(kind(VIEWS), scenario, order)
        assert wrong is None, f"seed {seed}: {wrong}\nreplay: problem({kind.__name__}(VIEWS), {scenario}, {order})"


def test_oracle_every_order_of_small_histories() -> None:
    """Three updates and two views, with all runs; in a thorough run in all ways, and some with three views."""
    seen = 0
    three_views = islice(every_scenario(3, VIEWS[:3]), 0, None, scaled(1_200, 20))
    two_views = islice(every_scenario(3, VIEWS[:2]), 0, None, scaled(3, 1))
    for scenario in chain(two_views, three_views):
        complete = all(scenario.ends[view] == column for view, column in scenario.columns.items())
        for order in every_order(scenario.senders):
            seen += 1
            for kind in (Painting, SimplePainting) if complete else (Painting,):
                wrong = problem(kind(VIEWS), scenario, order)
                assert wrong is None, f"{wrong}\nreplay: problem({kind.__name__}(VIEWS), {scenario}, {order})"
    assert seen > 5_000


def test_oracle_every_order_of_intertwined_updates() -> None:
    """Two runs that lie across each other in three views: no row can be applied without all others."""
    scenario = Scenario((("V1", "V3"), ("V2", "V3"), ("V2",), ("V1", "V2")), {"V1": (4,), "V2": (3, 4), "V3": (1, 2)})
    for order in every_order(scenario.senders):
        assert problem(Painting(VIEWS), scenario, order) is None, f"replay: {scenario}, {order}"
        assert run(Painting(VIEWS), scenario, order) == [(1, 2, 3, 4)]


def test_updates_that_wait_for_each_other_and_for_a_third_are_applied_when_that_is() -> None:
    """U2 and U5 are one run of V1, U3 and U4 one of V2, each before the other in some view; U3 needs U1 besides."""
    scenario = Scenario(
        (("V5", "V6"), ("V1", "V3"), ("V2", "V5", "V3"), ("V2", "V4"), ("V1", "V4")),
        {"V1": (5,), "V2": (4,), "V3": (2, 3), "V4": (4, 5), "V5": (1, 3), "V6": (1,)},
    )
    lists = [("V5", 1), ("V5", 3), ("V2", 4), ("V3", 2), ("V3", 3), ("V4", 4), ("V4", 5), ("V1", 5), ("V6", 1)]
    order = [*((REL, i) for i in range(1, 6)), *lists]
    assert run(Painting(scenario.ends), scenario, order) == [(1,), (2, 3, 4, 5)]
    for seed in range(300):
        order = random_order(random.Random(seed), scenario)
        wrong = problem(Painting(scenario.ends), scenario, order)
        assert wrong is None, f"{wrong}\nreplay: problem(Painting({list(scenario.ends)}), {scenario}, {order})"


def test_agree_simple_painting_and_painting_where_all_managers_are_complete() -> None:
    for seed in range(scaled(200, 2_000)):
        rng = random.Random(seed)
        scenario = random_scenario(rng, complete=True, updates=40)
        simple, painting = SimplePainting[str](VIEWS), Painting[str](VIEWS)
        for message in random_order(rng, scenario):
            one, other = scenario.send(simple, message), scenario.send(painting, message)
            assert sorted(one) == sorted(other), f"seed {seed}, after {message}: {scenario}"
            assert simple.applied_prefix == painting.applied_prefix
            assert all(simple.pending(view) == painting.pending(view) for view in VIEWS)


def test_agree_with_algorithm_2_mended_on_long_histories() -> None:
    """The paper's recursion applies the same updates after every message, though sometimes in larger steps."""
    for seed in range(scaled(150, 2_000)):
        rng = random.Random(seed)
        scenario = random_scenario(rng, updates=40)
        printed, painting = mended(), Painting[str](VIEWS)
        for message in random_order(rng, scenario):
            theirs = sorted(i for applied in scenario.send(printed, message) for i in applied.rows)
            ours = sorted(i for applied in scenario.send(painting, message) for i in applied.rows)
            assert ours == theirs, f"seed {seed}, after {message}: {scenario}"


class WithoutLine2(SimplePainting[str]):
    """A row is applied when all its lists are there, whatever stands above it."""

    def _paint(self, row, view):  # type: ignore[no-untyped-def]
        self._owed[view].popleft()
        row.states[view] = row.number
        return [] if 0 in row.states.values() else [self._apply([row])]


MISTAKES: dict[str, tuple[Callable[[], Merges], bool, str]] = {
    "SPA without Line 2": (lambda: WithoutLine2(VIEWS), True, "not allowed"),
    "SPA without Line 5": (lambda: mended(9), True, "could be applied and is not"),
    "PA without order (Line 4)": (lambda: mended(4), False, "not allowed"),
    "PA without the state rule (Line 5)": (lambda: mended(5), False, "not allowed"),
    "PA without Line 9": (lambda: mended(9), False, "could be applied and is not"),
    "PA as printed": (Printed, False, "not allowed"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_caught(mistake: str) -> None:
    make, complete, says = MISTAKES[mistake]
    found = []
    for seed in range(300):
        rng = random.Random(seed)
        scenario = random_scenario(rng, complete)
        found.append(problem(make(), scenario, random_order(rng, scenario)))
    assert sum(1 for wrong in found if wrong and says in wrong) >= 3, f"{mistake}: found only {set(found)}"


def test_the_table_shows_what_is_awaited_and_what_is_there() -> None:
    painter = Painting[str](("V1", "V2", "V3"))
    painter.relevant(1, ("V1", "V2"))
    painter.relevant(2, ("V1",))
    painter.actions("V1", 2, "")
    assert painter.table[1, "V1"] == (Color.RED, 2)
    assert painter.table[1, "V2"] == (Color.WHITE, 0)
    assert painter.table[1, "V3"] == (Color.BLACK, 0)
    assert (painter.pending("V1"), painter.pending("V2"), painter.pending("V3")) == (0, 1, 0)


@pytest.mark.parametrize("kind", [SimplePainting, Painting])
def test_the_applied_prefix_passes_updates_that_concern_no_view_and_stops_at_gaps(kind: type[Painter]) -> None:
    painter = kind(("V1", "V2"), first=8)
    assert painter.applied_prefix == 7
    painter.relevant(8, ())
    assert painter.applied_prefix == 8
    painter.relevant(9, ("V1",))
    painter.relevant(10, ("V2",))
    painter.relevant(11, ())
    assert [a.rows for a in painter.actions("V2", 10, "")] == [(10,)]
    assert painter.applied_prefix == 8
    assert [a.rows for a in painter.actions("V1", 9, "")] == [(9,)]
    assert painter.applied_prefix == 11
    assert not len(painter.table)


def test_the_applied_prefix_never_ends_inside_a_run() -> None:
    """U1 and U3 are reflected by one list of V1. Up to U1 all is reflected; but no state after U1 was ever there."""
    painter = Painting[str](("V1", "V2"))
    for number, view in enumerate(("V1", "V2", "V1"), 1):
        painter.relevant(number, (view,))
    assert [a.rows for a in painter.actions("V1", 3, "")] == [(1, 3)]
    assert painter.applied_prefix == 0
    assert [a.rows for a in painter.actions("V2", 2, "")] == [(2,)]
    assert painter.applied_prefix == 3


@pytest.mark.parametrize("kind", [SimplePainting, Painting])
def test_an_action_list_that_comes_before_its_rel_waits_for_it(kind: type[Painter]) -> None:
    painter = kind(("V1", "V2"))
    assert painter.actions("V1", 1, "a") == painter.actions("V1", 2, "b") == []
    assert painter.pending("V1") == 0
    assert [a.rows for a in painter.relevant(1, ("V1",))] == [(1,)]
    assert painter.relevant(2, ("V1", "V2")) == []
    assert [a.rows for a in painter.actions("V2", 2, "c")] == [(2,)]


@pytest.mark.parametrize("kind", [SimplePainting, Painting])
def test_messages_that_no_sender_can_have_sent_are_refused(kind: type[Painter]) -> None:
    painter = kind(("V1", "V2"))
    with pytest.raises(ValueError, match="REL_2 came where REL_1 was due"):
        painter.relevant(2, ("V1",))
    with pytest.raises(ValueError, match="unknown views: V9"):
        painter.relevant(1, ("V9",))
    with pytest.raises(ValueError, match="unknown view"):
        painter.actions("V9", 1, "")
    painter.relevant(1, ("V1", "V2"))
    painter.actions("V1", 1, "")
    with pytest.raises(ValueError, match=r"AL_1\^V1 is not awaited"):
        painter.actions("V1", 1, "")
    painter.actions("V1", 2, "")
    with pytest.raises(ValueError, match=r"AL_2\^V1 is not awaited"):
        painter.relevant(2, ("V2",))


def test_simple_painting_refuses_a_manager_that_is_not_complete() -> None:
    painter = SimplePainting[str](("V1",))
    painter.relevant(1, ("V1",))
    painter.relevant(2, ("V1",))
    with pytest.raises(ValueError, match="V1 sent no actions for an update before 2"):
        painter.actions("V1", 2, "")


def test_the_weakest_level_of_a_group_chooses_the_algorithm() -> None:
    assert isinstance(painter_for(Level.COMPLETE, ("V1",)), SimplePainting)
    for level in (Level.COMPLETE_N, Level.STRONG, Level.CONVERGENT):
        assert isinstance(painter_for(level, ("V1",)), Painting)


def behind_a_slow_view(kind: type[Painter], updates: int) -> float:
    """Seconds for a backlog that waits for one view, and then goes at once; every message finds all of it waiting."""
    views = ("slow", "V1", "V2", "V3")
    painter = kind(views)
    gc.disable()  # or it goes through everything that other tests have left, the more often the more waits
    begin = time.process_time()
    for number in range(1, updates + 1):
        painter.relevant(number, views[1:] if number % 10 else views)
    for number in range(1, updates + 1):
        for view in views[1:]:
            if kind is SimplePainting or view != "V3" or number % 2 == 0:
                painter.actions(view, number, "")
    for number in range(10, updates + 1, 10):
        painter.actions("slow", number, "")
    took = time.process_time() - begin
    gc.enable()
    assert painter.applied_prefix == updates
    return took


@pytest.mark.parametrize("kind", [SimplePainting, Painting])
def test_a_message_costs_the_same_however_much_waits(kind: type[Painter]) -> None:
    short = min(behind_a_slow_view(kind, 500) for _ in range(3))
    long = min(behind_a_slow_view(kind, 8_000) for _ in range(3))
    assert long < 16 * 4 * short, f"16 times as much took {long / short:.0f} times as long"


def test_a_long_chain_of_waiting_updates_is_applied_without_recursion() -> None:
    painter = Painting[str](("V1", "V2"))
    count = 20_000
    for number in range(1, count + 1):
        painter.relevant(number, ("V1", "V2") if number == 1 else ("V2",))
        assert painter.actions("V2", number, "") == []
    assert len(painter.actions("V1", 1, "")) == count


@pytest.mark.parametrize("kind", [SimplePainting, Painting])
def test_what_was_applied_is_forgotten(kind: type[Painter]) -> None:
    """Also behind a view that has not changed for long, and where everything waited for something else."""
    painter = kind(("rare", "V1", "V2"))
    painter.relevant(1, ("rare", "V1", "V2"))
    for view in ("rare", "V1", "V2"):
        painter.actions(view, 1, "")
    for number in range(2, 1_000):
        painter.relevant(number, ("V1", "V2"))
    for view, number in product(("V1", "V2"), range(2, 1_000)):
        painter.actions(view, number, "")
    assert painter.applied_prefix == 999
    reached: dict[int, object] = {}
    new: dict[int, object] = {0: painter.__dict__}
    while new:
        found = {id(x): x for x in gc.get_referents(*new.values()) if isinstance(x, Row | _Block | dict | list | deque)}
        new = {at: x for at, x in found.items() if at not in reached}
        reached |= new
    assert len(reached) < 200


def test_the_order_of_messages_is_free_as_long_as_each_sender_keeps_its_own() -> None:
    """All orders of one history end with everything applied, and so with an empty table."""
    scenario = Scenario((("V1", "V2"), ("V2",)), {"V1": (1,), "V2": (2,)})
    orders = list(every_order(scenario.senders))
    assert len(orders) == 12
    assert any(order[0] != (REL, 1) for order in orders)
    for order in orders:
        assert run(Painting(VIEWS), scenario, order) == [(1, 2)]
