"""A bank whose books must balance in every state of every view.

Money moves by transfers of two legs. Whatever a transaction does, afterwards every account's balance is its opening
balance plus its legs, the legs of a transfer add up to nothing, and the balances add up to ``TOTAL``. All that is in
one database; the customers are in another one, the branches in SQLite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tests.e2e.oracle import Bag

ACCOUNTS, OPENING, RESERVED, CUSTOMERS, BRANCHES, TRANSFERS = 150, 1000, 12, 60, 10, 40
TOTAL = ACCOUNTS * OPENING

_FULL = "ALTER TABLE {} REPLICA IDENTITY FULL"

BANK = [
    "CREATE TABLE accounts (id bigint PRIMARY KEY, owner bigint, branch int NOT NULL, opening bigint NOT NULL, "
    "balance bigint NOT NULL, rate numeric(8,2), frozen boolean)",
    "CREATE INDEX ON accounts (owner)",
    "CREATE INDEX ON accounts (branch)",
    "CREATE TABLE entries (transfer bigint, leg int, account bigint NOT NULL, amount bigint NOT NULL, "
    "PRIMARY KEY (transfer, leg))",
    "CREATE INDEX ON entries (account)",
    "CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, account bigint, total numeric(8,2), note text)",
    "CREATE INDEX ON orders (customer)",
    "CREATE INDEX ON orders (account)",
    "CREATE TABLE audit (id bigserial PRIMARY KEY, what text)",  # no view uses it
    *(_FULL.format(table) for table in ("accounts", "entries", "orders")),
    f"INSERT INTO accounts SELECT i, nullif(i % {CUSTOMERS}, 0), i % {BRANCHES}, {OPENING}, {OPENING}, 1.50, false "
    f"FROM generate_series(1, {ACCOUNTS}) i",
    f"INSERT INTO orders SELECT i, i % {CUSTOMERS}, i, i, 'first' FROM generate_series(1, {ACCOUNTS}) i",
    """CREATE FUNCTION cancel(t bigint) RETURNS int LANGUAGE plpgsql AS $$
    DECLARE n int;
    BEGIN
        UPDATE accounts a SET balance = a.balance - e.amount FROM entries e WHERE e.transfer = t AND e.account = a.id;
        DELETE FROM entries WHERE transfer = t;
        GET DIAGNOSTICS n = ROW_COUNT;
        RETURN n;
    END $$""",
    """CREATE FUNCTION pay(t bigint, a bigint, b bigint, x bigint) RETURNS int LANGUAGE plpgsql AS $$
    DECLARE n int := cancel(t);
    BEGIN
        IF a = b OR (SELECT count(*) FROM accounts WHERE id IN (a, b)) < 2 THEN RETURN n; END IF;
        UPDATE accounts SET balance = balance + CASE id WHEN a THEN -x ELSE x END WHERE id IN (a, b);
        INSERT INTO entries VALUES (t, 1, a, -x), (t, 2, b, x);
        RETURN n + 4;
    END $$""",
    """CREATE FUNCTION rekey(old bigint, new bigint) RETURNS int LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE accounts SET id = new WHERE id = old;
        IF NOT FOUND THEN RETURN 0; END IF;
        UPDATE entries SET account = new WHERE account = old;
        UPDATE orders SET account = new WHERE account = old;
        RETURN 1;
    END $$""",
    """CREATE FUNCTION close(a bigint, heir bigint) RETURNS int LANGUAGE plpgsql AS $$
    DECLARE n int := 0; o bigint := (SELECT opening FROM accounts WHERE id = a);
    BEGIN
        IF o IS NULL OR a = heir OR NOT EXISTS (SELECT FROM accounts WHERE id = heir) THEN RETURN 0; END IF;
        SELECT coalesce(sum(cancel(e.transfer)), 0) INTO n FROM entries e WHERE e.account = a;
        DELETE FROM accounts WHERE id = a;
        UPDATE accounts SET opening = opening + o, balance = balance + o WHERE id = heir;
        RETURN n + 2;
    END $$""",
    """CREATE FUNCTION open(a bigint, giver bigint, b int) RETURNS int LANGUAGE plpgsql AS $$
    DECLARE n int := 0; o bigint := (SELECT opening / 2 FROM accounts WHERE id = giver);
    BEGIN
        IF o IS NULL OR EXISTS (SELECT FROM accounts WHERE id = a) THEN RETURN 0; END IF;
        UPDATE accounts SET opening = opening - o, balance = balance - o WHERE id = giver;
        INSERT INTO accounts VALUES (a, NULL, b, o, o, NULL, NULL);
        RETURN 2;
    END $$""",
]  # fmt: skip

CRM = [
    "CREATE TABLE customers (id bigint PRIMARY KEY, name text, segment text)",
    _FULL.format("customers"),
    f"INSERT INTO customers SELECT i, 'c' || i, 's' || i % 3 FROM generate_series(1, {CUSTOMERS}) i",
]

OFFICES = [
    "CREATE TABLE branches (id INTEGER PRIMARY KEY, city TEXT)",
    "INSERT INTO branches VALUES " + ", ".join(f"({i}, 'Ülm {i}')" for i in range(BRANCHES)),
]

VIEWS = {
    "holdings": (
        "SELECT a.id, a.opening, a.balance, b.city FROM bank.accounts a JOIN offices.branches b ON a.branch = b.id"
    ),
    "owners": (
        "SELECT c.name, c.segment, a.id AS account, a.balance, a.rate, a.frozen "
        "FROM bank.accounts a JOIN crm.customers c ON a.owner = c.id"
    ),
    "statements": (
        "SELECT a.id AS account, a.opening, a.balance, e.transfer, e.leg, e.amount "
        "FROM bank.accounts a JOIN bank.entries e ON e.account = a.id"
    ),
    "pairs": (
        "SELECT x.transfer, x.account AS payer, y.account AS payee, x.amount AS taken, y.amount AS given "
        "FROM bank.entries x JOIN bank.entries y ON x.transfer = y.transfer AND x.leg < y.leg"
    ),
    "purchases": (
        "SELECT o.id, o.total, o.note, c.name, a.id AS account, a.balance, b.city FROM bank.orders o "
        "JOIN crm.customers c ON o.customer = c.id JOIN bank.accounts a ON o.account = a.id "
        "JOIN offices.branches b ON a.branch = b.id WHERE o.note <> 'first'"
    ),
}


class Books:
    """The bank's invariants over states of its views, which change together, update by update."""

    def __init__(self) -> None:
        self.total = 0
        self.accounts = 0
        self.legs: Counter[int] = Counter()  # by transfer
        self.sums: Counter[int] = Counter()
        self.paired: Counter[int] = Counter()
        self.statements: dict[int, Bag] = {}  # by account its rows in ``statements``

    def turn(self, changes: Mapping[str, Bag]) -> None:
        """Brings the views forward by one update, and requires that the books balance afterwards."""
        for row, count in changes.get("holdings", {}).items():
            self.total += row[2] * count
            self.accounts += count
        transfers: set[int] = set()
        for (transfer, _, _, taken, given), count in changes.get("pairs", {}).items():
            assert taken + given == 0
            self.paired[transfer] += count
            transfers.add(transfer)
        accounts: set[int] = set()
        for row, count in changes.get("statements", {}).items():
            account, _, _, transfer, _, amount = row
            self.statements.setdefault(account, Counter())[row] += count
            self.legs[transfer] += count
            self.sums[transfer] += amount * count
            accounts.add(account)
            transfers.add(transfer)
        assert self.total == TOTAL and self.accounts > 0, f"the balances add up to {self.total}"
        for account in accounts:
            self._require_balance(account)
        for transfer in transfers:
            legs = (self.legs[transfer], self.sums[transfer], self.paired[transfer])
            assert legs in ((2, 0, 1), (0, 0, 0)), f"transfer {transfer}: legs, sum, pairs are {legs}"

    def _require_balance(self, account: int) -> None:
        rows = self.statements[account] = +self.statements[account]
        assert len({row[1:3] for row in rows}) <= 1, f"account {account} has two balances"
        for _, opening, balance, *_ in rows:
            assert balance == opening + sum(row[5] * n for row, n in rows.items()), f"account {account}: {rows}"
            break
