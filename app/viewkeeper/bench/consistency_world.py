"""The world of the streaming-consistency test: payments in one database, accounts in another.

After Jamie Brandon, "Internal consistency in streaming systems" (2021): money only moves, so whatever moment a reader
sees, all credits together are all debits together. Here payments are also corrected and taken back, and accounts get
new owners, while everything runs. What was committed is noted next to its position in the database's change log, so
that a checker knows what any cut must hold.
"""

from __future__ import annotations

import random
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from viewkeeper.managers.sources import sqlite_log

LEDGER, BANK = "ledger", "bank"

TABLES = {
    LEDGER: (
        "PRAGMA journal_mode = WAL",
        """CREATE TABLE transactions
           (id INTEGER PRIMARY KEY, from_account INTEGER, to_account INTEGER, amount INTEGER)""",
        "CREATE INDEX by_payer ON transactions (from_account)",
        "CREATE INDEX by_payee ON transactions (to_account)",
    ),
    BANK: (
        "PRAGMA journal_mode = WAL",
        "CREATE TABLE accounts (id INTEGER PRIMARY KEY, owner TEXT)",
    ),
}

VIEWS = {
    "credits": """SELECT t.id, t.to_account AS account, a.owner, t.amount
        FROM ledger.transactions t JOIN bank.accounts a ON t.to_account = a.id""",
    "debits": """SELECT t.id, t.from_account AS account, a.owner, t.amount
        FROM ledger.transactions t JOIN bank.accounts a ON t.from_account = a.id""",
    "transfers": """SELECT s.id, p.id AS payer, p.owner AS payer_owner, q.id AS payee, q.owner AS payee_owner,
               s.amount AS sent, r.amount AS received
        FROM ledger.transactions s JOIN ledger.transactions r ON s.id = r.id
        JOIN bank.accounts p ON s.from_account = p.id JOIN bank.accounts q ON r.to_account = q.id""",
    "balances": """SELECT a.id AS account, a.owner, sum(m.amount) AS balance
        FROM (SELECT to_account AS account, amount FROM ledger.transactions
              UNION ALL SELECT from_account AS account, -amount AS amount FROM ledger.transactions) m
        JOIN bank.accounts a ON m.account = a.id
        GROUP BY a.id, a.owner""",
}

Connect = Callable[[str], sqlite3.Connection]


def kept(every: str) -> dict[str, dict[str, str]]:
    """How the views are kept that are not swept: a sum is computed anew every so often."""
    return {"balances": {"algorithm": "refresh", "every": every}}


@dataclass
class Journal:
    """What a database's commits left behind, in order: per row its position in the change log, its key, its values."""

    positions: list[int] = field(default_factory=list)
    rows: list[tuple[int, ...]] = field(default_factory=list)

    def note(self, position: int, rows: list[tuple[int, ...]]) -> None:
        self.positions += [position] * len(rows)
        self.rows += rows


@dataclass
class Books:
    """All that was ever committed.

    ``payments`` are (id, payer, payee, amount), zeros for one that was taken back; ``names`` are (account, owner), the
    owner as its place in ``owners``, where 0 is nobody.
    """

    payments: Journal = field(default_factory=Journal)
    names: Journal = field(default_factory=Journal)
    owners: list[str] = field(default_factory=lambda: [""])

    @cached_property
    def sizes(self) -> dict[str, int]:
        """One more than the largest payment id and account; when nothing is committed any more."""
        journals = {"id": self.payments, "account": self.names}
        return {key: 1 + max(row[0] for row in journal.rows) for key, journal in journals.items()}


