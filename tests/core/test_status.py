"""``viewkeeper status`` as people and programs read it: groups, what they wait for, and what cannot be reached."""

from __future__ import annotations

import io
import json
import os
import random
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.scale import scaled
from viewkeeper import cli
from viewkeeper.capture.lag import Lag
from viewkeeper.commands import status, status_sources, status_text
from viewkeeper.commands.status_groups import configured_groups
from viewkeeper.commands.status_sources import Looked, side_by_side
from viewkeeper.commands.status_state import NOT_ASKED, JobState, Observer, State, gather
from viewkeeper.config import Config
from viewkeeper.errors import KafkaError, SourceUnreachable
from viewkeeper.integrator.groups import split
from viewkeeper.job.named_relations import sources_named
from viewkeeper.job.status import StatusFile
from viewkeeper.managers.recomputed_sql import parse_recomputed
from viewkeeper.queue import consumer
from viewkeeper.queue.outstanding import Outstanding, Told
from viewkeeper.warehouse.layout import Mark
from viewkeeper.warehouse.view_table import load_of

from . import worlds
from .recomputed_queries import Statements
from .status_worlds import Place, table, waiting

FAILED = "Failed to get watermark offsets: Local: All broker connections are down"
IDLE = Looked("5", Outstanding([]), Lag(running=True))
REFRESHED = {"sql": "SELECT t.x FROM shop.t t", "algorithm": "refresh", "every": "1h"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The broker is down; the client's ten seconds of patience are spared."""

    def bounds(*_: object) -> None:
        raise KafkaError.at("kafka 127.0.0.1:1", FAILED, "is the broker up?")

    monkeypatch.setattr(consumer, "bounds", bounds)
    monkeypatch.setattr(consumer, "stretch", bounds)
    monkeypatch.setattr(status_sources, "metadata", bounds)
    return Place(tmp_path)


def test_what_a_cut_counts_on_and_is_lost_is_said_and_nothing_is_promised_of_it(place: Place) -> None:
    config = place.configure({"a": "shop.t", "b": "shop.t"})
    place.cut("all", ["a", "b"], 0, shop=5)
    for entry in (place.folder / "warehouse/changes/a/_delta_log").iterdir():
        entry.unlink()
    state = Observer(config).look({"shop": IDLE, "crm": IDLE})
    assert "version 0, which the newest cut counts on, is not whole" in (state.views["a"].lost or "")
    assert state.views["b"].lost is None
    lines = said(state)
    assert "warehouse/changes/a: version 0, which the newest cut counts on" in " ".join(lines)
    (row,) = [line.split() for line in lines if line.startswith("a ")]
    assert row[2] == "lost"


def test_a_cut_that_was_announced_and_is_not_there_is_said(place: Place) -> None:
    config = place.configure({"a": "shop.t"})
    place.cut("all", ["a"], 0, shop=5)
    place.status("all", {"a": waiting()}, cut=7)
    lines = said(Observer(config).look({"shop": IDLE, "crm": IDLE}))
    assert "cut 7 was announced, and the newest that is there is 0: was the power cut?" in lines


def said(state: State, width: int = 100) -> list[str]:
    console = Console(width=width, highlight=False, file=io.StringIO())
    status.show(console, state)
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= width or " " not in line or "viewkeeper " in line for line in lines), lines
    return [" ".join(line.split()) for line in lines]


