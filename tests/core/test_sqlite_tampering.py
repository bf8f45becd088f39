"""What people do to a captured SQLite database, its change log and its triggers: it stays exact, or it is said."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from viewkeeper.algebra.bag import SignedBag
from viewkeeper.capture.sqlite_capture import SqliteCapture
from viewkeeper.capture.sqlite_triggers import check_schema, install
from viewkeeper.errors import SourceError
from viewkeeper.managers.sources import sqlite_log as log
from viewkeeper.managers.sources.sqlite import SqliteSource
from viewkeeper.managers.sources.sqlite_projects import Who
from viewkeeper.managers.sources.sqlite_pruning import prune
from viewkeeper.messages import Ask

ROWS = Ask("shop", "t", ("id", "a"))
ANN = Who("a1", "shop", "/ann/warehouse", "ann.shop")
BOB = Who("b1", "shop", "/bob/warehouse", "bob.shop")


class Shop:
    """A captured table, and Ann's job, which has read it before."""

    def __init__(self, path: Path):
        self.path = path
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b TEXT)")
        self.db.execute("INSERT INTO t VALUES (1, 'x', 'y'), (2, 'x', 'y')")
        self.install(ANN, "id", "a")
        self.source = SqliteSource("shop", str(path), lambda: ANN)
        self.source.watch({"t": ["id", "a"]})
        self.position = self.source.position(self.source.freeze(None))
        self.known = self.source.identity()

    def install(self, who: Who, *columns: str) -> None:
        install("shop", str(self.path), {"t": columns}, who=who)

    def change(self, times: int = 1) -> None:
        for _ in range(times):
            self.db.execute("UPDATE t SET a = a || '.' WHERE id = 1")

    def deliver(self) -> None:
        """All that was done reaches a cut: the log need not remember it."""
        self.position = str(log.last_id(self.db))
        prune(self.db, "source shop", int(self.position), who=ANN)
        self.source.require(self.position)
        self.known = self.source.identity()

    def restarted(self) -> SqliteSource:
        return SqliteSource("shop", str(self.path), lambda: ANN)

    def look(self, who: Who = ANN) -> None:
        """As capture does when the schema changed."""
        check_schema(self.db, "source shop", int(self.position), who=who)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop.db")


# ---- an older copy


def test_an_older_copy_is_refused_though_it_made_more_changes_since_than_were_delivered(shop: Shop) -> None:
    shutil.copy(shop.path, shop.path.with_name("copy.db"))
    shop.change(20)
    shop.deliver()
    shutil.copy(shop.path.with_name("copy.db"), shop.path)  # the same inode
    shop.change(50)
    for use in (
        lambda: shop.source.require(shop.position),
        lambda: shop.source.ask(ROWS, shop.source.freeze(shop.position)),
        lambda: shop.restarted().require_identity(shop.known),
    ):
        with pytest.raises(SourceError, match=r"older copy.*put the right database back.*init --reload"):
            use()


def test_capture_refuses_an_older_copy_by_what_the_warehouse_remembers_of_its_log(shop: Shop) -> None:
    shutil.copy(shop.path, shop.path.with_name("copy.db"))
    shop.change(20)
    shop.deliver()
    began = int(shop.known["pruned"])
    shutil.copy(shop.path.with_name("copy.db"), shop.path)
    shop.change(50)
    capture = SqliteCapture("shop", str(shop.path), "topic", {}, who=lambda: ANN, pruned=lambda: began)
    capture._began = capture.pruned()
    capture._me = ANN
    with pytest.raises(SourceError, match="older copy"):
        capture._require_log(shop.db)


def test_a_database_dumped_and_read_into_a_new_file_in_another_order_is_said(shop: Shop) -> None:
    """Python's dump sorts tables by name; then nothing shows any more that they are older than their triggers."""
    shop.change(3)
    new = shop.path.with_name("new.db")
    fresh = sqlite3.connect(new, isolation_level=None)
    fresh.executescript("\n".join(shop.db.iterdump()))
    fresh.close()
    new.replace(shop.path)
    with pytest.raises(SourceError, match=r"table t was made anew.*init --reload"):
        shop.source.require(shop.position)


# ---- the log


