"""A PostgreSQL source beside a SQLite one, captured by the command, and what its topic says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from tests.conftest import unique
from tests.e2e.conftest import Install
from tests.e2e.harness import Installation, Running
from tests.e2e.postgres import Database, contents
from viewkeeper.algebra.types import INTEGER, Column, Relation
from viewkeeper.messages import ORDINAL, Reached
from viewkeeper.queue.consumer import MESSAGES
from viewkeeper.queue.update_queue import Inlet, UpdateQueue

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


ORDERS = Relation("shop", "orders", (Column("id", INTEGER, "int4"),), ("id",))


def transactions(messages: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """What a topic says, by the LSN of END: each transaction's events in order, repetitions dropped."""
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
        return self.world.broker.end(self.topic)

    def ends_since(self, offset: int) -> bool:
        """Whether the topic's last message is an END, and was sent from this offset on."""
        last = self.end() - 1
        return last >= offset and b'"END"' in (self.world.broker.messages(self.topic, last)[0].value() or b"")

    def messages(self) -> list[dict[str, Any]]:
        return contents(self.world.broker, self.topic)

    def done(self) -> dict[int, list[dict[str, Any]]]:
        return transactions(self.messages())

    def updates(self) -> list[list[int]]:
        """What the update queue makes of the topic: per update, the ids of the orders it has inserted."""
        inlet = Inlet("shop", self.topic, {"orders": ORDERS}, {"orders": ["id"]}, Reached(0), 0, "debezium")
        sent = self.world.broker.messages(self.topic)
        rows = [(self.topic, m.offset(), m.value(), m.timestamp()[1]) for m in sent]
        columns = [pa.array(column, kind.type) for column, kind in zip(zip(*rows, strict=True), MESSAGES, strict=True)]
        received = UpdateQueue([inlet]).receive(pa.table(columns, schema=MESSAGES))
        assert not received.rejected, received.rejected
        ids: list[list[int]] = [[] for _ in received.updates]
        for table in received.changes.values():
            for ordinal, order in zip(table[ORDINAL].to_pylist(), table["id"].to_pylist(), strict=True):
                ids[ordinal].append(order)
        return ids

    @property
    def confirmed(self) -> int:
        """Where the slot stands."""
        query = (
            f"SELECT (confirmed_flush_lsn - '0/0')::int8 FROM pg_replication_slots WHERE slot_name = '{self.db.slot}'"
        )
        return int(self.db.execute(query)[0][0])


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


def restarted(capture: Running, killed: int) -> bool:
    try:
        return connect_of(capture) != killed
    except (AssertionError, OSError):
        return False


def dropped(db: psycopg.Connection[Any], slot: str) -> bool:
    try:
        db.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    except psycopg.errors.ObjectInUse:
        db.execute(
            "SELECT pg_terminate_backend(active_pid, 1000) FROM pg_replication_slots WHERE active_pid IS NOT NULL"
        )
        return False
    return True