def as_json(place: Place, capsys: pytest.CaptureFixture[str]) -> Any:
    assert cli.main(["status", str(place.folder / "conf.yaml"), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def two_groups(place: Place) -> Config:
    """Group money waits for a refresh, and shares a source with group people, which is up to date."""
    views = {"accounts": "shop.t", "shelf": REFRESHED, "names": "crm.t", "both": "shop.t"}
    config = place.configure(views, groups={"money": ["accounts", "shelf"], "people": ["names", "both"]})
    place.cut("money", ["accounts", "shelf"], 7, shop=12)
    place.cut("people", ["names", "both"], 3, shop=5, crm=40)
    place.status(
        "money",
        {"accounts": waiting(held=2, waits_for="view shelf"), "shelf": waiting(2, 0, "its next refresh, in 41 min")},
        waiting="2 updates wait for the next refresh of shelf",
        updates_handled=7,
        asked={"shop": {"questions": 2, "keys": 10, "rows": 30, "compensated": 1}},
        table=table(["accounts", "shelf"], ["gb", "rw", "bw", "rb"], first=7),
    )
    place.status(
        "people",
        {"names": waiting(), "both": waiting()},
        updates_handled=3,
        asked={"shop": {"questions": 1, "keys": 1, "rows": 1, "compensated": 0}},
        table=table(["names", "both"], ["gb", "gg"], first=2, source="crm"),
    )
    return config


# ---- what people read


@pytest.mark.parametrize("width", [80, 100])
def test_no_width_breaks_a_name_a_number_or_a_command(place: Place, width: int) -> None:
    long = "orders_of_customers_with_their_addresses_and_everything_that_was_ever_delivered_to_any_of_them"
    for views in (["customer_orders"], ["customer_orders", "orders_by_customer_and_region"], ["customer_orders", long]):
        config = place.configure(dict.fromkeys(views, "shop.t"))
        place.cut("all", [view for view in views if view != long], 4, shop=1)
        lines = said(gather(config), width)
        rows = [line for line in lines if line.split(" ")[0] in views]
        assert [line.split()[0] for line in rows] == views, lines
        below = [lines[lines.index(row) + 1] if row in views else row.partition(" ")[2] for row in rows]
        assert below[0] in ("sweep exact, complete unknown 4 1", "sweep exact, unknown 4 1"), lines  # at a blank
    alone = place.configure({"customer_orders": "shop.t"}, groups={"one": ["customer_orders"]})
    (told,) = [line for line in said(gather(alone), width) if line.startswith("view customer_orders is in group all")]
    assert told.endswith(f"load it with 'viewkeeper init {alone.file} --reload customer_orders'")


def test_a_view_that_waits_says_for_what_on_a_narrow_terminal(place: Place) -> None:
    lines = said(gather(two_groups(place)), 80)
    row = lines.index("shelf refresh exact, strong ≥ 2 7 1 its next")
    assert " ".join(lines[row + 1 : row + 3]) == "refresh, in 41 min"


def test_what_is_not_there_is_a_dash_and_what_cannot_be_reached_one_short_line(place: Place) -> None:
    config = place.configure({"named": "crm.t"}, ["crm"])
    lines = said(gather(config))
    assert lines[0] == "no job is running"
    assert "crm not running unknown – 0 0 0 0" in lines
    assert "unknown: kafka 127.0.0.1:1: All broker connections are down" in lines
    remedy = f"run 'viewkeeper init {config.file}' or 'viewkeeper run {config.file}'"
    assert f"group all: no cut yet: {remedy}" in " ".join(lines)
    assert "named sweep not loaded – – –" in lines
    assert "the ViewUpdateTable is empty" in lines
    assert not any("None" in line or "watermark" in line for line in lines)


@pytest.mark.parametrize(("handled", "told"), [(0, "0 updates"), (1, "1 update"), (12_000, "12,000 updates")])
def test_one_update_is_one_update(handled: int, told: str) -> None:
    job = JobState(running=True, pid=7, started="2024-01-01T00:00:00", updates_handled=handled)
    assert status_text.job_line(job).endswith(f", {told} handled")


def test_a_job_that_is_silent_is_noticed() -> None:
    job = JobState(running=True, pid=7, started="2024-01-01T00:00:00", heartbeat="2024-01-01T00:00:00+00:00")
    assert "not heard of for" in status_text.job_line(job)


def test_each_group_tells_its_cut_its_views_and_its_table(place: Place) -> None:
    lines = said(gather(two_groups(place)))
    assert lines[0].startswith(f"job {os.getpid()} is running since ") and lines[0].endswith("10 updates handled")
    assert "shop not running unknown 5 3 11 31 1" in lines
    money = lines.index(next(line for line in lines if line.startswith("group money: cut 0, update 7, ")))
    assert lines[money].endswith("level complete (PA), 3 more to come")
    assert lines[money + 1] == "waiting: 2 updates wait for the next refresh of shelf"
    assert lines[money + 3 : money + 5] == [
        "accounts sweep exact, complete ≥ 2 7 1 view shelf",
        "shelf refresh exact, strong ≥ 2 7 1 its next refresh, in 41 min",
    ]
    assert lines[money + 6 : money + 11] == [
        "update accounts shelf", "U7 (shop.807) g b", "U8 (shop.808) r w", "U9 (shop.809) b w", "U10 (shop.810) r b",
    ]  # fmt: skip
    assert "both sweep exact, complete unknown 3 1" in lines and "U3 (crm.803) g g" in lines
    assert lines[-1].startswith("w white: awaited r red: held back g gray: in the cut b black: ")


def test_trouble_comes_first(place: Place) -> None:
    config = two_groups(place)
    place.status("people", {}, pid=None, error="source crm: is another database; reload")
    place.status("money", {}, waiting="source shop: cannot be reached", trouble=True)
    warehouse = Observer(config)._reader("people")
    newest = warehouse.newest()
    assert newest is not None
    load = load_of(warehouse._named("both", newest)).id
    warehouse.layout.mark("both", Mark(load, "offset 3 was set aside"))
    lines = said(gather(config))
    assert lines[1:6] == [
        "group money waits: source shop: cannot be reached",
        "group people has stopped: source crm: is another database; reload",
        "source crm is not being captured",
        "source shop is not being captured",
        "view both is not exact: offset 3 was set aside",
    ]
    assert "both sweep not exact unknown 3 1" in lines


def test_a_group_that_has_not_begun_or_is_done_already_is_told_apart(place: Place) -> None:
    config = two_groups(place)
    place.status("people", {}, pid=None, heartbeat="2020-01-01T00:00:00+00:00")
    assert "group people is being opened" in said(gather(config))
    place.status("people", {}, pid=None)
    assert "group people has ended" in said(gather(config))


def test_a_view_that_the_warehouse_has_in_another_group_is_told(place: Place) -> None:
    place.configure({"v": "shop.t"})
    place.cut("all", ["v"], 4, shop=1)
    config = place.configure({"v": "shop.t", "w": "shop.t"}, groups={"one": ["v"], "two": ["w"]})
    state = gather(config)
    assert (state.views["v"].loaded, state.views["v"].moved_from, state.views["w"].moved_from) == (False, "all", None)
    remedy = f"load it with 'viewkeeper init {config.file} --reload v'"
    assert f"view v is in group all of the warehouse: {remedy}" in " ".join(said(state))


def test_what_a_job_left_is_not_taken_for_what_it_does(place: Place) -> None:
    config = two_groups(place)
    place.status("money", {"shelf": waiting(2, 0, "its next refresh")}, pid=None, waiting="a refresh", trouble=True)
    place.status("people", {}, pid=None)
    state = Observer(config).look(dict.fromkeys(("crm", "shop"), IDLE))
    assert (state.job.running, state.job.waiting, state.groups["money"].trouble) == (False, None, False)
    assert (state.views["shelf"].behind, state.views["shelf"].waits_for) == (2, None)


# ---- what programs read


def test_with_one_group_programs_find_what_they_always_found(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.configure({"named": "crm.t"}, ["crm"])
    place.cut("all", ["named"], 9, crm=4)
    place.status("all", {"named": waiting()}, cut=0, last_update=9, seconds={"sweep": 1.5}, waiting="a while")
    state = as_json(place, capsys)
    assert state["cut"] == {**state["cut"], "cut": 0, "last_update": 9, "level": "complete"}
    assert state["job"] == {**state["job"], "running": True, "pid": os.getpid(), "cut": 0, "waiting": "a while"}
    assert state["job"]["seconds"] == {"sweep": 1.5}
    view = {"loaded": True, "folded": 9, "version": 1, "exact": True, "reason": None, "algorithm": "sweep"}
    assert state["views"]["named"] == {**state["views"]["named"], **view, "level": "complete", "group": "all"}
    source = {"topic": "crm.updates", "position": "4", "asked": NOT_ASKED}
    assert state["sources"]["crm"] == {**state["sources"]["crm"], **source}


def test_several_groups_have_a_cut_each_and_none_in_common(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    two_groups(place)
    state = as_json(place, capsys)
    assert state["cut"] is None and state["job"]["cut"] is None
    assert {name: group["cut"]["last_update"] for name, group in state["groups"].items()} == {"money": 7, "people": 3}
    assert state["job"]["waiting"] == "group money: 2 updates wait for the next refresh of shelf"
    assert (state["job"]["updates_handled"], state["sources"]["shop"]["asked"]["keys"]) == (10, 11)
    shop = state["sources"]["shop"]
    assert (shop["position"], shop["positions"]) == ("5", {"money": "12", "people": "5"})
    assert {name: view["group"] for name, view in state["views"].items()} == {
        "accounts": "money", "shelf": "money", "names": "people", "both": "people",
    }  # fmt: skip
    assert state["groups"]["money"]["table"]["rows"][1] == {
        "update": 8, "transactions": ["shop.808"], "colors": {"accounts": "r", "shelf": "w"},
    }  # fmt: skip


def test_a_group_that_stopped_keeps_what_it_told_last(place: Place) -> None:
    config = two_groups(place)
    StatusFile.of(config.warehouse, "money").failed("source shop: is gone")
    told = StatusFile.of(config.warehouse, "money").read()
    assert told is not None
    assert (told["pid"], told["error"], told["updates_handled"]) == (None, "source shop: is gone", 7)
    StatusFile.of(config.warehouse, "new").failed("source shop: is gone")
    assert (StatusFile.of(config.warehouse, "new").read() or {})["error"] == "source shop: is gone"


# ---- groups without sources


def test_agree_groups_are_those_of_the_job_without_a_look_at_any_source(place: Place) -> None:
    views = {"a": "shop.t", "b": "CRM.t", "c": {"sql": "SELECT o.x FROM crm.t o JOIN stock.t s ON o.id = s.id"}}
    alone = {"sql": "SELECT t.x FROM shop.t t", "algorithm": "convergent"}
    config = place.configure({**views, "d": alone}, ["shop", "crm", "stock"], groups="auto")
    for source in config.sources:
        (place.folder / f"{source}.db").unlink()
    sources_of = {"a": ["shop"], "b": ["crm"], "c": ["crm", "stock"], "d": ["shop"]}
    assert configured_groups(config) == split(config, sources_of) == {"shop": ("a",), "crm": ("b", "c"), "d": ("d",)}


def test_a_view_that_cannot_be_understood_is_where_the_warehouse_has_it(place: Place) -> None:
    place.cut("shop", ["odd"], 0, shop=1)
    config = place.configure({"odd": {"sql": "SELECT FROM WHERE ("}, "new": {"sql": "SELECT 1"}}, groups="auto")
    assert configured_groups(config) == {"shop": ("odd",), "all": ("new",)}


def test_agree_the_sources_that_a_statement_names_are_those_that_its_view_uses() -> None:
    for seed in range(scaled(20, 100)):
        rng = random.Random(seed)
        world = worlds.random_world(rng, 0)
        sql = Statements(rng, world.catalog).statement()
        view = parse_recomputed("v", sql, world.catalog)
        found = sources_named(sql, {source for source, _ in world.catalog})
        assert found == view.sources, f"seed {seed}: {sql}"


# ---- side by side


def test_everything_is_looked_at_at_the_same_time_and_nobody_is_waited_for_too_long() -> None:
    meeting, never = threading.Barrier(3, timeout=30), threading.Event()

    def unreachable() -> None:
        meeting.wait()
        raise SourceUnreachable.at("source crm", "cannot be reached", "is it up?")

    found = side_by_side({"one": meeting.wait, "two": unreachable, "three": meeting.wait})
    assert found["two"] == "unknown: source crm: cannot be reached"
    assert {found["one"], found["three"]} < {0, 1, 2}
    late = side_by_side({"source crm": never.wait, "source shop": lambda: "7"}, seconds=0.05)
    assert late == {"source crm": "unknown: source crm: no answer within 0 s", "source shop": "7"}


def test_a_defect_in_a_look_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        side_by_side({"one": lambda: 1 // 0})


def test_a_frame_asks_nobody(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    config = two_groups(place)
    monkeypatch.setattr(status_sources, "make_source", lambda *_: pytest.fail("a source was asked"))
    state = Observer(config).look({})
    assert {source.messages_behind for source in state.sources.values()} == {None}


# ---- how far views are behind


def shops(place: Place, orders: Mapping[str, Any] | None = None, **told: Any) -> Config:
    """A view of shop, at cut 0 with all up to position and offset 4; the job has read to offset 6."""
    config = place.configure({"orders": "shop.t", "names": "crm.t"})
    if not (place.folder / "warehouse").exists():
        place.cut("all", ["orders", "names"], 7, shop=4, crm=4)
    views = {"orders": orders or waiting(), "names": waiting()}
    place.status("all", views, **{"read": {"shop": 6, "crm": 4}, **told})
    return config


def behind(config: Config, shop: Looked, crm: Looked = IDLE) -> tuple[int | None, int | None]:
    """How far the view of shop is behind, and how far at least."""
    view = Observer(config).look({"shop": shop, "crm": crm}).views["orders"]
    return view.behind, view.behind_at_least


def topic(*updates: tuple[int, str]) -> Outstanding:
    return Outstanding([Told(offset, offset + 1, 1, frozenset({relation})) for offset, relation in updates])


def test_a_view_is_behind_by_what_the_job_has_not_read(place: Place) -> None:
    unread = Looked("9", topic((4, "t"), (6, "t"), (7, "other"), (8, "t")), Lag(True))
    assert behind(shops(place), unread) == (2, 2)
    assert behind(shops(place, waiting(1, 2)), unread) == (5, 5)
    assert behind(shops(place, arrived={"shop": 4, "crm": 8}), unread) == (6, 6)
    backlog = Looked("9", Outstanding(unread.topic.updates, rest=1_000), Lag(True))
    assert behind(shops(place), backlog) == (1_002, 1_002)


def test_a_view_is_behind_by_what_is_in_no_topic_yet(place: Place) -> None:
    assert behind(shops(place), Looked("9", topic(), Lag(False, {"t": 3, "other": 5, "": 1}))) == (4, 4)
    assert behind(shops(place), Looked("9", topic(), Lag(True))) == (0, 0)


def test_what_cannot_be_known_is_no_zero(place: Place) -> None:
    config = shops(place)
    assert behind(config, Looked("9", "unknown: kafka", Lag(True))) == (None, 0)
    assert behind(config, Looked("9", topic((6, "t")), "unknown: source shop")) == (None, 1)
    assert behind(config, Looked("9", topic((6, "t")), Lag(True, bytes=4_096))) == (None, 1)
    assert behind(config, Looked("9", topic((6, "t")), Lag(True, bytes=None))) == (None, 1)
    away = Observer(config).look({"shop": Looked("9", topic(), Lag(True, bytes=4_096)), "crm": IDLE})
    assert "orders sweep exact, complete unknown 7 1" in said(away)
    assert "names sweep exact, complete 0 7 1" in said(away)
    assert "shop running, 4.1 kB of log to send 0 4 0 0 0 0" in said(away)


def test_what_a_job_told_of_an_older_cut_is_not_believed(place: Place) -> None:
    """A job that was killed has read further than the cut: what it had in hand is in the topic only."""
    config = shops(place)
    place.cut("all", ["orders", "names"], 8, shop=5, crm=4)
    assert behind(config, Looked("9", topic((4, "t"), (5, "t"), (6, "t")), Lag(True))) == (2, 2)


def test_that_nobody_captures_is_said(place: Place) -> None:
    stopped = Observer(shops(place)).look(
        {"shop": Looked("9", topic(), Lag(False, {"t": 1, "another_projects": 7})), "crm": IDLE}
    )
    assert said(stopped)[1] == "source shop is not being captured: 1 change to send"
    assert "shop not running, 1 change to send 0 4 0 0 0 0" in said(stopped)
    assert (stopped.sources["shop"].capture_running, stopped.sources["shop"].uncaptured) == (False, 1)


def test_a_source_that_is_not_what_it_was_leaves_its_views_unknown(place: Place) -> None:
    other = Looked("unknown: source shop: is another database", topic(), Lag(True))
    assert behind(shops(place), other) == (None, 0)
