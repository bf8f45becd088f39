"""Sources whose log does not tell everything since the newest cut: refused with a remedy, and the remedy helps."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import orjson
import pyarrow as pa
import pytest

from tests.conftest import unique
from tests.e2e.conftest import Install
from tests.e2e.harness import Installation
from viewkeeper.capture import sqlite_triggers
from viewkeeper.config import load_config
from viewkeeper.config_groups import ALL
from viewkeeper.errors import BadMessage, SourceError, UsageError
from viewkeeper.job.assembly import assemble
from viewkeeper.job.keeper import Keeper
from viewkeeper.job.opening import Opening
from viewkeeper.queue.consumer import MESSAGES
from viewkeeper.warehouse.warehouse import Warehouse

pytestmark = pytest.mark.e2e

SHOP = [
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, total DECIMAL(8,2))",
    "CREATE TABLE returns (id INTEGER PRIMARY KEY)",
    "INSERT INTO orders VALUES (1, 1, 5), (2, 1, 6)",
    "INSERT INTO returns VALUES (1)",
]
CRM = ["CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)", "INSERT INTO customers VALUES (1, 'Ann')"]
ORDERS = "SELECT id FROM shop.orders"
RETURNS = "SELECT id FROM shop.returns"
JOINED = "SELECT o.id, o.total, c.name FROM shop.orders o JOIN crm.customers c ON c.id = o.customer"


@contextmanager
def opened(world: Installation, reload: Sequence[str] = ()) -> Iterator[Keeper]:
    """The job of a group up to its stream."""
    project = assemble(load_config(world.conf)).part(ALL)
    warehouse = Warehouse(project.config.warehouse)
    with warehouse.lock():
        yield Opening(project, warehouse, reload).open()


def open_and_close(world: Installation, *reload: str) -> None:
    with opened(world, reload):
        pass


def install_capture(world: Installation) -> None:
    """What ``viewkeeper capture`` does first."""
    project = assemble(load_config(world.conf))
    for name, capture in project.captures.items():
        capture.install(project.used(name))


def maintain_all(world: Installation) -> None:
    """The job without its stream: all that the topics hold, in one batch."""
    with opened(world) as keeper:
        rows = [
            {"topic": topic, "offset": m.offset(), "value": m.value(), "timestamp": m.timestamp()[1]}
            for topic in keeper.queue.inlets
            for m in world.broker.messages(topic)
        ]
        keeper.maintain(pa.Table.from_pylist(rows, MESSAGES))


def read(world: Installation, view: str) -> list[int]:
    return sorted(world.reader().read(view).read_all()["id"].to_pylist())


# ---- a relation that was not captured for a while


@pytest.fixture
def shop(install: Install) -> Installation:
    world = install({"shop": SHOP}, {"sold": ORDERS, "returned": RETURNS})
    open_and_close(world)
    return world


def test_a_view_whose_relation_was_not_captured_for_a_while_is_refused_until_it_is_loaded(shop: Installation) -> None:
    del shop.views["returned"]
    shop.configure()
    install_capture(shop)  # takes the triggers off, but cannot write a cut
    shop.write("shop", "INSERT INTO returns VALUES (2)")
    shop.views["returned"] = RETURNS
    shop.configure()
    for _ in range(2):
        with pytest.raises(UsageError) as refused:
            open_and_close(shop)
        (problem,) = refused.value.problems
        assert problem.place.endswith("views.returned")
        assert "shop.returns was not captured" in problem.what
        assert problem.remedy.endswith(f"'viewkeeper init {shop.conf} --reload returned'")

    open_and_close(shop, "returned")
    assert read(shop, "returned") == [1, 2]
    cut = shop.cut()
    open_and_close(shop)
    assert shop.cut() == cut, "there is nothing more to do"
    shop.write("shop", "INSERT INTO returns VALUES (3)")
    shop.deliver()
    maintain_all(shop)
    assert read(shop, "returned") == [1, 2, 3]


def test_a_view_that_leaves_the_configuration_leaves_the_cut_and_is_loaded_when_it_comes_back(
    shop: Installation,
) -> None:
    del shop.views["returned"]
    shop.configure()
    open_and_close(shop)
    assert set(shop.cut().versions) == {"sold"}
    shop.write("shop", "INSERT INTO returns VALUES (2)")
    shop.views["returned"] = RETURNS
    shop.configure()
    open_and_close(shop)
    assert read(shop, "returned") == [1, 2]
    open_and_close(shop)


def test_a_source_that_no_view_uses_any_more_leaves_the_cut_with_its_views(install: Install) -> None:
    world = install({"shop": SHOP, "crm": CRM}, {"sold": ORDERS, "names": "SELECT id, name FROM crm.customers"})
    open_and_close(world)
    del world.views["names"]
    world.configure()
    open_and_close(world)
    assert set(world.cut().positions) == set(world.cut().offsets) == {"shop"}
    world.views["names"] = "SELECT id, name FROM crm.customers"
    world.configure()
    open_and_close(world)
    assert read(world, "names") == [1]


def test_views_that_lost_the_same_relation_are_loaded_again_together(shop: Installation) -> None:
    shop.views["twice"] = "SELECT a.id FROM shop.returns a JOIN shop.returns b ON a.id = b.id"
    shop.configure()
    open_and_close(shop)
    shop.write("shop", "DROP TRIGGER _viewkeeper_2_after_insert", "INSERT INTO returns VALUES (2)")
    with pytest.raises(SourceError, match="lost its capture triggers"):
        open_and_close(shop)
    with pytest.raises(UsageError, match="--reload returned twice'"):
        open_and_close(shop, "returned")
    open_and_close(shop, "returned", "twice")
    assert read(shop, "returned") == read(shop, "twice") == [1, 2]
    open_and_close(shop)


# ---- a log that is not the one of before


@pytest.mark.parametrize("written", [1, 100])
def test_a_log_removed_and_made_anew_is_refused_until_the_views_are_loaded(shop: Installation, written: int) -> None:
    shop.write("shop", "INSERT INTO orders (id) VALUES (3)")
    shop.deliver()
    maintain_all(shop)
    assemble(load_config(shop.conf)).captures["shop"].remove()
    shop.write("shop", "INSERT INTO orders (id) VALUES (4)")
    sqlite_triggers.install("shop", str(shop.database("shop")), {"orders": ["id"], "returns": ["id"]})
    shop.write("shop", *(f"INSERT INTO orders (id) VALUES ({i})" for i in range(5, 5 + written)))
    for reload in ((), ("sold",)):
        with pytest.raises(SourceError, match=r"its change log was removed and made anew.*init --reload"):
            open_and_close(shop, *reload)
    assert "removed and made anew" in shop.run("capture", "shop").err

    open_and_close(shop, *shop.views)
    assert read(shop, "sold") == list(range(1, 5 + written))
    shop.write("shop", "DELETE FROM orders WHERE id = 1")
    shop.deliver()
    maintain_all(shop)
    assert read(shop, "sold") == list(range(2, 5 + written))


def test_a_database_made_anew_stays_as_it_is_until_every_view_is_loaded_from_it(shop: Installation) -> None:
    shop.write("shop", "INSERT INTO orders (id) VALUES (3)")
    shop.deliver()
    maintain_all(shop)
    shop.database("shop").unlink()
    shop.write("shop", *SHOP)
    for number in range(4, 6):  # soon as many changes as were delivered, had they been logged
        refused = [shop.run("capture", "shop"), shop.run("init"), shop.run("init", "--reload", "sold")]
        refused.append(shop.run("verify"))
        assert [result.code for result in refused] == [3] * 4
        assert all("is it another database" in result.err for result in refused)
        shop.write("shop", f"INSERT INTO orders (id) VALUES ({number})")
    (source,) = orjson.loads(shop.run("status", "--json").out)["sources"].values()
    assert "is it another database" in source["last_change"]
    with shop.connect("shop") as db:
        found = db.execute("SELECT count(*) FROM sqlite_schema WHERE name LIKE '%viewkeeper%'").fetchone()
    db.close()
    assert found == (0,)

    assert shop.run("init", "--reload").code == 0
    assert read(shop, "sold") == [1, 2, 4, 5]
    shop.write("shop", "DELETE FROM orders WHERE id = 1")
    shop.deliver()
    maintain_all(shop)
    assert read(shop, "sold") == [2, 4, 5]


def test_an_older_copy_is_refused_until_every_view_is_loaded_and_capture_then_goes_on(shop: Installation) -> None:
    database, copy = shop.database("shop"), shop.folder / "copy.db"
    shutil.copy(database, copy)
    shop.write("shop", "INSERT INTO orders (id) VALUES (3)", "INSERT INTO orders (id) VALUES (4)")
    shop.deliver()
    maintain_all(shop)
    shutil.copy(copy, database)
    with pytest.raises(SourceError, match=r"older copy.*init --reload"):
        open_and_close(shop)
    assert "older copy" in shop.run("capture", "shop").err

    open_and_close(shop, *shop.views)
    assert read(shop, "sold") == [1, 2]
    shop.write("shop", "INSERT INTO orders (id) VALUES (7)")
    shop.deliver()
    maintain_all(shop)
    assert read(shop, "sold") == [1, 2, 7]


# ---- a value that does not fit


def test_everything_before_a_misfit_is_committed_and_the_error_names_its_message(install: Install) -> None:
    world = install({"shop": SHOP, "crm": CRM}, {"joined": JOINED})
    open_and_close(world)
    world.write("crm", "INSERT INTO customers VALUES (2, 'Bob')")
    world.deliver()
    world.write("shop", "INSERT INTO orders VALUES (3, 2, 'dear')")
    world.deliver()
    for _ in range(2):
        with pytest.raises(BadMessage, match=r"offset 0: orders\.total: .*dear.* is no decimal"):
            maintain_all(world)
        assert world.cut().last_update == 1
    world.write("shop", "UPDATE orders SET total = 9 WHERE id = 3")
    open_and_close(world, "joined")
    assert read(world, "joined") == [1, 2, 3]


def test_quarantine_goes_on_past_a_misfit_that_stays_in_its_table(install: Install) -> None:
    shop = unique("shop").replace("-", "_")  # its name is that of the topic <source>.rejected
    sql = JOINED.replace("shop.", f"{shop}.")
    world = install({shop: SHOP, "crm": CRM}, {"joined": sql}, bad_messages="quarantine")
    open_and_close(world)
    for source, statement in (
        (shop, "INSERT INTO orders VALUES (3, 1, 'dear')"),
        (shop, "INSERT INTO orders VALUES (4, 1, 7)"),
        ("crm", "UPDATE customers SET name = 'Eve'"),  # asks for the orders of customer 1, the misfit among them
        ("crm", "UPDATE customers SET name = 'Zoe'"),
    ):
        world.write(source, statement)
        world.deliver()
        maintain_all(world)
    assert read(world, "joined") == [1, 2, 4]
    assert "joined" in world.reader().inexact()
    with pytest.raises(SourceError, match=r"orders\.total: 'dear' is no decimal"):
        open_and_close(world, "joined")
    world.write(shop, "UPDATE orders SET total = 9 WHERE id = 3")
    open_and_close(world, "joined")
    assert read(world, "joined") == [1, 2, 3, 4]
    assert "joined" not in world.reader().inexact()
