"""A warehouse in a folder of any name: either everything works in it, or the configuration is refused."""

from __future__ import annotations

import re
import resource
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

import viewkeeper
from tests.core.test_warehouse import STATE, content, loaded, rows, transaction
from viewkeeper.config import load_config
from viewkeeper.errors import ConfigError, UsageError, WarehouseError
from viewkeeper.managers.sources.sqlite_log import connect
from viewkeeper.warehouse import log_table
from viewkeeper.warehouse.layout import Layout
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.removal import remove_views, views_on_disk
from viewkeeper.warehouse.retention import going, superseded
from viewkeeper.warehouse.warehouse import Warehouse

USED = [*" #?%ü{}*~&;:'\"`+=,!@$()<>-.", "a%zz", "日本", "e\u0301", "${x}", "  ", "a b#c?d%eü{f}*'\"`$,:=日"]
REFUSED = ["[", "]", "[a-z]", "|", "^", "\\", "%20", "%C3", "\t", "\n"]


@pytest.mark.parametrize("odd", USED)
def test_a_warehouse_works_in_a_folder_of_any_name(tmp_path: Path, odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_table, "COMPACT_EVERY", 4)
    monkeypatch.setattr(log_table, "CHECKPOINT_EVERY", 3)
    root = tmp_path / f"x{odd}y" / f"{odd}z"
    warehouse = loaded(root, [(1, "a", 1)])
    for number in range(1, 10):
        warehouse.commit(transaction(number, [(1, "a", 1, number), (number + 1, "b", 1, number)]))
        warehouse.compact()
        if number % 3 == 0:
            warehouse.fold()
    warehouse.commit(transaction(9))
    assert len(list((root / "views" / "v").glob("*.parquet"))) > 1
    assert len(content(warehouse)) == 10

    reader = WarehouseReader(root)
    assert [len(content(reader, update=k)) for k in (0, 2, 7, 9)] == [1, 3, 8, 10]
    assert [len(content(reader, cut=reader.cut(n))) for n in (0, 9)] == [1, 10]
    assert viewkeeper.read_cut(root, "v")["v"].num_rows == 10
    gone = going(reader, timedelta(0), superseded(reader, timedelta(0)))
    assert gone.counted_back and not gone.lost
    warehouse.vacuum(timedelta(0))
    assert len(content(reader, cut=reader.cut(0))) == 1, "counted back, because its own version is gone"

    again = Warehouse(root)
    again.open()
    again.load("v", again.view_table("v").schema, "SELECT 2", [rows(STATE, [(9, "z", 1)])], 9)
    again.commit(transaction(9))
    assert content(again) == {(9, "z"): 1}
    remove_views(root, ["v"])
    assert views_on_disk(root) == set()


def configured(folder: Path, warehouse: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    conf = folder / "conf.yaml"
    quoted = warehouse.replace("'", "''").replace("\n", "\n\n")
    conf.write_text(
        "kafka: {bootstrap: 'localhost:1'}\n"
        f"warehouse: '{quoted}'\n"
        "sources: {a: {kind: sqlite, path: ./a.db}}\n"
        "views: {v: {sql: SELECT 1}}\n"
    )
    return conf


@pytest.mark.parametrize("odd", REFUSED)
def test_a_folder_that_delta_tables_cannot_have_is_refused_at_once(tmp_path: Path, odd: str) -> None:
    folder = tmp_path / f"x{odd}y"
    with pytest.raises(ConfigError, match=re.escape("conf.yaml: warehouse: has ")) as refused:
        load_config(configured(folder, "./warehouse"))
    assert refused.value.problems[0].remedy
    with pytest.raises(UsageError, match="in its path"):
        viewkeeper.read_cut(folder, "v")
    plain = tmp_path / "plain"
    folder.mkdir(exist_ok=True)
    plain.symlink_to(folder)
    with pytest.raises(ConfigError, match="in its path"):
        load_config(configured(tmp_path / "elsewhere", str(plain / "warehouse")))


@pytest.mark.parametrize("odd", USED)
def test_a_configuration_may_lie_in_a_folder_of_any_name(tmp_path: Path, odd: str) -> None:
    folder = tmp_path / f"x{odd}y"
    config = load_config(configured(folder, "./warehouse"))
    assert config.warehouse == (folder / "warehouse").resolve()


@pytest.mark.parametrize("odd", [*USED, *REFUSED])
def test_a_database_may_lie_in_a_folder_of_any_name(tmp_path: Path, odd: str) -> None:
    path = tmp_path / f"x{odd}y" / f"{odd}a.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (id INTEGER)")
    with closing(connect(str(path), "source a")) as opened:
        assert opened.execute("SELECT name FROM sqlite_schema").fetchall() == [("t",)]
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file can be longer, as on a disk that is nearly full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    heard = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, heard)


def test_a_warehouse_that_has_no_room_is_refused_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with room_for(1000), pytest.raises(WarehouseError, match=r"w: cannot be written \(.*\); .*or choose another"):
        Layout(tmp_path / "w", "all").require_writable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["/proc/x", "/proc/self/x", "/sys/x"])
def test_a_folder_that_no_rights_open_is_no_place_for_a_warehouse(place: str) -> None:
    with pytest.raises(WarehouseError, match="cannot be written"):
        Layout(Path(place), "all").require_writable()


@pytest.mark.parametrize("name", ["cuts", "views", "logs", ".id", ".lock"])
def test_a_folder_in_which_others_have_what_a_warehouse_has_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir() if name.startswith(".") else (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match=f"{re.escape(name)} in it is a .* of others; choose another folder"):
        Layout(tmp_path, "all").require_writable()


def test_a_folder_with_other_things_may_be_a_warehouse(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_text("mine")
    (tmp_path / "views").mkdir()
    Layout(tmp_path, "all").require_writable()
    Layout(tmp_path / "not" / "there", "all").require_writable()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["photo.jpg", "views"]
