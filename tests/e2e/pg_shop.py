"""The databases of a small shop, for tests of what happens to PostgreSQL sources: what is written, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from tests.conftest import eventually, unique
from tests.e2e.pg_world import World, asked_by_workers, when

SHOP = (
    "CREATE TABLE orders (id int PRIMARY KEY, customer_id int, total int NOT NULL, note text)",
    "CREATE TABLE lines (id int PRIMARY KEY, customer_id int, qty int)",
    "CREATE INDEX ON orders (customer_id)",
    "CREATE INDEX ON lines (customer_id)",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    "ALTER TABLE lines REPLICA IDENTITY FULL",
    "INSERT INTO orders SELECT i, i % 4, i, 'n' FROM generate_series(1, 8) i",
    "INSERT INTO lines SELECT i, i % 4, i FROM generate_series(1, 8) i",
    "CREATE TABLE tags (id int, word text, note text, PRIMARY KEY (word, id))",
    "CREATE TABLE words (word text PRIMARY KEY, length int)",
    "ALTER TABLE words REPLICA IDENTITY FULL",
    "INSERT INTO tags SELECT i, 'w' || i % 3, 'n' FROM generate_series(1, 6) i",
    "INSERT INTO words SELECT 'w' || i, i FROM generate_series(0, 3) i",
)
CRM = (
    "CREATE TABLE customers (id int PRIMARY KEY, name text)",
    "ALTER TABLE customers REPLICA IDENTITY FULL",
    "INSERT INTO customers SELECT i, 'c' || i FROM generate_series(0, 4) i",
)
VIEWS = {
    "bought": "SELECT o.id, c.name, o.total FROM shop.orders o JOIN crm.customers c ON o.customer_id = c.id",
    "pairs": "SELECT a.id AS one, b.id AS other, c.name FROM shop.orders a JOIN shop.orders b "
    "ON a.customer_id = b.customer_id JOIN crm.customers c ON c.id = a.customer_id WHERE a.id < b.id",
    "packed": "SELECT l.id, l.qty, c.name FROM shop.lines l JOIN crm.customers c ON l.customer_id = c.id",
}


TAGGED = "SELECT t.id, w.word, w.length FROM shop.tags t JOIN shop.words w ON t.word = w.word"


@contextmanager
def beside(shared: World, views: dict[str, str], **sections: Any) -> Iterator[World]:
    """Another warehouse over the same databases and topics."""
    world = World(shared.folder / unique("beside"), shared.broker, shared.databases, views, **sections)
    world.topics = shared.topics
    try:
        yield world
    finally:
        world.end()


def before_and_after(world: World) -> None:
    """Updates of all relations, so that the batch asks every source about them."""
    world.write("crm", "UPDATE customers SET name = name || 'x' WHERE id < 3")
    world.write("shop", "UPDATE orders SET total = total + 1 WHERE id < 4", "UPDATE lines SET qty = qty + 1")
    world.write("crm", "DELETE FROM customers WHERE id = 2")
    world.write("crm", "INSERT INTO customers VALUES (2, 'again')")


MOMENTS: dict[str, tuple[str, int, bool]] = {
    "before the freeze": ("freeze", 1, False),
    "after the freeze": ("freeze", 1, True),
    "before the first answer": ("ask", 1, False),
    "between two answers": ("ask", 2, False),
    "after the last answer": ("confirm", 1, False),
}
VOID = "was truncated, rewritten or altered while it was read"


@contextmanager
def at_moment(world: World, moment: str, action: Callable[[], object]) -> Iterator[None]:
    """Does it at a moment of the next batch, in which the shop is asked as Spark's workers ask."""
    shop = world.source("shop")
    method, call, after = MOMENTS[moment]
    with asked_by_workers(shop), when(shop, method, action, call, after):
        yield


class Stuck:
    """A synchronous standby that never answers: commits are logged, and then hang before they can be seen."""

    def __init__(self, world: World):
        self.server = world.databases["shop"].server
        self.world = world
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Stuck:
        self._set("nobody")
        eventually(self._effective, 30, "commits hang")
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """The standby is wanted no more: what hangs goes on."""
        self._set("")
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        self._threads = []

    def _set(self, names: str) -> None:
        self.local("postgres", f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        self.local("postgres", "SELECT pg_reload_conf()")

    def _effective(self) -> bool:
        """Whether commits hang by now; the one that tries it is let go."""
        query = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        thread = threading.Thread(target=lambda: self.server.execute("SELECT pg_logical_emit_message(true, 'x', 'y')"))
        thread.start()
        try:
            eventually(lambda: not thread.is_alive() or self._hanging(), 30)
            return thread.is_alive()
        finally:
            self.local("postgres", query)
            thread.join(30)

    def _hanging(self) -> int:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        return int(self.local("postgres", waiting)[0][0])

    def local(self, name: str, *statements: str) -> list[tuple[Any, ...]]:
        """One transaction that waits for no standby, in that database."""
        url = self.server.url(name)
        with psycopg.connect(url, autocommit=True, options="-c synchronous_commit=local") as connection:
            if len(statements) == 1:
                cursor = connection.execute(statements[0].encode())
                return cursor.fetchall() if cursor.description else []
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement.encode())
        return []

    def write(self, source: str, *statements: str) -> None:
        self.local(self.world.databases[source].name, *statements)

    def hang(self, source: str, *statements: str) -> int:
        """A transaction whose commit hangs; its xid."""
        before, xids = self._hanging(), list[int]()

        def work() -> None:
            with self.world.databases[source].connect() as connection, connection.transaction():
                for statement in statements:
                    connection.execute(statement.encode())
                row = connection.execute("SELECT pg_current_xact_id()::text::int8 & 4294967295").fetchone()
                assert row is not None
                xids.append(row[0])

        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()
        eventually(lambda: self._hanging() > before, 30, "it hangs")
        return xids[0]


def offset_of(world: World, source: str, xid: int) -> int:
    """The offset of a transaction's END."""
    return next(t.offset for t in world.sent(source) if t.xid == str(xid))
