"""The configuration of a warehouse that lives: views come, change and go, the others undisturbed."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Install
from tests.e2e.harness import Writers
from tests.e2e.oracle import Oracle
from tests.e2e.shop import TABLES, VIEWS, WRITES

pytestmark = pytest.mark.e2e

FIRST = ("same_customer", "cities")  # uses one table of the shop, and the crm


def test_oracle_views_may_come_change_and_go_while_others_write(install: Install) -> None:
    world = install(TABLES, {name: VIEWS[name] for name in FIRST})
    oracle = Oracle(world)
    world.done("init")
    world.write("stock", "INSERT INTO shelves VALUES ('p1', 'before its capture')")
    oracle.remember("stock", "shelves")
    writes = {source: WRITES[source] for source in ("shop", "crm")}
    with world.capturing(), Writers(world, seed=4, writes=writes, pause=0.2) as writers:
        writers.wait_for(10)

        # Relations that are captured already, and one cut that both views are loaded at.
        world.views["customer_orders"] = (
            "SELECT c.name, o.id FROM shop.orders o JOIN crm.customers c ON c.id = o.customer_id WHERE o.id > 5"
        )
        world.configure()
        world.done("init")
        writers.wait_for(10)
        job = world.start("run")
        world.await_cut(world.cut().cut + 1, job)
        assert job.terminate().code == 0  # whatever batch is just beginning

        changed = world.views["customer_orders"].replace("o.id > 5", "o.id > 8")
        world.views["customer_orders"] = changed
        world.configure()
        for command in ("init", "run"):
            refused = world.run(command)
            assert refused.code == 2
            assert "views.customer_orders.sql" in refused.errors[-1]
            assert "--reload customer_orders" in refused.errors[-1]
        world.done("init", "--reload", "customer_orders")
        writers.wait_for(10)

        # A view that leaves.
        del world.views["cities"]
        world.configure()
    with world.capturing():
        world.done("run", "--until-idle")
    assert "cities" not in world.cut().versions
    assert (world.folder / "warehouse" / "views" / "cities").is_dir()
    assert world.run("read", "cities").code == 2
    assert oracle.check() > 20
    oracle.check_ends_at_sources()


def test_oracle_a_view_over_a_relation_captured_only_now_starts_where_the_others_stand(install: Install) -> None:
    """``picking`` brings a table of a captured database and a database that no view used before."""
    world = install(TABLES, {name: VIEWS[name] for name in FIRST})
    oracle = Oracle(world)
    world.done("init")
    with world.capturing(), Writers(world, seed=5, writes={"crm": WRITES["crm"]}, pause=0.1) as writers:
        writers.wait_for(10)
        world.write("shop", "INSERT INTO lines VALUES (77, 1, 'p1', 9)", "DELETE FROM orders WHERE id = 3")
        oracle.remember("shop", "lines")
        world.views["picking"] = VIEWS["picking"]
        world.configure()
        world.done("init")
        # The capture that runs already sends the new table of its database, too.
        with Writers(world, seed=6, writes={"shop": WRITES["shop"]}, pause=0.1) as others:
            others.wait_for(10)
    with world.capturing(), Writers(world, seed=7, writes=WRITES, pause=0.1) as writers:
        writers.wait_for(30)
    world.deliver()
    world.done("run", "--until-idle")
    assert oracle.check() > 20
    oracle.check_ends_at_sources()
    world.done("verify")


def test_a_load_of_everything_leaves_no_older_number_that_shows_newer_values(install: Install) -> None:
    """A column and its values come in one transaction, and the only view is made to use it: update 0 was before."""
    world = install(
        {"shop": ["CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)"]}, {"v": "SELECT t.id, t.a FROM shop.t t"}
    )
    world.write("shop", "INSERT INTO t VALUES (1, 'x')")
    world.done("init")
    assert "x" in world.done("read", "v", "--update", "0").out
    world.write("shop", "ALTER TABLE t ADD COLUMN b TEXT", "UPDATE t SET a = 'y', b = 'z'")
    world.views["v"] = "SELECT t.id, t.a, t.b FROM shop.t t"
    world.configure()
    world.done("init", "--reload", "v")
    refused = world.run("read", "v", "--update", "0")
    assert refused.code == 2 and not refused.out
    assert (
        "views.v: all was loaded again after update 0, from sources that may have gone on; read" in refused.errors[-1]
    )
    assert "z" in world.done("read", "v").out
    world.write("shop", "UPDATE t SET b = 'later'")
    with world.capturing():
        world.done("run", "--until-idle")
    assert "later" in world.done("read", "v", "--update", "1").out
    assert world.run("read", "v", "--update", "0").code == 2
