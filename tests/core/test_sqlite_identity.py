"""Which database is it? A file made anew, swapped, put back or restored is told from the one that was captured."""

from __future__ import annotations

import os
import pickle
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from viewkeeper.capture.sqlite_capture import SqliteCapture
from viewkeeper.capture.sqlite_triggers import check_schema, install
from viewkeeper.errors import SourceError, SourceUnreachable
from viewkeeper.job.source_identity import SourceIdentities
from viewkeeper.managers.sources import sqlite_log as log
from viewkeeper.managers.sources.sqlite import SqliteSource
from viewkeeper.messages import Ask

ROWS = Ask("shop", "t", ("id", "a"))


def make(path: Path, rows: int = 3) -> Path:
    """A database with a table; one made again looks just like it."""
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)")
        db.executemany("INSERT INTO t VALUES (?, 'x')", [(i,) for i in range(rows)])
    db.close()
    return path


def change(path: Path, *statements: str) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        db.execute(statement)
    db.close()


def own_tables(path: Path) -> list[str]:
    db = sqlite3.connect(path)
    found = [
        name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE name LIKE '!_viewkeeper%' ESCAPE '!'")
    ]
    db.close()
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = make(tmp_path / "shop.db")
    install("shop", str(path), {"t": ["id", "a"]})
    return path


@pytest.fixture
def source(path: Path) -> SqliteSource:
    """As a job has it, which has read it before."""
    source = SqliteSource("shop", str(path))
    source.ask(ROWS, source.freeze(None))
    return source


def anew(path: Path) -> None:
    path.unlink()
    make(path)
    install("shop", str(path), {"t": ["id", "a"]})
    change(path, *(f"UPDATE t SET a = '{i}'" for i in range(20)))


def moved_over(path: Path) -> None:
    other = make(path.with_name("other.db"))
    install("shop", str(other), {"t": ["id", "a"]})
    change(other, *(f"UPDATE t SET a = '{i}'" for i in range(20)))
    os.replace(other, path)


def restored(path: Path) -> None:
    """By SQLite's backup: the file stays, all that is in it is another's."""
    other = make(path.with_name("other.db"))
    install("shop", str(other), {"t": ["id", "a"]})
    change(other, *(f"UPDATE t SET a = '{i}'" for i in range(20)))
    with sqlite3.connect(other) as db, sqlite3.connect(path) as target:
        db.backup(target)
    db.close()
    target.close()


OTHERS = [anew, moved_over, restored]


@pytest.mark.parametrize("become", OTHERS)
def test_another_database_under_the_same_name_is_refused_by_a_job_that_runs(
    source: SqliteSource, path: Path, become: Callable[[Path], None]
) -> None:
    position = source.position(source.freeze(None))
    known = source.identity()
    worker = pickle.loads(pickle.dumps(source))
    become(path)
    for use in (
        lambda: source.ask(ROWS, source.freeze(position)),
        lambda: worker.ask(ROWS, source.freeze(position)),
        lambda: source.freeze(position, hold=True),
        lambda: source.freeze(None),
        lambda: source.require(position),
        source.last_change,
        lambda: SqliteSource("shop", str(path)).require_identity(known),
    ):
        with pytest.raises(SourceError, match=r"another database.*put the right database back.*init --reload"):
            use()


@pytest.mark.parametrize("become", OTHERS)
def test_of_another_database_nothing_is_pruned_and_no_trigger_is_written_anew(
    path: Path, become: Callable[[Path], None]
) -> None:
    known = SqliteSource("shop", str(path)).identity()["log"]
    become(path)
    capture = SqliteCapture("shop", str(path), "topic", {}, known=lambda: [known])
    change(path, "CREATE TRIGGER mine AFTER INSERT ON t BEGIN SELECT 1; END")  # ours must be the first to fire
    before = path.read_bytes()
    with pytest.raises(SourceError, match="another database"):
        capture.prune(10)
    db = sqlite3.connect(path, isolation_level=None)
    with pytest.raises(SourceError, match="another database"):
        check_schema(db, "source shop", 0, [known])
    db.close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("times", [1, 2])
def test_nothing_is_installed_in_a_database_made_anew_however_often_capture_starts(path: Path, times: int) -> None:
    known = SqliteSource("shop", str(path)).identity()["log"]
    path.unlink()
    make(path)
    capture = SqliteCapture("shop", str(path), "topic", {}, known=lambda: [known])
    for _ in range(times):
        with pytest.raises(SourceError, match="no change log any more: is it another database"):
            capture.install({"t": ["id", "a"]})
        change(path, "UPDATE t SET a = 'y'")
    assert own_tables(path) == []
    assert capture.install({"t": ["id", "a"]}, reload=True)


def test_a_database_that_was_compacted_into_a_new_file_goes_on(source: SqliteSource, path: Path) -> None:
    known, position = source.identity(), source.position(source.freeze(None))
    change(path, "UPDATE t SET a = 'y'", f"VACUUM INTO '{path}.new'")
    os.replace(f"{path}.new", path)
    change(path, "INSERT INTO t VALUES (9, 'z')")
    source.require_identity(known)
    source.require(position)
    assert set(source.ask(ROWS, source.freeze(position)).rows["id"].to_pylist()) == {0, 1, 2, 9}


def test_an_older_copy_put_back_is_refused(source: SqliteSource, path: Path) -> None:
    shutil.copy(path, path.with_name("copy.db"))
    change(path, "UPDATE t SET a = 'y'")
    position = source.last_change()
    os.replace(path.with_name("copy.db"), path)
    with pytest.raises(SourceError, match="older copy"):
        source.require(position)


def test_a_database_deleted_while_it_is_read_is_away_until_it_is_back(source: SqliteSource, path: Path) -> None:
    position = source.position(source.freeze(None))
    path.rename(path.with_name("away.db"))
    with pytest.raises(SourceUnreachable, match="there is no database"):
        source.require(position)
    path.with_name("away.db").rename(path)
    source.require(position)


def test_a_log_from_before_logs_had_identities_gets_one_and_is_known_from_then_on(path: Path, tmp_path: Path) -> None:
    change(path, f"DELETE FROM {log.STATE} WHERE key = 'identity'")
    source = SqliteSource("shop", str(path))
    identities = SourceIdentities.of(tmp_path)
    position = source.position(source.freeze(None))
    assert source.identity() == {}
    identities.learn({"shop": source})
    install("shop", str(path), {"t": ["id", "a"]})
    source.require(position)
    identities.learn({"shop": source})
    identities.require({"shop": source})
    anew(path)
    with pytest.raises(SourceError, match="another database"):
        identities.require({"shop": SqliteSource("shop", str(path))})
