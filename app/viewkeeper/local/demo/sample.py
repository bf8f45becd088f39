"""The demo's world: a shop, its customers' database and its stock, and the two views that join them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

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

COLUMNS = {
    "shop": {
        "orders": "id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, status TEXT NOT NULL",
        "order_lines": (
            "order_id INTEGER NOT NULL REFERENCES orders (id) ON DELETE CASCADE, line INTEGER NOT NULL, "
            "product_id INTEGER NOT NULL, quantity INTEGER NOT NULL, PRIMARY KEY (order_id, line)"
        ),
    },
    "crm": {"customers": "id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT"},
    "stock": {"products": "id INTEGER PRIMARY KEY, title TEXT NOT NULL, cents INTEGER NOT NULL"},
}
"""By source and table; SQLite and PostgreSQL read it alike."""

INDEXES = {
    "shop": {"orders_of_customer": ("orders", "customer_id"), "lines_of_product": ("order_lines", "product_id")},
    "crm": {},
    "stock": {},
}
"""By source: its indexes, each with its table and column."""

Tables = Mapping[str, Sequence[Sequence[Any]]]
"""By table its rows."""

_CONFIGURATION = """\
# The configuration of `make {target}`; its three databases and its broker are made by the demo itself.
kafka:
  bootstrap: "{bootstrap}"
warehouse: {folder}/warehouse

sources:
{sources}

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


def configuration(bootstrap: str, sections: Mapping[str, str], target: str = "demo", folder: str = ".") -> str:
    """The text of the demo's configuration file; ``folder`` is the demo's, as seen from the file's."""
    sources = "\n".join(f"  {name}: {section}" for name, section in sections.items())
    return _CONFIGURATION.format(bootstrap=bootstrap, folder=folder, target=target, sources=sources)


def person(random: random.Random) -> str:
    return f"{random.choice(_FIRST)} {random.choice(_LAST)}"


def thing(random: random.Random) -> str:
    return f"{random.choice(_MADE_OF)} {random.choice(_THING)}"


def hot(random: random.Random, among: int) -> int:
    """A number from 1 to ``among``; every second time one of the few hot ones."""
    return random.randint(1, HOT if random.random() < 0.5 else among)


def sample(chance: random.Random) -> dict[str, Tables]:
    """What the databases hold at first, by source."""
    return {name: _FILL[name](chance) for name in SOURCES}


def _shop(chance: random.Random) -> Tables:
    orders = [(i, hot(chance, CUSTOMERS), chance.choice(STATUSES)) for i in range(1, ORDERS + 1)]
    lines = [
        (order, n, hot(chance, PRODUCTS), chance.randint(1, 9))
        for order, _, _ in orders
        for n in range(1, chance.randint(2, 4))
    ]
    return {"orders": orders, "order_lines": lines}


def _crm(chance: random.Random) -> Tables:
    return {"customers": [(i, person(chance), chance.choice(CITIES)) for i in range(1, CUSTOMERS + 1)]}


def _stock(chance: random.Random) -> Tables:
    return {"products": [(i, thing(chance), chance.randint(200, 9_900)) for i in range(1, PRODUCTS + 1)]}


_FILL = {"shop": _shop, "crm": _crm, "stock": _stock}