@pytest.mark.parametrize(
    "statement",
    [f"DELETE FROM {log.LOG}", f"DELETE FROM {log.LOG} WHERE op = 'update'", f"UPDATE {log.LOG} SET id = 9"],
)
def test_nobody_deletes_or_alters_what_the_log_holds(shop: Shop, statement: str) -> None:
    shop.change(2)
    with pytest.raises(sqlite3.IntegrityError, match="viewkeeper: views depend on this change log"):
        shop.db.execute(statement)
    shop.deliver()
    shop.change()
    assert shop.source.last_change() > shop.position


def test_an_id_is_not_used_again_though_the_sequence_was_emptied_when_the_log_was_pruned(shop: Shop) -> None:
    shop.change(20)
    shop.deliver()
    shop.db.execute("DELETE FROM sqlite_sequence")
    shop.change()
    assert int(shop.source.last_change()) == int(shop.position) + 1
    answer = shop.source.ask(ROWS, shop.source.freeze(shop.position))
    assert answer.tail is not None and len(answer.tail) == 2


# ---- triggers and columns


@pytest.mark.parametrize("events", [["after_insert"], ["after_update"], ["before_update", "after_update"]])
def test_triggers_that_were_dropped_and_made_anew_are_noticed_by_capture_and_job(shop: Shop, events: list[str]) -> None:
    names = [f"_viewkeeper_1_{event}" for event in events]
    texts = [shop.db.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (name,)).fetchone()[0] for name in names]
    for name in names:
        shop.db.execute(f"DROP TRIGGER {name}")
    shop.change()
    for text in texts:
        shop.db.execute(text)
    for use in (shop.look, lambda: shop.source.require(shop.position), lambda: shop.install(ANN, "id", "a")):
        with pytest.raises(SourceError, match=r"triggers of table t were dropped and made anew.*init --reload"):
            use()
    install("shop", str(shop.path), {"t": ["id", "a"]}, reload=True, who=ANN)
    shop.look()


def test_compacting_the_database_is_no_making_anew_of_its_triggers(shop: Shop) -> None:
    shop.db.execute("CREATE TABLE u (x)")
    shop.db.execute("VACUUM")
    shop.look()
    shop.source.require(shop.position)


def test_used_columns_swapped_by_hand_in_the_schema_are_noticed(shop: Shop) -> None:
    shop.install(ANN, "id", "a", "b")
    shop.db.execute("PRAGMA writable_schema = ON")
    swapped = "CREATE TABLE t (id INTEGER PRIMARY KEY, b TEXT, a TEXT)"
    shop.db.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 't'", (swapped,))
    shop.db.close()
    shop.db = sqlite3.connect(shop.path, isolation_level=None)
    for use in (shop.look, lambda: shop.restarted().require(shop.position), lambda: shop.install(ANN, "id", "a", "b")):
        with pytest.raises(SourceError, match=r"columns of table t have changed places.*init --reload"):
            use()


# ---- neighbours


def test_a_renamed_column_stops_only_the_projects_that_use_it(shop: Shop) -> None:
    shop.install(BOB, "id", "b")
    bob = SqliteSource("shop", str(shop.path), lambda: BOB)
    position = bob.position(bob.freeze(None))
    shop.db.execute("ALTER TABLE t RENAME COLUMN b TO c")
    shop.change()
    shop.look()
    answer = shop.source.ask(ROWS, shop.source.freeze(shop.position))
    assert SignedBag(answer.rows).counts() == {(1, "x."): 1, (2, "x"): 1}
    shop.install(ANN, "id", "a")
    stopped: list[Callable[[], object]] = [lambda: shop.look(BOB), lambda: bob.require(position)]
    for use in (*stopped, lambda: shop.install(BOB, "id", "b")):
        with pytest.raises(SourceError, match=r"column t\.b was renamed to c"):
            use()
    shop.db.execute("ALTER TABLE t RENAME COLUMN c TO b")
    for use in stopped:
        use()


def test_a_project_goes_on_when_its_neighbour_follows_a_renamed_column(shop: Shop) -> None:
    shop.install(BOB, "id", "b")
    shop.source.require(shop.position)
    shop.db.execute("ALTER TABLE t RENAME COLUMN b TO c")
    install("shop", str(shop.path), {"t": ["id", "c"]}, reload=True, who=BOB)
    shop.change()
    shop.look()
    shop.source.require(shop.position)
    shop.look(BOB)


