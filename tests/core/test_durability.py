"""A power failure at any moment: what was announced is there, and what was torn is taken back and done again."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.core.test_warehouse import SCHEMA, STATE, content, loaded, rows, transaction
from tests.scale import scaled
from viewkeeper import read_cut
from viewkeeper.config import load_config
from viewkeeper.errors import WarehouseError, WarehouseUnreachable
from viewkeeper.job.assembly import oldest_position
from viewkeeper.warehouse import log_table
from viewkeeper.warehouse.durability import FAST, LAST_CHECKPOINT, SAFE, Disk, checkpoints_at, disk
from viewkeeper.warehouse.layout import Layout, Mark
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.torn import newest_version
from viewkeeper.warehouse.warehouse import Warehouse


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints and compactions come after a few commits."""
    monkeypatch.setattr(log_table, "CHECKPOINT_EVERY", 3)
    monkeypatch.setattr(log_table, "COMPACT_EVERY", 4)


# ---- the calls, in their order


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was given to fsync, in order: the system's own calls."""
    calls: list[str] = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        sync(descriptor)
        calls.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", watched)
    return calls


def added_since(root: Path, before: dict[str, set[str]], table: str) -> tuple[list[str], list[str]]:
    """The data files and the log entries that a table has got."""
    now = files(root, table)
    new = sorted(now - before[table])
    return [f for f in new if "_delta_log" not in f], [f for f in new if "_delta_log" in f and f.endswith(".json")]


def files(root: Path, table: str) -> set[str]:
    return {str(file) for file in (root / table).rglob("*") if file.is_file()}


TABLES = ("changes/v", "updates/all", "cuts/all")


