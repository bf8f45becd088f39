"""The ViewUpdateTable that people see: what the keeper's is at any moment, drawn so that it fits."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from rich.text import Text

from tests.scale import scaled
from viewkeeper.commands.status_state import RowState, TableState
from viewkeeper.commands.status_table import MEANINGS, drawn, legend
from viewkeeper.errors import SourceUnreachable
from viewkeeper.job.keeper import Keeper
from viewkeeper.job.picture import ROWS, Picture, spoken
from viewkeeper.managers.keeping import Keeping
from viewkeeper.managers.pace import Pace
from viewkeeper.warehouse.cuts import Cut, WarehouseTransaction

from .late_worlds import MemoryWarehouse, Play
from .status_worlds import table

NAMES = ("v", "accounts", "order_overview", "customers_with_open_orders_by_region")


def state(views: list[str], rows: list[str], first: int = 1, more: int = 0) -> TableState:
    told = table(views, rows, first, more)
    return TableState(told["views"], [RowState(**row) for row in told["rows"]], told["pending"], told["more"])


def plain(lines: Iterable[Text]) -> list[str]:
    return [line.plain.rstrip() for line in lines]


# ---- drawing


def test_it_is_drawn_as_the_paper_draws_it() -> None:
    """Example 4, after its first row was applied."""
    lines = plain(drawn(state(["V1", "V2", "V3"], ["ggb", "brr", "rwb"]), 100, {}).lines())
    assert lines == [
        "update         V1   V2   V3",
        "U1 (shop.801)   g    g    b",
        "U2 (shop.802)   b    r    r",
        "U3 (shop.803)   r    w    b",
    ]


def test_an_empty_table_says_so() -> None:
    assert plain(drawn(state(["a"], []), 100, {}).lines()) == ["the ViewUpdateTable is empty"]


def test_gray_rows_make_room_for_those_that_wait_and_the_rest_is_counted() -> None:
    drawing = drawn(state(["a"], ["g", "g", "w", "w", "w"], more=95), 100, {"a": 98})
    assert plain(drawing.lines(4, counts=True)) == [
        "update         a", "behind         98", "U2 (shop.802)   g", "U3 (shop.803)   w", "U4 (shop.804)   w",
        "U5 (shop.805)   w", "… and 95 more updates",
    ]  # fmt: skip
    assert plain(drawing.lines(2))[1:] == ["U3 (shop.803)   w", "U4 (shop.804)   w", "… and 96 more updates"]
    assert plain(drawing.lines(0))[1:] == ["… and 98 more updates"]


def test_long_names_lose_their_middle_and_many_of_them_become_numbers() -> None:
    some = [f"customers_of_region_{i}" for i in range(5)]
    lines = plain(drawn(state(some, ["wrgbw"]), 100, {}).lines())
    assert lines[0].split()[1] == "custome…egion_0"
    many = [f"customers_of_region_{i}" for i in range(18)]
    lines = plain(drawn(state(many, ["w" * 18]), 100, {}).lines())
    assert lines[0].split() == ["update", *(f"V{i}" for i in range(1, 19))]
    assert lines[2].startswith("V1 customers_of_region_0, V2 customers_of_region_1, ")


def test_views_that_do_not_fit_are_those_with_the_least_to_say() -> None:
    views = [f"view_{i:02}" for i in range(60)]
    lines = plain(drawn(state(views, ["b" * 59 + "w"]), 100, {"view_58": 3}).lines())
    assert lines[0].split()[-2:] == ["V59", "V60"]
    assert f"… and {60 - (len(lines[0].split()) - 1)} more views" in lines


def test_a_transaction_over_several_sources_is_one_row() -> None:
    row = RowState(7, ["shop.1", "crm.2"], {"a": "w"})
    assert "U7 (shop.1, crm.2)" in plain(drawn(TableState(["a"], [row], 1, 0), 100, {}).lines())[1]
    row = RowState(7, ["shop.1", "crm.2", "crm.3"], {"a": "w"})
    assert "U7 (shop.1 and 2 more)" in plain(drawn(TableState(["a"], [row], 1, 0), 100, {}).lines())[1]


def test_no_line_is_longer_than_the_width_and_no_letter_is_lost() -> None:
    for seed in range(scaled(100, 1_000)):
        rng = random.Random(seed)
        views = [f"{rng.choice(NAMES)}_{i}" for i in range(rng.randint(1, rng.choice((4, 12, 70))))]
        rows = ["".join(rng.choice("wrb") for _ in views) for _ in range(rng.randint(0, 8))]
        width, most = rng.randint(60, 160), rng.choice((None, 0, 3, 8))
        behind = {view: rng.choice((None, 0, 7, 4_711, 10**6)) for view in views}
        drawing = drawn(state(views, rows, rng.choice((1, 10**9)), rng.choice((0, 5))), width, behind)
        lines = plain(drawing.lines(most, counts=True))
        about = f"seed {seed}: {lines}"
        assert max(map(len, lines)) <= width, about
        shown = len(lines[1].split()) - 1  # of "behind", a count a view
        assert shown == len(lines[0].split()) - 1 == len(views) - drawing.missing > 0, about
        for row, line in zip(rows[:most], lines[2:], strict=False):
            letters = line.split()[-shown:]
            assert set(letters) <= set("wrb"), about
            assert drawing.missing or letters == list(row), about


def test_the_legend_fits_a_narrow_terminal_and_explains_every_letter() -> None:
    assert len(legend().plain) <= 80
    assert all(f"{color.value} {color.name.lower()}: {MEANINGS[color]}" in legend().plain for color in MEANINGS)


# ---- the picture of a keeper at work


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot that is void is simply taken again: nobody waits in a played world."""
    monkeypatch.setattr(threading.Event, "wait", lambda event, timeout=None: event.is_set())


