"""The benchmark's worlds: three sources of one table each, and a view that joins them all."""

from __future__ import annotations

import json
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from viewkeeper.managers.sources import sqlite_log

SOURCES = ("shop", "crm", "stock")
VIEW = "sales"
SQL = """\
SELECT o.id AS order_id, c.name, c.city, p.title, o.quantity, o.quantity * p.price AS amount
FROM shop.orders o JOIN crm.customers c ON o.customer_id = c.id JOIN stock.products p ON o.product_id = p.id"""

_TABLES = {
    "shop": (
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER, product_id INTEGER, quantity INTEGER)",
        "CREATE INDEX by_customer ON orders (customer_id)",
        "CREATE INDEX by_product ON orders (product_id)",
    ),
    "crm": ("CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT)",),
    "stock": ("CREATE TABLE products (id INTEGER PRIMARY KEY, title TEXT, price REAL)",),
}
_RELATIONS = {"shop": "orders", "crm": "customers", "stock": "products"}


Write = tuple[str, str, tuple[Any, ...]]
"""Source, statement, parameters: it changes exactly one row."""


@dataclass(frozen=True)
class Written:
    """A transaction: what its source knows it by, and when its commit was through."""

    id: int
    at: float


class Writer(Protocol):
    """A connection to one source, as an application would have it."""

    def write(self, write: Write) -> Written:
        """Commits a transaction that does just this."""


@dataclass(frozen=True)
class World(ABC):
    """Databases with ``rows`` rows a table, their configuration, and topics named after the world."""

    folder: Path
    bootstrap: str
    rows: int

    @property
    def conf(self) -> Path:
        return self.folder / "conf.yaml"

    @property
    def warehouse(self) -> Path:
        return self.folder / "warehouse"

    @property
    def view_topic(self) -> str:
        return f"{self.folder.name}.view"

    def topic(self, source: str) -> str:
        return f"{self.folder.name}.{source}"

    def table(self, source: str) -> str:
        return _RELATIONS[source]

    def write_conf(self) -> None:
        sources = {source: {"topic": self.topic(source), **self.section(source)} for source in SOURCES}
        configuration = {
            "kafka": {"bootstrap": self.bootstrap},
            "warehouse": str(self.warehouse),
            "sources": sources,
            "views": {VIEW: {"sql": SQL, "topic": self.view_topic}},
        }
        self.conf.write_text(json.dumps(configuration, indent=1))

    @abstractmethod
    def section(self, source: str) -> Mapping[str, str]:
        """What the configuration says of a source, besides its topic."""

    @abstractmethod
    def writing(self, source: str) -> AbstractContextManager[Writer]:
        """A connection to write with."""

    @abstractmethod
    def completed(self, written: Written, message: Mapping[str, Any]) -> int | None:
        """The order position of the written transaction, if this message is its last in its source's topic."""


@dataclass(frozen=True)
class _SqliteWriter:
    db: sqlite3.Connection

    def write(self, write: Write) -> Written:
        _, sql, values = write
        self.db.execute(sql, values)
        at = time.time()
        return Written(sqlite_log.last_id(self.db), at)


@dataclass(frozen=True)
class SqliteWorld(World):
    """Three files."""

    def database(self, source: str) -> Path:
        return self.folder / f"{source}.db"

    def connect(self, source: str) -> sqlite3.Connection:
        """A connection that may lose its last commits in a power cut, to save time."""
        db = sqlite3.connect(self.database(source), timeout=60, isolation_level=None)
        db.execute("PRAGMA synchronous = OFF")
        return db

    def section(self, source: str) -> Mapping[str, str]:
        return {"kind": "sqlite", "path": str(self.database(source))}

    @contextmanager
    def writing(self, source: str) -> Iterator[Writer]:
        with closing(self.connect(source)) as db:
            yield _SqliteWriter(db)

    def completed(self, written: Written, message: Mapping[str, Any]) -> int | None:
        position = int(message["position"])
        return position if position >= written.id else None


def make_world(folder: Path, bootstrap: str, rows: int, one_product: bool = False) -> SqliteWorld:
    """A new world in a new folder; with ``one_product`` all orders are for product 1, so that it moves them all."""
    world = SqliteWorld(folder, bootstrap, rows)
    folder.mkdir(parents=True)
    for source in SOURCES:
        with closing(world.connect(source)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            _fill(db, source, rows, one_product)
    world.write_conf()
    return world


def _fill(db: sqlite3.Connection, source: str, rows: int, one_product: bool) -> None:
    create, *indexes = _TABLES[source]
    db.execute(create)
    made = {"shop": _orders(rows, one_product), "crm": _customers(rows), "stock": _products(rows)}[source]
    marks = "?, ?, ?, ?" if source == "shop" else "?, ?, ?"
    db.execute("BEGIN")
    db.executemany(f"INSERT INTO {_RELATIONS[source]} VALUES ({marks})", made)
    db.execute("COMMIT")
    for index in indexes:
        db.execute(index)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _orders(rows: int, one_product: bool) -> Iterator[tuple[Any, ...]]:
    """Every customer and every product has one order on average, in no order that an index could profit from."""
    for i in range(1, rows + 1):
        product = 1 if one_product else i * 40_503 % rows + 1
        yield i, i * 7_919 % rows + 1, product, i % 9 + 1


def _customers(rows: int) -> Iterator[tuple[Any, ...]]:
    return ((i, f"customer {i}", f"city {i % 1000}") for i in range(1, rows + 1))


def _products(rows: int) -> Iterator[tuple[Any, ...]]:
    return ((i, f"product number {i}", i % 500 + 0.5) for i in range(1, rows + 1))
