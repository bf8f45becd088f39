"""SQLite as a source: positioned answers with the tail that no topic has delivered yet."""

from __future__ import annotations

import os
import pickle
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from viewkeeper.algebra.bag import COUNT, SignedBag
from viewkeeper.algebra.construct import compare
from viewkeeper.algebra.expressions import ColumnRef, Literal
from viewkeeper.algebra.types import DATE, INTEGER, TEXT
from viewkeeper.capture.sqlite_triggers import install, remove
from viewkeeper.errors import SnapshotLost, SourceError, SourceUnreachable
from viewkeeper.managers.sources import sqlite_log, sqlite_pruning
from viewkeeper.managers.sources.sqlite import SqliteSource
from viewkeeper.messages import Ask
from viewkeeper.warehouse import mapped

TABLES = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, code TEXT COLLATE NOCASE, day DATE, price DECIMAL(8,2),
                     ok BOOLEAN, weight REAL, raw BLOB, at DATETIME, odd);
CREATE INDEX by_customer ON orders (customer, code);
CREATE TABLE plain (x INTEGER, y INTEGER);
"""
ROWS = [
    (1, 7, "a", "2024-01-01", 9.5, 1, 0.5, b"\x00", "2024-01-01 10:00:00", "?"),
    (2, 7, "A", "2024-01-02", 10, 0, float("inf"), b"\xff", "2024-01-01T10:00:00Z", 1),
    (3, 8, "b\0c", None, None, None, None, None, None, None),
    (2**63 - 1, None, "ü", "2024-01-01", 9.5, 1, -0.0, b"", "2024-01-01 12:00:00+02:00", None),
]
USED = ["id", "customer", "code", "day", "price", "ok", "weight", "raw", "at"]


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "shop.db")
    db = sqlite3.connect(path)
    db.executescript(TABLES)
    db.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", ROWS)
    db.execute("INSERT INTO plain VALUES (1, 1), (1, 1), (2, 1)")
    db.commit()
    db.close()
    install("shop", path, {"orders": USED, "plain": ["x", "y"]})
    return path


@pytest.fixture
def source(path: str) -> SqliteSource:
    return SqliteSource("shop", path)


@pytest.fixture
def writer(path: str) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(path, isolation_level=None)
    yield db
    db.close()


def ids(source: SqliteSource, key: str, keys: pa.Array) -> set[int]:
    question = Ask("shop", "orders", ("id",), (key,), pa.table({key: keys}))
    return set(source.ask(question, source.freeze(None)).rows["id"].to_pylist())


def test_describe_gives_columns_keys_and_what_leads_an_index(source: SqliteSource) -> None:
    found = source.describe()
    assert set(found) == {"orders", "plain"}
    assert found["orders"].key == ("id",)
    assert found["orders"].indexed == {"id", "customer"}
    assert [str(c.type) for c in found["orders"].columns][3:6] == ["date", "decimal(8,2)", "boolean"]
    assert set(source.describe(["plain", "nothing"])) == {"plain"}


@pytest.mark.parametrize(
    ("key", "keys", "expected"),
    [
        ("id", pa.array([1, 2**63 - 1, 99, None]), {1, 2**63 - 1}),
        ("customer", pa.array([7, None]), {1, 2}),
        ("code", pa.array(["b\0c", "ü"]), {3, 2**63 - 1}),
        ("raw", pa.array([b"\x00", b""]), {1, 2**63 - 1}),
        ("weight", pa.array([0.0, float("inf"), float("nan")]), {2, 2**63 - 1}),
        ("ok", pa.array([False]), {2}),
        ("day", pa.array(["2024-01-01"]).cast(pa.date32()), {1, 2**63 - 1}),
    ],
)
def test_keys_of_every_type_find_their_rows(source: SqliteSource, key: str, keys: pa.Array, expected: set[int]) -> None:
    assert ids(source, key, keys) == expected


@pytest.mark.parametrize(("keys", "found"), [(["A"], [2]), (["a", "A"], [1, 2]), (["b"], [])])
def test_keys_that_a_column_takes_for_equal_each_find_their_own_rows_once(
    source: SqliteSource, keys: list[str], found: list[int]
) -> None:
    answer = source.ask(Ask("shop", "orders", ("id", "code"), ("code",), pa.table({"code": keys})), source.freeze(None))
    assert sorted(answer.rows["id"].to_pylist()) == found


@pytest.mark.parametrize("key", ["price", "at"])
def test_where_equality_is_uncertain_the_relation_is_read_whole(source: SqliteSource, key: str) -> None:
    type = {c.name: c.type for c in source.describe()["orders"].columns}[key]
    assert len(ids(source, key, pa.array([None], type.arrow))) == len(ROWS)


def test_composite_keys_match_together(source: SqliteSource) -> None:
    keys = pa.table({"customer": [7, 8, 8], "code": ["a", "b\0c", "a"]})
    answer = source.ask(Ask("shop", "orders", ("id",), ("customer", "code"), keys), source.freeze(None))
    assert sorted(answer.rows["id"].to_pylist()) == [1, 3]


def test_more_keys_than_one_statement_takes_each_find_their_row_once(source: SqliteSource, writer: Any) -> None:
    writer.execute("BEGIN")
    writer.executemany("INSERT INTO orders (id) VALUES (?)", [(i,) for i in range(10, 20_000)])
    writer.execute("COMMIT")
    keys = pa.table({"id": list(range(20_000))})
    answer = source.ask(Ask("shop", "orders", ("id",), ("id",), keys), source.freeze(None))
    assert sorted(answer.rows["id"].to_pylist()) == [1, 2, 3, *range(10, 20_000)]


def test_a_selection_is_pushed_where_it_is_certain(source: SqliteSource) -> None:
    condition = compare("=", ColumnRef(0, "customer", INTEGER), Literal(7, INTEGER))
    answer = source.ask(Ask("shop", "orders", ("id",), selection=condition), source.freeze(None))
    assert set(answer.rows["id"].to_pylist()) == {1, 2}


def test_equal_rows_of_a_table_without_a_key_all_count(source: SqliteSource) -> None:
    answer = source.ask(Ask("shop", "plain", ("x",), ("x",), pa.table({"x": [1]})), source.freeze(None))
    assert SignedBag(answer.rows).counts() == {(1,): 2}


def test_answer_minus_tail_is_the_relation_as_it_was_delivered(source: SqliteSource, writer: Any) -> None:
    snapshot = source.freeze(None)
    before = SignedBag(source.ask(Ask("shop", "plain", ("x", "y")), snapshot).rows)
    writer.execute("BEGIN")
    writer.execute("INSERT INTO plain VALUES (5, 5)")
    writer.execute("UPDATE plain SET y = 9 WHERE x = 1")
    writer.execute("DELETE FROM plain WHERE x = 2")
    writer.execute("COMMIT")
    answer = source.ask(Ask("shop", "plain", ("x", "y")), snapshot)
    assert answer.tail is not None
    assert (SignedBag(answer.rows) - SignedBag(answer.tail)).counts() == before.counts()
    first, last = int(source.position(snapshot)), int(source.last_change())
    assert answer.position.includes(np.array([first, last, last + 1])).tolist() == [True, True, False]


def test_a_question_about_no_column_still_counts_rows(source: SqliteSource) -> None:
    answer = source.ask(Ask("shop", "plain", ()), source.freeze(None))
    assert answer.rows[COUNT].to_pylist() == [1, 1, 1]


def test_a_log_pruned_past_the_snapshot_says_so_and_a_hold_prevents_it(source: SqliteSource, writer: Any) -> None:
    plain = source.freeze(None)
    held = source.freeze(None, hold=True)
    writer.execute("INSERT INTO plain VALUES (5, 5)")
    last = int(source.last_change())
    assert sqlite_pruning.prune(writer, "source shop", last) == held.since
    with pytest.raises(SnapshotLost):
        source.ask(Ask("shop", "plain", ("x",)), plain)
    tail = source.ask(Ask("shop", "plain", ("x",)), held).tail
    assert tail is not None and tail["x"].to_pylist() == [5]
    source.release(held)
    assert sqlite_pruning.prune(writer, "source shop", last) == last
    assert source.last_change() == str(last)


def test_an_expired_hold_holds_nothing(source: SqliteSource, writer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_pruning, "HOLD_SECONDS", -1)
    source.freeze(None, hold=True)
    writer.execute("INSERT INTO plain VALUES (5, 5)")
    assert sqlite_pruning.prune(writer, "source shop", 2**61) == int(source.last_change())


def test_a_large_log_is_pruned_in_short_transactions_up_to_the_position(source: SqliteSource, writer: Any) -> None:
    writer.execute("BEGIN")
    writer.executemany("INSERT INTO plain VALUES (?, 0)", [(i,) for i in range(12_000)])
    writer.execute("COMMIT")
    last = int(source.last_change())
    assert sqlite_pruning.prune(writer, "source shop", last - 1) == last - 1
    assert writer.execute(f"SELECT count(*) FROM {sqlite_log.LOG}").fetchone() == (1,)


def test_a_database_that_went_back_is_noticed(source: SqliteSource) -> None:
    with pytest.raises(SourceError, match="older copy"):
        source.ask(Ask("shop", "plain", ("x",)), source.freeze(str(2**61)))


def test_a_value_that_does_not_fit_is_named_with_its_column(source: SqliteSource, writer: Any) -> None:
    writer.execute("INSERT INTO orders (id, day) VALUES (50, 'someday')")
    with pytest.raises(SourceError, match=r"source shop: orders\.day: 'someday' is no date"):
        source.ask(Ask("shop", "orders", ("day",)), source.freeze(None))


# ---- rows that do not fit

MISFITS = {
    "an insert": ([], ["INSERT INTO orders (id, day) VALUES (50, 'someday')"], {}),
    "good to misfit": ([], ["UPDATE orders SET day = 7 WHERE id = 1"], {}),
    "misfit to good": (
        [],
        ["INSERT INTO orders (id, day) VALUES (50, 7)", "UPDATE orders SET day = '2024-03-03' WHERE id = 50"],
        {},
    ),
    "misfit to misfit": (
        [],
        ["INSERT INTO orders (id, day) VALUES (50, 7)", "UPDATE orders SET day = 8 WHERE id = 50"],
        {},
    ),
    "a delete": ([], ["INSERT INTO orders (id, day) VALUES (50, 7)", "DELETE FROM orders WHERE id = 50"], {}),
    "text that is no UTF-8": ([], ["UPDATE orders SET code = CAST(x'ff' AS TEXT) WHERE id = 1"], {}),
    "one that was there, corrected": (["UPDATE orders SET day = 7 WHERE id = 1"],
        ["UPDATE orders SET day = '2024-03-03' WHERE id = 1"], {1}),
    "one that was there, deleted": (["UPDATE orders SET day = 7 WHERE id = 1"],
        ["DELETE FROM orders WHERE id = 1"], {1}),
    "one that was there, another misfit now": (["UPDATE orders SET day = 7 WHERE id = 1"],
        ["UPDATE orders SET day = 8 WHERE id = 1"], {1}),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISFITS)
@pytest.mark.parametrize("keys", [None, pa.table({"id": [1, 2, 50]})])
def test_a_misfit_that_the_log_shows_leaves_answer_and_tail_alike(
    source: SqliteSource, writer: Any, kind: str, keys: pa.Table | None
) -> None:
    before, after, never = MISFITS[kind]
    question = Ask("shop", "orders", ("id", "code", "day"), ("id",) if keys is not None else (), keys)
    asked = {1, 2, 50} if keys is not None else {row[0] for row in ROWS}
    fitting = source.ask(question, source.freeze(None)).rows
    for statement in before:
        writer.execute(statement)
    snapshot = source.freeze(None)
    for statement in after:
        writer.execute(statement)
    answer = source.ask(question, snapshot)
    assert answer.tail is not None
    left = (SignedBag(answer.rows) - SignedBag(answer.tail)).counts()
    wanted = {row: n for row, n in SignedBag(fitting).counts().items() if row[0] not in never}
    assert {row: n for row, n in left.items() if row[0] in asked} == wanted


def test_a_misfit_that_was_there_before_is_an_error_even_if_an_equal_one_came(
    source: SqliteSource, writer: Any
) -> None:
    writer.execute("INSERT INTO plain VALUES ('x', 1)")
    snapshot = source.freeze(None)
    writer.execute("INSERT INTO plain VALUES ('x', 1)")
    with pytest.raises(SourceError, match=r"source shop: plain\.x: 'x' is no integer; correct the row"):
        source.ask(Ask("shop", "plain", ("x", "y")), snapshot)


def test_updates_before_a_misfit_can_be_swept_whatever_the_tail_holds(source: SqliteSource, writer: Any) -> None:
    snapshot = source.freeze(None)
    writer.execute("INSERT INTO plain VALUES (3, 'bad')")
    answer = source.ask(Ask("shop", "plain", ("x", "y"), ("x",), pa.table({"x": [2]})), snapshot)
    assert answer.rows["x"].to_pylist() == [2]
    assert answer.tail is not None and len(answer.tail) == 0


def test_a_forgiven_relation_is_answered_without_its_misfits_unless_the_snapshot_is_held(
    source: SqliteSource, writer: Any
) -> None:
    writer.execute("INSERT INTO plain VALUES ('x', 1)")
    position = source.position(source.freeze(None))
    source.forgive(["plain"])
    question = Ask("shop", "plain", ("x",))
    assert source.ask(question, source.freeze(position)).rows["x"].to_pylist() == [1, 1, 2]
    with pytest.raises(SourceError):
        source.ask(question, source.freeze(position, hold=True))
    source.forgive([])
    with pytest.raises(SourceError):
        source.ask(question, source.freeze(position))


# ---- a log that is not the one of before


def test_a_position_that_the_log_does_not_reach_is_refused_with_the_remedy(
    source: SqliteSource, path: str, writer: Any
) -> None:
    position = source.position(source.freeze(None))
    source.require(position)
    with pytest.raises(SourceError, match=r"older copy.*init --reload"):
        source.require(str(int(position) + 10**9))
    remove("shop", path)
    install("shop", path, {"plain": ["x"]})
    writer.executemany("INSERT INTO plain VALUES (?, 0)", [(i,) for i in range(100)])
    with pytest.raises(SourceError, match=r"its change log begins at .*init --reload"):
        SqliteSource("shop", path).require(position)


def test_a_log_made_anew_under_a_running_job_is_noticed(source: SqliteSource, path: str) -> None:
    question = Ask("shop", "plain", ("x",))
    source.ask(question, source.freeze(None))
    remove("shop", path)
    install("shop", path, {"plain": ["x"]})
    with pytest.raises(SourceError, match="removed and made anew"):
        source.ask(question, source.freeze(None))


def test_a_missing_database_is_unreachable_and_is_not_created(tmp_path: Path) -> None:
    source = SqliteSource("shop", str(tmp_path / "none.db"))
    with pytest.raises(SourceUnreachable):
        source.describe()
    assert not os.path.exists(source.path)


def test_a_database_locked_too_long_is_unreachable(path: str, writer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_log, "BUSY_SECONDS", 0.05)
    writer.execute("BEGIN EXCLUSIVE")
    with pytest.raises(SourceUnreachable, match="locked"):
        SqliteSource("shop", path).freeze(None)
    writer.execute("ROLLBACK")


def test_a_file_that_is_no_database_is_a_source_error(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("not a database at all, but long enough to be looked at" * 30)
    with pytest.raises(SourceError, match="not a database"):
        SqliteSource("shop", str(tmp_path / "x.db")).describe()


def test_a_dropped_table_is_noticed_by_the_next_question(source: SqliteSource, writer: Any) -> None:
    snapshot = source.freeze(None)
    source.ask(Ask("shop", "plain", ("x",)), snapshot)
    writer.execute("DROP TABLE plain")
    with pytest.raises(SourceError, match="table plain is gone"):
        source.ask(Ask("shop", "plain", ("x",)), snapshot)


def test_a_source_pickles_and_the_snapshot_with_it(source: SqliteSource) -> None:
    snapshot = source.freeze(None)
    copy, same = pickle.loads(pickle.dumps((source, snapshot)))
    assert len(copy.ask(Ask("shop", "plain", ("x",)), same).rows) == 3


def test_a_large_answer_comes_from_a_file_that_is_gone(source: SqliteSource, tmp_path: Path) -> None:
    batch = pa.record_batch({"x": list(range(100))})
    table = mapped.gather((batch for _ in range(10)), batch.schema, most=250)
    assert table["x"].to_pylist() == list(range(100)) * 10


def test_a_collation_that_only_its_programs_know_is_read_whole(path: str, writer: Any) -> None:
    writer.create_collation("mine", lambda a, b: (a > b) - (a < b))
    writer.execute("CREATE TABLE c (x TEXT COLLATE mine)")
    writer.execute("INSERT INTO c VALUES ('a'), ('b')")
    install("shop", path, {"c": ["x"], "orders": USED, "plain": ["x", "y"]})
    source = SqliteSource("shop", path)
    answer = source.ask(Ask("shop", "c", ("x",), ("x",), pa.table({"x": ["a"]})), source.freeze(None))
    assert set(answer.rows["x"].to_pylist()) == {"a", "b"}


def test_the_types_of_answer_and_tail_are_the_declared_ones(source: SqliteSource, writer: Any) -> None:
    snapshot = source.freeze(None)
    writer.execute("UPDATE orders SET code = 'z' WHERE id = 1")
    answer = source.ask(Ask("shop", "orders", ("day", "code")), snapshot)
    wanted = pa.schema([("day", DATE.arrow), ("code", TEXT.arrow), (COUNT, pa.int64())])
    assert answer.rows.schema == wanted
    assert answer.tail is not None and answer.tail.schema == wanted


def test_a_source_that_is_closed_holds_no_file_and_opens_it_again(tmp_path: Path) -> None:
    path = tmp_path / "closed.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
        db.commit()
    source = SqliteSource("closed", str(path))
    asked, over = threading.Event(), threading.Event()

    def ask_and_stay() -> None:
        source.describe()
        asked.set()
        over.wait(60)

    thread = threading.Thread(target=ask_and_stay)
    thread.start()
    assert asked.wait(60)
    source.describe()
    held = lambda: [f for f in Path("/proc/self/fd").iterdir() if f.exists() and f.resolve() == path]  # noqa: E731
    assert len(held()) == 2
    source.close()
    assert held() == []
    assert source.describe().keys() == {"t"}
    over.set()
    thread.join()
    source.close()


def test_a_source_that_is_closed_while_threads_read_harms_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "busy.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript("".join(f"CREATE TABLE t{i} (id INTEGER PRIMARY KEY);" for i in range(50)))
    source = SqliteSource("busy", str(path))
    read: list[int] = []
    stop = threading.Event()

    def describe() -> None:
        while not stop.is_set():
            read.append(len(source.describe()))

    threads = [threading.Thread(target=describe) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        source.close()
    stop.set()
    for thread in threads:
        thread.join()
    source.close()
    assert read and set(read) == {50}
