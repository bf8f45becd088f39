"""A project in a folder whose name is full of what paths, patterns and addresses take for something else."""

from __future__ import annotations

import json

import pytest

from tests.conftest import ODD_FOLDER
from tests.e2e.conftest import Install, MakeDatabase

pytestmark = pytest.mark.e2e

CUSTOMERS = {"crm": ["CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)"]}
SOLD = {"sold": "SELECT o.id, c.name FROM shop.orders o JOIN crm.customers c ON c.id = o.customer"}


def test_every_command_works_in_a_folder_of_any_name(install: Install, new_database: MakeDatabase) -> None:
    shop = new_database(
        "CREATE TABLE orders (id int PRIMARY KEY, customer int)",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
        name="shop",
    )
    world = install(CUSTOMERS, SOLD, {"shop": shop}, within=ODD_FOLDER)
    assert ODD_FOLDER in str(world.conf)
    world.done("check")
    world.done("init")
    with world.capturing():
        world.write("crm", "INSERT INTO customers VALUES (1, 'Ann')")
        world.write("shop", "INSERT INTO orders VALUES (7, 1)")
        world.done("run", "--until-idle")
        world.write("crm", "UPDATE customers SET name = 'Anna' WHERE id = 1")
        world.done("run", "--until-idle")
        assert "equal to recomputation" in world.done("verify").out
        world.done("verify", "--level", "complete")
    assert json.loads(world.done("read", "sold", "--format", "json").out) == [{"id": 7, "name": "Anna", "_count": 1}]
    world.done("status")
    world.done("explain", "sold")
    world.done("vacuum", "--keep", "1ms")
    assert (world.folder / "warehouse" / "logs" / "spark.log").exists()
    assert [folder.name for folder in world.folder.parent.iterdir()] == [world.folder.name]
