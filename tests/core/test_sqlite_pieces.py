"""Long answers of SQLite are read in pieces, and are exact whatever is written between the pieces."""

from __future__ import annotations

import contextlib
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.scale import scaled
from viewkeeper.algebra.bag import SignedBag
from viewkeeper.algebra.construct import compare
from viewkeeper.algebra.expressions import ColumnRef, Literal
from viewkeeper.algebra.types import INTEGER
from viewkeeper.capture.sqlite_triggers import check_schema, install
from viewkeeper.errors import SourceError
from viewkeeper.managers.sources import sqlite, sqlite_log, sqlite_pieces, sqlite_tail
from viewkeeper.managers.sources.sqlite import SqliteSource
from viewkeeper.messages import Ask

COLUMNS = ("id", "a", "b")
SHAPES = {
    "rowid": "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b INTEGER UNIQUE)",
    "hidden rowid": "CREATE TABLE t (id INTEGER, a TEXT PRIMARY KEY, b INTEGER)",
    "no key": "CREATE TABLE t (id INTEGER, a TEXT, b INTEGER)",
    "pair": "CREATE TABLE t (id INTEGER, a TEXT COLLATE NOCASE, b INTEGER, PRIMARY KEY (a, id)) WITHOUT ROWID",
    "other order": "CREATE TABLE t (id INTEGER, a TEXT, b INTEGER, PRIMARY KEY (a COLLATE NOCASE, id)) WITHOUT ROWID",
    "any key": "CREATE TABLE t (id INTEGER, a TEXT, b INTEGER, k DEFAULT 0, PRIMARY KEY (k, id)) WITHOUT ROWID",
    "descending": "CREATE TABLE t (id INTEGER, a TEXT, b INTEGER, PRIMARY KEY (id DESC)) WITHOUT ROWID",
}
KEYS = ("0", "1", "1.5", "'1'", "'x'", "x'31'", "CAST(x'ff' AS TEXT)", "CAST(x'6100' AS TEXT)", "-9e99")


class Written:
    """A table, and a program that writes to it whenever nobody reads."""

    def __init__(self, path: Path, shape: str, rng: random.Random):
        self.rng, self.shape = rng, shape
        self.db = sqlite3.connect(path, isolation_level=None, timeout=0)
        self.db.execute("PRAGMA synchronous = OFF")
        self.db.execute(f"PRAGMA recursive_triggers = {rng.choice(['ON', 'OFF'])}")
        self.db.execute(SHAPES[shape])
        for _ in range(12):
            self.run(self.insert())
        install("shop", str(path), {"t": COLUMNS})
        self.columns = 0
        self.upsets = 0

    def run(self, statement: str) -> None:
        with contextlib.suppress(sqlite3.IntegrityError):
            self.db.execute(statement)

    def number(self) -> int:
        return self.rng.randrange(40)

    def text(self) -> str:
        return self.rng.choice(["'a'", "'A'", "'b'", "'B '", "'c'", f"'{self.number()}'"])

    def insert(self) -> str:
        names, values = "id, a, b", f"{self.number()}, {self.text()}, {self.number()}"
        if self.shape == "any key":
            names, values = f"{names}, k", f"{values}, {self.rng.choice(KEYS)}"
        return f"INSERT {self.rng.choice(['', 'OR REPLACE', 'OR REPLACE'])} INTO t ({names}) VALUES ({values})"

    def statement(self) -> str:
        change = self.rng.choice(
            [f"id = {self.number()}", "id = id + 1", f"a = {self.text()}", f"b = {self.number()}", "b = b - 1"]
            + ([f"k = {self.rng.choice(KEYS)}"] if self.shape == "any key" else [])
            + ([f"rowid = {self.number()}"] if self.shape in ("no key", "hidden rowid") else [])
        )
        where = self.rng.choice([f"id = {self.number()}", f"id < {self.number()}", f"b > {self.number()}", "1"])
        update = f"UPDATE {self.rng.choice(['', 'OR REPLACE', 'OR IGNORE'])} t SET {change} WHERE {where}"
        delete = f"DELETE FROM t WHERE id = {self.number()} OR a = {self.text()}"
        return self.rng.choice([self.insert(), self.insert(), self.insert(), update, delete])

    def write(self, upset: float) -> None:
        if self.rng.random() < upset:
            self.upsets += 1
            self.upset()
        if self.rng.random() < 0.6:
            self.db.execute("BEGIN")
            for _ in range(self.rng.randrange(4)):
                self.run(self.statement())
            self.db.execute(self.rng.choice(["COMMIT", "COMMIT", "ROLLBACK"]))

    def upset(self) -> None:
        """What gives rows other identities, or alters the table."""
        choice = self.rng.randrange(4)
        if choice < 2:
            self.db.execute("VACUUM")
        elif choice == 2:
            self.columns += 1
            self.db.execute(f"ALTER TABLE t ADD COLUMN extra{self.columns} TEXT DEFAULT 'e'")
        else:
            self.db.execute("CREATE INDEX IF NOT EXISTS by_b ON t (b)")
            check_schema(self.db, "source shop", sqlite_log.last_id(self.db))

    def bag(self, ask: Ask) -> dict[Any, int]:
        """What the answer must be, by plain recomputation; the table has no row that does not fit."""
        found: dict[Any, int] = {}
        for row in self.db.execute("SELECT id, a, b FROM t").fetchall():
            if wanted(ask, row):
                found[row] = found.get(row, 0) + 1
        return found


