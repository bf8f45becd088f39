"""Random SQLite schemas and statements, to try the change log against what really happened."""

from __future__ import annotations

import contextlib
import itertools
import random
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from viewkeeper.capture.sqlite_missed import missed
from viewkeeper.capture.sqlite_triggers import install_on
from viewkeeper.managers.sources.sqlite_log import LOG, ROWID, last_id, read_state
from viewkeeper.managers.sources.sqlite_schema import quoted, read_table

OR = [
    "",
    "",
    "",
    " OR REPLACE",
    " OR REPLACE",
    " OR REPLACE",
    " OR IGNORE",
    " OR FAIL",
    " OR ABORT",
    " OR ROLLBACK",
]
ON_CONFLICT = [
    "",
    "",
    "",
    " ON CONFLICT REPLACE",
    " ON CONFLICT IGNORE",
    " ON CONFLICT FAIL",
    " ON CONFLICT ABORT",
]
ACTIONS = ["CASCADE", "CASCADE", "SET NULL", "SET DEFAULT", "NO ACTION"]


def connect() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", isolation_level=None)


class Watched:
    """A database whose table ``t`` (and others) is captured; compares the log with the tables after each statement.

    All columns are used but the ``unused``; what the log has of a row is compared, its rowid included.
    """

    def __init__(self, db: sqlite3.Connection, *tables: str, unused: Collection[str] = ()):
        self.db = db
        self.tables = tables
        used = {name: [c.name for c in read_table(db, name).columns if c.name not in unused] for name in tables}
        install_on(db, "source test", used, reload=False)
        self.seen = last_id(db)
        self.places = {name: captured.layout.places for name, captured in read_state(db, "test").tables.items()}
        self.before = {name: self.bag(name) for name in tables}

    def bag(self, table: str) -> Counter[tuple[object, ...]]:
        names = [
            quoted(name) if name != ROWID else read_table(self.db, table).rowid_name for name in self.places[table]
        ]
        return Counter(self.db.execute(f"SELECT {', '.join(names)} FROM {quoted(table)}").fetchall())

    def logged(self, table: str) -> Counter[tuple[object, ...]]:
        """The log's rows since the last look, as a signed bag."""
        width = len(self.places[table])
        total: Counter[tuple[object, ...]] = Counter()
        for sides, ops, sign in (("b", ("delete", "update"), -1), ("a", ("insert", "update"), 1)):
            columns = ", ".join(f"{sides}{i}" for i in range(width))
            query = f"SELECT {columns} FROM {LOG} WHERE id > ? AND relation = ? AND op IN (?, ?)"
            for row in self.db.execute(query, (self.seen, table, *ops)):
                total[row] += sign
        return Counter({row: n for row, n in total.items() if n})

    def assert_exact(self, history: str = "") -> None:
        """The log since the last look is the difference of the tables since then."""
        for table in self.tables:
            after = self.bag(table)
            real = Counter(after)
            real.subtract(self.before[table])
            real = Counter({row: n for row, n in real.items() if n})
            assert self.logged(table) == real, f"{history}\n{table}: log {self.logged(table)}, really {real}"
            self.before[table] = after
        self.seen = last_id(self.db)

    def compact(self) -> None:
        """VACUUM, which changes no row but may number rows anew."""
        self.db.execute("VACUUM")
        self.before = {name: self.bag(name) for name in self.tables}

    def run(self, *statements: str) -> None:
        """Executes the statements (one that fails may fail), then compares."""
        for statement in statements:
            with contextlib.suppress(sqlite3.IntegrityError):
                self.db.execute(statement)
        self.assert_exact("\n".join(statements))


