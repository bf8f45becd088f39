"""``status`` over real databases, topics and capture: nothing is said to be up to date that is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import eventually
from tests.e2e.conftest import Install, MakeDatabase
from tests.e2e.harness import PATIENCE, Installation

pytestmark = pytest.mark.e2e

ORDERS = [
    "CREATE TABLE orders (id int PRIMARY KEY, customer_id int)",
    "CREATE TABLE other (id int)",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    "INSERT INTO orders VALUES (1, 1)",
]
CUSTOMERS = ["CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)", "INSERT INTO customers VALUES (1, 'Ada')"]
VIEW = "SELECT o.id, c.name FROM shop.orders o JOIN crm.customers c ON o.customer_id = c.id"


def status(world: Installation) -> Any:
    return json.loads(world.done("status", "--json").out)


def of(state: Any, field: str) -> dict[str, Any]:
    return {name: source[field] for name, source in state["sources"].items()}


def test_a_view_is_behind_until_a_cut_holds_everything_wherever_it_waits(
    install: Install, new_database: MakeDatabase
) -> None:
    database = new_database(*ORDERS, name="shop")
    world = install({"crm": CUSTOMERS}, {"named": VIEW}, databases={"shop": database})
    world.done("init")
    world.write("shop", "INSERT INTO orders VALUES (2, 1)")
    world.write("crm", "UPDATE customers SET name = 'Ada Lovelace'")
    nobody = status(world)
    assert of(nobody, "capture_running") == {"shop": False, "crm": False}
    assert nobody["sources"]["crm"]["uncaptured"] == 1 and nobody["sources"]["shop"]["uncaptured_bytes"] > 0
    assert nobody["views"]["named"]["behind"] is None and nobody["views"]["named"]["behind_at_least"] == 1
    told = world.done("status").out
    assert "source crm is not being captured: 1 change to send" in told and "≥ 1" in told

    with world.capturing():
        eventually(lambda: status(world)["views"]["named"]["behind"] == 2, PATIENCE, "the topics hold both")
        sent = status(world)
        assert of(sent, "capture_running") == {"shop": True, "crm": True}
        assert of(sent, "updates_behind") == of(sent, "messages_behind") == {"shop": 1, "crm": 1}
        assert of(sent, "uncaptured") == {"shop": 0, "crm": 0}
        world.done("run", "--until-idle")
        world.write("shop", "INSERT INTO other VALUES (1)")
        world.write("shop", "SELECT pg_logical_emit_message(true, 'viewkeeper', 'nobody waits for it')")
        idle = status(world)
        assert of(idle, "updates_behind") == of(idle, "messages_behind") == of(idle, "uncaptured_bytes")
        assert of(idle, "uncaptured_bytes") == {"shop": 0, "crm": 0}
        assert (idle["views"]["named"]["behind"], idle["views"]["named"]["exact"]) == (0, True)
    assert of(status(world), "capture_running") == {"shop": False, "crm": False}
