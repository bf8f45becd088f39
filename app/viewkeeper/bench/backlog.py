"""Backlogs: changes applied to the captured databases, then sent as native messages, one per change.

The change log gives the real positions; the messages are encoded by capture's own code. Only the transactions are
larger than the updates made of them, because a hundred thousand commits would be most of the benchmark's time.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer

from viewkeeper.bench.world import SqliteWorld, Write
from viewkeeper.capture.update_pieces import encode_updates
from viewkeeper.managers.sources import sqlite_log

Positions = dict[str, str]


class Shop:
    """Makes changes that never contradict each other; the same seed makes the same changes."""

    def __init__(self, rows: int, seed: int = 1):
        self._rows = rows
        self._random = random.Random(seed)
        self._next_order = rows + 1
        self._next_customer = 2 * rows
        self._gone: set[int] = set()

    def uniform(self, count: int) -> list[Write]:
        """Half of them change orders (made, changed, taken back), a quarter customers, a quarter products."""
        kinds = (self._order_made, self.order_changed, self._order_gone, self._customer_changed, self._product_changed)
        return [make() for make in self._random.choices(kinds, weights=(20, 15, 15, 25, 25), k=count)]

    def hot(self, count: int) -> list[Write]:
        """One new customer: every other change is of that row, the others of its orders, at most two at a time."""
        self._next_customer += 1
        customer = self._next_customer
        writes: list[Write] = [("crm", "INSERT INTO customers VALUES (?, 'hot', 'city')", (customer,))]
        live: list[int] = []
        while len(writes) < count:
            if len(live) < 2:
                writes.append(self._order_made(customer))
                live.append(self._next_order - 1)
            else:
                self._gone.add(live[0])
                writes.append(("shop", "DELETE FROM orders WHERE id = ?", (live.pop(0),)))
            name = f"hot {len(writes)}"
            writes.append(("crm", "UPDATE customers SET name = ? WHERE id = ?", (name, customer)))
        return writes[:count]

    def _order_made(self, customer: int | None = None) -> Write:
        self._next_order += 1
        row = (self._next_order - 1, customer or self._any(), self._any(), self._random.randint(1, 9))
        return "shop", "INSERT INTO orders VALUES (?, ?, ?, ?)", row

    def order_changed(self) -> Write:
        """Another quantity, or another customer."""
        column, value = self._random.choice(
            (("quantity", "quantity % 9 + 1"), ("customer_id", f"customer_id % {self._rows} + 1"))
        )
        return "shop", f"UPDATE orders SET {column} = {value} WHERE id = ?", (self._order(),)

    def _order_gone(self) -> Write:
        order = self._order()
        self._gone.add(order)
        return "shop", "DELETE FROM orders WHERE id = ?", (order,)

    def _customer_changed(self) -> Write:
        sql = "UPDATE customers SET name = name || ?, city = ? WHERE id = ?"
        return "crm", sql, (self._random.choice("abc"), f"city {self._random.randint(0, 999)}", self._any())

    def _product_changed(self) -> Write:
        return "stock", "UPDATE products SET price = price + 0.25 WHERE id = ?", (self._any(),)

    def _any(self) -> int:
        return self._random.randint(1, self._rows)

    def _order(self) -> int:
        """An order that is still there; more are made than taken back, so there always is one."""
        while (order := self._random.randrange(1, self._next_order)) in self._gone:
            pass
        return order


@dataclass(frozen=True)
class Prepared:
    """Messages of writes that were applied, and no capture has sent: ``order`` are their sources."""

    world: SqliteWorld
    order: Sequence[str]
    messages: Mapping[str, list[tuple[int, bytes]]]

    @property
    def positions(self) -> Positions:
        """Where the sources stand after them."""
        return {source: str(own[-1][0]) for source, own in self.messages.items()}

    def send(self) -> Positions:
        """Sends the messages, in the order of the writes; the positions that the sources then stand at."""
        _send(self.world, self.order, self.messages)
        return self.positions


def prepare(world: SqliteWorld, writes: Sequence[Write]) -> Prepared:
    """Applies the writes."""
    messages: dict[str, list[tuple[int, bytes]]] = {}
    for source in sorted({source for source, _, _ in writes}):
        own = [(sql, values) for name, sql, values in writes if name == source]
        with closing(world.connect(source)) as db:
            messages[source] = list(_logged(db, source, own))
        assert len(messages[source]) == len(own), "each write changes one row"
    return Prepared(world, [source for source, _, _ in writes], messages)


def send_backlog(world: SqliteWorld, writes: Sequence[Write]) -> Positions:
    """Applies the writes and sends their messages, in their order; the positions that the sources then stand at."""
    return prepare(world, writes).send()


def _logged(
    db: sqlite3.Connection, source: str, writes: Sequence[tuple[str, tuple[Any, ...]]]
) -> Iterator[tuple[int, bytes]]:
    """Applies the writes; position and message of each."""
    since = sqlite_log.last_id(db)
    db.execute("BEGIN IMMEDIATE")
    for sql, values in writes:
        db.execute(sql, values)
    db.execute("COMMIT")
    (columns,) = db.execute("SELECT count(*) FROM pragma_table_info(?)", (sqlite_log.LOG,)).fetchone()
    width = (columns - 3) // 2
    state = sqlite_log.read_state(db, f"source {source}")
    for update in encode_updates(source, _each_alone(db, since, width), state.tables, width):
        with update.file:
            (message,) = update.messages()
            yield update.position, message


def _each_alone(db: sqlite3.Connection, since: int, width: int) -> Iterator[tuple[Any, ...]]:
    """The log rows, with a boundary after each: every one becomes an update."""
    names = ", ".join([f"b{i}" for i in range(width)] + [f"a{i}" for i in range(width)])
    query = f"SELECT id, relation, op, {names} FROM {sqlite_log.LOG} WHERE id > ? AND op <> 'boundary' ORDER BY id"
    for row in db.execute(query, (since,)):
        yield row
        yield (row[0], None, "boundary")


def _send(world: SqliteWorld, order: Sequence[str], messages: Mapping[str, list[tuple[int, bytes]]]) -> None:
    """One message a millisecond, up to now, so that the topics merge in the order of the writes."""
    producer = Producer(
        {
            "bootstrap.servers": world.bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 50,
            "queue.buffering.max.messages": len(order) + 1,
            "log_level": 0,
        }
    )
    queues = {source: iter(sent) for source, sent in messages.items()}
    begin = int(time.time() * 1000) - len(order)
    for i, source in enumerate(order):
        _, message = next(queues[source])
        producer.produce(world.topic(source), message, key=source, partition=0, timestamp=begin + i)
        if i % 1000 == 0:
            producer.poll(0)
    unsent = producer.flush(60)
    assert unsent == 0, f"{unsent} messages were not taken"
