"""A tail that a connection kept and read on equals one read anew, and reading on costs what is new."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.scale import scaled
from viewkeeper.algebra.bag import SignedBag
from viewkeeper.algebra.types import INTEGER
from viewkeeper.capture.sqlite_triggers import check_schema, install
from viewkeeper.errors import SourceError
from viewkeeper.managers.sources import sqlite_log, sqlite_pruning, sqlite_tail
from viewkeeper.managers.sources.sqlite import SqliteSnapshot, SqliteSource
from viewkeeper.managers.sources.sqlite_log import LOG
from viewkeeper.managers.sources.sqlite_tail import Span, TailOf, Tails
from viewkeeper.messages import Ask

PLACE = "source shop"
ALL = Ask("shop", "t", ("x", "y"))
ONE = Ask("shop", "t", ("x", "y"), ("x",), pa.table({"x": [1]}))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return make(tmp_path / "shop.db")


def make(file: Path) -> str:
    db = sqlite3.connect(file)
    db.executescript("CREATE TABLE t (x INTEGER, y TEXT); CREATE TABLE u (z INTEGER); CREATE INDEX by_x ON t (x);")
    db.execute("INSERT INTO t (x, y) VALUES (1, 'a'), (1, 'a'), (2, 'b')")
    db.commit()
    db.close()
    install("shop", str(file), {"t": ["x", "y"], "u": ["z"]})
    return str(file)


@pytest.fixture
def source(path: str) -> SqliteSource:
    return SqliteSource("shop", path)


@pytest.fixture
def writer(path: str) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(path, isolation_level=None)
    yield db
    db.close()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images every reading of the log gave."""
    counts: list[int] = []
    chunks = sqlite_tail.chunks

    def counted(cursor: sqlite3.Cursor) -> Iterator[list[tuple[Any, ...]]]:
        for rows in chunks(cursor):
            counts.append(len(rows))
            yield rows

    monkeypatch.setattr(sqlite_tail, "chunks", counted)
    return counts


def insert(db: sqlite3.Connection, rows: int) -> None:
    db.execute("BEGIN")
    db.executemany("INSERT INTO t (x, y) VALUES (?, 'new')", [(x,) for x in range(10, 10 + rows)])
    db.execute("COMMIT")


def tail(source: SqliteSource, snapshot: SqliteSnapshot, ask: Ask = ALL) -> dict[Any, int]:
    answer = source.ask(ask, snapshot)
    assert answer.tail is not None
    return SignedBag(answer.tail).counts()


# ---- the same as one read anew

Told = tuple[dict[Any, int], dict[Any, int], Any] | str


def told(source: SqliteSource, ask: Ask, snapshot: SqliteSnapshot) -> Told:
    """What an answer says, or why there is none."""
    try:
        answer = source.ask(ask, snapshot)
    except SourceError as error:
        return str(error)
    assert answer.tail is not None
    return SignedBag(answer.rows).counts(), SignedBag(answer.tail).counts(), answer.position


WRITES = (
    *[
        "INSERT INTO t (x, y) VALUES (1, 'a')",
        "INSERT INTO t (x, y) VALUES (1, 'a'), (3, 'c')",
        "INSERT INTO u VALUES (1)",
    ]
    * 3,
    *["UPDATE t SET x = x + 1 WHERE y = 'a'", "UPDATE t SET y = 'a' WHERE x < 4", "DELETE FROM t WHERE x = 3"] * 2,
    "INSERT INTO t (x, y) VALUES ('misfit', 'a')",
    "UPDATE t SET x = 7 WHERE x = 'misfit'",
    "INSERT INTO t (x, y) VALUES (1, CAST(x'ff' AS TEXT))",
    f"UPDATE sqlite_sequence SET seq = seq + 9 WHERE name = '{LOG}'",
    "DELETE FROM sqlite_sequence",
)
"""The last two are what nobody should do to SQLite's own table: positions run ahead, or fall back."""


