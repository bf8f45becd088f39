"""A world of many views: six databases, twenty views that fall into three groups, and writers for all of them.

shop, crm, stock   a shop; its views are kept in every way there is, so cuts are what they agree at
bank, ledger       accounts and the books kept of them; every view is complete, so each update is a state
staff              one database, with a refreshed view and one that shows every third update
"""

from __future__ import annotations

import random
import sqlite3
from typing import Any

from tests.e2e import shop
from tests.e2e.harness import Write
from tests.e2e.shop import series

TABLES = {
    **shop.TABLES,
    "bank": [
        "PRAGMA journal_mode = wal",
        "CREATE TABLE accounts (id INTEGER PRIMARY KEY, owner TEXT, balance INTEGER)",
        "CREATE TABLE transfers (id INTEGER PRIMARY KEY, debit INTEGER, credit INTEGER, amount INTEGER)",
        "CREATE INDEX transfers_debit ON transfers (debit)",
        "CREATE INDEX transfers_credit ON transfers (credit)",
        f"INSERT INTO accounts SELECT value, 'o' || (value % 3), 0 FROM {series(1, 6)}",
    ],
    "ledger": [
        "CREATE TABLE books (account INTEGER PRIMARY KEY, book TEXT)",
        "CREATE TABLE audits (id INTEGER PRIMARY KEY, transfer INTEGER)",
        "CREATE INDEX audits_transfer ON audits (transfer)",
        f"INSERT INTO books SELECT value, 'b' || (value % 2) FROM {series(1, 6)}",
    ],
    "staff": [
        "CREATE TABLE people (id INTEGER PRIMARY KEY, team INTEGER, chief INTEGER)",
        "CREATE TABLE teams (id INTEGER PRIMARY KEY, name TEXT)",
        "CREATE INDEX people_team ON people (team)",
        "CREATE INDEX people_chief ON people (chief)",
        f"INSERT INTO people SELECT value, value % 3, value / 2 FROM {series(1, 9)}",
        "INSERT INTO teams VALUES (0, 'zero'), (1, 'one')",
    ],
}

SHOP = {
    **shop.VIEWS,
    "customer_orders": (
        "SELECT o.id AS order_id, c.id AS customer, c.city FROM shop.orders o JOIN crm.customers c "
        "ON c.id = o.customer_id"
    ),
    "paid_lines": (
        "SELECT o.id AS order_id, l.n, l.product FROM shop.orders o JOIN shop.lines l ON l.order_id = o.id WHERE o.paid"
    ),
    "orders_per_city": (
        "SELECT c.city, count(*) AS orders, max(o.id) AS latest FROM shop.orders o JOIN crm.customers c "
        "ON c.id = o.customer_id GROUP BY c.city"
    ),
    "unsold": "SELECT DISTINCT p.code FROM stock.products p LEFT JOIN shop.lines l ON l.product = p.code "
    "WHERE l.product IS NULL",
}
BANK = {
    "credits": "SELECT a.owner, t.id, t.amount FROM bank.accounts a JOIN bank.transfers t ON t.credit = a.id",
    "debits": "SELECT a.owner, t.id, t.amount FROM bank.accounts a JOIN bank.transfers t ON t.debit = a.id",
    "both_sides": (
        "SELECT t.id, d.owner AS debited, c.owner AS credited, t.amount FROM bank.transfers t "
        "JOIN bank.accounts d ON d.id = t.debit JOIN bank.accounts c ON c.id = t.credit"
    ),
    "booked": (
        "SELECT a.id AS account, b.book, t.id AS transfer FROM bank.transfers t JOIN bank.accounts a "
        "ON a.id = t.debit JOIN ledger.books b ON b.account = a.id"
    ),
    "balances": "SELECT a.id, a.balance, b.book FROM bank.accounts a JOIN ledger.books b ON b.account = a.id",
    "audited": (
        "SELECT x.id AS audit, t.id AS transfer, t.amount FROM ledger.audits x JOIN bank.transfers t "
        "ON t.id = x.transfer WHERE t.amount > 2"
    ),
    "large": "SELECT id, amount FROM bank.transfers WHERE amount > 6",
}
STAFF = {
    "in_teams": "SELECT p.id, t.id AS team, t.name FROM staff.people p JOIN staff.teams t ON t.id = p.team",
    "chiefs": "SELECT p.id, c.id AS chief FROM staff.people p JOIN staff.people c ON c.id = p.chief",
    "peers": "SELECT a.id AS one, b.id AS other FROM staff.people a JOIN staff.people b ON a.team = b.team "
    "WHERE a.id < b.id",
    "team_sizes": "SELECT t.name, count(p.id) AS people FROM staff.teams t LEFT JOIN staff.people p ON p.team = t.id "
    "GROUP BY t.id, t.name",
    "names": "SELECT name FROM staff.teams",
}
GROUPS = {"shop": SHOP, "bank": BANK, "staff": STAFF}
VIEWS = {**SHOP, **BANK, **STAFF}

