"""Capture of PostgreSQL by real Debezium: transactions arrive framed and whole, whatever dies; no password is shown."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import stat
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.conftest import SharedBroker, eventually, unique
from tests.e2e.conftest import Install, MakeDatabase
from tests.e2e.harness import PATIENCE, Installation, Running
from tests.e2e.postgres import VERSIONS, Captured, Database, Debezium, Servers, contents
from viewkeeper.capture.connect import Connect, Program, Supervised
from viewkeeper.capture.debezium_connector import Connector
from viewkeeper.local.jars import jar_folder, java
from viewkeeper.local.postgres import PostgresServer

pytestmark = pytest.mark.e2e

TABLES = [
    "CREATE TABLE orders (id int PRIMARY KEY, customer int, note text)",
    'CREATE TABLE "Order, Lines" (id int PRIMARY KEY, order_id int)',
    "CREATE TABLE other (id serial, text text)",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    'ALTER TABLE "Order, Lines" REPLICA IDENTITY FULL',
    'CREATE INDEX ON "Order, Lines" (order_id)',
    "CREATE INDEX ON orders (customer)",
]
BOTH = {"orders": ["id", "customer"], "Order, Lines": ["id", "order_id"]}
CRM = ["CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)"]
VIEWS = {
    "overview": 'SELECT o.id, l.id AS line, c.name FROM shop.orders o JOIN shop."Order, Lines" l ON l.order_id = o.id '
    "JOIN crm.customers c ON c.id = o.customer"
}
SECRET = "s3cr3t-%41:/é"


def transactions(messages: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """What the queue makes of a topic: by the LSN of END, each transaction's events in order, repetitions dropped."""
    open_: dict[str, dict[int, dict[str, Any]]] = {}
    done: dict[int, list[dict[str, Any]]] = {}
    for message in messages:
        if "status" in message:
            xid, _, lsn = message["id"].partition(":")
            if message["status"] == "BEGIN":
                open_[xid] = {}
            elif int(lsn) > max(done, default=0):
                events = open_.pop(xid, {})
                assert sorted(events) == list(range(1, message["event_count"] + 1)), f"transaction {xid} has a hole"
                done[int(lsn)] = [events[n] for n in sorted(events)]
        else:
            xid = message["transaction"]["id"].partition(":")[0]
            open_.setdefault(xid, {})[message["transaction"]["total_order"]] = message
    return done


def rows(done: dict[int, list[dict[str, Any]]]) -> list[int]:
    return [event["after"]["id"] for events in done.values() for event in events if event["op"] == "c"]


@dataclass
class Shop:
    """A PostgreSQL and a SQLite source, a configuration for both, and commands on it."""

    world: Installation
    db: Database

    @property
    def topic(self) -> str:
        return self.world.topics["shop"]

    def end(self) -> int:
        """How many messages the topic has had."""
        consumer = Consumer(self.world.broker.client(group_id=unique("end")))
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=30)[1])
        finally:
            consumer.close()

    def messages(self) -> list[dict[str, Any]]:
        return contents(self.world.broker, self.topic)

    def done(self) -> dict[int, list[dict[str, Any]]]:
        return transactions(self.messages())


@pytest.fixture
def shop(install: Install, new_database: MakeDatabase) -> Shop:
    return make_shop(install, new_database(*TABLES, name="shop"))


def make_shop(install: Install, made: Database, **section: Any) -> Shop:
    topic = unique("shop")
    world = install({"crm": CRM}, VIEWS)
    crm = {"kind": "sqlite", "path": "crm.db", "topic": world.topics["crm"]}
    world.topics["shop"] = topic
    world.configure(sources={"crm": crm, "shop": made.section(topic=topic, **section)})
    return Shop(world, made)