def wanted(ask: Ask, row: tuple[Any, ...]) -> bool:
    if ask.keys is not None:
        asked = {tuple(key.values()) for key in ask.keys.to_pylist()}
        if tuple(row[COLUMNS.index(name)] for name in ask.key) not in asked:
            return False
    return ask.selection is None or (row[2] is not None and row[2] > 10)


def asked(ask: Ask, bag: pa.Table) -> dict[Any, int]:
    """As the asker sees it, who applies keys and selection again."""
    return {row: count for row, count in SignedBag(bag).counts().items() if wanted(ask, row)}


LARGE_B = compare(">", ColumnRef(0, "b", INTEGER), Literal(10, INTEGER))
QUESTIONS = {
    "all": Ask("shop", "t", COLUMNS),
    "selection": Ask("shop", "t", COLUMNS, selection=LARGE_B),
    "numbers": Ask("shop", "t", COLUMNS, ("id",), pa.table({"id": list(range(0, 40, 2))})),
    "texts": Ask("shop", "t", COLUMNS, ("a",), pa.table({"a": ["a", "A", "b", "B", "B ", "3", "7"]})),
    "both": Ask("shop", "t", COLUMNS, ("a", "b"), pa.table({"a": ["a", "A", "b"] * 9, "b": list(range(27))}), LARGE_B),
}


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each row took as long as a piece may."""
    for module, name, value in [
        (sqlite_pieces, "SECONDS", 0.0),
        (sqlite_pieces, "_STEPS", 1),
        (sqlite_pieces, "_FIRST_KEYS", 1),
        (sqlite_pieces, "_FEWEST", 1),
        (sqlite_tail, "_FIRST_ROWS", 2),
        (sqlite_pieces, "_AT_ONCE", 2),
    ]:
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What is done before each read transaction of an answer."""
    hooks: list[Callable[[], None]] = []
    reading = sqlite_log.reading

    @contextlib.contextmanager
    def hooked(db: sqlite3.Connection) -> Iterator[None]:
        for hook in hooks:
            hook()
        with reading(db):
            yield

    monkeypatch.setattr(sqlite_log, "reading", hooked)
    return hooks


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.usefixtures("small_pieces")
def test_oracle_an_answer_in_pieces_is_the_table_at_its_position_whatever_is_written_between_them(
    tmp_path: Path, between: list[Callable[[], None]], shape: str
) -> None:
    transactions = answers = upsets = 0
    for seed in range(scaled(3, 60)):
        rng = random.Random(seed)
        path = tmp_path / f"{seed}.db"
        world = Written(path, shape, rng)
        source = SqliteSource("shop", str(path))
        upset = rng.choice([0, 0.1, 0.3])

        def write(world: Written = world, upset: float = upset) -> None:
            nonlocal transactions
            transactions += 1
            world.write(upset)

        for name, ask in QUESTIONS.items():
            snapshot = source.freeze(None)
            before = world.bag(ask)
            between.append(write)
            answer = source.ask(ask, snapshot)
            between.clear()
            assert answer.tail is not None
            assert asked(ask, answer.rows) == world.bag(ask), f"{shape}, {name}, seed {seed}"
            assert answer.position == sqlite_log.LogPosition(sqlite_log.last_id(world.db))
            assert asked(ask, (SignedBag(answer.rows) - SignedBag(answer.tail)).table) == before, f"seed {seed}, {name}"
            answers += 1
        upsets += world.upsets
        world.db.close()
    assert transactions > 4 * answers, "in pieces"
    assert upsets > 0


