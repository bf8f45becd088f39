"""The demo's world: a shop, its customers' database and its stock, and the two views that join them."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

SOURCES = ("shop", "crm", "stock")
SHOWN_VIEW = "order_overview"

HOT = 5
"""Customers and products 1 to this get half of all changes; the screen shows the orders of customer 1."""

CUSTOMERS, PRODUCTS, ORDERS = 300, 120, 2_000

CITIES = (
    "Aarhus",
    "Bologna",
    "Cork",
    "Dresden",
    "Évora",
    "Ghent",
    "Kraków",
    "Lyon",
    "Malmö",
    "Porto",
    "Tartu",
    "Zadar",
)
STATUSES = ("new", "paid", "shipped", "cancelled")

_FIRST = (
    "Ada",
    "Ben",
    "Chiara",
    "Dana",
    "Emil",
    "Fatma",
    "Goran",
    "Hana",
    "Ivo",
    "Jana",
    "Karim",
    "Lena",
    "Milo",
    "Nora",
)
_LAST = ("Adler", "Bauer", "Costa", "Dupont", "Eriksen", "Ferrari", "Horvat", "Janssen", "Novak", "Silva", "Weber")
_MADE_OF = ("Oak", "Steel", "Linen", "Copper", "Glass", "Paper", "Cork", "Wool")
_THING = ("kettle", "lamp", "chair", "notebook", "basket", "clock", "mirror", "bowl", "scarf", "box", "brush")

_TABLES = {
    "shop": """
        PRAGMA journal_mode = wal;
        CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, status TEXT NOT NULL);
        CREATE TABLE order_lines (
            order_id INTEGER NOT NULL REFERENCES orders (id) ON DELETE CASCADE, line INTEGER NOT NULL,
            product_id INTEGER NOT NULL, quantity INTEGER NOT NULL, PRIMARY KEY (order_id, line));
        CREATE INDEX orders_of_customer ON orders (customer_id);
        CREATE INDEX lines_of_product ON order_lines (product_id);
    """,
    "crm": """
        PRAGMA journal_mode = wal;
        CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT);
    """,
    "stock": "CREATE TABLE products (id INTEGER PRIMARY KEY, title TEXT NOT NULL, cents INTEGER NOT NULL);",
}

_CONFIGURATION = """\
# The configuration of `make demo`; its three databases and its broker are made by the demo itself.
kafka:
  bootstrap: "{bootstrap}"
warehouse: {folder}/warehouse

sources:
  shop: {{kind: sqlite, path: {folder}/shop.db}}
  crm: {{kind: sqlite, path: {folder}/crm.db}}
  stock: {{kind: sqlite, path: {folder}/stock.db}}

views:
  order_overview:
    sql: >
      SELECT l.order_id, l.line, c.id AS customer_id, c.name AS customer, c.city, p.title AS product,
             l.quantity, l.quantity * p.cents AS cents
      FROM shop.orders o
      JOIN shop.order_lines l ON l.order_id = o.id
      JOIN crm.customers c ON c.id = o.customer_id
      JOIN stock.products p ON p.id = l.product_id
      WHERE o.status <> 'cancelled'
  customer_orders:
    sql: >
      SELECT o.id AS order_id, c.name AS customer, c.city, o.status
      FROM shop.orders o JOIN crm.customers c ON o.customer_id = c.id
"""


def configuration(bootstrap: str, folder: str = ".") -> str:
    """The text of the demo's configuration file; ``folder`` is the demo's, as seen from the file's."""
    return _CONFIGURATION.format(bootstrap=bootstrap, folder=folder)


def person(random: random.Random) -> str:
    return f"{random.choice(_FIRST)} {random.choice(_LAST)}"


def thing(random: random.Random) -> str:
    return f"{random.choice(_MADE_OF)} {random.choice(_THING)}"


def hot(random: random.Random, among: int) -> int:
    """A number from 1 to ``among``; every second time one of the few hot ones."""
    return random.randint(1, HOT if random.random() < 0.5 else among)


def create_databases(paths: Mapping[str, Path], seed: int = 1) -> dict[str, int]:
    """Creates the databases and fills them; gives the number of rows in each."""
    chance = random.Random(seed)
    rows = {}
    for name, path in paths.items():
        with closing(sqlite3.connect(path)) as db:
            db.executescript(_TABLES[name])
            with db:
                _FILL[name](db, chance)
            rows[name] = db.total_changes
    return rows


def _fill_shop(db: sqlite3.Connection, chance: random.Random) -> None:
    orders = [(i, hot(chance, CUSTOMERS), chance.choice(STATUSES)) for i in range(1, ORDERS + 1)]
    db.executemany("INSERT INTO orders VALUES (?, ?, ?)", orders)
    for order, _, _ in orders:
        lines = [(order, n, hot(chance, PRODUCTS), chance.randint(1, 9)) for n in range(1, chance.randint(2, 4))]
        db.executemany("INSERT INTO order_lines VALUES (?, ?, ?, ?)", lines)


def _fill_crm(db: sqlite3.Connection, chance: random.Random) -> None:
    rows = [(i, person(chance), chance.choice(CITIES)) for i in range(1, CUSTOMERS + 1)]
    db.executemany("INSERT INTO customers VALUES (?, ?, ?)", rows)


def _fill_stock(db: sqlite3.Connection, chance: random.Random) -> None:
    rows = [(i, thing(chance), chance.randint(200, 9_900)) for i in range(1, PRODUCTS + 1)]
    db.executemany("INSERT INTO products VALUES (?, ?, ?)", rows)


_FILL = {"shop": _fill_shop, "crm": _fill_crm, "stock": _fill_stock}
