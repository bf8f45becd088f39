"""What ``check`` accepts of a SQLite schema, ``init`` does: every odd table is either refused by both or captured."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.core.sqlite_worlds import Watched, connect
from viewkeeper.algebra.types import Kind
from viewkeeper.capture import sqlite_capture
from viewkeeper.capture.sqlite_capture import SqliteCapture
from viewkeeper.errors import SourceError
from viewkeeper.managers.sources.sqlite import SqliteSource
from viewkeeper.managers.sources.sqlite_schema import quoted
from viewkeeper.messages import Ask

ODD = {
    "collations in small letters": (
        "t",
        "CREATE TABLE t (id TEXT COLLATE nocase PRIMARY KEY, v TEXT COLLATE rtrim UNIQUE)",
    ),
    "columns named like the log's": (
        "t",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, relation, op, b0, a0, rid UNIQUE, c0, done)",
    ),
    "columns named like ours in questions": (
        "t",
        "CREATE TABLE t (k0 TEXT, _t TEXT, _k TEXT, _row TEXT, orid UNIQUE, i0)",
    ),
    "keywords": (
        "select",
        'CREATE TABLE "select" ("from" INTEGER PRIMARY KEY, "NEW" TEXT, "old" TEXT UNIQUE, "values" TEXT)',
    ),
    "a table named new": ("new", 'CREATE TABLE "new" (id INTEGER PRIMARY KEY, v TEXT UNIQUE)'),
    "quotes and spaces": (
        "a 'b\"c",
        """CREATE TABLE "a 'b""c" ("x ""y'" INTEGER PRIMARY KEY, [p q] TEXT UNIQUE, `r;s` TEXT)""",
    ),
    "letters beyond ASCII": ("größe", "CREATE TABLE größe (id INTEGER PRIMARY KEY, straße TEXT)"),
    "STRICT": ("t", "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT, w ANY) STRICT"),
    "WITHOUT ROWID": (
        "t",
        "CREATE TABLE t (a TEXT, b INT, v UNIQUE, PRIMARY KEY (b DESC, a COLLATE nocase)) WITHOUT ROWID",
    ),
    "generated columns": (
        "t",
        "CREATE TABLE t (id INT, v TEXT, g TEXT AS (v || 'x') STORED, h TEXT AS (g || 'y') UNIQUE)",
    ),
    "no key": ("t", "CREATE TABLE t (v TEXT, w TEXT)"),
    "one hidden name of the rowid": ("t", "CREATE TABLE t (rowid TEXT, v TEXT)"),
    "a key that is no rowid": ("t", "CREATE TABLE t (id INT PRIMARY KEY, v TEXT)"),
    "a descending key": ("t", "CREATE TABLE t (id INTEGER PRIMARY KEY DESC, v TEXT)"),
    "a partial unique index": (
        "t",
        "CREATE TABLE t (id INT, v TEXT); CREATE UNIQUE INDEX i ON t (v) WHERE v <> 'where'",
    ),
}

REFUSED = {
    "a unique index on an expression": "CREATE TABLE t (id TEXT, v TEXT); CREATE UNIQUE INDEX i ON t (lower(v))",
    "a unique index on a part of JSON": "CREATE TABLE t (id TEXT, v TEXT); CREATE UNIQUE INDEX i ON t (id, v ->> 'a')",
    "a hidden rowid": "CREATE TABLE t (rowid TEXT, oid TEXT, _rowid_ TEXT)",
    "a trigger that ignores": (
        "CREATE TABLE t (id TEXT); CREATE TRIGGER r AFTER INSERT ON t BEGIN SELECT RAISE(IGNORE); END"
    ),
}


def capture_of(path: Path) -> SqliteCapture:
    return SqliteCapture("shop", str(path), "topic", {})


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_table_that_check_accepts_is_captured_and_answers(kind: str, tmp_path: Path) -> None:
    name, ddl = ODD[kind]
    path = tmp_path / "shop.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.executescript(ddl)
    columns = tuple(c.name for c in SqliteSource("shop", str(path)).describe()[name].columns)
    assert capture_of(path).problems({name: columns}) == []
    assert capture_of(path).install({name: columns})
    source = SqliteSource("shop", str(path))
    snapshot = source.freeze(None)
    stored = [row[1] for row in db.execute(f"PRAGMA table_xinfo({quoted(name)})") if row[6] == 0]
    db.execute(f"INSERT INTO {quoted(name)} ({', '.join(map(quoted, stored))}) VALUES ({', '.join('1' * len(stored))})")
    typed = {c.name for c in source.describe()[name].columns if c.type.kind is not Kind.UNKNOWN}
    answer = source.ask(Ask("shop", name, tuple(sorted(typed))), snapshot)
    assert answer.tail is not None and len(answer.rows) == len(answer.tail) == 1


@pytest.mark.parametrize("kind", ODD)
def test_the_log_of_an_odd_table_is_its_difference(kind: str) -> None:
    name, ddl = ODD[kind]
    db = connect()
    db.executescript(ddl)
    table = quoted(name)
    stored = [quoted(row[1]) for row in db.execute(f"PRAGMA table_xinfo({table})") if row[6] == 0]
    watched = Watched(db, name)
    for value in ("1", "2", "1"):
        values = ", ".join([value] * len(stored))
        watched.run(f"INSERT OR REPLACE INTO {table} ({', '.join(stored)}) VALUES ({values})")
    watched.run(f"UPDATE OR REPLACE {table} SET {', '.join(f'{column} = 3' for column in stored)}")
    watched.run(f"DELETE FROM {table}")


def test_a_journal_mode_in_which_the_reader_of_a_large_table_in_one_piece_holds_up_writers_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shop.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    db.execute("CREATE TABLE u (id INTEGER, at INTEGER, PRIMARY KEY (id, at DESC)) WITHOUT ROWID")
    used = {"t": ["id"], "u": ["id"]}
    assert capture_of(path).warnings(used) == []
    monkeypatch.setattr(sqlite_capture, "LARGE", 1000)
    (warning,) = capture_of(path).warnings(used)
    assert "table u: in journal mode delete nobody can write" in warning and "journal_mode = WAL" in warning
    db.execute("PRAGMA journal_mode = WAL")
    assert capture_of(path).warnings(used) == []


def test_a_foreign_key_whose_violation_sqlite_accepts_only_without_triggers_is_named(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, p INTEGER REFERENCES t (id) ON DELETE SET NULL)")
    db.execute("CREATE TABLE u (id INTEGER PRIMARY KEY, p INTEGER REFERENCES u (id) ON DELETE CASCADE)")
    db.execute("INSERT INTO t VALUES (1, 1)")
    (warning,) = capture_of(path).warnings({"t": ["id"], "u": ["id"]})
    assert warning.startswith("table t: REPLACE with a row that breaks the table's foreign key to itself")
    db.execute("CREATE TRIGGER mine AFTER UPDATE ON t BEGIN SELECT 1; END")
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):  # by anybody's trigger, not by ours alone
        db.execute("REPLACE INTO t VALUES (1, 9)")


@pytest.mark.parametrize("kind", REFUSED)
def test_what_init_refuses_check_refuses_in_the_same_words(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.executescript(REFUSED[kind])
    columns = [c.name for c in SqliteSource("shop", str(path)).describe()["t"].columns]
    found = capture_of(path).problems({"t": columns})
    assert found
    with pytest.raises(SourceError) as refused:
        capture_of(path).install({"t": columns})
    assert list(refused.value.problems) == found
