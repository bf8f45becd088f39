"""``viewkeeper read`` and ``read_cut`` of several views: all of one cut, whatever is written meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import viewkeeper
from tests.core.test_warehouse_groups import at, load, opened
from viewkeeper import cli
from viewkeeper.errors import UsageError
from viewkeeper.warehouse.warehouse import Warehouse

Read = Callable[..., tuple[int, str, str]]


@pytest.fixture
def read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Read:
    """Calls the command on a configuration with the views v, w, x and y."""
    configuration = {
        "kafka": {"bootstrap": "127.0.0.1:1"},
        "warehouse": "warehouse",
        "sources": {"shop": {"kind": "sqlite", "path": "shop.db"}},
        "views": {view: {"sql": "SELECT o.id FROM shop.orders o"} for view in ("v", "w", "x", "y")},
    }
    (tmp_path / "conf.yaml").write_text(json.dumps(configuration))

    def call(*arguments: str) -> tuple[int, str, str]:
        code = cli.main(["read", str(tmp_path / "conf.yaml"), *arguments])
        return code, *capsys.readouterr()

    return call


def two_groups(root: Path) -> Warehouse:
    """Group a with v and w, which grow alike, at cut 3 and update 5; group b with x."""
    a, b = opened(root, "a"), opened(root, "b")
    for view in ("v", "w"):
        load(a, view, 1, 0)
    a.commit(at(0))
    a.commit(at(2, first=1, v=1, w=1))
    a.fold()
    a.commit(at(4, first=3, v=1, w=1))
    a.commit(at(5, first=5, v=1, w=1))
    load(b, "x", 40, 0)
    b.commit(at(0))
    return a


def test_several_views_are_one_json_object_and_one_view_is_its_array(tmp_path: Path, read: Read) -> None:
    two_groups(tmp_path / "warehouse")
    row = {"x": "row", "_count": 6}
    assert read("v", "--format", "json") == (0, f'[\n{{"x":"row","_count":{row["_count"]}}}\n]\n', "")
    code, out, err = read("w", "v", "--format", "json")
    assert (
        (code, err) == (0, "") and json.loads(out) == {"w": [row], "v": [row]} and list(json.loads(out)) == ["w", "v"]
    )
    assert json.loads(read("v", "w", "--cut", "1", "--format", "json")[1]) == {
        view: [{"x": "row", "_count": 3}] for view in "vw"
    }
    assert json.loads(read("v", "w", "--update", "1", "--format", "json")[1])["w"][0]["_count"] == 2
    assert json.loads(read("x", "--cut", "0", "--format", "json")[1])[0]["_count"] == 40
    assert list(json.loads(read("v", "v", "w", "--format", "json")[1])) == ["v", "w"]


def test_a_table_of_several_views_has_their_names_over_them(tmp_path: Path, read: Read) -> None:
    two_groups(tmp_path / "warehouse")
    _, out, _ = read("v", "w")
    lines = out.splitlines()
    assert lines[0] == "v at cut 3, update 5" and "w at cut 3, update 5" in lines and lines.count("1 row") == 2
    assert read("v")[1].startswith("v at cut 3, update 5\n")
    assert read("v", "w", "--update", "4")[1].startswith("v after update 4\n")


def test_csv_holds_one_view(tmp_path: Path, read: Read) -> None:
    two_groups(tmp_path / "warehouse")
    assert read("v", "--format", "csv") == (0, "x,_count\nrow,6\n", "")
    code, out, err = read("v", "w", "--format", "csv")
    assert (code, out) == (2, "") and err.endswith(
        "csv has room for one view only; name one view, or use --format json\n"
    )


def test_views_of_different_groups_are_refused(tmp_path: Path, read: Read) -> None:
    two_groups(tmp_path / "warehouse")
    code, out, err = read("v", "x")
    assert (code, out) == (2, "")
    assert err.endswith("v, x: they are in groups a and b, which have no cut in common; read them apart\n")


def test_all_unknown_views_are_named_at_once(tmp_path: Path, read: Read) -> None:
    two_groups(tmp_path / "warehouse")
    code, _, err = read("v", "ww", "q")
    assert code == 2 and [line.split("has no view ")[1][:2] for line in err.splitlines()] == ["ww", "q;"]
    code, _, err = read("y", "w")
    assert code == 2 and err.endswith(
        "views.y: it is not in that cut; load it with viewkeeper init {conf}\n".format(conf=tmp_path / "conf.yaml")
    )
    assert read("w", "--cut", "9")[2].endswith("there is no cut 9; the newest is 3\n")


def test_nothing_is_loaded_yet(tmp_path: Path, read: Read) -> None:
    code, _, err = read("v")
    assert code == 2 and err.endswith(
        "views.v: it is not in that cut; load it with viewkeeper init {conf}\n".format(conf=tmp_path / "conf.yaml")
    )


def test_views_that_are_read_together_are_of_one_cut_while_the_job_writes(tmp_path: Path) -> None:
    warehouse, done = two_groups(tmp_path), threading.Event()

    def write() -> int:
        k = 5
        while not done.is_set():
            k += 1
            warehouse.commit(at(k, first=k, v=1, w=1))
            warehouse.compact()
            if k % 7 == 0:
                warehouse.fold()
        return k

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            reads = [viewkeeper.read_cut(tmp_path, ["v", "w"]) for _ in range(15)]
        finally:
            done.set()
        assert writing.result() > 5
    for tables in reads:
        assert [tables[view]["_count"].to_pylist() for view in "vw"] == [[tables.last_update + 1]] * 2
    assert len({tables.cut for tables in reads}) > 1


def test_read_cut_says_which_cut_it_read(tmp_path: Path) -> None:
    two_groups(tmp_path)
    tables = viewkeeper.read_cut(tmp_path, ("v", "w"), cut=1)
    assert (tables.group, tables.cut, tables.last_update, list(tables)) == ("a", 1, 2, ["v", "w"])
    assert tables["v"].to_pylist() == [{"x": "row", "_count": 3}]
    assert viewkeeper.read_cut(str(tmp_path), "x")["x"]["_count"].to_pylist() == [40]
    with pytest.raises(UsageError, match="they are in groups a and b"):
        viewkeeper.read_cut(tmp_path, ["x", "w"])


def test_importing_viewkeeper_imports_nothing_heavy() -> None:
    program = (
        "import sys, viewkeeper; print([m for m in ('pyarrow', 'deltalake', 'pyspark', 'numpy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[]\n"
