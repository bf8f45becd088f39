"""A source that is away when the real job starts holds back only the groups that use it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.conftest import eventually
from tests.e2e.conftest import Install
from tests.e2e.harness import PATIENCE, Installation
from tests.e2e.oracle import Oracle
from tests.e2e.small_groups import RS, R, S, T, check_exact, grouped
from viewkeeper.config import load_config
from viewkeeper.errors import SourceUnreachable
from viewkeeper.job.joining import begin
from viewkeeper.job.run import Groups
from viewkeeper.job.status import StatusFile
from viewkeeper.warehouse.warehouse import Warehouse

pytestmark = [pytest.mark.e2e, pytest.mark.long]


def told_by(world: Installation, group: str) -> dict[str, Any]:
    """What a group has told of itself."""
    return StatusFile.of(world.folder / "warehouse", group).read() or {}


def test_oracle_a_source_that_is_away_at_the_start_holds_back_only_its_groups(install: Install) -> None:
    """Groups that share a source, one of which uses the source that is away; another that shares nothing."""
    world = grouped(install, {"r": R, "rs": RS, "t": T}, groups={"left": ["r"], "both": ["rs"], "right": ["t"]})
    oracles = [Oracle(world, *of) for of in (("left", ["r"]), ("both", ["rs"]), ("right", ["t"]))]
    away = world.database("b").rename(world.folder / "away.db")
    job = world.start("run")
    world.await_cut(-1, job, "left")
    world.await_cut(-1, job, "right")
    eventually(lambda: told_by(world, "both").get("trouble"), PATIENCE, "a group waits")
    told = told_by(world, "both")
    assert told["pid"] == job.process.pid and "b.db" in told["waiting"] and "both" not in world.newest_cuts()
    assert not any(told_by(world, group).get("trouble") for group in ("left", "right"))
    world.write("a", "INSERT INTO r VALUES (4, 2)")  # in the log of a source that one of them reads, and one will
    away.rename(world.database("b"))
    world.await_cut(-1, job, "both")
    with world.capturing():
        for source, change in {"a": "r SET x = 3 - x", "b": "s SET x = 3 - x", "c": "t SET price = 7"}.items():
            world.write(source, f"UPDATE {change} WHERE id < 3")
        for group in ("left", "both", "right"):
            world.await_position(job, group)
        assert job.terminate().code == 0
    check_exact(*oracles)


def test_a_job_that_waits_for_a_source_is_stopped_at_once(install: Install) -> None:
    world = grouped(install, {"r": R, "rs": RS})
    world.database("b").rename(world.folder / "away.db")
    job = world.start("run")
    eventually(lambda: "trying again" in job.err.read_text() or not job.alive, PATIENCE, "it waits")
    ended = job.terminate()
    assert (ended.code, ended.errors) == (0, []), ended.err
    assert told_by(world, "all")["pid"] is None


def test_a_group_whose_source_does_not_come_ends_alone(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    world = grouped(install, {"r": R, "s": S, "rs": RS}, groups={"left": ["r"], "right": ["s"], "both": ["rs"]})
    world.done("init")
    config = load_config(world.conf)
    world.database("b").rename(world.folder / "away.db")
    with Warehouse(config.warehouse).lock(), pytest.raises(SourceUnreachable) as caught:
        Groups(begin(config, threading.Event()), until_idle=True, stop=threading.Event(), patience=1.0).run()
    assert caught.value.exit_code == 3
    assert [problem.place for problem in caught.value.problems] == ["source b"], (
        "both groups failed of it: it is told once"
    )
    stopped = {record.args[0] for record in caplog.records if "other groups go on" in record.msg and record.args}
    assert stopped == {"right", "both"}
    left = told_by(world, "left")
    assert left["heartbeat"] and left["error"] is None
    assert all("there is no database" in told_by(world, group)["error"] for group in stopped)