def test_what_needs_new_triggers_waits_for_the_neighbour_whose_column_was_renamed(shop: Shop) -> None:
    shop.install(BOB, "id", "b")
    shop.db.execute("ALTER TABLE t RENAME COLUMN b TO c")
    shop.db.execute("CREATE TRIGGER mine AFTER INSERT ON t BEGIN SELECT 1; END")  # ours must fire before it
    with pytest.raises(SourceError, match=r"t was altered, and its column b, which another project uses, was renamed"):
        shop.look()


UPDATED = "CREATE TRIGGER mine AFTER INSERT ON t BEGIN UPDATE t SET b = 'new' WHERE id = NEW.id; END"
ENDING = "CREATE TRIGGER mine AFTER INSERT ON t BEGIN SELECT RAISE(IGNORE); END"
TOLD = "CREATE TRIGGER mine AFTER INSERT ON t BEGIN INSERT OR IGNORE INTO told VALUES (NEW.id, 'fail'); END"
REFERRED = "CREATE TABLE u (t REFERENCES t (id) ON DELETE CASCADE)"
BACK = "CREATE TRIGGER back AFTER DELETE ON u BEGIN UPDATE t SET b = 'gone' WHERE id <> OLD.t; END"


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ([UPDATED], "statements on t may write to it again, while changes were made; REPLACE may have deleted"),
        ([UPDATED.replace("UPDATE t", "UPDATE 'T'")], "statements on t may write to it again"),
        ([REFERRED, BACK], "a trigger, or a foreign key, was added by which statements on t may write to it again"),
        ([ENDING], "t: a trigger was added that may end a statement after a row is written; rows may be missing"),
    ],
)
@pytest.mark.parametrize("looks", [True, False], ids=["by capture", "by init"])
def test_a_trigger_that_came_before_ours_were_written_for_it_is_said_where_changes_may_be_missing(
    shop: Shop, made: list[str], found: str, looks: bool
) -> None:
    for statement in (*made, "INSERT OR REPLACE INTO t VALUES (1, 'x', 'old')"):
        shop.db.execute(statement)
    with pytest.raises(SourceError, match=found):
        shop.look() if looks else shop.install(ANN, "id", "a")
    shop.db.execute(f"DROP {'TABLE u' if REFERRED in made else 'TRIGGER mine'}")
    for use in (shop.look, lambda: shop.install(ANN, "id", "a"), lambda: shop.restarted().require(shop.position)):
        with pytest.raises(SourceError, match=f"{found}.*; run `viewkeeper init --reload`"):
            use()  # undone, and what happened meanwhile is still in no log
    install("shop", str(shop.path), {"t": ["id", "a"]}, reload=True, who=ANN)
    shop.change()
    check_schema(shop.db, "source shop", log.last_id(shop.db), who=ANN)


def test_a_trigger_that_only_tells_of_changes_or_comes_when_nothing_happens_is_no_alarm(shop: Shop) -> None:
    shop.db.execute("CREATE TABLE told (id, what)")
    shop.db.execute(TOLD)
    shop.db.execute("INSERT OR REPLACE INTO t VALUES (1, 'x', 'old')")
    shop.look()
    shop.deliver()
    shop.db.execute(UPDATED.replace("mine", "more"))
    shop.look()
    shop.db.execute("INSERT OR REPLACE INTO t VALUES (1, 'z', 'old')")
    shop.look()
    query = f"SELECT op, b1, a1 FROM {log.LOG} WHERE relation = 't' AND id > ? ORDER BY id"
    changes = shop.db.execute(query, (int(shop.position),)).fetchall()
    assert changes == [("delete", "x", None), ("insert", None, "z"), ("update", "z", "z")]


def test_a_database_with_its_journal_left_behind_is_rolled_back_before_it_is_read(shop: Shop, tmp_path: Path) -> None:
    """A writer that dies leaves its journal; whoever reads next takes its half transaction back."""
    code = (
        "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "db.execute('PRAGMA cache_size = 1'); db.execute('PRAGMA cache_spill = 1'); db.execute('BEGIN'); "
        "db.executemany('INSERT INTO t (a) VALUES (?)', [('z' * 500,)] * 2000); os._exit(9)"
    )
    subprocess.run(["python3", "-c", code, str(shop.path)], check=False)
    answer = shop.source.ask(ROWS, shop.source.freeze(shop.position))
    assert SignedBag(answer.rows).counts() == {(1, "x"): 1, (2, "x"): 1}
    assert answer.tail is not None and len(answer.tail) == 0