@dataclass
class World:
    """A random schema, with the means to make random statements on it."""

    random: random.Random
    ddl: list[str] = field(default_factory=list)
    has_child: bool = False

    def value(self) -> str:
        return self.random.choice(["0", "1", "2", "3", "4", "NULL", "'a'", "'A'", "'b'", "1.0"])

    def number(self) -> str:
        return self.random.choice(["1", "2", "3", "4", "5"])

    def make(self) -> None:
        r = self.random
        conflict = lambda: r.choice(ON_CONFLICT)  # noqa: E731
        shape = r.choice(["integer key", "integer key", "text key", "no key", "without rowid", "without rowid pair"])
        columns = {
            "integer key": f"id INTEGER PRIMARY KEY{conflict()}",
            "text key": f"id TEXT COLLATE {r.choice(['NOCASE', 'BINARY'])} PRIMARY KEY{conflict()}",
            "no key": "id INTEGER",
            "without rowid": f"id INTEGER PRIMARY KEY{conflict()}",
            "without rowid pair": "id INTEGER",
        }[shape]
        parts = [columns]
        parts.append(f"a TEXT{r.choice(['', ' COLLATE NOCASE'])}{r.choice(['', f' UNIQUE{conflict()}'])}")
        parts.append(
            f"b INTEGER{r.choice(['', ' NOT NULL DEFAULT 2', ' NOT NULL ON CONFLICT REPLACE DEFAULT 3'])}"
            f"{r.choice(['', '', f' UNIQUE{conflict()}'])}"
        )
        key_is_unique = shape in ("integer key", "text key", "without rowid")
        self_reference = key_is_unique and r.random() < 0.4
        default = r.choice(["", " DEFAULT 1"])
        # The child's type is the parent's: if they differ, SQLite shows delete triggers OLD in the child's type.
        kind = "TEXT" if shape == "text key" else "INTEGER"
        reference = f" REFERENCES t(id) ON DELETE {r.choice(ACTIONS)} ON UPDATE {r.choice(ACTIONS)}"
        parts.append(f"p {kind}{default}{reference if self_reference else ''}{r.choice(['', '', ' UNIQUE'])}")
        if r.random() < 0.3:
            parts.append("g GENERATED ALWAYS AS (b + 1)" + r.choice([" VIRTUAL", " STORED"]))
        if shape == "without rowid pair":
            parts.append(f"PRIMARY KEY (id, a){conflict()}")
        if r.random() < 0.3:
            parts.append(f"UNIQUE (a, b){conflict()}")
        self.shape = shape
        self.ddl.append("CREATE TABLE fuel (n)")
        self.ddl.append("INSERT INTO fuel VALUES (0)")
        suffix = " WITHOUT ROWID" if shape.startswith("without") else ""
        self.ddl.append(f"CREATE TABLE t ({', '.join(parts)}){suffix}")
        if r.random() < 0.3:
            self.ddl.append(
                f"CREATE UNIQUE INDEX part ON t ({r.choice(['b', 'p', 'a, p'])}) WHERE {r.choice(['p > 1', 'b < 3'])}"
            )
        if key_is_unique and r.random() < 0.3:
            self.has_child = True
            self.ddl.append(
                f"CREATE TABLE u (id INTEGER PRIMARY KEY, t {kind} REFERENCES t(id) "
                f"ON DELETE {r.choice(ACTIONS)} "
                f"ON UPDATE {r.choice(ACTIONS)})"
            )
        if r.random() < 0.4:
            for i in range(r.choice([1, 1, 2])):
                self.ddl.append(self.trigger(i))

    def trigger(self, number: int) -> str:
        """A user's trigger that writes the table itself.

        No BEFORE UPDATE or DELETE: SQLite leaves undefined what happens when such a trigger touches its own row.
        """
        r = self.random
        when = r.choice(["BEFORE INSERT", "AFTER INSERT", "AFTER UPDATE", "AFTER DELETE"])
        row = "OLD" if "DELETE" in when else "NEW"
        table = "u" if self.has_child and r.random() < 0.3 else "t"
        if table == "u":
            body = self.insert() if r.random() < 0.5 else self.update()
        else:
            choices = [
                f"INSERT{r.choice(OR)} INTO t (id, a, b, p) "
                f"VALUES ({row}.id + {self.number()}, {row}.a, {self.value()}, {self.value()})",
                f"INSERT{r.choice(OR)} INTO t (id, a, b, p) VALUES ({row}.id, {self.value()}, {row}.b, {self.value()})",
                f"UPDATE{r.choice(OR)} t SET b = {row}.b, a = {self.value()} WHERE id = {self.number()}",
                f"DELETE FROM t WHERE id = {row}.id + 1",
                f"DELETE FROM t WHERE b = {row}.b",
            ]
            body = r.choice(choices)
        # Without fuel, recursive triggers would go a thousand deep.
        fuel = "WHEN (SELECT n FROM fuel) > 0 BEGIN UPDATE fuel SET n = n - 1"
        return f"CREATE TRIGGER user_{number} {when} ON {table} {fuel}; {body}; END"

    def insert(self) -> str:
        r = self.random
        rows = ", ".join(
            f"({r.choice([self.number(), self.number(), 'NULL'])}, {self.value()}, {self.value()}, {self.value()})"
            for _ in range(r.choice([1, 1, 2, 3]))
        )
        return f"INSERT{r.choice(OR)} INTO t (id, a, b, p) VALUES {rows}"

    def update(self) -> str:
        r = self.random
        where = r.choice([f"id = {self.number()}", f"a = {self.value()}", f"b > {self.number()}", "1"])
        sets = r.choice(
            [
                f"id = {self.number()}",
                f"a = {self.value()}",
                f"b = {self.value()}",
                f"p = {self.value()}",
                f"id = {self.number()}, a = {self.value()}",
                "id = id + 1",
                "b = b + 1, p = NULL",
                "a = a",
            ]
        )
        return f"UPDATE{r.choice(OR)} t SET {sets} WHERE {where}"

    def statement(self) -> str:
        r = self.random
        kind = r.random()
        if kind < 0.4:
            return self.insert()
        if kind < 0.5:
            values = f"{self.number()}, {self.value()}, {self.value()}, {self.value()}"
            plain = f"INSERT INTO t (id, a, b, p) VALUES ({values})"
            do = r.choice(
                [
                    "NOTHING",
                    f"UPDATE SET b = {self.value()}",
                    "UPDATE SET a = excluded.a, id = excluded.id + 1",
                ]
            )
            return f"{plain} ON CONFLICT DO {do}"
        if kind < 0.75:
            return self.update()
        if kind < 0.8 and self.shape not in ("without rowid", "without rowid pair"):
            return r.choice(
                [
                    f"INSERT{r.choice(OR)} INTO t (rowid, a, b) "
                    f"VALUES ({self.number()}, {self.value()}, {self.value()})",
                    f"UPDATE{r.choice(OR)} t SET rowid = {self.number()} WHERE id = {self.number()}",
                ]
            )
        if kind < 0.9:
            if self.has_child:
                return f"INSERT{r.choice(OR)} INTO u (id, t) VALUES ({self.number()}, {self.number()})"
            return f"REPLACE INTO t (id, a, b, p) SELECT id + 1, a, b, p FROM t WHERE id < {self.number()}"
        return f"DELETE FROM t WHERE {r.choice([f'id = {self.number()}', f'b = {self.value()}', 'p IS NULL'])}"

    def history(self) -> Iterator[list[str]]:
        """Transactions, for ever."""
        r = self.random
        while True:
            block = r.random() < 0.5
            statements = [self.statement() for _ in range(r.choice([1, 2, 4]))]
            if block:
                statements = ["BEGIN", *statements, r.choice(["COMMIT", "COMMIT", "ROLLBACK"])]
                if r.random() < 0.3:
                    statements[2:2] = ["SAVEPOINT s", self.statement(), r.choice(["ROLLBACK TO s", "RELEASE s"])]
            yield statements


