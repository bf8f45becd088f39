"""Two projects on one SQLite file, each with its own warehouse and topics: both stay exact, whatever the other does."""

from __future__ import annotations

import shutil

import pytest

from tests.e2e.conftest import Install
from tests.e2e.harness import Installation
from tests.e2e.test_lost_history import maintain_all, open_and_close, read
from viewkeeper.config import load_config
from viewkeeper.job.assembly import make_capture, oldest_position

pytestmark = pytest.mark.e2e

SHOP = [
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, total DECIMAL(8,2))",
    "CREATE TABLE returns (id INTEGER PRIMARY KEY)",
    "INSERT INTO orders VALUES (1, 1, 5)",
    "INSERT INTO returns VALUES (1)",
]
ORDERS = "SELECT id, total FROM shop.orders"
RETURNS = "SELECT r.id, o.customer FROM shop.returns r JOIN shop.orders o ON o.id = r.id"


def share(first: Installation, second: Installation) -> None:
    """The second one's database is the first one's."""
    second.database("shop").unlink()
    second.database("shop").symlink_to(first.database("shop"))


def prune(world: Installation) -> None:
    config = load_config(world.conf)
    make_capture(config, "shop").prune(oldest_position(config.warehouse, "shop"))


def test_two_projects_on_one_database_are_both_kept_and_one_can_leave(install: Install) -> None:
    first, second = install({"shop": SHOP}, {"sold": ORDERS}), install({"shop": []}, {"returned": RETURNS})
    share(first, second)
    open_and_close(first)
    open_and_close(second)  # once it retired the triggers on what only the first one uses
    first.write("shop", "INSERT INTO returns VALUES (2)", "INSERT INTO orders VALUES (2, 1, 6), (3, 1, 7)")
    for world in (first, second):
        world.deliver()
        maintain_all(world)
        prune(world)
    assert read(first, "sold") == [1, 2, 3]
    assert read(second, "returned") == [1, 2]

    first.write("shop", "INSERT INTO returns VALUES (3)", "INSERT INTO orders VALUES (4, 1, 8)")
    second.deliver()
    maintain_all(second)
    prune(second)  # the first one has not been told yet
    assert "the change log stays for" in second.done("capture", "--remove").out
    first.deliver()
    maintain_all(first)
    assert read(first, "sold") == [1, 2, 3, 4]
    for world, code in ((first, 0), (second, 3)):
        ended = world.run("verify")
        assert ended.code == code, ended.err
    assert "triggers and change log removed" in first.done("capture", "--remove").out


def test_two_warehouses_of_one_configuration_are_both_kept_by_one_capture(install: Install) -> None:
    first = install({"shop": SHOP}, {"sold": ORDERS})
    second = install({"shop": []}, {"sold": ORDERS})
    share(first, second)
    shutil.copy(first.conf, second.conf)
    open_and_close(first)
    open_and_close(second)
    first.write("shop", "INSERT INTO orders VALUES (2, 1, 6)")
    first.deliver()
    maintain_all(first)
    prune(first)
    maintain_all_of(second, first)
    assert read(first, "sold") == read(second, "sold") == [1, 2]


def maintain_all_of(world: Installation, owner: Installation) -> None:
    """What the topics of another installation hold."""
    world.topics |= owner.topics
    maintain_all(world)