KEPT_BY: dict[str, dict[str, Any]] = {
    "same_customer": {"algorithm": "nested_sweep", "bound": 4},
    "picking": {"algorithm": "complete_n", "complete_n": 3},
    "customer_orders": {"algorithm": "t_strobe"},
    "paid_lines": {"algorithm": "eca"},
    "orders_per_city": {"algorithm": "refresh", "every": "1s"},
    "unsold": {"algorithm": "refresh", "every": 2},
    "both_sides": {"algorithm": "sweep_sequential", "parallel": True, "pipeline": 3},
    "booked": {"algorithm": "c_t_strobe"},
    "balances": {"algorithm": "sweep_sites", "pipeline": 2},
    "in_teams": {"algorithm": "g_strobe"},
    "chiefs": {"algorithm": "complete_n", "complete_n": 3},
    "peers": {"algorithm": "nested_sweep"},
    "team_sizes": {"algorithm": "refresh", "every": "1s"},
}


def write_bank(rng: random.Random, db: sqlite3.Connection) -> None:
    """A transfer moves two balances in its transaction, is taken back with them, or accounts change hands."""
    debit, credit, amount = rng.randrange(1, 7), rng.randrange(1, 7), rng.randrange(9)
    match rng.randrange(5):
        case 0 | 1 | 2:
            db.execute("INSERT INTO transfers (debit, credit, amount) VALUES (?, ?, ?)", (debit, credit, amount))
        case 3:
            found = "SELECT id, debit, credit, amount FROM transfers ORDER BY random() LIMIT 1"
            for transfer, credit, debit, amount in db.execute(found).fetchall():  # noqa: B007, used below
                db.execute("DELETE FROM transfers WHERE id = ?", (transfer,))
        case 4:
            db.execute("UPDATE accounts SET owner = 'o' || (id + ?) % 3 WHERE id < ?", (amount, credit))
            return
    db.execute("UPDATE accounts SET balance = balance - ? WHERE id = ?", (amount, debit))
    db.execute("UPDATE accounts SET balance = balance + ? WHERE id = ?", (amount, credit))


def write_ledger(rng: random.Random, db: sqlite3.Connection) -> None:
    """Accounts go from book to book, transfers are audited once or twice, audits are thrown away."""
    match rng.randrange(3):
        case 0:
            row = (rng.randrange(1, 7), f"b{rng.randrange(3)}")
            db.execute("INSERT OR REPLACE INTO books VALUES (?, ?)", row)
            db.execute("DELETE FROM books WHERE account = ?", (rng.randrange(1, 7),))
        case 1:
            db.execute("INSERT INTO audits (transfer) VALUES (?), (?)", (rng.randrange(1, 40), rng.randrange(1, 40)))
        case 2:
            db.execute("DELETE FROM audits WHERE id % 3 = ?", (rng.randrange(3),))


def write_staff(rng: random.Random, db: sqlite3.Connection) -> None:
    """People come, go and change teams and chiefs, a team is renamed or dissolved."""
    person, team = rng.randrange(1, 13), rng.randrange(4)
    match rng.randrange(4):
        case 0 | 1:
            db.execute("INSERT OR REPLACE INTO people VALUES (?, ?, ?)", (person, team, rng.randrange(1, 13)))
            db.execute("UPDATE people SET team = ? WHERE chief = ?", (team, person))
        case 2:
            db.execute("DELETE FROM people WHERE id = ?", (person,))
        case 3:
            db.execute("INSERT OR REPLACE INTO teams VALUES (?, ?)", (team, f"t{rng.randrange(5)}"))
            db.execute("DELETE FROM teams WHERE id = ?", (rng.randrange(4),))


WRITES: dict[str, list[Write]] = {
    **shop.WRITES,
    "bank": [write_bank, write_bank],
    "ledger": [write_ledger],
    "staff": [write_staff],
}
