"""The benchmark's world in PostgreSQL: three databases of one server, their changes by real Debezium."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from viewkeeper.bench.world import SOURCES, World, Write, Writer, Written
from viewkeeper.local.postgres import PostgresServer

SETTINGS = {
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "synchronous_commit": "off",  # of those who write the backlog; a single change waits, see _PostgresWriter
}
"""So that the server is not what is measured."""

# As bench/world.py fills SQLite: every customer and every product has one order on average, in no useful order.
_TABLES = {
    "shop": (
        "CREATE TABLE orders (id int8 PRIMARY KEY, customer_id int8, product_id int8, quantity int8)",
        "INSERT INTO orders SELECT i, i * 7919 % {rows} + 1, i * 40503 % {rows} + 1, i % 9 + 1 "
        "FROM generate_series(1, {rows}::int8) AS i",
        "CREATE INDEX by_customer ON orders (customer_id)",
        "CREATE INDEX by_product ON orders (product_id)",
    ),
    "crm": (
        "CREATE TABLE customers (id int8 PRIMARY KEY, name text, city text)",
        "INSERT INTO customers SELECT i, 'customer ' || i, 'city ' || i % 1000 "
        "FROM generate_series(1, {rows}::int8) AS i",
    ),
    "stock": (
        "CREATE TABLE products (id int8 PRIMARY KEY, title text, price float8)",
        "INSERT INTO products SELECT i, 'product number ' || i, i % 500 + 0.5 "
        "FROM generate_series(1, {rows}::int8) AS i",
    ),
}

_EACH_ALONE = """
CREATE PROCEDURE pg_temp.each_alone(statements text[]) LANGUAGE plpgsql AS $$
DECLARE
    statement text;
    changed int;
BEGIN
    FOREACH statement IN ARRAY statements LOOP
        EXECUTE statement;
        GET DIAGNOSTICS changed = ROW_COUNT;
        ASSERT changed = 1, 'each write changes one row';
        COMMIT;
    END LOOP;
END $$
"""
"""A hundred thousand transactions without a round trip for each."""


@dataclass(frozen=True)
class _PostgresWriter:
    db: psycopg.Connection[Any]

    def write(self, write: Write) -> Written:
        self.db.execute("BEGIN")
        self.db.execute(_literal(self.db, write))
        row = self.db.execute("SELECT pg_current_xact_id()::text::int8 & 4294967295").fetchone()
        self.db.execute("COMMIT")
        at = time.time()
        assert row is not None
        return Written(int(row[0]), at)


@dataclass(frozen=True)
class PostgresWorld(World):
    """Three databases of a server that runs."""

    server: PostgresServer

    def section(self, source: str) -> Mapping[str, str]:
        return {"kind": "postgres", "url": self.server.url(source)}

    @contextmanager
    def writing(self, source: str) -> Iterator[Writer]:
        with psycopg.connect(self.server.url(source), autocommit=True) as db:
            db.execute("SET synchronous_commit = on")
            yield _PostgresWriter(db)

    def completed(self, written: Written, message: Mapping[str, Any]) -> int | None:
        xid, lsn = end_of(message) or (0, 0)
        return lsn if xid == written.id else None

    def write_each_alone(self, source: str, writes: Sequence[Write]) -> None:
        """Commits each of these writes as a transaction of its own."""
        with psycopg.connect(self.server.url(source), autocommit=True) as db:
            db.execute(_EACH_ALONE)
            db.execute("CALL pg_temp.each_alone(%s)", ([_literal(db, write).decode() for write in writes],))


def make_postgres_world(folder: Path, bootstrap: str, rows: int, server: PostgresServer) -> PostgresWorld:
    """A new world in a new folder, and in new databases of the server."""
    world = PostgresWorld(folder, bootstrap, rows, server)
    folder.mkdir(parents=True)
    for source in SOURCES:
        server.execute(f"CREATE DATABASE {source}")
        identity = f"ALTER TABLE {world.table(source)} REPLICA IDENTITY FULL"
        made = [statement.format(rows=rows) for statement in _TABLES[source]]
        server.execute(*made, identity, "VACUUM ANALYZE", "CHECKPOINT", database=source)
    world.write_conf()
    return world


def end_of(message: Mapping[str, Any]) -> tuple[int, int] | None:
    """Transaction and position that a message of Debezium's ends; None if it is no END."""
    if message.get("status") != "END":
        return None
    xid, _, lsn = message["id"].partition(":")
    return int(xid), int(lsn)


def _literal(db: psycopg.Connection[Any], write: Write) -> bytes:
    """The statement with its values in it."""
    _, sql, values = write
    with psycopg.ClientCursor(db) as cursor:
        return cursor.mogrify(sql.replace("%", "%%").replace("?", "%s"), values).encode()
