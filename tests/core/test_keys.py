"""Keys that are keys: what SQLite's declarations promise to algorithms that delete by key, and what they do not.

SQLite itself decides which rows a key lets in; the managers of the job then keep a view over them, in any batches.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest

from viewkeeper.algebra.tiny import Row
from viewkeeper.algebra.types import Relation
from viewkeeper.algorithms.protocol import Op
from viewkeeper.managers.keeping import Keeping
from viewkeeper.managers.managers import Work
from viewkeeper.managers.sources.sqlite_schema import read_table
from viewkeeper.managers.sources.sqlite_values import arrow_column
from viewkeeper.simulator.history import Transaction, Workload

from ..scale import scaled
from .test_managers import Play, Snapshot, answered
from .worlds import plus

KEYED = Keeping("convergent", {"keyed": True})
ALL = [*(Keeping(name) for name in ("strobe", "t_strobe", "g_strobe", "c_strobe", "c_t_strobe")), KEYED]

PLAIN = "SELECT r.id, r.x, q.k FROM a.r r JOIN b.q q ON q.x = r.x"
JOINED = "SELECT q.id, r.x, q.k FROM a.r r JOIN b.q q ON q.id = r.id"
CHECKED = f"{PLAIN} WHERE r.id IS NOT NULL"


class Database:
    """A table in a real SQLite database, and what each transaction did to its rows as a view reads them."""

    def __init__(self, source: str, table: str):
        self.source = source
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        self.db.execute(table)
        self.name = table.split()[2]

    @property
    def relation(self) -> Relation:
        table = read_table(self.db, self.name)
        assert table is not None
        return table.relation(self.source)

    def rows(self) -> Counter[Row]:
        stored = self.db.execute(f"SELECT * FROM {self.name}").fetchall()
        kinds = [column.type for column in self.relation.columns]
        columns = [arrow_column([row[i] for row in stored], kind).to_pylist() for i, kind in enumerate(kinds)]
        return Counter(zip(*columns, strict=True))

    def run(self, *statements: str) -> tuple[Op, ...]:
        """One transaction, as the signed rows it leaves behind; a statement that breaks a constraint does nothing."""
        before = self.rows()
        for statement in statements:
            with contextlib.suppress(sqlite3.IntegrityError):
                self.db.execute(statement)
        after = self.rows()
        gone = [Op(self.name, row, -1) for row, n in (before - after).items() for _ in range(n)]
        return (*gone, *(Op(self.name, row, 1) for row, n in (after - before).items() for _ in range(n)))


def worked(databases: Iterable[Database], sql: str, steps: Iterable[tuple[int, tuple[str, ...]]]) -> Workload:
    """A workload of what these statements really did; each step names a database and a transaction on it."""
    at = list(databases)
    initial = {(d.source, d.name): tuple(d.rows().elements()) for d in at}
    did = [(at[place].source, at[place].run(*statements)) for place, statements in steps]
    transactions = tuple(Transaction(f"t{i}", {source: ops}) for i, (source, ops) in enumerate(did) if ops)
    return Workload(tuple(d.relation for d in at), sql, initial, transactions)


# ---- what a declaration promises


def declared(columns: str) -> Relation:
    return Database("a", f"CREATE TABLE r ({columns}").relation


@pytest.mark.parametrize(
    "columns",
    [
        "id INTEGER PRIMARY KEY)",
        "id integer, x, PRIMARY KEY (id))",
        "id INTEGER, PRIMARY KEY (id DESC))",
        "id INT PRIMARY KEY NOT NULL)",
        "id TEXT NOT NULL PRIMARY KEY)",
        "id TEXT COLLATE NOCASE NOT NULL PRIMARY KEY)",
        "id REAL NOT NULL PRIMARY KEY)",
        "id BOOLEAN NOT NULL PRIMARY KEY)",
        "id DATE NOT NULL PRIMARY KEY)",
        "id BLOB NOT NULL PRIMARY KEY)",
        "id TEXT PRIMARY KEY) WITHOUT ROWID",
        "id INTEGER PRIMARY KEY) WITHOUT ROWID",
        "id TEXT PRIMARY KEY) STRICT",
        "id INT NOT NULL, k TEXT NOT NULL, PRIMARY KEY (k, id))",
        "id INT, k TEXT, PRIMARY KEY (k, id)) WITHOUT ROWID",
    ],
)
def test_a_key_without_null_and_of_a_type_with_one_form_identifies_rows(columns: str) -> None:
    relation = declared(columns)
    assert relation.key and not relation.nullable and not relation.blurred


@pytest.mark.parametrize(
    ("columns", "nullable"),
    [
        ("id TEXT PRIMARY KEY)", {"id"}),
        ("id INT PRIMARY KEY)", {"id"}),
        ("id BIGINT PRIMARY KEY)", {"id"}),
        ("id INTEGER PRIMARY KEY DESC)", {"id"}),
        ("id REAL PRIMARY KEY)", {"id"}),
        ("id INTEGER, k TEXT, PRIMARY KEY (id, k))", {"id", "k"}),
        ("id INTEGER NOT NULL, k TEXT, x INT, PRIMARY KEY (id, k))", {"k"}),
    ],
)
def test_sqlite_lets_most_primary_keys_be_null(columns: str, nullable: set[str]) -> None:
    assert declared(columns).nullable == nullable


@pytest.mark.parametrize("kind", ["DECIMAL(6,2)", "NUMERIC", "TIMESTAMP", "DATETIME", "MONEY", ""])
@pytest.mark.parametrize("table", ["id {} NOT NULL PRIMARY KEY, x INT)", "id {} PRIMARY KEY, x INT) WITHOUT ROWID"])
def test_a_key_whose_type_has_many_forms_of_a_value_is_blurred(kind: str, table: str) -> None:
    assert declared(table.format(kind)).blurred == {"id"}


def test_only_the_columns_of_a_key_are_doubted() -> None:
    relation = declared("id INTEGER PRIMARY KEY, d DECIMAL(6,2), t TEXT)")
    assert relation.nullable == relation.blurred == frozenset()


# ---- what check says


def problems(r: str, sql: str, keeping: Keeping = KEYED) -> list[tuple[str, str]]:
    q = Database("b", "CREATE TABLE q (k INTEGER PRIMARY KEY, id TEXT, x INTEGER)")
    return keeping.problems(Workload((declared(r), q.relation), sql, {}, ()).tiny)


@pytest.mark.parametrize("keeping", ALL, ids=lambda keeping: keeping.algorithm)
def test_a_key_that_may_be_null_is_refused_with_what_to_declare(keeping: Keeping) -> None:
    what = "a.r.id, part of a key, may be NULL in several rows"
    remedy = "declare a.r.id NOT NULL, or add r.id IS NOT NULL to the view's WHERE"
    assert problems("id TEXT PRIMARY KEY, x INTEGER)", PLAIN, keeping) == [(what, remedy)]


@pytest.mark.parametrize("sql", [JOINED, CHECKED, CHECKED.replace("WHERE", "WHERE r.x > 1 AND")])
def test_a_key_that_may_be_null_is_accepted_where_the_view_keeps_null_out(sql: str) -> None:
    assert problems("id TEXT PRIMARY KEY, x INTEGER)", sql) == []


@pytest.mark.parametrize("condition", ["r.id IS NULL", "(r.id IS NOT NULL OR r.x = 1)", "r.x IS NOT NULL"])
def test_a_condition_that_lets_null_through_does_not_help(condition: str) -> None:
    assert problems("id TEXT PRIMARY KEY, x INTEGER)", f"{PLAIN} WHERE {condition}")


def test_each_occurrence_must_keep_null_out() -> None:
    table = "id TEXT PRIMARY KEY, up TEXT)"
    found = problems(table, "SELECT r.id, p.id AS up FROM a.r r JOIN a.r p ON r.up = p.id")
    assert found[0][1] == "declare a.r.id NOT NULL, or add r.id IS NOT NULL to the view's WHERE"
    assert problems(table, "SELECT r.id, p.up FROM a.r r JOIN a.r p ON r.id = p.id") == []


def test_each_column_of_a_key_must_keep_null_out() -> None:
    table = "id TEXT, n INTEGER, x INTEGER, PRIMARY KEY (id, n))"
    [(what, remedy)] = problems(table, "SELECT r.id, r.n, q.k FROM a.r r JOIN b.q q ON q.id = r.id")
    assert what == "a.r.n, part of a key, may be NULL in several rows"
    assert remedy == "declare a.r.n NOT NULL, or add r.n IS NOT NULL to the view's WHERE"


@pytest.mark.parametrize(("declaration", "kind"), [("DECIMAL(6,2)", "DECIMAL"), ("DATETIME", "TIMESTAMP")])
def test_a_key_of_a_blurred_type_is_refused_by_its_type(declaration: str, kind: str) -> None:
    what = f"a.r.id, part of a key, has type {kind}, which does not tell all its values apart"
    found = [(what, "choose an algorithm that needs no keys, such as sweep")]
    assert problems(f"id {declaration} PRIMARY KEY, x INTEGER)", PLAIN) == found


def test_a_key_of_unknown_type_is_refused_and_not_asked_to_be_shown() -> None:
    [(what, _)] = problems("id MONEY PRIMARY KEY, x INTEGER)", "SELECT r.x, q.k FROM a.r r JOIN b.q q ON q.x = r.x")
    assert what == "a.r.id, part of a key, has no type that a view can show"


# ---- what is accepted is exact, what is refused is not


VALUES = {
    "INTEGER": ("1", "'1'", "1.0", "2", "9223372036854775807", "NULL"),
    "INT": ("1", "'1'", "1.0", "2", "-9223372036854775808", "NULL"),
    "TEXT": ("'a'", "'A'", "'a '", "1", "'1.0'", "char(0)", "NULL"),
    "TEXT COLLATE NOCASE": ("'a'", "'A'", "'ä'", "'Ä'", "NULL"),
    "REAL": ("0.0", "-0.0", "1", "9007199254740992", "9007199254740993", "9e999", "-9e999", "9e999 - 9e999"),
    "BOOLEAN": ("0", "0.0", "'1'", "TRUE", "NULL"),
    "DATE": ("'2024-01-01'", "'2024-02-29'", "'0001-01-01'", "NULL"),
    "BLOB": ("x''", "x'61'", "x'6100'", "NULL"),
}

TABLES = {
    "plain": "CREATE TABLE r (id {} PRIMARY KEY, x INTEGER)",
    "pair": "CREATE TABLE r (id {}, x INTEGER NOT NULL, PRIMARY KEY (x, id))",
    "not-null": "CREATE TABLE r (id {} NOT NULL, x INTEGER, PRIMARY KEY (id))",
    "without-rowid": "CREATE TABLE r (id {} PRIMARY KEY, x INTEGER) WITHOUT ROWID",
    "strict": "CREATE TABLE r (id {} PRIMARY KEY, x INTEGER) STRICT",
}

NULLABLE = [(table, kind) for table in ("plain", "pair") for kind in VALUES if (table, kind) != ("plain", "INTEGER")]
EXACT = [
    ("plain", "INTEGER"),
    *((table, kind) for table in ("not-null", "without-rowid") for kind in VALUES),
    *(("strict", kind) for kind in ("INT", "TEXT", "TEXT COLLATE NOCASE", "REAL", "BLOB")),
]
ACCEPTED = [
    *((*case, PLAIN) for case in EXACT),
    *((*case, JOINED) for case in NULLABLE),
    *((*case, CHECKED) for case in NULLABLE),
]


def statement(rng: random.Random, table: str, kind: str) -> str:
    key, other, x = rng.choice(VALUES[kind]), rng.choice(VALUES[kind]), rng.randint(1, 2)
    row = f"({key}, {x})" if table == "r" else f"({rng.randint(1, 3)}, {key}, {x})"
    return rng.choice(
        (
            f"INSERT INTO {table} VALUES {row}",
            f"INSERT INTO {table} VALUES {row}",
            f"INSERT OR REPLACE INTO {table} VALUES {row}",
            f"UPDATE {table} SET x = {x} WHERE id IS {key}",
            f"UPDATE OR IGNORE {table} SET id = {other} WHERE id IS {key}",
            f"DELETE FROM {table} WHERE id IS {key}",
            f"DELETE FROM {table} WHERE x = {x}",
        )
    )


def random_writes(rng: random.Random, table: str, kind: str, sql: str) -> Workload:
    databases = [Database("a", table), Database("b", f"CREATE TABLE q (k INTEGER PRIMARY KEY, id {kind}, x INTEGER)")]
    for database in databases:
        database.run(*(statement(rng, database.name, kind) for _ in range(6)))
    places = [rng.choice((0, 0, 1)) for _ in range(10)]
    steps = [
        (place, tuple(statement(rng, databases[place].name, kind) for _ in range(rng.randint(1, 3))))
        for place in places
    ]
    return worked(databases, sql, steps)


@pytest.mark.parametrize(("table", "kind", "sql"), ACCEPTED)
def test_oracle_an_accepted_key_keeps_the_view_exact(table: str, kind: str, sql: str) -> None:
    for number in range(scaled(2, 12)):
        seed = f"{table} {kind} {sql} {number}"
        print(f"random.Random({seed!r})")
        rng = random.Random(seed)
        load = random_writes(rng, TABLES[table].format(kind), kind, sql)
        play = Play(load, rng.choice(ALL), rng)
        assert play.keeping.problems(load.tiny) == []
        keep(play)
        assert play.level() >= play.keeping.level, f"{play.keeping}: {load.transactions}"


def keep(play: Play) -> None:
    """In any batches; without compensation the view is right only if no update meets another."""
    if play.keeping != KEYED:
        play.run()
        return
    for k in range(1, len(play.order) + 1):
        now = Snapshot(frozenset(range(1, k + 1)), frozenset())
        snapshots = dict.fromkeys(play.sources, now)
        work = Work(play.world.queue([k]), play.received(range(k, k + 1)), np.array([k]), snapshots)
        for change in answered(play.managers, work).values():
            play.stored = dict(plus(Counter(play.stored), change))
        assert play.stored == play.expected(k), f"after update {k} of {play.order}"


TWICE = [
    pytest.param("TEXT", ("NULL", "NULL"), id="null"),
    pytest.param("REAL", ("NULL", "9e999 - 9e999"), id="not-a-number"),
    pytest.param("DECIMAL(6,2) NOT NULL", ("1.001", "1.002"), id="decimal"),
    pytest.param("TIMESTAMP NOT NULL", ("'2024-01-01'", "'2024-01-01 00:00:00'"), id="timestamp"),
]


@pytest.mark.parametrize("keeping", ALL, ids=lambda keeping: keeping.algorithm)
@pytest.mark.parametrize(("kind", "keys"), TWICE)
def test_a_refused_key_would_lose_rows_that_are_still_there(keeping: Keeping, kind: str, keys: tuple[str, str]) -> None:
    r = Database("a", f"CREATE TABLE r (id {kind} PRIMARY KEY, x INTEGER)")
    r.run(f"INSERT INTO r VALUES ({keys[0]}, 1)", f"INSERT INTO r VALUES ({keys[1]}, 2)")
    load = worked([r], "SELECT r.id, r.x FROM a.r r", [(0, ("DELETE FROM r WHERE x = 2",))])
    assert keeping.problems(load.tiny)
    play = Play(load, keeping, random.Random(0))
    play.batch(range(1, 2))
    assert len(play.expected(1)) == 1 and play.stored == {}
