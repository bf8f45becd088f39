"""Vacuum: promised cuts stay, and what is announced to go is what goes."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tests.core.test_warehouse_groups import at, load, opened, total
from tests.scale import scaled
from viewkeeper import cli
from viewkeeper.errors import UsageError
from viewkeeper.warehouse import retention, warehouse
from viewkeeper.warehouse.cuts import Cut
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.retention import going, superseded
from viewkeeper.warehouse.view_table import Superseded
from viewkeeper.warehouse.warehouse import Warehouse

HOUR = timedelta(hours=1)


class Clock:
    """The time as the warehouse has it."""

    def __init__(self) -> None:
        self.now = datetime(2024, 1, 1, tzinfo=UTC)

    def pass_by(self, hours: float) -> None:
        self.now += hours * HOUR


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (warehouse, retention):
        monkeypatch.setattr(module, "now", lambda: clock.now)
    return clock


def version_as_of(root: Path, view: str, version: int) -> int | None:
    """How many rows any Delta reader finds in that version, None if it cannot be read."""
    try:
        table = DeltaTable(str(root / "views" / view), version=version).to_pyarrow_table()
    except (DeltaError, OSError):
        return None
    return sum(table["_count"].to_pylist())


def grow(kept: Warehouse, clock: Clock, first: int, last: int, view: str = "v") -> None:
    """A cut an hour, each of which is folded; the next names the fold."""
    for k in range(first, last + 1):
        clock.pass_by(1)
        kept.commit(at(k, first=k, **{view: 1}))
        kept.fold()


def loaded(root: Path, clock: Clock, group: str = "all", view: str = "v") -> Warehouse:
    kept = opened(root, group)
    load(kept, view, 1, 0)
    kept.commit(at(0))
    return kept


# ---- the command -----------------------------------------------------------------------------------------------


@dataclass
class World:
    folder: Path
    capsys: pytest.CaptureFixture[str]

    @property
    def root(self) -> Path:
        return self.folder / "warehouse"

    def configure(self, *views: str) -> None:
        self.folder.mkdir(exist_ok=True)
        configuration = {
            "kafka": {"bootstrap": "127.0.0.1:1"},
            "warehouse": "warehouse",
            "sources": {"shop": {"kind": "sqlite", "path": "shop.db"}},
            "views": {view: {"sql": "SELECT o.id FROM shop.orders o"} for view in views},
        }
        (self.folder / "conf.yaml").write_text(json.dumps(configuration))

    def vacuum(self, *arguments: str) -> tuple[int, list[str], str]:
        code = cli.main(["vacuum", str(self.folder / "conf.yaml"), *arguments])
        out, err = self.capsys.readouterr()
        return code, out.splitlines(), err


@pytest.fixture
def world(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> World:
    world = World(tmp_path, capsys)
    world.configure("v")
    return world


BACK = "can no longer be read by VERSION AS OF, but still by viewkeeper read, which counts back from a later version"


def test_promised_cuts_stay_and_those_announced_go(world: World, clock: Clock) -> None:
    kept = loaded(world.root, clock)
    grow(kept, clock, 1, 40)  # cut k is made in hour k; it names the version that stands at update k − 1
    clock.pass_by(0.5)
    cuts = kept.cuts(0, 40)
    assert [version_as_of(world.root, "v", cut.versions["v"]) for cut in cuts[1:]] == list(range(1, 41))
    assert world.vacuum("--keep", "10h") == (0, [f"group all: cuts 0 to 29, older than 10 hours, {BACK}"], "")
    reader = WarehouseReader(world.root)
    for cut in cuts:
        promised = cut.cut >= 30  # it was the newest ten hours ago
        found = version_as_of(world.root, "v", cut.versions["v"])
        assert found == (cut.folded["v"] + 1 if promised else None), cut.cut
        assert total(reader, "v", cut) == cut.cut + 1
    assert world.vacuum("--keep", "10h") == (0, ["group all: no cut goes"], "")


def test_keeping_nothing_keeps_the_newest(world: World, clock: Clock) -> None:
    kept = loaded(world.root, clock)
    grow(kept, clock, 1, 12)
    newest = kept.commit(at(12))
    clock.pass_by(1)
    code, lines, _ = world.vacuum("--keep", "0s")
    assert code == 0 and lines == [f"group all: cuts 0 to 12 {BACK}"]
    assert version_as_of(world.root, "v", newest.versions["v"]) == 13
    assert len(list((world.root / "views" / "v").glob("*.parquet"))) == 1
    again = opened(world.root, "all")
    again.commit(at(13, first=13, v=1))
    again.fold()
    assert total(WarehouseReader(world.root), "v") == 14


def test_cuts_from_before_a_reload_are_lost(world: World, clock: Clock) -> None:
    kept = loaded(world.root, clock)
    grow(kept, clock, 1, 12)
    load(kept, "v", 100, 12)
    kept.commit(at(12))
    clock.pass_by(1)
    grow(kept, clock, 13, 14)
    kept.commit(at(14))
    clock.pass_by(1)
    _, lines, _ = world.vacuum("--keep", "0s")
    assert lines == ["group all: cuts 0 to 12 can no longer be read", f"group all: cuts 13 to 15 {BACK}"]
    reader = WarehouseReader(world.root)
    for number in range(13):  # at cut 12 the view stood where the load did, but it was not the load
        with pytest.raises(UsageError):
            reader.read("v", reader.cut(number))
    assert [total(reader, "v", reader.cut(n)) for n in (13, 14, 15, 16)] == [100, 101, 102, 102]


def test_a_version_that_was_superseded_long_before_its_cut_stays_as_long_as_the_cut(world: World, clock: Clock) -> None:
    kept = loaded(world.root, clock)
    kept.commit(at(1, first=1, v=1))
    old = kept.newest()
    assert old is not None
    kept.fold()
    clock.pass_by(500)  # idle for weeks: the newest cut still names the version before the fold
    kept.commit(at(1))
    clock.pass_by(1)
    assert world.vacuum("--keep", "2h") == (0, ["group all: no cut goes"], "")
    assert version_as_of(world.root, "v", old.versions["v"]) == 1
    clock.pass_by(2)
    assert world.vacuum("--keep", "90m")[1] == [f"group all: cuts 0 to 1, older than 90 minutes, {BACK}"]


def test_a_version_that_only_a_former_groups_cuts_name_stays_as_long_as_they_are_promised(
    world: World, clock: Clock
) -> None:
    a, b = loaded(world.root, clock, "a"), loaded(world.root, clock, "b", "w")
    grow(a, clock, 1, 5)
    a.commit(at(5))
    left = a.newest()
    assert left is not None
    clock.pass_by(50)
    a.leave(["v"])
    load(b, "v", 70, 0)
    b.commit(at(0))
    clock.pass_by(1)
    b.commit(at(1, first=1, v=1, w=1))
    b.fold()
    clock.pass_by(1)
    b.commit(at(1))
    # Group b alone would need nothing from before its load.
    assert world.vacuum("--keep", "24h")[1] == ["group a: no cut goes", "group b: no cut goes"]
    assert version_as_of(world.root, "v", left.versions["v"]) == 6
    assert total(WarehouseReader(world.root, "a"), "v", left) == 6
    clock.pass_by(24)
    # Until group b holds the view for longer than that, nothing of it is touched.
    b.commit(at(1))
    clock.pass_by(24)
    b.commit(at(1))
    assert world.vacuum("--keep", "24h")[1] == [
        "group a: cuts 0 to 6, older than 1 day, can no longer be read",
        f"group b: cuts 0 to 2, older than 1 day, {BACK}",
    ]
    with pytest.raises(UsageError, match="cannot be read any more"):
        WarehouseReader(world.root, "a").read("v", left)
    assert total(WarehouseReader(world.root, "b"), "v") == 71


def test_a_warehouse_that_a_job_holds_is_left_alone(world: World, clock: Clock) -> None:
    kept = loaded(world.root, clock)
    with kept.lock():
        code, lines, err = world.vacuum()
    assert (code, lines) == (2, []) and "it does this by itself every hour" in err
    assert world.vacuum() == (0, ["group all: no cut goes"], "")


def test_there_may_be_nothing_to_do(world: World) -> None:
    assert world.vacuum() == (0, [f"{world.root}: there is nothing yet"], "")
    assert not world.root.exists()
    opened(world.root, "all")
    assert world.vacuum("--removed") == (0, ["group all: no cut goes"], "")


@pytest.mark.parametrize("text", ["7", "-1d", "soon", "7 weeks"])
def test_a_duration_is_as_in_the_configuration(world: World, text: str) -> None:
    code, _, err = world.vacuum(f"--keep={text}")
    assert code == 2 and "must be a duration such as 250ms, 30s, 5m, 2h or 7d" in err


def test_views_that_nobody_has_any_more_go_when_told(world: World, clock: Clock) -> None:
    world.configure("v", "new")
    kept = loaded(world.root, clock)
    for view in ("gone", "staying"):
        load(kept, view, 3, 0)
    kept.commit(at(0))
    kept.mark_inexact("gone", "why")
    kept.leave(["gone"])
    assert world.vacuum()[1] == ["group all: no cut goes"]
    assert (world.root / "views" / "gone").is_dir()
    conf = world.folder / "conf.yaml"
    assert world.vacuum("--removed") == (
        0,
        [
            "group all: no cut goes",
            f"view staying: it is not in {conf}, but in the newest cut of group all, so it stays; "
            f"run 'viewkeeper init {conf}' first",
            "view gone: its tables are deleted; no cut can be read with it any more",
        ],
        "",
    )
    for kind in ("views", "changes"):
        assert sorted(path.name for path in (world.root / kind).iterdir()) == ["staying", "v"]
    assert list((world.root / "inexact").iterdir()) == []
    assert total(WarehouseReader(world.root), "staying") == 3
    with pytest.raises(UsageError, match=r"views\.gone"):
        WarehouseReader(world.root).read("gone", WarehouseReader(world.root).cut(1))
    again = opened(world.root, "all")
    load(again, "gone", 8, 0)
    again.commit(at(0))
    assert total(WarehouseReader(world.root), "gone") == 8


def test_groups_that_hold_no_view_and_are_in_no_configuration_go_when_told(world: World, clock: Clock) -> None:
    loaded(world.root, clock)
    for group in ("old", "shop"):  # a group may be named after a source
        opened(world.root, group).commit(at(0, views=[]))
    held = loaded(world.root, clock, "held", "w")
    held.commit(at(1, first=1, w=1))
    (world.root / "cuts" / ".removed.older").mkdir()
    _, lines, _ = world.vacuum("--removed")
    assert lines[-1] == "group old: its newest cut has no view; its cuts and updates are deleted"
    assert "view w" in lines[-2] and "stays" in lines[-2]
    for kind in ("cuts", "updates"):
        assert sorted(path.name for path in (world.root / kind).iterdir()) == ["all", "held", "shop"]


# ---- random sequences against a model -------------------------------------------------------------------------


@dataclass
class Model:
    """All cuts that were made, and what each view held at each."""

    cuts: dict[str, list[Cut]] = field(default_factory=lambda: {"a": [], "b": []})
    held: dict[tuple[str, int, str], int] = field(default_factory=dict)
    group: dict[str, str] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)

    def note(self, group: str, cut: Cut) -> None:
        self.cuts[group].append(cut)
        self.held |= {(group, cut.cut, view): self.times[view] for view in cut.versions}

    def last(self, group: str) -> int:
        return self.cuts[group][-1].last_update if self.cuts[group] else 0

    def promised(self, group: str, since: datetime) -> set[int]:
        """The newest, and each that another took the place of no longer ago than that."""
        cuts = self.cuts[group]
        return {cuts[-1].cut, *(cut.cut for cut, after in pairwise(cuts) if after.committed_at >= since)}


@pytest.mark.parametrize("seed", range(scaled(1, 6)))
def test_oracle_what_is_promised_stays_and_exactly_what_is_announced_goes(
    tmp_path: Path, clock: Clock, seed: int
) -> None:
    """Replay: pytest tests/core/test_vacuum.py -k 'oracle and <seed>'."""
    chance, model = random.Random(seed), Model()
    kept = {group: opened(tmp_path, group) for group in model.cuts}
    for view, group in (("p", "a"), ("q", "a"), ("r", "b")):
        come(kept, model, view, group, 1)
    for step in range(scaled(12, 30)):
        clock.pass_by(chance.choice([0.1, 1, 5]))
        group = chance.choice("ab")
        match chance.choice(["commit", "commit", "fold", "fold", "move", "reload", "idle", "vacuum"]):
            case "commit":
                advance(kept[group], model, group, chance)
            case "fold":
                kept[group].fold()
                model.note(group, kept[group].commit(at(model.last(group))))
            case "move":
                come(kept, model, chance.choice("pqr"), group, chance.randint(1, 50))
            case "reload":
                view = chance.choice("pqr")
                come(kept, model, view, model.group[view], chance.randint(1, 50))
            case "idle":
                clock.pass_by(40)
            case "vacuum":
                keep = chance.choice([0, 3, 20, 24]) * HOUR
                print(f"seed {seed}, step {step}: vacuum, keep {keep}")
                check_vacuum(tmp_path, kept, model, keep, clock)


def come(kept: dict[str, Warehouse], model: Model, view: str, group: str, times: int) -> None:
    former = model.group.get(view)
    if former not in (None, group):
        model.note(former, kept[former].leave([view]))
    load(kept[group], view, times, model.last(group))
    model.group[view], model.times[view] = group, times
    model.note(group, kept[group].commit(at(model.last(group))))


def advance(warehouse: Warehouse, model: Model, group: str, chance: random.Random) -> None:
    done = model.last(group)
    views = [view for view, held in model.group.items() if held == group and chance.random() < 0.7]
    last = done + chance.randint(1, 3)
    for view in views:
        model.times[view] += last - done
    model.note(group, warehouse.commit(at(last, first=done + 1, **dict.fromkeys(views, 1))))


def check_vacuum(root: Path, kept: dict[str, Warehouse], model: Model, keep: timedelta, clock: Clock) -> None:
    before = {(g, cut.cut): versions_whole(root, cut) for g, cuts in model.cuts.items() for cut in cuts}
    readable = {(g, c, v): given(root, g, c, v) for g, c, v in model.held}
    deleted: dict[str, Superseded] = {}
    for warehouse_ in kept.values():
        deleted |= superseded(warehouse_, keep)
    announced = {group: going(warehouse_, keep, deleted) for group, warehouse_ in kept.items()}
    for warehouse_ in kept.values():
        warehouse_.delete(deleted)
    for group, cuts in model.cuts.items():
        promised = model.promised(group, clock.now - keep)
        told = announced[group]
        for cut in cuts:
            whole, what = versions_whole(root, cut), f"group {group}, cut {cut.cut}"
            lost = {view for view, is_whole in before[group, cut.cut].items() if is_whole and not whole[view]}
            assert bool(lost) == (cut.cut in {*told.counted_back, *told.lost}), what
            assert not (lost and cut.cut in promised), what
            views = {view: given(root, group, cut.cut, view) for view in cut.versions}
            for view, times in views.items():
                assert times in (None, model.held[group, cut.cut, view]), f"{what}: {view}"
                assert times is not None or cut.cut not in promised or readable[group, cut.cut, view] is None, what
            if lost:
                assert (None in views.values()) == (cut.cut in told.lost), what


def versions_whole(root: Path, cut: Cut) -> dict[str, bool]:
    return {view: version_as_of(root, view, version) is not None for view, version in cut.versions.items()}


def given(root: Path, group: str, number: int, view: str) -> int | None:
    reader = WarehouseReader(root, group)
    try:
        return total(reader, view, reader.cut(number))
    except UsageError:
        return None
