"""Writers of the bank: threads that do what its applications do, and know what became of every transaction.

They work at REPEATABLE READ: two that want the same account collide, and one of them rolls back.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg

from tests.conftest import eventually
from tests.e2e.bank import ACCOUNTS, BRANCHES, CUSTOMERS, RESERVED, TRANSFERS
from tests.e2e.harness import PATIENCE, Installation
from tests.e2e.pg_oracle import PgOracle
from tests.e2e.postgres import Database


class Session:
    """One writer's connection: transactions whose outcome is known, even if the server was killed meanwhile."""

    def __init__(self, source: str, database: Database, rng: random.Random):
        self.source = source
        self.rng = rng
        self._database = database
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self.touched = 0  # rows of captured tables that the transaction in hand has changed
        self.committed: list[str] = []  # xids of transactions that touched something
        self.others: list[str] = []  # of those that were rolled back, or did nothing to captured tables
        self.unknown: list[str] = []  # of those whose COMMIT was not answered

    def run(self, work: Callable[[Session], None], rollback: float = 0.08) -> bool:
        """One transaction; tells whether it was committed. A server that is away is an outcome, too."""
        self.touched, self._xid, self._committing = 0, "", False
        try:
            return self._transaction(work, rollback)
        except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected, psycopg.IntegrityError):
            self.close()  # which rolls back
        except (psycopg.OperationalError, psycopg.InterfaceError):
            self.close()
            if self._committing and self.touched:
                self.unknown.append(self._xid)
                return False
        if self._xid:
            self.others.append(self._xid)
        return False

    def _transaction(self, work: Callable[[Session], None], rollback: float) -> bool:
        if self._connection is None:
            self._connection = self._database.connect(connect_timeout=5)
            self.aside("SET deadlock_timeout = '20ms'")
        self.aside("BEGIN ISOLATION LEVEL REPEATABLE READ")
        self._xid = self._one("SELECT pg_current_xact_id()::text")
        work(self)
        self._committing = self.rng.random() >= rollback
        self.aside("COMMIT" if self._committing else "ROLLBACK")
        (self.committed if self._committing and self.touched else self.others).append(self._xid)
        return self._committing

    def do(self, sql: str, *values: Any) -> None:
        """A statement that changes rows of captured tables."""
        assert self._connection is not None
        self.touched += max(0, self._connection.execute(sql.encode(), values).rowcount)

    def call(self, function: str, *values: int) -> None:
        """A function that tells how many rows it changed."""
        self.touched += self._one(f"SELECT {function}({', '.join(['%s'] * len(values))})", *values)

    def aside(self, sql: str, *values: Any) -> None:
        """A statement that changes nothing that is captured."""
        assert self._connection is not None
        self._connection.execute(sql.encode(), values)

    def maybe(self, work: Callable[[Session], None]) -> None:
        """The work inside a savepoint, which is kept or undone."""
        before = self.touched
        self.aside("SAVEPOINT s")
        work(self)
        if self.rng.random() < 0.5:
            self.aside("ROLLBACK TO SAVEPOINT s")
            self.touched = before
        else:
            self.aside("RELEASE SAVEPOINT s")

    def _one(self, sql: str, *values: Any) -> Any:
        assert self._connection is not None
        found = self._connection.execute(sql.encode(), values).fetchone()
        assert found is not None
        return found[0]

    def settle(self) -> None:
        """Asks the server what became of the transactions whose COMMIT was not answered."""
        unknown, self.unknown = self.unknown, []
        for xid in unknown:
            ((status,),) = self._database.execute(f"SELECT pg_xact_status('{xid}'::xid8)")
            assert status in ("committed", "aborted"), f"transaction {xid} is {status}"
            (self.committed if status == "committed" else self.others).append(xid)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()