def refreshing(play: Play, every: int | timedelta) -> Keeper:
    """A keeper whose second view is refreshed now and then, and whose first is swept."""
    keeper = play.keeper()
    keeping = Keeping("refresh", {}, every)
    keeper.managers.keeping = {**keeper.managers.keeping, "v1": keeping}
    keeper.rounds.paces["v1"] = Pace(keeping, time.monotonic())
    return keeper


def step(play: Play, keeper: Keeper) -> None:
    for _ in range(play.rng.randint(0, 6)):
        play.act()
    play.batch(keeper)


def checked(keeper: Keeper) -> Mapping[str, Any]:
    """A picture that agrees with the keeper's own numbers, and with itself."""
    picture = Picture(keeper)
    shown, views = picture.table(), picture.views()
    numbers = [row["update"] for row in shown["rows"]]
    last = keeper.cut.last_update
    waiting = [row for row in shown["rows"] if row["update"] > last]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
    assert shown["pending"] == keeper.rounds.merge.last - last == len(waiting) + shown["more"]
    assert len(waiting) <= ROWS
    letters = {view: Counter(row["colors"][view] for row in waiting) for view in views}
    for row in shown["rows"]:
        assert set(row["colors"].values()) <= set("gb" if row["update"] <= last else "wrb")
        assert row["transactions"]
    for view, told in views.items():
        assert told["behind"] == told["owed"] + told["held"]
        if not shown["more"]:
            assert (letters[view]["w"], letters[view]["r"]) == (told["owed"], told["held"])
    return {**shown, "told": views}


def test_oracle_the_picture_is_the_keepers_table_at_every_moment(impatience: None) -> None:
    seen: Counter[str] = Counter()
    for seed in range(scaled(6, 40)):
        print(f"seed {seed}")
        play = Play(seed)
        keeper = refreshing(play, play.rng.choice((3, 8, timedelta(hours=1))))
        for _ in range(10):
            step(play, keeper)
            shown = checked(keeper)
            seen += Counter(letter for row in shown["rows"] for letter in row["colors"].values())
            seen["more"] += bool(shown["more"])
    assert all(seen[letter] for letter in "wrgb"), seen


def test_a_refreshed_view_waits_for_its_refresh_and_the_others_for_it(impatience: None) -> None:
    for seed in range(50):
        play = Play(seed)
        keeper = refreshing(play, timedelta(hours=1))
        for _ in range(6):
            step(play, keeper)
        told = Picture(keeper).views()
        if told["v0"]["held"] and told["v1"]["owed"]:
            assert told["v1"]["waits_for"] == "its next refresh, in 60 min"
            assert told["v0"]["waits_for"] == "view v1"
            assert Picture(keeper).table()["algorithm"] == "PA" and keeper.trouble is None
            keeper.rounds.paces["v1"].failed(
                SourceUnreachable.at("source crm", "is away", "is it up?"), time.monotonic()
            )
            assert keeper.trouble
            assert Picture(keeper).views()["v1"]["waits_for"] == "source crm: is away; is it up?"
            return
    pytest.fail("no world kept a view back")


def test_rows_whose_cut_is_being_written_are_gray_and_shown_once(
    impatience: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures: list[dict[str, Any]] = []
    commit = MemoryWarehouse.commit
    for seed in range(5):
        play = Play(seed)
        keeper = play.keeper()

        def looking(warehouse: MemoryWarehouse, transaction: WarehouseTransaction, keeper: Keeper = keeper) -> Cut:
            pictures.append(Picture(keeper).table())
            return commit(warehouse, transaction)

        monkeypatch.setattr(MemoryWarehouse, "commit", looking)
        for _ in range(6):
            step(play, keeper)
    assert pictures
    for shown in pictures:
        numbers = [row["update"] for row in shown["rows"]]
        assert len(numbers) == len(set(numbers)) and not shown["pending"]
        assert {letter for row in shown["rows"] for letter in row["colors"].values()} <= set("gb")


@pytest.mark.parametrize(("seconds", "said"), [(0, "0 s"), (89, "89 s"), (90, "2 min"), (5400, "1.5 h")])
def test_times_are_told_as_people_tell_them(seconds: float, said: str) -> None:
    assert spoken(seconds) == said
