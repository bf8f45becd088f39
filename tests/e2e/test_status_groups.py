"""``status`` and ``watch`` of a running job with two groups, one of which waits for a refresh."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import eventually
from tests.e2e.conftest import Install
from tests.e2e.harness import PATIENCE, Installation, Running
from viewkeeper import cli
from viewkeeper.job.status import StatusFile

pytestmark = pytest.mark.e2e

TABLES = {
    "shop": ["CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)", "INSERT INTO orders VALUES (1, 10)"],
    "crm": ["CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)", "INSERT INTO customers VALUES (1, 'Ada')"],
}
VIEWS = {
    "orders": "SELECT o.id, o.total FROM shop.orders o",
    "takings": "SELECT sum(o.total) AS total FROM shop.orders o",
    "names": "SELECT c.id, c.name FROM crm.customers c",
}


def told(world: Installation, group: str) -> dict[str, Any]:
    return StatusFile.of(world.folder / "warehouse", group).read() or {}


def behind(world: Installation, group: str) -> dict[str, int]:
    return {view: about["behind"] for view, about in told(world, group).get("views", {}).items()}


def await_that(condition: Any, what: str, job: Running) -> None:
    eventually(lambda: condition() or not job.alive, PATIENCE, what)
    assert job.alive, f"the job ended before {what}"


def test_a_group_that_waits_for_a_refresh_is_drawn_and_holds_back_only_itself(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*command: str) -> str:
        assert cli.main([command[0], str(world.conf), *command[1:]]) == 0
        return capsys.readouterr().out

    world = install(TABLES, VIEWS, groups={"money": ["orders", "takings"], "people": ["names"]})
    world.kept_by = {"takings": {"algorithm": "refresh", "every": "1h"}}
    world.configure()
    job = world.start("run")
    await_that(lambda: behind(world, "money") and behind(world, "people"), "both groups are open", job)
    with world.capturing():
        world.write("shop", "INSERT INTO orders VALUES (2, 20)")
        await_that(lambda: behind(world, "money") == {"orders": 1, "takings": 1}, "money waits", job)
        world.write("shop", "DELETE FROM orders WHERE id = 1")
        world.write("crm", "INSERT INTO customers VALUES (2, 'Bob')")
        await_that(lambda: behind(world, "money") == {"orders": 2, "takings": 2}, "money waits for both", job)
        await_that(lambda: told(world, "people")["last_update"] == 1, "people goes on", job)
        state = json.loads(said("status", "--json"))
        check_drawn(said("status"))
        check_drawn(said("watch"))

    assert state["job"]["running"] and state["cut"] is None
    assert {name: group["cut"]["last_update"] for name, group in state["groups"].items()} == {"money": 0, "people": 1}
    assert [row["colors"] for row in state["groups"]["money"]["table"]["rows"]] == [{"orders": "r", "takings": "w"}] * 2
    assert [row["colors"] for row in state["groups"]["people"]["table"]["rows"]] == [{"names": "g"}]
    assert state["views"]["takings"]["waits_for"].startswith("its next refresh, in ")
    assert state["views"]["orders"] | {"waits_for": "view takings", "held": 2, "owed": 0} == state["views"]["orders"]
    assert state["sources"]["shop"]["messages_behind"] > 0 == state["views"]["names"]["behind"]
    ended = job.terminate()
    assert ended.code == 0, ended.err
    assert "no job is running" in said("status")


def check_drawn(text: str) -> None:
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert max(map(len, text.splitlines())) <= 100
    assert "update orders takings" in lines and "update names" in lines
    assert sum(line.startswith("U1 (shop.") and line.endswith(") r w") for line in lines) == 1
    assert sum(line.startswith("U1 (crm.") and line.endswith(") g") for line in lines) == 1
    assert [line for line in lines if "its next refresh, in " in line or "the next refresh of takings" in line]
    assert any(line.startswith("group money: cut 0, update 0, ") and "2 more to come" in line for line in lines)