class Teller:
    """What applications of the bank do, as one of several writers: its transfers and new accounts are its own."""

    def __init__(self, number: int):
        self.transfers = range(number * TRANSFERS, (number + 1) * TRANSFERS)
        self.ids = range(1000 * (number + 1), 1000 * (number + 1) + 30)

    def __call__(self, session: Session) -> None:
        rng = session.rng
        match rng.randrange(20):
            case 0:
                session.call("rekey", self.account(rng), rng.choice(self.ids))
            case 1:
                session.call("close", self.account(rng), self.account(rng))
            case 2:
                session.call("open", rng.choice(self.ids), self.account(rng), rng.randrange(BRANCHES))
            case 3:
                self.pay(session)
                session.maybe(self.pay)
                self.order(session)
            case 4:
                session.maybe(self.order)
            case 5:
                session.aside("INSERT INTO audit (what) VALUES ('nobody asks')")
            case 6:
                rows = "id IN (SELECT id FROM accounts WHERE branch = %s ORDER BY id LIMIT 5)"
                session.do(
                    f"UPDATE accounts SET rate = rate + 0.25, frozen = NOT frozen WHERE {rows}", rng.randrange(10)
                )
            case 7 | 8:
                owner = rng.choice([None, *range(1, CUSTOMERS + 5)])
                values = (owner, rng.randrange(BRANCHES), self.account(rng))
                session.do("UPDATE accounts SET owner = %s, branch = %s WHERE id = %s", *values)
            case 9 | 10 | 11:
                self.order(session)
            case 12:
                session.call("cancel", rng.choice(self.transfers))
            case _:
                self.pay(session)

    def account(self, rng: random.Random) -> int:
        """An account that no long transaction is about; it need not be there."""
        return rng.choice(self.ids) if rng.random() < 0.2 else rng.randrange(RESERVED + 1, ACCOUNTS + 1)

    def pay(self, session: Session) -> None:
        rng = session.rng
        payer, payee = self.account(rng), self.account(rng)
        session.call("pay", rng.choice(self.transfers), payer, payee, rng.randrange(-50, 200))

    def order(self, session: Session) -> None:
        """Orders are replaced, changed, renumbered and deleted; some name nobody, or somebody who is not there."""
        rng = session.rng
        order = self.transfers[0] + rng.randrange(TRANSFERS)
        customer, account = rng.choice([None, *range(CUSTOMERS + 5)]), rng.choice([None, self.account(rng)])
        match rng.randrange(4):
            case 0:
                session.do("DELETE FROM orders WHERE id = %s", order)
                values = (order, customer, account, rng.randrange(4000) / 100)
                session.do("INSERT INTO orders VALUES (%s, %s, %s, %s, 'ordered')", *values)
            case 1:
                session.do("UPDATE orders SET customer = %s, account = %s WHERE id = %s", customer, account, order)
            case 2:
                session.do(
                    "UPDATE orders SET total = total + 1, note = repeat(note, 2) WHERE id = %s AND length(note) < 40",
                    order,
                )
            case 3:
                session.do("DELETE FROM orders WHERE id = %s", order)


class LateTeller:
    """Transactions that stay open while hundreds of others commit; their accounts are reserved."""

    def __init__(self, stop: threading.Event):
        self.stop = stop

    def __call__(self, session: Session) -> None:
        self.pay(session)
        self.stop.wait(session.rng.uniform(0.05, 1.5))
        session.maybe(self.pay)
        self.pay(session)

    @staticmethod
    def pay(session: Session) -> None:
        payer, payee = session.rng.sample(range(1, RESERVED + 1), 2)
        session.call("pay", -session.rng.randrange(1, TRANSFERS), payer, payee, session.rng.randrange(1, 100))


def crm_clerk(session: Session) -> None:
    """Customers come, go, come back, change their names and their numbers."""
    rng = session.rng
    customer = rng.randrange(1, CUSTOMERS + 5)
    row = (customer, f"c{rng.randrange(100)}", rng.choice([None, "s1", "s2"]))
    match rng.randrange(5):
        case 0:
            session.do("DELETE FROM customers WHERE id = %s", customer)
        case 1 | 2:
            upsert = "ON CONFLICT (id) DO UPDATE SET name = excluded.name"
            session.do(f"INSERT INTO customers VALUES (%s, %s, %s) {upsert}", *row)
        case 3:
            session.do("UPDATE customers SET id = %s WHERE id = %s", rng.randrange(1, CUSTOMERS + 5), customer)
        case 4:
            session.do("DELETE FROM customers WHERE id = %s", customer)
            session.do("INSERT INTO customers VALUES (%s, %s, %s)", *row)