def grown(path: Path, rows: int, text: str = "x") -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, timeout=0)
    db.execute("CREATE TABLE t (id INTEGER, a TEXT, b INTEGER)")
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
    db.execute(f"INSERT INTO t {numbers} SELECT i, ?, 1 FROM n", (rows, text))
    install("shop", str(path), {"t": COLUMNS})
    return db


@pytest.mark.usefixtures("small_pieces")
def test_a_table_compacted_again_and_again_is_read_in_one_transaction_at_last(
    tmp_path: Path, between: list[Callable[[], None]]
) -> None:
    db = grown(tmp_path / "shop.db", 20)
    source = SqliteSource("shop", str(tmp_path / "shop.db"))
    snapshot = source.freeze(None)
    compacted: list[int] = []

    def compact() -> None:
        db.execute("DELETE FROM t WHERE rowid = (SELECT min(rowid) FROM t)")
        db.execute("VACUUM")
        compacted.append(1)

    between.append(compact)
    answer = source.ask(QUESTIONS["all"], snapshot)
    assert len(compacted) > sqlite._ATTEMPTS
    assert sorted(answer.rows["id"].to_pylist()) == [id for (id,) in db.execute("SELECT id FROM t ORDER BY id")]


@pytest.mark.usefixtures("small_pieces")
def test_a_table_made_anew_between_two_pieces_stops_the_reading_with_words(
    tmp_path: Path, between: list[Callable[[], None]]
) -> None:
    db = grown(tmp_path / "shop.db", 20)
    source = SqliteSource("shop", str(tmp_path / "shop.db"))
    snapshot = source.freeze(None)
    looks: list[int] = []

    def replace() -> None:
        looks.append(1)
        if len(looks) == 4:
            db.executescript("CREATE TABLE n AS SELECT * FROM t; DROP TABLE t; ALTER TABLE n RENAME TO t")

    between.append(replace)
    with pytest.raises(SourceError, match="table t has lost its capture triggers"):
        source.ask(QUESTIONS["all"], snapshot)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("question", ["all", "numbers"])
def test_a_row_that_comes_between_pieces_and_does_not_fit_is_left_out_of_answer_and_tail_alike(
    tmp_path: Path, between: list[Callable[[], None]], question: str
) -> None:
    db = grown(tmp_path / "shop.db", 20)
    source = SqliteSource("shop", str(tmp_path / "shop.db"))
    snapshot = source.freeze(None)
    between.append(
        lambda: db.execute("INSERT INTO t (rowid, id, a, b) VALUES (-(SELECT count(*) FROM t), 2, 'x', 'y')")
    )
    answer = source.ask(QUESTIONS[question], snapshot)
    assert answer.tail is not None and len(answer.tail) == 0
    assert set(answer.rows["b"].to_pylist()) == {1}


def test_while_a_large_table_is_read_nobody_waits_longer_than_a_few_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that does not wait at all finds the database free after each piece."""
    monkeypatch.setattr(sqlite_pieces, "SECONDS", 0.01)
    db = grown(tmp_path / "shop.db", 200_000)
    source = SqliteSource("shop", str(tmp_path / "shop.db"))
    snapshot = source.freeze(None)
    held: list[float] = []
    reading = sqlite_log.reading

    @contextlib.contextmanager
    def timed(connection: sqlite3.Connection) -> Iterator[None]:
        begin = time.monotonic()
        with reading(connection):
            yield
        held.append(time.monotonic() - begin)
        db.execute("INSERT INTO t VALUES (0, 'new', 2)")

    monkeypatch.setattr(sqlite_log, "reading", timed)
    answer = source.ask(QUESTIONS["all"], snapshot)
    assert len(held) >= 5
    assert max(held) < sum(held) / 3
    assert len(answer.rows) - 200_000 in (len(held) - 1, len(held) - 2)  # the first, in no order, came to no end
