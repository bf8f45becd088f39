"""What happens in the demo's databases: each function is the body of one transaction, and says in words what it did.

Between them they use what makes capture and compensation hard: several tables in a transaction, keys that change
hands, cascades, rows replaced without a DELETE, rows that go and come back. None: there was nothing to do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from viewkeeper.local.demo.sample import CITIES, CUSTOMERS, HOT, ORDERS, PRODUCTS, hot, person, thing
from viewkeeper.local.demo.world import Session

Body = Callable[[Session, random.Random], str | None]


def price(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


# ---- shop: orders and their lines


def place_order(db: Session, chance: random.Random) -> str | None:
    customer = hot(chance, CUSTOMERS)
    order = _one(db, "INSERT INTO orders (customer_id, status) VALUES (?, 'new') RETURNING id", customer)
    lines = chance.randint(1, 3)
    for line in range(1, lines + 1):
        values = (order, line, hot(chance, PRODUCTS), chance.randint(1, 9))
        db.execute("INSERT INTO order_lines VALUES (?, ?, ?, ?)", values)
    return f"order {order} of customer {customer}, {lines} line{'s' * (lines > 1)}"


def change_quantities(db: Session, chance: random.Random) -> str | None:
    order = _some_order(db, chance)
    changed = db.execute("UPDATE order_lines SET quantity = quantity % 9 + 1 WHERE order_id = ?", (order,)).rowcount
    return f"order {order}: {changed} {'quantity' if changed == 1 else 'quantities'} changed" if changed else None


def replace_line(db: Session, chance: random.Random) -> str | None:
    order = _some_order(db, chance)
    product = hot(chance, PRODUCTS)
    row = {"order_id": order, "line": 1, "product_id": product, "quantity": chance.randint(1, 9)}
    db.replace("order_lines", row, ("order_id", "line"))
    return f"order {order}: line 1 is now product {product} ({db.replacing})"


def hand_over(db: Session, chance: random.Random) -> str | None:
    order, customer = _some_order(db, chance), hot(chance, CUSTOMERS)
    db.execute("UPDATE orders SET customer_id = ? WHERE id = ?", (customer, order))
    return f"order {order} handed over to customer {customer}"


def cancel_or_revive(db: Session, chance: random.Random) -> str | None:
    order = _some_order(db, chance)
    status = _one(db, "SELECT status FROM orders WHERE id = ?", order)
    new = "paid" if status == "cancelled" else "cancelled"
    db.execute("UPDATE orders SET status = ? WHERE id = ?", (new, order))
    return f"order {order}: {status} → {new}"


def delete_order(db: Session, chance: random.Random) -> str | None:
    order = _some_order(db, chance)
    db.execute("DELETE FROM orders WHERE id = ?", (order,))
    return f"order {order} deleted, its lines with it (cascade)"


def merge_orders(db: Session, chance: random.Random) -> str | None:
    """Two orders become one: lines move, one order goes, the other changes; three statements, one transaction."""
    one, other = _some_order(db, chance), _some_order(db, chance)
    if one == other:
        return None
    last = _one(db, "SELECT coalesce(max(line), 0) FROM order_lines WHERE order_id = ?", one)
    db.execute("UPDATE order_lines SET order_id = ?, line = line + ? WHERE order_id = ?", (one, last, other))
    db.execute("DELETE FROM orders WHERE id = ?", (other,))
    db.execute("UPDATE orders SET status = 'paid' WHERE id = ?", (one,))
    return f"order {other} merged into order {one}"


# ---- crm: customers


def move_customer(db: Session, chance: random.Random) -> str | None:
    customer, city = hot(chance, CUSTOMERS), chance.choice(CITIES)
    db.execute("UPDATE customers SET city = ? WHERE id = ?", (city, customer))
    name = _one(db, "SELECT name FROM customers WHERE id = ?", customer)
    return f"{name} moves to {city}" if name else None


def rename_customer(db: Session, chance: random.Random) -> str | None:
    customer, name, city = hot(chance, CUSTOMERS), person(chance), chance.choice(CITIES)
    db.replace("customers", {"id": customer, "name": name, "city": city}, ("id",))
    return f"customer {customer} is now {name}, {city} ({db.replacing})"


def forget_or_return(db: Session, chance: random.Random) -> str | None:
    customer = chance.randint(HOT + 1, CUSTOMERS)
    if db.execute("DELETE FROM customers WHERE id = ?", (customer,)).rowcount:
        return f"customer {customer} deleted: their orders leave the views"
    db.execute("INSERT INTO customers VALUES (?, ?, ?)", (customer, person(chance), chance.choice(CITIES)))
    return f"customer {customer} is back, and so are their orders"


# ---- stock: products


def change_price(db: Session, chance: random.Random) -> str | None:
    product = hot(chance, PRODUCTS)
    before = _one(db, "SELECT cents FROM products WHERE id = ?", product)
    if before is None:
        return None
    after = max(100, before + chance.randint(-300, 300))
    db.execute("UPDATE products SET cents = ? WHERE id = ?", (after, product))
    return f"product {product}: {price(before)} → {price(after)}"


def sale(db: Session, chance: random.Random) -> str | None:
    first = chance.randint(HOT + 1, PRODUCTS)
    scope = (first, first + 3)
    changed = db.execute("UPDATE products SET cents = cents * 9 / 10 + 10 WHERE id BETWEEN ? AND ?", scope).rowcount
    return f"sale: {changed} products from {first} on, a tenth off" if changed else None


def replace_product(db: Session, chance: random.Random) -> str | None:
    product, title = hot(chance, PRODUCTS), thing(chance)
    db.replace("products", {"id": product, "title": title, "cents": chance.randint(200, 9_900)}, ("id",))
    return f"product {product} is now {title} ({db.replacing})"


def drop_or_restock(db: Session, chance: random.Random) -> str | None:
    product = chance.randint(HOT + 1, PRODUCTS)
    if db.execute("DELETE FROM products WHERE id = ?", (product,)).rowcount:
        return f"product {product} deleted: its lines leave the view"
    db.execute("INSERT INTO products VALUES (?, ?, ?)", (product, thing(chance), chance.randint(200, 9_900)))
    return f"product {product} is back"


BODIES: dict[str, Sequence[tuple[Body, int]]] = {
    "shop": (
        (place_order, 5),
        (change_quantities, 4),
        (replace_line, 3),
        (hand_over, 2),
        (cancel_or_revive, 3),
        (delete_order, 2),
        (merge_orders, 1),
    ),
    "crm": ((move_customer, 6), (rename_customer, 2), (forget_or_return, 1)),
    "stock": ((change_price, 7), (sale, 1), (replace_product, 2), (drop_or_restock, 1)),
}
"""Per source, what may happen and how often relative to the rest."""


def _some_order(db: Session, chance: random.Random) -> int:
    """An existing order: a late one of a hot customer every second time, else any. There is always one."""
    if chance.random() < 0.5:
        query = "SELECT id FROM orders WHERE customer_id = ? ORDER BY id DESC LIMIT 12"
        if found := db.execute(query, (chance.randint(1, HOT),)).fetchall():
            return int(chance.choice(found)[0])
    return int(_one(db, "SELECT id FROM orders WHERE id >= ? ORDER BY id LIMIT 1", chance.randint(1, ORDERS // 2)))


def _one(db: Session, query: str, *values: Any) -> Any:
    row = db.execute(query, values).fetchone()
    return None if row is None else row[0]
