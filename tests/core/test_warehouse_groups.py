"""Several groups in one warehouse: each has its own numbers, and a view that moves takes none of them along."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.scale import scaled
from viewkeeper.algebra.bag import SignedBag
from viewkeeper.errors import UsageError
from viewkeeper.warehouse.cuts import Cut, UpdateRow, WarehouseTransaction, update_table
from viewkeeper.warehouse.groups import common_group, group_of, groups
from viewkeeper.warehouse.log_table import LOAD
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.topics import ViewTopics
from viewkeeper.warehouse.warehouse import Warehouse

SCHEMA = pa.schema([("x", pa.string())])


def opened(root: Path, group: str) -> Warehouse:
    warehouse = Warehouse(root, group)
    warehouse.open()
    return warehouse


def load(warehouse: Warehouse, view: str, times: int, update: int, name: str = "x") -> None:
    table = pa.table({name: ["row"], "_count": [times]})
    warehouse.load(view, table.drop_columns("_count").schema, f"SELECT {name}", [table], update)


def at(update: int, views: list[str] | None = None, first: int | None = None, **times: int) -> WarehouseTransaction:
    """Updates up to ``update`` (from ``first``), each of which adds its row to each view that many times."""
    numbers = [] if first is None else list(range(first, update + 1))
    transaction = WarehouseTransaction(update, {"s": str(update)}, {"s": update}, "complete", views=views)
    transaction.updates = update_table(UpdateRow(k, "s", str(k), "t", k, tuple(times)) for k in numbers)
    for view, count in times.items():
        columns = {"x": ["row"] * len(numbers), "_count": [count] * len(numbers), "_update": numbers}
        transaction.changes[view] = [pa.table(columns)]
    return transaction


def total(reader: WarehouseReader, view: str, cut: Cut | None = None, update: int | None = None) -> int:
    return sum(SignedBag(reader.read(view, cut, update).read_all()).counts().values())


def two_groups(root: Path) -> tuple[Warehouse, Warehouse]:
    """Group a with the views v and w, at update 0; group b with z, at update 0."""
    a, b = opened(root, "a"), opened(root, "b")
    load(a, "v", 1, 0)
    load(a, "w", 1, 0)
    load(b, "z", 1, 0)
    a.commit(at(0))
    b.commit(at(0))
    return a, b


def test_each_group_has_its_own_numbers_cuts_and_views(tmp_path: Path) -> None:
    a, b = two_groups(tmp_path)
    a.commit(at(3, first=1, v=1, w=2))
    assert groups(tmp_path) == ["a", "b"]
    assert [group_of(tmp_path, view) for view in "vwzq"] == ["a", "a", "b", None]
    assert (a.newest().last_update, b.newest().last_update) == (3, 0)  # type: ignore[union-attr]
    assert (total(a, "w"), total(WarehouseReader(tmp_path, "b"), "z")) == (7, 1)
    assert groups(tmp_path / "nowhere") == []


def test_views_of_different_groups_have_no_cut_in_common(tmp_path: Path) -> None:
    two_groups(tmp_path)
    assert common_group(tmp_path, ["w", "v"]) == "a"
    with pytest.raises(UsageError, match="they are in groups a and b, which have no cut in common; read them apart"):
        common_group(tmp_path, ["v", "z"])
    with pytest.raises(UsageError) as told:
        common_group(tmp_path, ["p", "v", "q"])
    assert [problem.place for problem in told.value.problems] == ["views.p", "views.q"]


def test_a_group_leaves_the_marks_of_other_groups_alone(tmp_path: Path) -> None:
    a, b = two_groups(tmp_path)
    a.mark_inexact("v", "why v")
    b.mark_inexact("z", "why z")
    b.mark_uncompensated("z")
    load(b, "z", 5, 0)
    b.commit(at(0))
    opened(tmp_path, "b")
    assert a.inexact() == {"v": "why v"} and b.inexact() == {} and list(b.uncompensated()) == []
    load(a, "w", 2, 0)
    b.mark_inexact("z", "again")
    a.commit(at(0))
    opened(tmp_path, "a")
    assert a.inexact() == {"v": "why v"} and b.inexact() == {"z": "again"}
    assert sorted(path.name for path in (tmp_path / "inexact").iterdir()) == ["v", "z"]


@pytest.mark.parametrize(("far", "near"), [(900, 5), (5, 900), (5, 5)])
def test_a_view_that_moves_meets_no_change_of_its_former_group(tmp_path: Path, far: int, near: int) -> None:
    a, b = two_groups(tmp_path)
    a.commit(at(far, first=1))
    load(a, "v", 1, far)
    a.commit(at(far))
    a.commit(at(far + 3, first=far + 1, v=1))  # updates far + 1 … far + 3 of group a
    b.commit(at(near, first=1))
    a.leave(["v"])
    assert group_of(tmp_path, "v") is None and a.newest().versions.keys() == {"w"}  # type: ignore[union-attr]
    load(b, "v", 10, near)
    b.commit(at(near))
    assert group_of(tmp_path, "v") == "b"
    for reader in (b, WarehouseReader(tmp_path, "b")):
        assert total(reader, "v") == 10 and list(reader.changes("v", 0, 9_999)) == []
    b.commit(at(near + 2, first=near + 1, v=1, z=1))
    b.fold()
    b.commit(at(near + 2))
    again = opened(tmp_path, "b")
    for reader in (b, again, WarehouseReader(tmp_path, "b")):
        assert [total(reader, "v", update=near + k) for k in range(3)] == [10, 11, 12]
        assert pa.concat_tables(reader.changes("v", 0, 9_999))["_update"].to_pylist() == [near + 1, near + 2]
    with pytest.raises(UsageError, match=r"views\.v"):
        WarehouseReader(tmp_path, "a").read("v")


def test_a_reader_between_the_cut_and_the_clearing_counts_no_foreign_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = two_groups(tmp_path)
    a.commit(at(9, first=1, v=1))
    b.commit(at(2, first=1))
    old = a.newest()
    a.leave(["v"])
    load(b, "v", 10, 2)
    monkeypatch.setattr(b, "_clear_older_changes", lambda view: None)  # as if killed right after the cut row
    b.commit(at(2))
    reader = WarehouseReader(tmp_path, "b")
    assert total(reader, "v") == 10 and list(reader.changes("v", 0, 99)) == []
    assert total(WarehouseReader(tmp_path, "a"), "v", old) == 10  # the changes of a's load are still there
    again = opened(tmp_path, "b")
    assert again._log("v").rows().files.num_rows == 0
    with pytest.raises(UsageError, match="loaded again"):
        WarehouseReader(tmp_path, "a").read("v", old)
    again.commit(at(3, first=3, v=1))
    assert total(reader, "v") == 11


def test_what_a_reader_began_to_read_stays_as_it_was_through_a_reload(tmp_path: Path) -> None:
    a, _ = two_groups(tmp_path)
    a.commit(at(9, first=1, v=1))
    reader = WarehouseReader(tmp_path, "a")
    begun = reader.read("v")
    load(a, "v", 100, 9)
    a.commit(at(9))
    a.commit(at(11, first=10, v=1))
    assert total(reader, "v") == 102
    assert sum(begun.read_all()["_count"].to_pylist()) == 10


def test_a_load_and_changes_after_it_may_share_the_cut_of_a_view_that_comes_back(tmp_path: Path) -> None:
    a, _ = two_groups(tmp_path)
    a.commit(at(4, first=1, v=1))
    a.leave(["v"])
    load(a, "v", 50, 4)
    a.commit(at(6, first=5, v=1, w=1))
    assert [total(opened(tmp_path, "a"), "v", update=k) for k in (4, 5, 6)] == [50, 51, 52]


def unmarked(root: Path, view: str) -> None:
    """The table of changes as earlier releases made it."""
    for file in (root / "changes" / view / "_delta_log").glob("*.json"):
        file.write_text(file.read_text().replace(LOAD, "viewkeeper.unknown"))


def test_a_warehouse_from_before_loads_were_noted_goes_on(tmp_path: Path) -> None:
    a, b = two_groups(tmp_path)
    a.commit(at(3, first=1, v=1, w=1))
    unmarked(tmp_path, "v")
    unmarked(tmp_path, "w")
    assert total(WarehouseReader(tmp_path, "a"), "v") == 4
    a = opened(tmp_path, "a")
    assert [total(a, "v", update=k) for k in range(4)] == [1, 2, 3, 4]
    a.leave(["v", "w"])
    unmarked(tmp_path, "w")  # as if it had left before anybody noted its load
    for view in ("v", "w"):
        load(b, view, 10, 0)
    b.commit(at(0))
    assert (total(b, "v"), total(b, "w")) == (10, 10)
    b.commit(at(1, first=1, v=1, w=1))
    assert (total(WarehouseReader(tmp_path, "b"), "v"), total(WarehouseReader(tmp_path, "b"), "w")) == (11, 11)


def test_a_load_that_another_group_still_holds_is_refused(tmp_path: Path) -> None:
    _, b = two_groups(tmp_path)
    with pytest.raises(AssertionError, match="v is still in another group"):
        load(b, "v", 1, 0)


def test_a_group_that_the_configuration_no_longer_has_ends_with_a_cut_without_views(tmp_path: Path) -> None:
    a, b = two_groups(tmp_path)
    a.commit(at(2, first=1, v=1))
    a.commit(at(2, views=[]))
    again = opened(tmp_path, "a")
    newest = again.newest()
    assert newest is not None and newest.versions == newest.folded == {} and newest.last_update == 2
    again.fold()
    again.vacuum()
    again.compact()
    assert again.inexact() == {} and again.commit(at(2, views=[])).versions == {}
    assert total(again, "v", again.cut(1)) == 3
    assert total(b, "z") == 1


def test_groups_write_at_the_same_time(tmp_path: Path) -> None:
    cuts = 60

    def keep(group: str) -> None:
        warehouse = opened(tmp_path, group)
        warehouse.id()
        load(warehouse, f"v_{group}", 1, 0)
        warehouse.commit(at(0))
        for k in range(1, cuts + 1):
            warehouse.commit(at(k, first=k, **{f"v_{group}": 1}))
            warehouse.compact()
            if k % 10 == 0:
                warehouse.fold()
                warehouse.vacuum()
                warehouse.recover()

    names = ["a", "b", "c"]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(keep, names))
    for group in names:
        reader = WarehouseReader(tmp_path, group)
        assert [total(reader, f"v_{group}", update=k) for k in (0, 7, cuts)] == [1, 8, cuts + 1]
        assert reader.updates(0, 999)["_update"].to_pylist() == list(range(1, cuts + 1))


def test_groups_that_open_at_the_same_time_agree_on_the_warehouses_name(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        names = set(pool.map(lambda n: Warehouse(tmp_path, f"g{n}").id(), range(32)))
    assert len(names) == 1


def test_only_other_groups_have_their_name_in_the_transactional_id() -> None:
    client = {"bootstrap.servers": "nowhere"}
    assert ViewTopics(client, "abc", {})._id == "viewkeeper-abc"
    assert ViewTopics(client, "abc", {}, group="eu")._id == "viewkeeper-abc-eu"


class Model:
    """What each view must hold after each update of its present group since its load."""

    def __init__(self) -> None:
        self.group: dict[str, str] = {}
        self.states: dict[str, dict[int, int]] = {}
        self.last: Counter[str] = Counter()


@pytest.mark.parametrize("seed", range(scaled(1, 6)))
def test_oracle_views_that_move_at_random_are_read_as_they_were_kept(tmp_path: Path, seed: int) -> None:
    """Replay: pytest tests/core/test_warehouse_groups.py -k 'at_random and <seed>'."""
    chance, model = random.Random(seed), Model()
    kept = {group: opened(tmp_path, group) for group in ("a", "b")}
    for view, group in (("p", "a"), ("q", "a"), ("r", "b")):
        reload(kept, model, view, group, 1)
    for step in range(25):
        group = chance.choice(["a", "b"])
        match chance.choice(["commit", "commit", "commit", "fold", "move", "reload", "reopen"]):
            case "commit":
                advance(kept[group], model, group, chance)
            case "fold":
                kept[group].fold()
            case "move" | "reload" as how:
                view = chance.choice("pqr")
                target = group if how == "move" else model.group[view]
                reload(kept, model, view, target, chance.randint(1, 9))
            case "reopen":
                kept[group] = opened(tmp_path, group)
        for name, warehouse in kept.items():
            reader = warehouse if step % 2 else WarehouseReader(tmp_path, name)
            check(reader, model, name, f"seed {seed}, step {step}")


def reload(kept: dict[str, Warehouse], model: Model, view: str, group: str, times: int) -> None:
    former = model.group.get(view)
    if former not in (None, group):
        kept[former].leave([view])
    load(kept[group], view, times, model.last[group])
    kept[group].commit(at(model.last[group]))
    model.group[view], model.states[view] = group, {model.last[group]: times}


def advance(warehouse: Warehouse, model: Model, group: str, chance: random.Random) -> None:
    done, views = model.last[group], [view for view, held in model.group.items() if held == group]
    times = {view: chance.randint(1, 3) for view in views if chance.random() < 0.7}
    last = model.last[group] = done + chance.randint(1, 4)
    warehouse.commit(at(last, first=done + 1, **times))
    for view in views:
        states = model.states[view]
        states.update({k: states[done] + times.get(view, 0) * (k - done) for k in range(done + 1, last + 1)})


def check(reader: WarehouseReader, model: Model, group: str, told: str) -> None:
    newest = reader.newest()
    held: dict[str, Any] = dict(newest.versions) if newest is not None else {}
    assert held.keys() == {view for view, g in model.group.items() if g == group}, told
    for view in held:
        for update, expected in list(model.states[view].items())[-3:]:
            assert total(reader, view, update=update) == expected, f"{told}: {view} at {update}"
