"""Databases that are not what they were: another history, another slot, another server. Noticed, named, never wrong."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SharedBroker, eventually
from tests.e2e.conftest import MakeDatabase
from tests.e2e.pg_world import World, Worlds
from tests.e2e.postgres import Database, Debezium, Servers
from viewkeeper import cli
from viewkeeper.errors import SourceError, ViewError
from viewkeeper.local.postgres import PostgresServer

pytestmark = pytest.mark.e2e

SHOP = (
    "CREATE TABLE orders (id int PRIMARY KEY, customer_id int, total int)",
    "CREATE TABLE customers (id int PRIMARY KEY, name text)",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    "ALTER TABLE customers REPLICA IDENTITY FULL",
    "CREATE INDEX ON orders (customer_id)",
    "INSERT INTO orders SELECT i, i % 3, i FROM generate_series(1, 6) i",
    "INSERT INTO customers SELECT i, 'c' || i FROM generate_series(0, 3) i",
)
VIEWS = {"bought": "SELECT o.id, c.name, o.total FROM shop.orders o JOIN shop.customers c ON o.customer_id = c.id"}
RELOAD = r"run `viewkeeper init --reload`"


@pytest.fixture
def worlds(
    tmp_path: Path, broker: SharedBroker, shared_debezium: Debezium, postgres: Servers, new_database: MakeDatabase
) -> Iterator[Worlds]:
    """Made before the databases that their worlds use are gone."""
    made = Worlds(tmp_path, broker, shared_debezium)
    yield made
    made.end()


def running(worlds: Worlds, made: Database) -> World:
    """A world with a cut behind its load."""
    world = worlds({"shop": made}, VIEWS)
    world.open()
    change(world)
    return world


def change(world: World) -> None:
    """Some updates, handled and right."""
    world.write("shop", "UPDATE orders SET total = total + 1 WHERE id < 4", "INSERT INTO customers VALUES (9, 'n')")
    world.write("shop", "UPDATE customers SET name = name || 'x' WHERE id = 1", "DELETE FROM customers WHERE id = 9")
    world.batch()
    world.check()


def refused(world: World, found: str) -> None:
    """The job says it, both while it runs and when it starts, and writes nothing."""
    cut = world.cut

    def look_twice() -> None:  # the first time, it may only find that its connection was cut
        world.job._look_at_sources()
        world.job._look_at_sources()

    for look in (look_twice, world.open):
        with pytest.raises(SourceError, match=rf"source shop: .*{found}") as error:
            look()
        assert error.value.exit_code == 3
    assert world.keeper.warehouse.newest() == cut


def loaded_again(worlds: Worlds, world: World) -> None:
    """What the message tells to do helps."""
    worlds.stop_capture(world)
    world.open(*VIEWS)
    worlds.capture(world)
    change(world)


def drop_slot(made: Database) -> None:
    eventually(
        lambda: made.execute(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{made.slot}'") == [(False,)],
        30,
        "nobody reads the slot",
    )
    made.execute(f"SELECT pg_drop_replication_slot('{made.slot}')")


# ---- slots


def test_a_slot_that_is_gone_is_noticed_and_made_anew_by_a_reload(worlds: Worlds, new_database: MakeDatabase) -> None:
    made = new_database(*SHOP)
    world = running(worlds, made)
    worlds.stop_capture(world)
    drop_slot(made)
    world.write("shop", "DELETE FROM orders WHERE id = 1")
    refused(world, rf"slot {made.slot} is gone.*; {RELOAD}")
    with pytest.raises(SourceError, match="is gone"):
        worlds.capture(world)
    loaded_again(worlds, world)


def test_debezium_in_a_users_own_connect_does_not_make_a_lost_slot_anew(
    worlds: Worlds, new_database: MakeDatabase, shared_debezium: Debezium
) -> None:
    made = new_database(*SHOP)
    world = worlds({"shop": made}, VIEWS, guarded=False)
    world.open()
    change(world)
    slots = f"FROM pg_replication_slots WHERE slot_name = '{made.slot}'"
    made.execute(
        f"SELECT pg_terminate_backend(active_pid, 5000) {slots}", f"SELECT pg_drop_replication_slot('{made.slot}')"
    )
    world.write("shop", "DELETE FROM orders WHERE id = 1")
    log, said = shared_debezium.connect.log, f"0 replication slots are named {made.slot}: it is gone"
    eventually(lambda: said in log.read_text(errors="replace"), 90, "Debezium says it")
    assert made.execute(f"SELECT 1 {slots}") == []
    refused(world, f"slot {made.slot} is gone")


def test_a_slot_that_was_made_anew_is_noticed_before_a_change_behind_the_gap_is_sent(
    worlds: Worlds, new_database: MakeDatabase
) -> None:
    made = new_database(*SHOP)
    world = running(worlds, made)
    worlds.stop_capture(world)
    drop_slot(made)
    world.write("shop", "DELETE FROM orders WHERE id = 1")  # in no topic, ever
    made.execute(f"SELECT pg_create_logical_replication_slot('{made.slot}', 'pgoutput')")
    world.write("shop", "DELETE FROM orders WHERE id = 2")
    with pytest.raises(SourceError, match=rf"slot {made.slot} was made anew, so changes may be missing; {RELOAD}"):
        worlds.capture(world)
    with pytest.raises(SourceError, match="was made anew"):
        world.open()
    loaded_again(worlds, world)


def test_a_slot_whose_log_was_thrown_away_is_noticed(postgres: Servers, worlds: Worlds) -> None:
    small = postgres.own(max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB")
    made = Database(small, "postgres")
    made.execute(*SHOP)
    world = running(worlds, made)
    worlds.stop_capture(world)
    for _ in range(6):
        small.execute("SELECT pg_logical_emit_message(false, 'x', 'y')", "SELECT pg_switch_wal()", "CHECKPOINT")
    refused(world, "(invalidated|has thrown away the log that slot)")
    loaded_again(worlds, world)


# ---- tables


def test_a_table_that_was_dropped_or_made_anew_is_noticed(worlds: Worlds, new_database: MakeDatabase) -> None:
    world = running(worlds, new_database(*SHOP))
    cut = world.cut
    world.write("shop", "UPDATE orders SET total = 0 WHERE id = 1", "UPDATE orders SET total = 0 WHERE id = 2")
    messages = world.unread()
    world.write("shop", "DROP TABLE customers")
    for work in (world.job._look_at_sources, lambda: world.keeper.maintain(messages)):
        with pytest.raises(SourceError, match="table customers was dropped or renamed; put it back, and run"):
            work()
    with pytest.raises(ViewError, match="source shop has no relation customers"):
        world.open()
    world.write("shop", "CREATE TABLE customers (id int PRIMARY KEY, name text)", SHOP[3], SHOP[6])
    refused(world, "(table customers was dropped and made anew|customers was not in publication)")
    assert world.keeper.warehouse.newest() == cut
    loaded_again(worlds, world)


# ---- histories


def test_an_older_copy_of_the_database_is_noticed(postgres: Servers, worlds: Worlds, tmp_path: Path) -> None:
    server = postgres.own()
    made = Database(server, "postgres")
    made.execute(*SHOP)
    world = running(worlds, made)
    worlds.stop_capture(world)
    server.stop()
    copy = tmp_path / "copy"
    shutil.copytree(server.data, copy, symlinks=True)
    server.start()
    worlds.capture(world)
    for _ in range(3):
        change(world)
    world.job._look_at_sources()
    worlds.stop_capture(world)
    restore(server, copy)
    refused(world, "(is it an older copy|it was restored from a backup)")
    for _ in range(3):
        world.write("shop", "UPDATE orders SET total = 0")
    made.execute("INSERT INTO customers SELECT i, repeat('x', 100) FROM generate_series(100, 2000) i")
    refused(world, "it was restored from a backup")  # although its log is longer than it was
    loaded_again(worlds, world)


def restore(server: PostgresServer, copy: Path) -> None:
    """Puts a copy of its data back in place of what a server has now."""
    server.stop()
    owner = server.data.stat()
    shutil.rmtree(server.data)
    shutil.copytree(copy, server.data, symlinks=True)
    for path in [server.data, *server.data.rglob("*")]:
        shutil.chown(path, owner.st_uid, owner.st_gid)
    server.start()


def test_a_promoted_standby_is_another_history_and_a_standby_is_refused(
    postgres: Servers, worlds: Worlds, capsys: pytest.CaptureFixture[str]
) -> None:
    primary = postgres.own()
    made = Database(primary, "postgres")
    made.execute(*SHOP)
    world = running(worlds, made)
    with postgres.standby(primary) as standby:
        eventually(lambda: standby.execute("SELECT pg_is_in_recovery()") == [(True,)], 60, "the standby is one")
        worlds.stop_capture(world)
        world.databases["shop"] = Database(standby, "postgres", [made.slot])
        for command in ("check", "init", "run"):
            world.close()
            world.configure()
            assert cli.main([command, str(world.conf)]) == 3
            assert "the server is a standby" in capsys.readouterr().err
        standby.execute("SELECT pg_promote()")
        with pytest.raises(SourceError, match=r"source shop: .*(it was restored or promoted|is gone)"):
            world.open()
        world.databases["shop"].execute(f"SELECT pg_create_logical_replication_slot('{made.slot}', 'pgoutput')")
        with pytest.raises(SourceError, match=rf"it was restored or promoted; {RELOAD}"):
            world.open()
        world.open(*VIEWS)
        worlds.capture(world)
        change(world)
        worlds.stop_capture(world)
        world.close()


def test_another_database_under_the_same_url_is_noticed(postgres: Servers, worlds: Worlds) -> None:
    server = postgres.own()
    server.execute("CREATE DATABASE shop")
    made = Database(server, "shop")
    made.execute(*SHOP)
    world = running(worlds, made)
    worlds.stop_capture(world)
    drop_slot(made)
    world.source("shop").close()
    server.execute("DROP DATABASE shop WITH (FORCE)", "CREATE DATABASE shop")
    made.execute(*SHOP)
    made.execute(f"CREATE PUBLICATION {made.slot} FOR TABLE orders, customers")
    made.execute(f"SELECT pg_create_logical_replication_slot('{made.slot}', 'pgoutput')")
    refused(world, "(another database than the one|as it is now all the time)")
    loaded_again(worlds, world)