class Rewritten:
    """A database under random writes, and a snapshot that moves now and then."""

    def __init__(self, rng: random.Random, path: str, kept: SqliteSource):
        self.rng, self.path, self.kept = rng, path, kept
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("PRAGMA synchronous = OFF")
        self.copy = sqlite3.connect(":memory:")
        self.db.backup(self.copy)
        self.snapshot = kept.freeze(None, hold=True)
        self.columns = 0
        often: list[Callable[[], None]] = [self.write] * 8 + [self.roll_back] * 2
        self.steps = [*often, self.move, self.prune, self.widen, self.save, self.put_back]

    def write(self) -> None:
        self.db.execute(self.rng.choice(WRITES))

    def roll_back(self) -> None:
        """Ids are given that come back with another meaning."""
        self.db.execute("BEGIN")
        self.db.execute(self.rng.choice(WRITES[:9]))
        self.db.execute("ROLLBACK")

    def move(self) -> None:
        """A new snapshot somewhere in the log, forgiving or not."""
        self.kept.forgive(self.rng.choice([[], ["t"]]))
        ids = [id for (id,) in self.db.execute(f"SELECT id FROM {LOG}")]
        with contextlib.suppress(SourceError):  # an empty log whose sequence fell back is a lost one
            self.snapshot = self.kept.freeze(str(self.rng.choice(ids)) if ids else None)

    def prune(self) -> None:
        sqlite_pruning.prune(self.db, PLACE, self.snapshot.since)

    def widen(self) -> None:
        self.columns += 1
        self.db.execute(f"ALTER TABLE t ADD COLUMN extra{self.columns} TEXT DEFAULT 'e'")
        if self.rng.random() < 0.7:
            check_schema(self.db, PLACE, sqlite_log.last_id(self.db))

    def save(self) -> None:
        self.db.backup(self.copy)

    def put_back(self) -> None:
        """An older copy in the place of the database: what it held past the copy never was."""
        self.copy.backup(self.db)

    def question(self) -> Ask:
        columns = self.rng.choice([("x", "y"), ("x",), ("y", "x"), ()])
        keys = pa.table({"x": [1, 3]}) if self.rng.random() < 0.5 and "x" in columns else None
        return Ask("shop", "t", columns, () if keys is None else ("x",), keys)


def history_agrees(seed: int, file: Path) -> tuple[int, int]:
    """Runs a history from a seed, comparing each answer with that of a new connection; answers, tails with changes."""
    rng = random.Random(seed)
    kept = SqliteSource("shop", make(file))
    world = Rewritten(rng, kept.path, kept)
    answers = changes = 0
    with ThreadPoolExecutor(1) as other:
        for step in range(40):
            rng.choice(world.steps)()
            ask = world.question()
            here = rng.random() < 0.7
            found = told(kept, ask, world.snapshot) if here else other.submit(told, kept, ask, world.snapshot).result()
            anew = told(SqliteSource("shop", kept.path), ask, world.snapshot)
            if "is it an older copy" in str(found) != str(anew):
                kept = world.kept = SqliteSource("shop", kept.path)  # one that knew how far the log was pruned
                continue
            assert found == anew, f"seed {seed}, step {step}, {ask}"
            answers += not isinstance(found, str)
            changes += not isinstance(found, str) and bool(found[1])
    world.db.close()
    return answers, changes


def test_agree_a_kept_tail_and_one_read_anew_whatever_is_written_between_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = changes = 0
    for seed in range(scaled(4, 24)):
        monkeypatch.setattr(sqlite_tail, "SPOOL_ROWS", 3 if seed % 2 else 200_000)
        more = history_agrees(seed, tmp_path / f"{seed}.db")
        answers, changes = answers + more[0], changes + more[1]
    assert changes > answers / 3 > 0, (answers, changes)


def test_a_row_whose_id_lies_before_the_last_position_is_in_the_tail(source: SqliteSource, writer: Any) -> None:
    snapshot = source.freeze(None)
    writer.execute("INSERT INTO t (x, y) VALUES (8, 'h')")
    writer.execute(f"UPDATE sqlite_sequence SET seq = seq + 9 WHERE name = '{LOG}'")
    assert tail(source, snapshot) == {(8, "h"): 1}
    writer.execute("DELETE FROM sqlite_sequence")
    writer.execute("INSERT INTO t (x, y) VALUES (9, 'i')")
    assert tail(source, snapshot) == {(8, "h"): 1, (9, "i"): 1}


def test_an_older_copy_put_back_between_questions_has_its_own_tail(source: SqliteSource, writer: Any) -> None:
    snapshot = source.freeze(None)
    copy = sqlite3.connect(":memory:")
    writer.backup(copy)
    writer.execute("INSERT INTO t (x, y) VALUES (8, 'h')")
    assert tail(source, snapshot) == {(8, "h"): 1}
    copy.backup(writer)
    writer.execute("INSERT INTO t (x, y) VALUES (9, 'i')")
    writer.execute("INSERT INTO t (x, y) VALUES (9, 'i')")
    assert tail(source, snapshot) == {(9, "i"): 2}