class Writer:
    """Writes both databases, a thread for each, every commit noted in ``books``; the same seed makes the same rows.

    ``connect`` opens a database in autocommit mode. Make it before capture begins: it writes the first rows.
    """

    def __init__(self, connect: Connect, accounts: int, seed: int):
        self.books = Books()
        self.connect = connect
        self._accounts = accounts
        self._payments, self._names = (random.Random(f"{seed} {source}") for source in (LEDGER, BANK))
        self._next = 1
        self._gone: set[int] = set()
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._begin()

    def _begin(self) -> None:
        """Every account has an owner, and every other one has paid something."""
        with self._writing(BANK) as db:
            self.books.names.note(0, [self._named(db, account) for account in range(1, self._accounts + 1)])
        with self._writing(LEDGER) as db:
            self.books.payments.note(0, [self._paid(db) for _ in range(self._accounts // 2)])

    def write(self, payments: int, commit: int = 10, pause: float = 0.0, rename: float = 0.05) -> None:
        """Makes so many payments, in source transactions of ``commit`` on average, and gives accounts new owners.

        Seconds: between two transactions ``pause`` passes on average, between two renamings ``rename``.
        """
        self._stop.clear()
        renaming = threading.Thread(target=self._rename, args=(rename,))
        renaming.start()
        try:
            self._pay(self._next + payments, commit, pause)
        finally:
            self._stop.set()
            renaming.join()
        if self._failures:
            raise self._failures[0]

    def _pay(self, until: int, commit: int, pause: float) -> None:
        rng = self._payments
        with self._writing(LEDGER) as db:
            while self._next < until:
                db.execute("BEGIN IMMEDIATE")
                rows = [self._paid(db) for _ in range(min(rng.randint(1, 2 * commit), until - self._next))]
                rows += [self._corrected(db) for _ in range(rng.randrange(3))]
                rows += [self._taken_back(db) for _ in range(rng.randrange(2))]
                position = sqlite_log.last_id(db)
                db.execute("COMMIT")
                self.books.payments.note(position, rows)
                self._stop.wait(rng.uniform(0, 2 * pause))

    def _rename(self, pause: float) -> None:
        try:
            with self._writing(BANK) as db:
                while not self._stop.wait(self._names.uniform(0, 2 * pause)):
                    db.execute("BEGIN IMMEDIATE")
                    accounts = [self._names.randint(1, self._accounts) for _ in range(self._names.randint(1, 3))]
                    rows = [self._named(db, account) for account in accounts]
                    position = sqlite_log.last_id(db)
                    db.execute("COMMIT")
                    self.books.names.note(position, rows)
        except BaseException as error:
            self._failures.append(error)

    @contextmanager
    def _writing(self, source: str) -> Iterator[sqlite3.Connection]:
        """A connection that may lose its last commits in a power cut, to save time."""
        with closing(self.connect(source)) as db:
            db.execute("PRAGMA synchronous = OFF")
            yield db

    def _paid(self, db: sqlite3.Connection) -> tuple[int, ...]:
        rng = self._payments
        row = (self._next, rng.randint(1, self._accounts), rng.randint(1, self._accounts), rng.randint(1, 9))
        self._next += 1
        db.execute("INSERT INTO transactions VALUES (?, ?, ?, ?)", row)
        return row

    def _corrected(self, db: sqlite3.Connection) -> tuple[int, ...]:
        """Another amount, and as often as not for somebody else."""
        rng, id = self._payments, self._some_payment()
        _, payer, payee, amount = db.execute("SELECT * FROM transactions WHERE id = ?", (id,)).fetchone()
        row = (payer, rng.choice((payee, rng.randint(1, self._accounts))), amount % 9 + 1)
        db.execute("UPDATE transactions SET from_account = ?, to_account = ?, amount = ? WHERE id = ?", (*row, id))
        return (id, *row)

    def _taken_back(self, db: sqlite3.Connection) -> tuple[int, ...]:
        id = self._some_payment()
        self._gone.add(id)
        db.execute("DELETE FROM transactions WHERE id = ?", (id,))
        return (id, 0, 0, 0)

    def _some_payment(self) -> int:
        """One that is still there; more are made than taken back, so there always is one."""
        while (id := self._payments.randrange(1, self._next)) in self._gone:
            pass
        return id

    def _named(self, db: sqlite3.Connection, account: int) -> tuple[int, ...]:
        owner = len(self.books.owners)
        self.books.owners.append(f"owner {owner}")
        db.execute("INSERT OR REPLACE INTO accounts VALUES (?, ?)", (account, self.books.owners[-1]))
        return account, owner
