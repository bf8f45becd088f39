"""The world of most end-to-end tests: three databases, four views, and writers that do what applications do."""

from __future__ import annotations

import random
import sqlite3

from tests.e2e.harness import Write


def series(first: int, last: int) -> str:
    """A table expression whose column ``value`` counts from first to last."""
    rows = f"VALUES ({first}) UNION ALL SELECT value + 1 FROM _s WHERE value < {last}"
    return f"(WITH RECURSIVE _s (value) AS ({rows}) SELECT value FROM _s)"


TABLES = {
    "shop": [
        "PRAGMA journal_mode = wal",
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER, status TEXT, paid BOOLEAN, placed DATE)",
        "CREATE INDEX orders_customer ON orders (customer_id)",
        "CREATE TABLE lines (order_id INTEGER, n INTEGER, product TEXT, quantity INTEGER, PRIMARY KEY (order_id, n))",
        "CREATE INDEX lines_product ON lines (product)",
        f"INSERT INTO orders SELECT value, value % 7, 'open', value % 2, '2026-01-05' FROM {series(1, 12)}",
        f"INSERT INTO lines SELECT value / 2, value % 2, 'p' || (value % 5), value FROM {series(2, 25)}",
    ],
    "crm": [
        "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT UNIQUE, city TEXT, photo BLOB)",
        f"INSERT INTO customers SELECT value, 'c' || value, 'Ülm', x'00ff' FROM {series(0, 6)}",
    ],
    "stock": [
        "CREATE TABLE products (code TEXT PRIMARY KEY, title TEXT, price REAL)",
        "CREATE TABLE shelves (product TEXT, place TEXT)",  # no key: the same row may stand there twice
        "CREATE INDEX shelves_product ON shelves (product)",
        f"INSERT INTO products SELECT 'p' || value, 'title ' || value, value * 0.5 FROM {series(0, 4)}",
        f"INSERT INTO shelves SELECT 'p' || (value % 5), 's' || (value % 3) FROM {series(1, 10)}",
    ],
}  # fmt: skip

VIEWS = {
    "overview": (
        "SELECT o.id AS order_id, l.n, c.name, c.photo, o.paid, o.placed, p.title, l.quantity * p.price AS total "
        "FROM shop.orders o JOIN shop.lines l ON l.order_id = o.id JOIN crm.customers c ON c.id = o.customer_id "
        "JOIN stock.products p ON p.code = l.product WHERE o.status <> 'cancelled'"
    ),
    "same_customer": (
        "SELECT a.id AS earlier, b.id AS later, a.customer_id FROM shop.orders a "
        "JOIN shop.orders b ON a.customer_id = b.customer_id AND a.id < b.id"
    ),
    "picking": (
        "SELECT l.product, s.place, l.quantity FROM shop.lines l, stock.shelves s "
        "WHERE s.product = l.product AND l.quantity > 3"
    ),
    "cities": "SELECT city FROM crm.customers WHERE city IS NOT NULL",
}


def write_orders(rng: random.Random, db: sqlite3.Connection) -> None:
    """A transaction over both tables of the shop: new orders with lines, replaced and renumbered ones, deletions."""
    order = rng.randrange(1, 30)
    match rng.randrange(6):
        case 0 | 1:
            customer = rng.choice([None, *range(8)])
            db.execute(
                "INSERT OR REPLACE INTO orders VALUES (?, ?, ?, ?, '2026-02-03')",
                (order, customer, rng.choice(["open", "cancelled"]), rng.random() < 0.5),
            )
            for n in range(rng.randrange(3)):
                line = (order, n, f"p{rng.randrange(6)}", rng.randrange(9))
                db.execute("INSERT OR REPLACE INTO lines VALUES (?, ?, ?, ?)", line)
        case 2:
            db.execute("DELETE FROM lines WHERE order_id = ?", (order,))
            db.execute("DELETE FROM orders WHERE id = ?", (order,))
        case 3:
            db.execute("UPDATE OR REPLACE orders SET id = ? WHERE id = ?", (rng.randrange(1, 30), order))
        case 4:
            db.execute("UPDATE lines SET quantity = quantity + 1 WHERE order_id = ?", (order,))
        case 5:
            db.execute("UPDATE orders SET customer_id = ? WHERE id < ? AND id % 3 = 0", (rng.randrange(7), order))


def write_customers(rng: random.Random, db: sqlite3.Connection) -> None:
    """Customers move, leave, come back, and take over one another's names."""
    customer = rng.randrange(8)
    match rng.randrange(4):
        case 0:
            row = (customer, f"c{rng.randrange(8)}", rng.choice([None, "", "Ulm"]), b"\x01")
            db.execute("INSERT OR REPLACE INTO customers VALUES (?, ?, ?, ?)", row)
        case 1:
            db.execute("DELETE FROM customers WHERE id = ?", (customer,))
        case 2:
            db.execute("UPDATE OR IGNORE customers SET id = id + 1 WHERE id = ?", (customer,))
        case 3:
            upsert = "ON CONFLICT (id) DO UPDATE SET city = excluded.city ON CONFLICT DO NOTHING"
            db.execute(f"INSERT INTO customers VALUES (?, ?, 'Bonn', NULL) {upsert}", (customer, f"c{customer}"))


def write_stock(rng: random.Random, db: sqlite3.Connection) -> None:
    """Prices change, products are renamed, shelves are filled twice and emptied one by one."""
    product = f"p{rng.randrange(6)}"
    match rng.randrange(4):
        case 0:
            row = (product, rng.choice(["a", "b", None]), rng.randrange(9) / 4)
            db.execute("INSERT OR REPLACE INTO products VALUES (?, ?, ?)", row)
        case 1:
            db.execute("INSERT INTO shelves VALUES (?, 's1'), (?, 's1')", (product, product))
        case 2:
            db.execute(
                "DELETE FROM shelves WHERE rowid IN (SELECT rowid FROM shelves WHERE product = ? LIMIT 2)", (product,)
            )
        case 3:
            db.execute("UPDATE products SET price = price + 0.25 WHERE code >= ?", (product,))


WRITES: dict[str, list[Write]] = {
    "shop": [write_orders, write_orders],
    "crm": [write_customers],
    "stock": [write_stock],
}