def connect_of(running: Running) -> int:
    """The process of Kafka Connect that a capture has started."""
    for task in Path(f"/proc/{running.process.pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if b"ConnectStandalone" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise AssertionError("capture has started no Kafka Connect")


# ---- what arrives


def test_capture_sends_whole_transactions_of_several_tables_into_the_one_topic(shop: Shop) -> None:
    with shop.world.capturing() as capture:
        assert f"shop: created slot {shop.db.slot}" in capture.out.read_text()
        shop.db.execute("INSERT INTO orders VALUES (1, 7, 'ä')", 'INSERT INTO "Order, Lines" VALUES (1, 1), (2, 1)')
        shop.db.execute("INSERT INTO other (text) VALUES ('not captured')")
        shop.db.execute("SELECT pg_logical_emit_message(true, 'foreign', 'not captured')")
        shop.db.execute("SELECT pg_logical_emit_message(true, 'viewkeeper', 'token')")
        shop.world.write("crm", "INSERT INTO customers VALUES (7, 'Ada')")
        eventually(lambda: len(shop.done()) == 3, 30, f"three transactions in {shop.messages()}")
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


# ---- kill -9


def test_a_killed_connect_is_started_again_and_nothing_is_lost(shop: Shop) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    rng = random.Random(seed)
    stop = threading.Event()
    numbers = itertools.count(1)
    committed: list[int] = []

    def write() -> None:
        with shop.db.connect(autocommit=False) as db:
            while not stop.wait(0.05):
                made = [next(numbers) for _ in range(rng.randrange(1, 40))]
                for n in made:
                    db.execute("INSERT INTO orders (id) VALUES (%s)", (n,))
                if rng.random() < 0.1:
                    db.rollback()
                else:
                    db.commit()
                    committed.extend(made)

    with shop.world.capturing() as capture:
        writers = [threading.Thread(target=write) for _ in range(3)]
        for writer in writers:
            writer.start()
        for _ in range(3):
            goal = shop.end() + 200
            eventually(lambda goal=goal: shop.end() > goal, PATIENCE, "messages flow")
            killed = connect_of(capture)
            os.kill(killed, signal.SIGKILL)
            eventually(lambda killed=killed: restarted(capture, killed), PATIENCE, "Connect is back")
        stop.set()
        for writer in writers:
            writer.join(PATIENCE)
        eventually(lambda: len(rows(shop.done())) == len(committed), PATIENCE, f"{len(committed)} rows")
    assert sorted(rows(shop.done())) == sorted(committed)
    assert capture.err.read_text().count("Kafka Connect ended") == 3


def restarted(capture: Running, killed: int) -> bool:
    try:
        return connect_of(capture) != killed
    except (AssertionError, OSError):
        return False


def test_connect_dies_with_a_killed_capture(shop: Shop) -> None:
    capture = shop.world.start_capture()
    eventually(lambda: restarted(capture, 0), PATIENCE, "Connect was started")
    connect = connect_of(capture)
    capture.kill()
    eventually(lambda: not Path(f"/proc/{connect}/exe").exists(), 30, "Connect is gone")
    eventually(capture.leaves_nothing, 30, "nothing is left")
    # What its own end left behind holds up nobody.
    with shop.world.capturing():
        shop.db.execute("INSERT INTO orders VALUES (1)")
        eventually(lambda: rows(shop.done()) == [1], PATIENCE, "the transaction")


def test_a_slot_that_is_gone_ends_capture_with_the_remedy(shop: Shop) -> None:
    capture = shop.world.start_capture()
    shop.db.execute("INSERT INTO orders VALUES (1)")
    eventually(lambda: rows(shop.done()) == [1], PATIENCE, "the transaction")
    with shop.db.connect() as db:
        db.execute(
            "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s",
            [shop.db.slot],
        )
        eventually(lambda: dropped(db, shop.db.slot), PATIENCE, "the slot is dropped")
    ended = capture.wait()
    assert ended.code == 3
    assert ended.errors[-1] == (
        f"viewkeeper: source shop: slot {shop.db.slot} is gone, so changes may be missing; "
        "run `viewkeeper init --reload`"
    )


def dropped(db: psycopg.Connection[Any], slot: str) -> bool:
    try:
        db.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    except psycopg.errors.ObjectInUse:
        db.execute(
            "SELECT pg_terminate_backend(active_pid, 1000) FROM pg_replication_slots WHERE active_pid IS NOT NULL"
        )
        return False
    return True


# ---- a Kafka Connect of one's own


def test_what_print_prints_runs_in_another_kafka_connect(shop: Shop, tmp_path: Path) -> None:
    shop.world.done("capture", "--remove")
    made = [json.loads(shop.world.done("capture", "--print").out)]
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
    for command in ("check", "capture"):
        ended = shop.world.run(command)
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
