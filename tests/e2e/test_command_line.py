"""The command line as a user meets it: the happy path of each command, and the usual mistakes, as processes."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SharedBroker
from tests.e2e.harness import VIEWKEEPER, Ended, Installation
from tests.e2e.oracle import Oracle
from tests.e2e.shop import TABLES, VIEWS

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, broker: SharedBroker) -> Iterator[Installation]:
    """One installation for all tests here, with a few updates behind it; they only look at it."""
    made = Installation(tmp_path_factory.mktemp("user"), broker, TABLES, dict(VIEWS))
    assert "4 views at cut 0" in made.done("init").out
    with made.capturing():
        made.write("shop", "DELETE FROM orders WHERE id = 4")
        made.write("crm", "UPDATE customers SET city = '' WHERE id = 1", "DELETE FROM customers WHERE id = 2")
        made.done("run", "--until-idle")
    yield made
    made.end()


def viewkeeper(*arguments: str) -> Ended:
    done = subprocess.run([VIEWKEEPER, *arguments], capture_output=True, text=True, timeout=120, check=False)
    return Ended(done.returncode, done.stdout, done.stderr)


def assert_one_error(ended: Ended, code: int, *said: str) -> None:
    """One line in the documented form, and nothing else."""
    assert ended.code == code, ended.err
    assert ended.err.count("\n") == 1 and len(ended.errors) == 1, ended.err
    for words in said:
        assert words in ended.errors[0]


def test_check_and_explain_describe_a_good_configuration(world: Installation) -> None:
    checked = world.done("check")
    assert checked.err == ""
    assert [line for line in checked.out.splitlines() if line.startswith("ok      view ")]
    assert "a change of crm.customers c" in world.done("explain", "overview").out


def test_init_does_nothing_twice(world: Installation) -> None:
    before = world.cut()
    assert "nothing to do" in world.done("init").out
    assert world.cut() == before


def test_an_idle_job_ends_at_once_and_leaves_the_view_folded(world: Installation) -> None:
    world.done("run", "--until-idle")
    cut = world.cut()
    assert set(cut.folded.values()) == {cut.last_update}


def test_status_tells_the_same_to_people_and_to_programs(world: Installation) -> None:
    state = json.loads(world.done("status", "--json").out)
    cut = world.cut()
    assert (state["cut"]["cut"], state["cut"]["last_update"]) == (cut.cut, cut.last_update)
    assert not state["job"]["running"]
    assert state["sources"]["shop"]["position"] == cut.positions["shop"] == state["sources"]["shop"]["last_change"]
    said = world.done("status").out
    assert "no job is running" in said and f"cut {cut.cut}, update {cut.last_update}" in said
    assert max(map(len, said.splitlines())) <= 100
    for name in (*TABLES, *VIEWS):
        assert name in said


def test_read_gives_the_same_rows_in_every_format(world: Installation) -> None:
    rows = json.loads(world.done("read", "same_customer", "--format", "json").out)
    table = list(csv.DictReader(io.StringIO(world.done("read", "same_customer", "--format", "csv").out)))
    assert [{k: int(v) for k, v in row.items()} for row in table] == rows
    assert f"{len(rows)} rows" in world.done("read", "same_customer").out
    assert sum(row["_count"] for row in rows) == Oracle(world).final("same_customer").total()


def test_read_goes_back_to_any_update_and_cut(world: Installation) -> None:
    now = world.done("read", "same_customer", "--format", "csv").out
    first = world.done("read", "same_customer", "--format", "csv", "--update", "0").out
    assert len(first.splitlines()) > len(now.splitlines())
    assert sorted(world.done("read", "same_customer", "--format", "csv", "--cut", "0").out) == sorted(first)
    last = str(world.cut().last_update)
    assert sorted(world.done("read", "same_customer", "--format", "csv", "--update", last).out) == sorted(now)


def test_tail_prints_updates_and_seals(world: Installation) -> None:
    messages = [
        json.loads(line) for line in world.done("tail", "overview", "--no-follow", "--from-start").out.splitlines()
    ]
    assert [m["sealed"] for m in messages if "sealed" in m] == list(range(world.cut().cut + 1))
    assert [m["update"] for m in messages if "update" in m]


def test_verify_proves_all_views_or_one(world: Installation) -> None:
    assert world.done("verify").out.count("equal to recomputation") == len(VIEWS)
    assert world.done("verify", "cities").out.count("equal to recomputation") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["frobnicate"], "frobnicate"),
        ([], "no command"),
        (["run"], "CONF"),
        (["read", "{conf}", "overveiw"], "did you mean overview?"),
        (["read", "{conf}", "overview", "--update", "-1"], "whole number"),
        (["read", "{conf}", "overview", "--update", "9999"], "9999"),
        (["read", "{conf}", "overview", "--cut", "9999"], "9999"),
        (["read", "{conf}", "overview", "--cut", "1", "--update", "1"], "not allowed with"),
        (["read", "{conf}", "overview", "--format", "xml"], "xml"),
        (["capture", "{conf}", "shpo"], "did you mean shop?"),
        (["verify", "{conf}", "nothing"], "has no view nothing"),
        (["init", "{conf}", "--reload", "nothing"], "has no view nothing"),
        (["run", "{folder}/none.yaml"], "none.yaml"),
        (["check", "{folder}"], "{folder}"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line_is_one_line_and_exit_2(world: Installation, arguments: list[str], said: str) -> None:
    names = {"conf": world.conf, "folder": world.folder}
    ended = viewkeeper(*(argument.format(**names) for argument in arguments))
    assert_one_error(ended, 2, said.format(**names))


def test_all_problems_of_a_configuration_are_told_at_once(world: Installation, tmp_path: Path) -> None:
    config = json.loads(world.conf.read_text())
    config["views"]["overview"]["slq"] = "SELECT 1"
    config["sources"]["crm"]["kind"] = "oracle"
    config["keep"] = "soon"
    file = tmp_path / "wrong.yaml"
    file.write_text(json.dumps(config))
    for command in ("check", "run", "init", "capture", "status", "verify"):
        ended = viewkeeper(command, str(file))
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.splitlines() == ended.errors
        for place in ("views.overview.slq", "sources.crm.kind", "keep"):
            assert any(place in line for line in ended.errors), (command, place)


def test_a_view_that_cannot_be_kept_is_refused_with_clause_and_place(world: Installation, tmp_path: Path) -> None:
    config = json.loads(world.conf.read_text())
    for source in config["sources"].values():
        source["path"] = str(world.folder / source["path"])
    config["views"]["overview"]["sql"] = "SELECT count(*) AS n FROM shop.orders"
    config["views"]["cities"]["sql"] = "SELECT ctiy FROM crm.customers"
    file = tmp_path / "wrong.yaml"
    file.write_text(json.dumps(config))
    for command in ("check", "init"):
        ended = viewkeeper(command, str(file))
        assert ended.code == 2
        assert len(ended.errors) == 2 and ended.err.splitlines() == ended.errors
        assert any("views.overview.sql" in line and "count" in line.lower() for line in ended.errors)
        assert any("views.cities.sql" in line and "city" in line for line in ended.errors)


def test_read_before_the_first_load_names_init(world: Installation, tmp_path: Path) -> None:
    config = json.loads(world.conf.read_text()) | {"warehouse": str(tmp_path / "none")}
    file = world.folder / "other.yaml"
    file.write_text(json.dumps(config))
    for command in (["read", str(file), "overview"], ["verify", str(file)]):
        assert_one_error(viewkeeper(*command), 2, "viewkeeper init")


def test_capture_can_be_taken_out_again(world: Installation, tmp_path: Path, broker: SharedBroker) -> None:
    other = Installation(tmp_path, broker, TABLES, dict(VIEWS))
    other.done("init")
    removed = other.done("capture", "--remove").out
    assert [line.split(":")[0] for line in removed.splitlines()] == list(TABLES)
    for source in TABLES:
        db = other.connect(source)
        assert db.execute("SELECT count(*) FROM sqlite_schema WHERE name LIKE '%viewkeeper%'").fetchone() == (0,)
        db.close()