class BankWriters:
    """Tellers, a late one, clerks of the other database and of SQLite, in threads of their own, until the block ends.

    ``pause`` is how long each waits between two transactions at most. A failure of one ends the block with it.
    """

    def __init__(self, world: Installation, seed: int, tellers: int = 4, clerks: int = 2, pause: float = 0.0):
        self.world = world
        self.pause = pause
        self.stop = threading.Event()
        self.failures: list[BaseException] = []
        self.seconds = 0.0
        works = [("bank", Teller(n)) for n in range(tellers)] + [("crm", crm_clerk)] * clerks
        works += [("bank", LateTeller(self.stop))]
        self.sessions = [
            Session(source, world.databases[source], random.Random(f"{seed} {n}"))
            for n, (source, _) in enumerate(works)
        ]
        self.threads = [
            threading.Thread(target=self._write, args=(session, work))
            for session, (_, work) in zip(self.sessions, works, strict=True)
        ]
        self.threads.append(threading.Thread(target=self._rename_branches, args=(random.Random(seed),)))

    @property
    def committed(self) -> int:
        return sum(len(session.committed) for session in self.sessions)

    def committed_in(self, source: str) -> Counter[str]:
        """The transactions that changed captured tables, by what Viewkeeper calls them: the low half of their xids."""
        mine = [session for session in self.sessions if session.source == source]
        return Counter(str(int(xid) % 2**32) for session in mine for xid in session.committed)

    def others_in(self, source: str) -> set[str]:
        """Those that were rolled back, or changed nothing that is captured."""
        mine = [session for session in self.sessions if session.source == source]
        others = {str(int(xid) % 2**32) for session in mine for xid in session.others}
        # A server that was killed uses those again of which its log holds nothing.
        return others - self.committed_in(source).keys()

    def _write(self, session: Session, work: Callable[[Session], None]) -> None:
        try:
            while not self.stop.is_set():
                if not session.run(work) or self.pause:
                    self.stop.wait(session.rng.uniform(0, max(self.pause, 0.002)))
        except BaseException as error:
            self.failures.append(error)
        finally:
            session.close()

    def _rename_branches(self, rng: random.Random) -> None:
        try:
            while not self.stop.wait(rng.uniform(0.02, 0.2)):
                branch = rng.randrange(BRANCHES)
                self.world.write("offices", f"UPDATE branches SET city = 'Ülm {rng.randrange(99)}' WHERE id = {branch}")
        except BaseException as error:
            self.failures.append(error)

    def __enter__(self) -> BankWriters:
        self._began = time.monotonic()
        for thread in self.threads:
            thread.start()
        return self

    def wait_for(self, transactions: int) -> None:
        """Lets the writers commit this many transactions more."""
        goal = self.committed + transactions
        eventually(lambda: self.committed >= goal or self.failures, PATIENCE, f"{transactions} transactions")

    def write_for(self, seconds: float) -> None:
        """Lets the writers go on for so long."""
        end = time.monotonic() + seconds
        eventually(lambda: time.monotonic() > end or self.failures, seconds + PATIENCE)

    def end(self) -> None:
        """No writer writes any more, and what became of every transaction is known."""
        self.stop.set()
        for thread in self.threads:
            thread.join(PATIENCE)
        self.seconds = self.seconds or time.monotonic() - self._began
        if self.failures:
            raise self.failures[0]
        for session in self.sessions:
            session.settle()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.end()
        self.stop.set()
        for thread in self.threads:
            thread.join(PATIENCE)


def check_every_transaction_once(world: Installation, writers: BankWriters, oracle: PgOracle) -> None:
    """Each one that was committed has a number or was loaded; none has two, and none that was rolled back has one."""
    for source in world.databases:
        found, committed = _numbered(world, source), writers.committed_in(source)
        assert max(found.values(), default=1) == max(committed.values()) == 1
        assert not found.keys() & writers.others_in(source), "what was rolled back has a number"
        loaded = {txn for name, txn in oracle.loaded if name == source}
        assert committed.keys() == found.keys() | loaded


def _numbered(world: Installation, source: str) -> Counter[str]:
    """The source's transactions that have a number."""
    updates = world.reader().updates(1, world.cut().last_update)
    return Counter(u["txn"] for u in updates.select(["source", "txn"]).to_pylist() if u["source"] == source)