def run_history(seed: int, transactions: int = 12, unused: int = 0) -> int:
    """Makes a world and a history from a seed and checks every transaction; how many statements succeeded.

    Some ``unused`` columns, chosen by the same seed, need not be in the log.
    """
    r = random.Random(seed)
    world = World(r)
    world.make()
    db = connect()
    db.execute(f"PRAGMA recursive_triggers = {r.choice(['ON', 'OFF', 'OFF'])}")
    db.execute(f"PRAGMA foreign_keys = {r.choice(['ON', 'ON', 'OFF'])}")
    history = [f"-- seed {seed}"]
    for ddl in world.ddl:
        db.execute(ddl)
        history.append(ddl)
    left_out = random.Random(seed).sample("abpg", unused)
    history.append(f"-- unused: {left_out}")
    watched = Watched(db, *(["t", "u"] if world.has_child else ["t"]), unused=left_out)
    done, compacted = 0, random.Random(seed)
    for statements in itertools.islice(world.history(), transactions):
        for statement in statements:
            history.append(statement)
            try:
                db.execute("UPDATE fuel SET n = 3")
                db.execute(statement)
                done += 1
            except sqlite3.Error as error:
                history.append(f"-- {error}")
        if db.in_transaction:
            db.execute("ROLLBACK")
        watched.assert_exact("\n".join(history))
        if compacted.random() < 0.2:
            watched.compact()
            history.append("VACUUM")
    return done


def run_joined_history(seed: int) -> str:
    """Triggers and foreign keys come to a captured table that had none before the log's reader looks.

    Each transaction is in the log, or what may be missing is said; "exact" or "said". No statement says OR FAIL.
    """
    r = random.Random(seed)
    world = World(r)
    world.make()
    db = connect()
    db.execute(f"PRAGMA recursive_triggers = {r.choice(['ON', 'OFF', 'OFF'])}")
    schema = [ddl.replace("FAIL", "ABORT") for ddl in world.ddl]
    company = [ddl for ddl in schema if ddl.startswith(("CREATE TRIGGER", "CREATE TABLE u"))]
    company = company or [world.trigger(0).replace("FAIL", "ABORT")]
    for ddl in schema:
        if ddl not in company:
            db.execute(ddl)
    watched = Watched(db, "t")
    for ddl in company:
        db.execute(ddl)
    state, table = read_state(db, "test"), read_table(db, "t")
    assert table is not None
    history = [f"-- seed {seed}", *schema, "-- come later:", *company]
    for statements in itertools.islice(world.history(), 12):
        since = watched.seen
        for statement in statements:
            history.append(statement.replace(" OR FAIL", ""))
            with contextlib.suppress(sqlite3.Error):
                db.execute("UPDATE fuel SET n = 3")
                db.execute(history[-1])
        if db.in_transaction:
            db.execute("ROLLBACK")
        if missed(db, "t", state.tables["t"], table, since):
            return "said"
        watched.assert_exact("\n".join(history))
    return "exact"