def test_everything_that_a_cut_counts_on_is_synced_in_order_before_the_cut_row_and_that_before_it_is_announced(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = loaded(tmp_path)
    for number in range(1, 9):
        before = {table: files(tmp_path, table) for table in TABLES}
        synced.clear()
        at_cut_row: list[int] = []
        append = warehouse._cuts.append

        def watched(*args: Any, append: Any = append, calls: list[int] = at_cut_row) -> None:
            calls.append(len(synced))
            append(*args)

        monkeypatch.setattr(warehouse._cuts, "append", watched)
        warehouse.commit(transaction(number, [(number, "b", 1, number)]))
        monkeypatch.setattr(warehouse._cuts, "append", append)
        calls, (begun,) = list(synced), at_cut_row
        for table in TABLES:
            data, log = added_since(tmp_path, before, table)
            assert data and log
            places = [
                [calls.index(file) for file in data],
                [last(calls, str(tmp_path / table))],
                [calls.index(file) for file in log],
                [last(calls, str(tmp_path / table / "_delta_log"))],
            ]
            for earlier, later in pairwise(places):
                assert max(earlier) < min(later), table
            assert all((place < begun) == (table != "cuts/all") for step in places for place in step), table
        for checkpoint in tmp_path.rglob("_delta_log/*.checkpoint.parquet"):
            made = {f for t in TABLES for f in before[t]}
            assert str(checkpoint) in made or str(checkpoint) in calls


def last(calls: list[str], path: str) -> int:
    return len(calls) - 1 - calls[::-1].index(path)


def test_folders_that_are_new_are_synced_with_those_above_them(tmp_path: Path, synced: list[str]) -> None:
    loaded(tmp_path / "a" / "b")
    for table in (*TABLES, "views/v"):
        folder = tmp_path / "a" / "b" / table
        assert {str(folder), str(folder.parent), str(tmp_path / "a" / "b"), str(tmp_path / "a"), str(tmp_path)} <= {
            *synced
        }


def test_a_fold_is_synced_before_a_cut_names_it(tmp_path: Path, synced: list[str]) -> None:
    warehouse = loaded(tmp_path)
    warehouse.commit(transaction(1, [(1, "b", 1, 1)]))
    before = files(tmp_path, "views/v")
    synced.clear()
    warehouse.fold()
    new = files(tmp_path, "views/v") - before
    assert new and new <= {*synced} and synced[-1] == str(tmp_path / "views" / "v" / "_delta_log")


def test_a_source_forgets_only_what_a_synced_cut_holds(tmp_path: Path, synced: list[str]) -> None:
    """Another group's job, or a killed one, may not have come to sync the cut row that is read here."""
    loaded(tmp_path)
    other = Warehouse(tmp_path, disk=FAST)
    other.open()
    before = {table: files(tmp_path, table) for table in TABLES}
    synced.clear()
    other.commit(transaction(7, [(7, "b", 1, 1)], first=1))
    assert not synced
    assert oldest_position(tmp_path, "shop") == 7
    data, log = added_since(tmp_path, before, "cuts/all")
    assert [path for path in synced if "checkpoint" not in path] == [
        *data, str(tmp_path / "cuts/all"), *log, str(tmp_path / "cuts/all/_delta_log"),
    ]  # fmt: skip


def test_small_files_beside_the_tables_are_synced_before_they_count(tmp_path: Path, synced: list[str]) -> None:
    layout = Layout(tmp_path, "all")
    layout.id()
    assert [Path(path).name.startswith(".") for path in synced] == [True, False]
    assert synced[1] == str(tmp_path)
    synced.clear()
    layout.mark("v", Mark("1", "why"))
    assert synced[-1] == str(tmp_path / "inexact") and synced[0] == str(tmp_path)


def test_fast_leaves_the_tables_to_the_system(tmp_path: Path, synced: list[str]) -> None:
    warehouse = Warehouse(tmp_path, disk=disk("fast"))
    warehouse.open()
    warehouse.load("v", SCHEMA, "SELECT 1", [rows(STATE, [(1, "a", 1)])], 0)
    warehouse.commit(transaction(0))
    warehouse.commit(transaction(1, [(1, "b", 1, 1)]))
    warehouse.fold()
    assert synced == [] and disk("safe") is SAFE


def test_durability_is_safe_unless_told(tmp_path: Path) -> None:
    def conf(more: str) -> Path:
        file = tmp_path / "conf.yaml"
        file.write_text(
            "kafka: {bootstrap: 'localhost:1'}\nwarehouse: ./w\nsources: {a: {kind: sqlite, path: ./a.db}}\n"
            f"views: {{v: {{sql: SELECT 1}}}}\n{more}"
        )
        return file

    assert load_config(conf("")).durability == "safe"
    assert load_config(conf("durability: fast\n")).durability == "fast"


@pytest.mark.parametrize("table", TABLES)
def test_a_disk_that_cannot_write_stops_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    warehouse = loaded(tmp_path)

    def broken(descriptor: int) -> None:
        if f"{table}/part" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(WarehouseError, match=r"cannot be written to the disk \(Input/output error\)") as failed:
        warehouse.commit(transaction(1, [(1, "b", 1, 1)]))
    assert not isinstance(failed.value, WarehouseUnreachable), "no second try: it would find that all is well"


# ---- the power fails


class PowerFailure(BaseException):
    """The machine is off."""


@dataclass
class Playing(Disk):
    """Remembers what is on the disk for sure, and fails at one of its calls."""

    root: Path
    fails_at: int
    calls: int = 0
    contents: dict[Path, bytes] = field(default_factory=dict)
    entries: dict[Path, set[str]] = field(default_factory=dict)

    def sync(self, path: Path) -> None:
        self.calls += 1
        if self.calls >= self.fails_at:
            raise PowerFailure
        if path.is_dir():
            self.entries[path] = {entry.name for entry in path.iterdir()}
        else:
            self.contents[path] = path.read_bytes()

    def left(self, to: Path, chance: random.Random) -> None:
        """What a disk may hold afterwards: what was synced, and of all else anything."""
        self._leave(self.root, to, chance)

    def _leave(self, folder: Path, to: Path, chance: random.Random) -> None:
        to.mkdir(parents=True)
        sure = self.entries.get(folder, set())
        now = {entry.name for entry in folder.iterdir()}
        for name in sorted(now | sure):
            path = folder / name
            if name in now and path.is_dir():
                if name in sure or chance.random() < 0.5:
                    self._leave(path, to / name, chance)
                continue
            if name not in sure and chance.random() < 0.3:
                continue  # its entry was never written
            if name not in now and chance.random() < 0.7:
                continue  # it was deleted, and mostly stays so
            if path in self.contents:
                (to / name).write_bytes(self.contents[path])
            elif name in now:
                (to / name).write_bytes(torn(path.read_bytes(), chance))


def torn(text: bytes, chance: random.Random) -> bytes:
    return chance.choice([text, text, b"", text[: len(text) // 2], bytes(len(text))])


def expected(number: int) -> Counter[Any]:
    counts = Counter({(1, "a"): 2 + number})
    counts.update({(k + 1, "b"): 1 for k in range(1, number + 1)})
    return counts


def step(number: int) -> Any:
    return transaction(number, [(1, "a", 1, number), (number + 1, "b", 1, number)])


def work(warehouse: Warehouse, done: list[int], first: int, last: int, chance: random.Random) -> None:
    """Cuts, folds, compactions; ``done`` are the updates whose cut was announced."""
    for number in range(first, last + 1):
        warehouse.commit(step(number))
        done.append(number)
        warehouse.compact()
        if chance.random() < 0.3:
            warehouse.fold()
        if chance.random() < 0.1:
            warehouse.vacuum()


def begun(root: Path, disk: Disk) -> Warehouse:
    warehouse = Warehouse(root, disk=disk)
    warehouse.open()
    warehouse.load("v", SCHEMA, "SELECT 1", [rows(STATE, [(1, "a", 2)])], 0)
    warehouse.commit(transaction(0))
    return warehouse


def calls_of(root: Path, seed: int) -> int:
    """How often a whole run syncs something."""
    playing = Playing(root, fails_at=10**9)
    work(begun(root, playing), [], 1, 10, random.Random(seed))
    return playing.calls


def check(root: Path, at_least: int | None) -> Warehouse:
    """The warehouse opens at a cut that is no older than the last announced, and every state of it is right."""
    warehouse = Warehouse(root)
    newest = warehouse.open()
    if at_least is None and newest is None:
        warehouse = begun(root, SAFE)
        newest = warehouse.newest()
    assert newest is not None and newest.last_update >= (at_least or 0)
    for number in range(newest.last_update + 1):
        assert content(warehouse, update=number) == expected(number), number
    return warehouse


def test_oracle_whenever_the_power_fails_every_announced_cut_is_there_and_the_work_goes_on(tmp_path: Path) -> None:
    torn_ones, total = 0, calls_of(tmp_path / "whole", 0)
    for seed in range(scaled(25, 400)):
        chance = random.Random(seed)
        playing = Playing(tmp_path / f"{seed}", fails_at=chance.randint(1, total))
        done: list[int] = []
        with suppress(PowerFailure):
            warehouse = begun(playing.root, playing)
            done.append(0)
            work(warehouse, done, 1, 10, random.Random(seed))
        after = tmp_path / f"{seed}-after"
        playing.left(after, chance)
        before = {table: newest_version(after / table) for table in (*TABLES, "views/v")}
        try:
            again = check(after, done[-1] if done else None)
            torn_ones += any((newest_version(after / t) or 0) < (v or 0) for t, v in before.items())
            newest = again.newest()
            assert newest is not None
            work(again, [], newest.last_update + 1, newest.last_update + 5, chance)
            check(after, newest.last_update + 5)
        except BaseException as error:
            raise AssertionError(f"seed {seed}: the power fails at call {playing.fails_at} of {total}") from error
        for folder in tmp_path.iterdir():
            shutil.rmtree(folder)
    assert torn_ones, "the failures tear nothing"


def damaged(root: Path, table: str, how: Callable[[Path], None], data: bool = False) -> None:
    version = newest_version(root / table)
    entry = root / table / "_delta_log" / f"{version:020}.json"
    how(max((root / table).glob("*.parquet"), key=lambda f: f.stat().st_mtime_ns) if data else entry)


def test_a_cut_that_lost_what_it_counts_on_is_said(tmp_path: Path) -> None:
    """As ``durability: fast``, or a disk that lies, may leave it."""
    for table, data in (("changes/v", False), ("changes/v", True), ("updates/all", False), ("views/v", True)):
        root = tmp_path / table.replace("/", "-") / str(data)
        work(loaded(root, [(1, "a", 2)]), [], 1, 3, random.Random(1))
        damaged(root, table, lambda file: file.write_bytes(b""), data)
        with pytest.raises(WarehouseError, match="which the newest cut counts on, is not whole"):
            Warehouse(root).open()


@pytest.mark.parametrize("table", ["changes/v", "updates/all", "views/v"])
def test_a_cut_that_counts_on_a_commit_of_which_nothing_is_left_is_said(tmp_path: Path, table: str) -> None:
    """The log then ends before it, and is whole: nothing else would tell that rows are missing."""
    warehouse = loaded(tmp_path, [(1, "a", 2)])
    for number in (1, 2):
        warehouse.commit(step(number))
        warehouse.fold()
    warehouse.commit(step(3))
    version = newest_version(tmp_path / table)
    for file in (tmp_path / table / "_delta_log").glob(f"{version:020}.*"):
        file.unlink()
    with pytest.raises(WarehouseError, match=r"which the newest cut counts on, is not whole \(0+\d+.json is missing"):
        Warehouse(tmp_path).open()


@pytest.mark.parametrize("what", ["entry", "data", "folder"])
@pytest.mark.parametrize("table", ["changes/v", "views/v"])
def test_readers_say_that_a_cut_lost_what_it_counts_on_rather_than_show_what_is_left(
    tmp_path: Path, table: str, what: str
) -> None:
    warehouse = loaded(tmp_path, [(1, "a", 2)])
    for number in (1, 2):
        warehouse.commit(step(number))
        warehouse.fold()
    warehouse.commit(step(3))
    reader = WarehouseReader(tmp_path)
    assert content(reader) == expected(3)
    if what == "folder":
        shutil.rmtree(tmp_path / table)
    else:
        damaged(tmp_path, table, Path.unlink, data=what == "data")
    for each in (reader, WarehouseReader(tmp_path)):
        with pytest.raises(WarehouseError, match=r"the newest cut counts on, is not whole \(.* is missing\)"):
            each.read("v")
    with pytest.raises(WarehouseError, match="not whole"):
        read_cut(tmp_path, "v")


def test_a_reader_says_that_an_older_file_is_missing_before_it_tells_a_row(tmp_path: Path) -> None:
    warehouse = loaded(tmp_path, [(1, "a", 2)])
    for number in (1, 2):
        warehouse.commit(step(number))
    first = min((tmp_path / "changes" / "v").glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)
    first.unlink()
    with pytest.raises(WarehouseError, match=f"a file that the cut counts on is not whole .{first.name} is missing"):
        WarehouseReader(tmp_path).read("v")


def test_a_cut_row_that_was_torn_is_made_again(tmp_path: Path) -> None:
    warehouse = loaded(tmp_path, [(1, "a", 2)])
    work(warehouse, [], 1, 2, random.Random(1))
    warehouse.commit(step(3))
    damaged(tmp_path, "cuts/all", lambda file: file.write_bytes(file.read_bytes()[:40]))
    with pytest.raises(WarehouseError):
        WarehouseReader(tmp_path).newest()
    with Warehouse(tmp_path, "another group").lock():
        found = WarehouseReader(tmp_path).newest()
        assert found is not None and found.last_update == 2
    again = check(tmp_path, 2)
    newest = again.newest()
    assert newest is not None and newest.last_update == 2
    again.commit(step(3))
    assert content(again) == expected(3)


@pytest.mark.parametrize("left", [None, b""])
def test_a_kill_between_a_checkpoint_and_the_hint_that_names_it_does_not_stop_the_next_start(
    tmp_path: Path, left: bytes | None
) -> None:
    warehouse = loaded(tmp_path, [(1, "a", 2)])
    log, number = tmp_path / "cuts" / "all" / "_delta_log", 0
    while not checkpoints_at(tmp_path / "cuts" / "all", newest_version(tmp_path / "cuts" / "all") or 0):
        warehouse.commit(step(number := number + 1))
    hint = log / LAST_CHECKPOINT
    hint.unlink() if left is None else hint.write_bytes(left)
    again = check(tmp_path, number)
    again.commit(step(number + 1))
    assert content(again) == expected(number + 1)