def test_a_log_that_lost_its_last_row_is_read_anew(source: SqliteSource, writer: Any) -> None:
    snapshot = source.freeze(None)
    insert(writer, 2)
    assert len(tail(source, snapshot)) == 2
    writer.execute(f"DROP TRIGGER {LOG}_delete")
    writer.execute(f"DELETE FROM {LOG} WHERE id = (SELECT max(id) FROM {LOG})")
    assert tail(source, snapshot) == {(10, "new"): 1}


def test_a_misfit_excuses_as_many_rows_of_every_answer(source: SqliteSource, writer: Any) -> None:
    snapshot = source.freeze(None)
    writer.execute("INSERT INTO t (x, y) VALUES ('bad', 'z')")
    for _ in range(3):
        assert source.ask(ALL, snapshot).rows["x"].to_pylist() == [1, 1, 2]
    writer.execute("INSERT INTO t (x, y) VALUES ('bad', 'z')")
    for _ in range(3):
        assert source.ask(ALL, snapshot).rows["x"].to_pylist() == [1, 1, 2]


def test_an_answer_that_fails_keeps_no_writer_out(source: SqliteSource, path: str, writer: Any) -> None:
    writer.execute("INSERT INTO t (x, y) VALUES ('bad', 'z')")
    insert(writer, 100_000)
    snapshot = source.freeze(None)
    hasty = sqlite3.connect(path, timeout=0, isolation_level=None)
    with pytest.raises(SourceError) as failed:
        source.ask(ALL, snapshot)
    hasty.execute("UPDATE t SET x = 3 WHERE x = 'bad'")
    assert "'bad' is no integer" in str(failed.value)  # and it is still there, with all that its traceback holds on to
    hasty.close()


# ---- what it costs


def test_however_many_questions_the_log_is_read_once(source: SqliteSource, writer: Any, read: list[int]) -> None:
    snapshot = source.freeze(None)
    insert(writer, 3_000)
    steps = count_steps(source)
    source.ask(ONE, snapshot)
    first = steps()
    for _ in range(100):
        writer.execute("INSERT INTO t (x, y) VALUES (5, 'e')")
        answer = source.ask(ONE, snapshot)
    assert sum(read) == 3_000 + 100
    assert steps() - first < first, "SQLite itself does not walk through the log again"
    assert answer.tail is not None and len(answer.tail) == 3_100
    assert answer.tail["x"].num_chunks < 15, "the parts of a tail that grew by one row at a time are few"


def count_steps(source: SqliteSource) -> Callable[[], int]:
    """Counts the hundreds of instructions that SQLite executes for this thread's questions from now on."""
    done = 0

    def step() -> int:
        nonlocal done
        done += 1
        return 0

    source._session().db.set_progress_handler(step, 100)
    return lambda: done


@pytest.mark.parametrize("hold", [False, True])
def test_a_tail_is_forgotten_when_a_snapshot_ends_or_begins(
    source: SqliteSource, writer: Any, read: list[int], hold: bool
) -> None:
    position = source.position(source.freeze(None))
    insert(writer, 10)
    snapshot = source.freeze(position, hold)
    for _ in range(2):
        source.ask(ONE, snapshot)
    assert read == [10]
    source.freeze(position)
    source.ask(ONE, snapshot)
    assert read == [10, 10]
    source.release(snapshot)
    assert not source._session().tails._kept


def test_tails_are_kept_up_to_a_size_and_the_one_used_last_goes_last(path: str, writer: Any, read: list[int]) -> None:
    tails = Tails()
    since = sqlite_log.last_id(writer)
    insert(writer, 100)
    small, same, large = (
        TailOf(since, "t", tuple((name, INTEGER) for name in names), (Span((0,) * len(names)),))
        for names in ("x", "y", "abcd")
    )
    tails.most = 2 * tails.read(writer, small).bytes
    for of in (small, same, small, large, small, same):
        tails.read(writer, of)
    assert read == [100, 100, 100], "a tail that is too large takes no other's place"
    tails.read(writer, TailOf(since, "t", (("z", INTEGER),), (Span((0,)),)))
    tails.read(writer, same)
    tails.read(writer, small)
    assert len(read) == 5, "of three that fit by twos, the one not used for longest was read again"
