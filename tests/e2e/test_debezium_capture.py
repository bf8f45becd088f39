"""Capture of PostgreSQL by real Debezium: transactions arrive framed and whole; no password is shown."""

from __future__ import annotations

import json
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SharedBroker, eventually
from tests.e2e.conftest import Install, MakeDatabase
from tests.e2e.debezium_shop import BOTH, TABLES, Shop, connect_of, make_shop, rows, transactions
from tests.e2e.harness import PATIENCE
from tests.e2e.postgres import VERSIONS, Captured, Database, Debezium, Servers, contents
from tests.e2e.sockets import family, listening, reachable
from viewkeeper.capture.connect import Connect, Program, Supervised
from viewkeeper.capture.debezium_connector import Connector
from viewkeeper.local.jars import jar_folder, java
from viewkeeper.local.postgres import PostgresServer

pytestmark = pytest.mark.e2e

SECRET = "s3cr3t-%41:/é"


@pytest.fixture
def shop(install: Install, new_database: MakeDatabase) -> Shop:
    return make_shop(install, new_database(*TABLES, name="shop"))


# ---- what arrives


def test_capture_sends_whole_transactions_of_several_tables_into_the_one_topic(shop: Shop) -> None:
    with shop.world.capturing() as capture:
        assert f"shop: created slot {shop.db.slot}" in capture.out.read_text()
        eventually(lambda: listening(family(capture.process.pid)), PATIENCE, "Connect's API is up")
        assert reachable(family(capture.process.pid)) == set(), "it is for this machine alone"
        shop.db.execute("INSERT INTO orders VALUES (1, 7, 'ä')", 'INSERT INTO "Order, Lines" VALUES (1, 1), (2, 1)')
        shop.db.execute("INSERT INTO other (text) VALUES ('not captured')")
        shop.db.execute("SELECT pg_logical_emit_message(true, 'foreign', 'not captured')")
        shop.db.execute("SELECT pg_logical_emit_message(true, 'viewkeeper', 'token')")
        shop.world.write("crm", "INSERT INTO customers VALUES (7, 'Ada')")
        eventually(lambda: len(shop.done()) == 3, PATIENCE, "three transactions")
        eventually(lambda: shop.world.messages("crm"), PATIENCE, "the SQLite source beside it")
    first, foreign, second = shop.done().values()
    assert foreign == [], "another program's message leaves an empty frame"
    told = [(event["op"], event["source"]["table"], event["after"]["id"]) for event in first]
    assert told == [("c", "orders", 1), ("c", "Order, Lines", 1), ("c", "Order, Lines", 2)]
    assert [event["message"]["prefix"] for event in second] == ["viewkeeper"]
    assert [m.get("status") for m in shop.messages()] == [
        "BEGIN",
        None,
        None,
        None,
        "END",
        "BEGIN",
        "END",
        "BEGIN",
        None,
        "END",
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_changes_made_before_debezium_ever_ran_arrive(
    new_database: MakeDatabase, broker: SharedBroker, tmp_path: Path, version: int
) -> None:
    source = Captured("shop", new_database(*TABLES, version=version), broker.new_topic("shop"), BOTH)
    source.capture(tmp_path).install(BOTH)
    source.database.execute("INSERT INTO orders VALUES (1)")
    source.database.execute("DELETE FROM orders")
    running = Debezium(tmp_path, broker, source).start()
    try:
        eventually(lambda: len(transactions(contents(broker, source.topic))) == 2, PATIENCE, "both transactions")
    finally:
        running.stop()


def test_a_source_that_is_away_is_told_and_holds_up_no_other(
    install: Install, new_database: MakeDatabase, postgres: Servers
) -> None:
    server = postgres.own()
    server.execute("CREATE DATABASE away")
    shop = make_shop(install, Database(server, "away"))
    shop.db.execute(*TABLES)
    with shop.world.capturing() as capture:
        shop.db.execute("INSERT INTO orders VALUES (1)")
        eventually(lambda: len(shop.done()) == 1, PATIENCE, "the first transaction")
        server.kill()
        eventually(lambda: "source shop: " in capture.err.read_text(), PATIENCE, "the failure is told")
        shop.world.write("crm", "INSERT INTO customers VALUES (7, 'Ada')")
        eventually(lambda: shop.world.messages("crm"), PATIENCE, "the SQLite source goes on")
        server.start()
        shop.db.execute("INSERT INTO orders VALUES (2)")
        eventually(lambda: rows(shop.done()) == [1, 2], PATIENCE, "the second transaction")
        eventually(lambda: "source shop: going on" in capture.err.read_text(), PATIENCE, "that is told, too")
    lines = capture.err.read_text().splitlines()
    assert len(lines) < 12 and not any("Exception" in line or "\tat " in line for line in lines), lines


def test_a_source_that_is_away_at_the_start_is_captured_once_it_comes(install: Install, postgres: Servers) -> None:
    server = postgres.own()
    server.execute("CREATE DATABASE away")
    shop = make_shop(install, Database(server, "away"))
    shop.db.execute(*TABLES)
    server.kill()
    shop.world.views["names"] = "SELECT name FROM crm.customers"
    shop.world.configure()
    with shop.world.capturing() as capture:
        assert "capturing crm;" in capture.out.read_text()
        shop.world.write("crm", "INSERT INTO customers VALUES (7, 'Ada')")
        eventually(lambda: shop.world.messages("crm"), PATIENCE, "the SQLite source is captured")
        eventually(lambda: "source shop: " in capture.err.read_text(), PATIENCE, "that is told")
        server.start()
        eventually(lambda: "capturing shop;" in capture.out.read_text(), PATIENCE, "it is captured")
        shop.db.execute("INSERT INTO orders VALUES (1)")
        eventually(lambda: rows(shop.done()) == [1], PATIENCE, "the transaction")


# ---- a Kafka Connect of one's own


def test_what_print_prints_runs_in_another_kafka_connect(shop: Shop, tmp_path: Path) -> None:
    shop.world.done("capture", "--remove")
    printed = shop.world.done("capture", "--print")
    assert "before a connector is started again, after a failure too, delete its offsets" in printed.err
    made = [json.loads(printed.out)]
    assert made[0]["name"] == f"viewkeeper-{shop.topic}"
    assert shop.db.execute("SELECT count(*) FROM pg_publication") == [(0,)], "it changes nothing"
    capture = Captured("shop", shop.db, shop.topic, BOTH).capture(tmp_path)
    capture.install(BOTH)
    shop.world.broker.create(shop.topic)
    supervised = [Supervised("shop", Connector(m["name"], m["config"])) for m in made]
    connect = Connect(
        tmp_path / "own",
        Program(java(), jar_folder("connect")),
        {"bootstrap.servers": shop.world.broker.bootstrap},
        supervised,
    )
    stop = threading.Event()
    running = threading.Thread(target=connect.run, args=(stop,))
    running.start()
    try:
        shop.db.execute("INSERT INTO orders VALUES (1)")
        eventually(lambda: rows(shop.done()) == [1], PATIENCE, "the transaction")
    finally:
        stop.set()
        running.join(60)


def test_print_refuses_a_source_that_needs_no_connector(shop: Shop) -> None:
    ended = shop.world.run("capture", "--print", "crm")
    assert ended.code == 2
    assert "crm needs no connector" in ended.errors[-1]


# ---- passwords


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server that asks for a password."""
    with PostgresServer(tmp_path_factory.mktemp("guarded"), password=SECRET) as server:
        yield server


def test_a_password_is_in_no_file_that_others_can_read_and_in_no_output(
    guarded: PostgresServer, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded.execute("CREATE DATABASE guarded")
    made = Database(guarded, "guarded")
    made.execute(*TABLES)
    shop = make_shop(
        install, made, url=made.url.replace(":s3cr3t", ":${SHOP_SECRET}").replace("-%2541%3A%2F%C3%A9", "")
    )
    monkeypatch.setenv("SHOP_SECRET", "s3cr3t-%2541%3A%2F%C3%A9")
    with shop.world.capturing() as capture:
        shop.db.execute("INSERT INTO orders VALUES (1)")
        eventually(lambda: rows(shop.done()) == [1], PATIENCE, "the transaction")
        command = Path(f"/proc/{connect_of(capture)}/cmdline").read_bytes()
    shop.world.done("check")
    shop.world.done("capture", "--print")
    assert b"s3cr3t" not in command
    folder = shop.world.folder / "warehouse" / "connect"
    for file in [folder, *folder.rglob("*")]:
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, f"{file} can be read by others"
    found = subprocess.run(["grep", "-rl", "s3cr3t", str(shop.world.folder)], capture_output=True, text=True)
    assert found.stdout == ""


@pytest.mark.parametrize(
    ("written", "value", "printed", "told"),
    [
        ("${SHOP_SECRET}", "s3cr3t", "${env:SHOP_SECRET}", "environment variable SHOP_SECRET"),
        ("${SHOP_SECRET}", "s3cr3t%21", "<password>", "write the password in place of <password>"),
        ("s3cr3t", "", "<password>", "write the password in place of <password>"),
    ],
)
def test_print_refers_to_a_password_without_showing_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, written: str, value: str, printed: str, told: str
) -> None:
    sources = shop.world.settings["sources"]
    url = shop.db.url.replace("postgres@", f"postgres:{written}@")
    shop.world.configure(sources={**sources, "shop": {**sources["shop"], "url": url}})
    monkeypatch.setenv("SHOP_SECRET", value)
    ended = shop.world.done("capture", "--print", "shop")
    assert json.loads(ended.out)["config"]["database.password"] == printed
    assert told in ended.err
    assert "s3cr3t" not in ended.out + ended.err


def test_a_wrong_password_is_one_sentence(guarded: PostgresServer, install: Install) -> None:
    shop = make_shop(install, Database(guarded, "guarded"), url=guarded.url("guarded", password="wr0ng"))
    for command in (["check"], ["capture", "shop"]):
        ended = shop.world.run(*command)
        assert ended.code == 3
        assert "password authentication failed" in ended.errors[-1]
        assert "wr0ng" not in ended.out + ended.err


# ---- check


def test_check_tells_each_source_in_a_line_a_finding(shop: Shop) -> None:
    lines = shop.world.done("check").out.splitlines()
    about = [line for line in lines if "source shop: " in line]
    assert any("a primary with wal_level logical" in line for line in about)
    assert any(f"publication {shop.db.slot} is not there yet: init does it" in line for line in about)
    assert any(line.startswith("warning") and "max_slot_wal_keep_size" in line for line in about)
    assert shop.db.execute("SELECT count(*) FROM pg_publication") == [(0,)]
    shop.db.execute("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
    ended = shop.world.run("check")
    assert ended.code in (2, 3)
    assert any("REPLICA IDENTITY FULL" in line for line in ended.errors)
