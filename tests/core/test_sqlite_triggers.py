"""The change log against what really happened: Σ signed log rows = difference of the table, after every transaction."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.core.sqlite_worlds import Watched, connect, run_history, run_joined_history
from viewkeeper.capture.sqlite_triggers import check_schema, install, install_on, remove
from viewkeeper.errors import SourceError
from viewkeeper.managers.sources.sqlite import SqliteSource
from viewkeeper.managers.sources.sqlite_log import LOG, last_id, read_state
from viewkeeper.managers.sources.sqlite_projects import NOBODY
from viewkeeper.managers.sources.sqlite_pruning import prune
from viewkeeper.managers.sources.sqlite_schema import OWN


def watched(*ddl: str, recursive: bool = False, keys: bool = True) -> Watched:
    db = connect()
    db.execute(f"PRAGMA recursive_triggers = {recursive}")
    db.execute(f"PRAGMA foreign_keys = {keys}")
    for statement in ddl:
        db.execute(statement)
    return Watched(db, "t")


@pytest.mark.parametrize("block", range(12))
def test_oracle_the_log_is_the_difference_on_random_schemas_and_statements(block: int) -> None:
    """Replay one with ``run_history(seed)``; the failure prints seed, schema and statements."""
    assert sum(run_history(seed) for seed in range(10_000 + block * 20, 10_020 + block * 20)) > 0


@pytest.mark.parametrize("block", range(6))
def test_oracle_the_log_of_some_columns_is_the_difference_of_these(block: int) -> None:
    """Replay one with ``run_history(seed, unused=n)``."""
    seeds = range(20_000 + block * 20, 20_020 + block * 20)
    assert sum(run_history(seed, unused=1 + seed % 4) for seed in seeds) > 0


@pytest.mark.parametrize(("seed", "unused"), [(1816, 3)])
def test_oracle_histories_of_some_columns_that_once_failed_are_exact(seed: int, unused: int) -> None:
    run_history(seed, unused=unused)


COUNTEREXAMPLES = [21, 28, 87, 162, 163, 180, 214, 483, 698, 1062, 1497, 2140, 2256, 2526, 3138, 3463, 3472, 3600]
COUNTEREXAMPLES += [3611, 3790, 3910, 4120, 4170, 4990, 5114, 5478, 5742, 7891]


@pytest.mark.parametrize("seed", COUNTEREXAMPLES)
def test_oracle_histories_that_once_failed_are_exact(seed: int) -> None:
    run_history(seed)


@pytest.mark.parametrize("block", range(4))
def test_oracle_what_comes_to_a_captured_table_is_logged_or_said(block: int) -> None:
    """Replay one with ``run_joined_history(seed)``."""
    assert {run_joined_history(seed) for seed in range(30_000 + block * 40, 30_040 + block * 40)} == {"exact", "said"}


# ---- REPLACE


@pytest.mark.parametrize("recursive", [False, True])
def test_insert_or_replace_logs_every_row_it_deletes(recursive: bool) -> None:
    world = watched("CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE, b UNIQUE)", recursive=recursive)
    world.run("INSERT INTO t VALUES (1, 10, 100), (2, 20, 200), (3, 30, 300)")
    world.run("INSERT OR REPLACE INTO t VALUES (1, 20, 300)")
    assert world.bag("t").total() == 1


def test_update_or_replace_logs_the_row_it_deletes() -> None:
    world = watched("CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE)")
    world.run("INSERT INTO t VALUES (1, 10), (2, 20)", "UPDATE OR REPLACE t SET a = 20 WHERE id = 1")
    world.run("INSERT INTO t VALUES (2, 5)", "UPDATE OR REPLACE t SET id = 2 WHERE id = 1")


def test_a_conflict_by_collation_is_seen() -> None:
    world = watched("CREATE TABLE t (id TEXT COLLATE NOCASE PRIMARY KEY, a)")
    world.run("INSERT INTO t VALUES ('x', 1)", "REPLACE INTO t VALUES ('X', 2)")


def test_a_null_that_becomes_the_default_conflicts_as_the_default() -> None:
    world = watched("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT NOT NULL DEFAULT 5 UNIQUE)")
    world.run("INSERT INTO t VALUES (1, '5')", "INSERT OR REPLACE INTO t VALUES (2, NULL)")
    assert world.bag("t") == {(2, "5"): 1}


def test_a_null_that_becomes_a_computed_default_conflicts_with_whatever_it_meets() -> None:
    world = watched("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT NOT NULL DEFAULT (lower('X')) UNIQUE)")
    world.run("INSERT INTO t VALUES (1, 'x'), (3, 'y')", "INSERT OR REPLACE INTO t VALUES (2, NULL)")
    assert world.bag("t").total() == 2


def test_a_row_that_enters_a_partial_index_replaces_the_one_there() -> None:
    world = watched("CREATE TABLE t (id INTEGER PRIMARY KEY, a, b)", "CREATE UNIQUE INDEX i ON t (a) WHERE b = 1")
    world.run("INSERT INTO t VALUES (1, 7, 1), (2, 7, 0)", "UPDATE OR REPLACE t SET b = 1 WHERE id = 2")
    assert world.bag("t").total() == 1


def test_a_table_without_a_key_can_replace_by_rowid() -> None:
    world = watched("CREATE TABLE t (id, a)")
    world.run("INSERT INTO t VALUES (1, 2), (1, 2)", "INSERT OR REPLACE INTO t (rowid, id, a) VALUES (1, 3, 4)")


def test_columns_named_like_the_rowid_do_not_confuse_it() -> None:
    world = watched("CREATE TABLE t (id, rowid UNIQUE, oid)")
    world.run("INSERT INTO t VALUES (1, 1, 1), (2, 2, 2)", "REPLACE INTO t VALUES (3, 2, 1)")


def test_an_ignored_insert_leaves_nothing_that_counts_later() -> None:
    world = watched("CREATE TABLE t (id INTEGER PRIMARY KEY, a UNIQUE)")
    world.run("INSERT INTO t VALUES (1, 10), (2, 20)", "INSERT OR IGNORE INTO t VALUES (1, 20)")
    world.run("DELETE FROM t WHERE id = 1", "UPDATE t SET a = 10", "INSERT INTO t VALUES (1, 20)")


def test_an_upsert_logs_an_update() -> None:
    world = watched("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    world.run("INSERT INTO t VALUES (1, 1)")
    world.run("INSERT INTO t VALUES (1, 2) ON CONFLICT (id) DO UPDATE SET a = excluded.a")
    assert world.db.execute(f"SELECT op, b1, a1 FROM {LOG} ORDER BY id DESC LIMIT 1").fetchone() == ("update", 1, 2)


# ---- company: user triggers and foreign keys


def test_a_row_that_a_before_trigger_inserts_and_replace_deletes_at_once_leaves_no_trace() -> None:
    trigger = "CREATE TRIGGER u BEFORE INSERT ON t WHEN NEW.a > 0 BEGIN INSERT INTO t VALUES (NEW.id, -1); END"
    world = watched("CREATE TABLE t (id INTEGER PRIMARY KEY, a)", trigger)
    world.run("INSERT OR REPLACE INTO t VALUES (1, 5)")
    assert world.bag("t") == {(1, 5): 1}


@pytest.mark.parametrize("recursive", [False, True])
def test_an_update_whose_victim_takes_it_along_by_cascade(recursive: bool) -> None:
    world = watched(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, p REFERENCES t (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED)",
        recursive=recursive,
    )
    world.run("INSERT INTO t VALUES (1, 2), (2, 1), (5, 1)", "UPDATE OR REPLACE t SET id = id + 1 WHERE id < 3")


def test_an_update_that_cascades_to_its_own_row_over_an_equal_victim() -> None:
    world = watched("CREATE TABLE t (id INTEGER PRIMARY KEY, p REFERENCES t (id) ON UPDATE CASCADE)")
    world.run("INSERT INTO t VALUES (9, 9), (5, 9)", "UPDATE OR REPLACE t SET id = 5 WHERE id = 9")
    assert world.bag("t") == {(5, 5): 1}


def test_a_row_that_is_altered_while_it_is_updated_is_logged_as_it_was_last() -> None:
    world = watched(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, p REFERENCES t (id) ON DELETE SET NULL ON UPDATE CASCADE)",
    )
    world.run("INSERT INTO t VALUES (1, 1), (5, 1)", "UPDATE OR REPLACE t SET id = 2")


def test_or_fail_keeps_its_rows_and_their_ids_are_never_used_again() -> None:
    world = watched("CREATE TABLE t (id INTEGER PRIMARY KEY, a NOT NULL)")
    world.run("INSERT OR FAIL INTO t VALUES (1, 1), (2, 2), (3, NULL)")
    position = last_id(world.db)
    assert position == world.db.execute(f"SELECT max(id) FROM {LOG}").fetchone()[0]
    prune(world.db, "source test", position)
    assert last_id(world.db) >= position
    world.run("INSERT INTO t VALUES (7, 7)")
    assert last_id(world.db) > position


def test_storage_classes_survive_the_log() -> None:
    world = watched("CREATE TABLE t (id INTEGER PRIMARY KEY, a, b BLOB, c REAL)")
    world.db.execute("INSERT INTO t VALUES (1, ?, x'00ff', 2)", ("a\0b",))
    row = world.db.execute(f"SELECT a1, a2, a3, typeof(a3) FROM {LOG} ORDER BY id DESC LIMIT 1").fetchone()
    assert row == ("a\0b", b"\0\xff", 2.0, "real")


# ---- installing


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "shop.db")
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b INTEGER)")
        db.execute("CREATE TABLE other (id INTEGER PRIMARY KEY)")
    db.close()
    return path


def names(path: str) -> set[str]:
    db = sqlite3.connect(path)
    found = {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
    db.close()
    return found


def test_installing_twice_changes_nothing_and_removing_leaves_nothing(path: str) -> None:
    before = names(path)
    assert install("shop", path, {"t": ["id", "a"]})
    installed = names(path)
    assert not install("shop", path, {"t": ["id", "a"]})
    assert names(path) == installed
    remove("shop", path)
    assert names(path) - {"sqlite_sequence"} == before


def test_a_relation_that_no_view_uses_any_more_loses_its_triggers(path: str) -> None:
    install("shop", path, {"t": ["id"], "other": ["id"]})
    install("shop", path, {"t": ["id"]})
    db = sqlite3.connect(path)
    on = {table for (table,) in db.execute("SELECT tbl_name FROM sqlite_schema WHERE type = 'trigger'")}
    assert {table for table in on if not table.startswith(OWN)} == {"t"}


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("CREATE VIEW bad AS SELECT 1 AS id", "is a view"),
        ("CREATE VIRTUAL TABLE bad USING fts5(id)", "virtual table"),
        ("CREATE TABLE bad (rowid, oid, _rowid_)", "identity"),
        ("CREATE TABLE bad (id); CREATE UNIQUE INDEX e ON bad (lower(id))", "index e is on an expression"),
        (
            "CREATE TABLE bad (id); CREATE TRIGGER r AFTER INSERT ON bad BEGIN SELECT RAISE(IGNORE); END",
            r"trigger r may RAISE\(IGNORE\)",
        ),
        ("CREATE TABLE bad (id COLLATE mine UNIQUE)", "collation mine"),
        ("SELECT 1", "there is no table bad"),
    ],
)
def test_what_cannot_be_captured_is_refused_by_name(path: str, ddl: str, reason: str) -> None:
    db = sqlite3.connect(path)
    db.create_collation("mine", lambda a, b: (a > b) - (a < b))
    db.executescript(ddl)
    db.close()
    with pytest.raises(SourceError, match=reason):
        install("shop", path, {"bad": ["id"]})
    assert not [name for name in names(path) if name.startswith("_viewkeeper")]


def since(path: str, relation: str) -> int:
    db = sqlite3.connect(path)
    captured = read_state(db, "source shop").tables[relation]
    db.close()
    return captured.since


def test_capture_remembers_where_it_last_became_active_and_a_refit_is_no_new_beginning(path: str) -> None:
    install("shop", path, {"t": ["id"], "other": ["id"]})
    first = since(path, "t")
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("ALTER TABLE t ADD COLUMN c TEXT")
    install("shop", path, {"t": ["id", "a"], "other": ["id"]})
    assert len(read_state(db, "source shop").tables["t"].layouts) == 2
    assert since(path, "t") == first
    install("shop", path, {"other": ["id"]})
    before = last_id(db)
    db.execute("INSERT INTO t (id) VALUES (1)")
    install("shop", path, {"t": ["id"], "other": ["id"]})
    assert since(path, "t") > before
    assert since(path, "other") < before


def test_ids_of_a_log_made_anew_lie_past_those_of_the_one_before(path: str) -> None:
    install("shop", path, {"t": ["id"]})
    db = sqlite3.connect(path, isolation_level=None)
    db.executemany("INSERT INTO t (id) VALUES (?)", [(i,) for i in range(50)])
    before = last_id(db)
    remove("shop", path)
    install("shop", path, {"t": ["id"]})
    assert before < read_state(db, "source shop").pruned < last_id(db) < 2**53  # exact in anybody's JSON


def test_a_column_added_is_logged_once_a_view_uses_it(path: str) -> None:
    install("shop", path, {"t": ["id"]})
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("INSERT INTO t VALUES (1, 'x', 1)")
    db.execute("ALTER TABLE t ADD COLUMN c TEXT")
    assert len(check_schema(db, "source shop", last_id(db)).tables["t"].layouts) == 1
    before = last_id(db)
    assert install("shop", path, {"t": ["id", "c"]})
    state = read_state(db, "source shop")
    db.execute("INSERT INTO t VALUES (2, 'y', 2, 'new')")
    assert db.execute(f"SELECT a1 FROM {LOG} ORDER BY id DESC LIMIT 1").fetchone() == ("new",)
    layouts = [[name for name, _ in layout.columns] for layout in state.tables["t"].layouts]
    assert layouts == [["id"], ["id", "c"]]
    needs = state.projects[NOBODY.key]
    assert needs.since("t", ["id"]) < before < needs.since("t", ["c"]), "of c nothing is known from before"


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("ALTER TABLE t RENAME COLUMN a TO z", "column t.a was renamed to z"),
        ("ALTER TABLE t RENAME COLUMN a TO z; ALTER TABLE t ADD COLUMN a TEXT", "column t.a was renamed to z"),
        (
            """ALTER TABLE t RENAME COLUMN a TO "x, NEW.""y"" VALUES ("; ALTER TABLE t ADD COLUMN a TEXT""",
            'column t.a was renamed to x, NEW."y" VALUES',
        ),
        (
            "ALTER TABLE t RENAME TO z; CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b INTEGER)",
            "lost its capture triggers",
        ),
        ("DROP TABLE t", "table t is gone"),
        ("ALTER TABLE t RENAME TO z", "table t is gone"),
        ("DROP TABLE t; CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b INTEGER)", "lost its capture triggers"),
        ("DROP TRIGGER _viewkeeper_1_after_insert", "lost its capture triggers"),
    ],
)
def test_a_schema_change_that_breaks_capture_is_an_error_until_reload(path: str, ddl: str, reason: str) -> None:
    install("shop", path, {"t": ["id", "a"]})
    db = sqlite3.connect(path, isolation_level=None)
    db.executescript(ddl)
    with pytest.raises(SourceError, match=reason):
        check_schema(db, "source shop", last_id(db))
    with pytest.raises(SourceError, match=f"{reason}|there is no table"):
        install("shop", path, {"t": ["id", "a"]})
    db.executescript("DROP TABLE IF EXISTS t; CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b INTEGER)")
    assert install("shop", path, {"t": ["id", "a"]}, reload=True)
    check_schema(db, "source shop", last_id(db))
    db.execute("INSERT INTO t VALUES (1, 'x', 1)")
    assert db.execute(f"SELECT op FROM {LOG} ORDER BY id DESC LIMIT 1").fetchone() == ("insert",)


SWAPPED = [f"ALTER TABLE t RENAME COLUMN {a} TO {b}" for a, b in (("a", "z"), ("c", "a"), ("z", "c"))]


@pytest.mark.parametrize("used", [["id", "a"], ["id", "c"], ["id", "a", "c"]])
def test_columns_that_swap_their_names_are_noticed_by_capture_and_job(path: str, used: list[str]) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("ALTER TABLE t ADD COLUMN c TEXT")
    install("shop", path, {"t": used})
    source = SqliteSource("shop", path)
    position = source.position(source.freeze(None))
    source.require(position)
    for statement in SWAPPED:
        db.execute(statement)
    for look in (
        lambda: check_schema(db, "source shop", last_id(db)),
        lambda: install("shop", path, {"t": used}),
        lambda: source.require(position),
    ):
        with pytest.raises(SourceError, match=r"column t\.[ac] was renamed to [ac]; undo that, or run .*init --reload"):
            look()
    for statement in SWAPPED:
        db.execute(statement)  # once more is back
    check_schema(db, "source shop", last_id(db))
    source.require(position)


def test_a_table_that_was_remade_with_its_triggers_put_back_is_noticed(path: str) -> None:
    """As SQLite's documentation advises to alter tables; the rows may be other ones."""
    install("shop", path, {"t": ["id", "a"]})
    db = sqlite3.connect(path, isolation_level=None)
    triggers = db.execute("SELECT sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 't'").fetchall()
    db.execute("VACUUM")
    check_schema(db, "source shop", last_id(db))
    db.execute("CREATE TABLE remade (id INTEGER PRIMARY KEY, a TEXT, b INTEGER)")
    db.execute("INSERT INTO remade VALUES (7, 'unseen', 0)")
    db.execute("DROP TABLE t")
    db.execute("ALTER TABLE remade RENAME TO t")
    for (sql,) in triggers:
        db.execute(sql)
    for vacuum in (False, True):
        if vacuum:
            db.execute("VACUUM")
        with pytest.raises(SourceError, match="table t was made anew"):
            check_schema(db, "source shop", last_id(db))
    assert install("shop", path, {"t": ["id", "a"]}, reload=True)
    check_schema(db, "source shop", last_id(db))


def test_a_table_renamed_and_renamed_back_has_logged_all_that_was_done(path: str) -> None:
    install("shop", path, {"t": ["id", "a"]})
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("ALTER TABLE t RENAME TO z")
    db.execute("INSERT INTO z VALUES (1, 'x', 1)")
    db.execute("ALTER TABLE z RENAME TO t")
    check_schema(db, "source shop", last_id(db))
    assert db.execute(f"SELECT relation, a0 FROM {LOG} ORDER BY id DESC LIMIT 1").fetchone() == ("t", 1)


def test_an_unused_column_may_be_renamed_and_dropped(path: str) -> None:
    install("shop", path, {"t": ["id"]})
    db = sqlite3.connect(path, isolation_level=None)
    for statement in (
        "ALTER TABLE t RENAME COLUMN b TO z",
        "ALTER TABLE t DROP COLUMN z",
        "ALTER TABLE t DROP COLUMN a",
    ):
        db.execute(statement)
        check_schema(db, "source shop", last_id(db))
    db.execute("INSERT INTO t VALUES (1)")
    assert db.execute(f"SELECT op, a0 FROM {LOG} ORDER BY id DESC LIMIT 1").fetchone() == ("insert", 1)


def test_a_column_that_is_used_no_longer_may_be_dropped(path: str) -> None:
    install("shop", path, {"t": ["id", "a"]})
    install("shop", path, {"t": ["id"]})
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("ALTER TABLE t DROP COLUMN a")
    check_schema(db, "source shop", last_id(db))


def test_a_unique_index_added_in_a_quiet_moment_is_learned(path: str) -> None:
    install("shop", path, {"t": ["id"]})
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("INSERT INTO t VALUES (1, 'x', 1)")
    db.execute("CREATE UNIQUE INDEX i ON t (a)")
    check_schema(db, "source shop", last_id(db))
    db.execute("REPLACE INTO t VALUES (2, 'x', 2)")
    ops = [op for (op,) in db.execute(f"SELECT op FROM {LOG} WHERE relation = 't' ORDER BY id")]
    assert ops == ["insert", "delete", "insert"]


def test_a_unique_index_added_among_changes_is_an_error(path: str) -> None:
    install("shop", path, {"t": ["id"]})
    db = sqlite3.connect(path, isolation_level=None)
    sent = last_id(db)
    db.execute("CREATE UNIQUE INDEX i ON t (a)")
    db.execute("INSERT INTO t VALUES (1, 'x', 1)")
    with pytest.raises(SourceError, match="a unique index was added"):
        check_schema(db, "source shop", sent)


def test_a_newer_user_trigger_makes_ours_be_written_again_to_fire_first(path: str) -> None:
    install("shop", path, {"t": ["id"]})
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("CREATE TRIGGER mine AFTER INSERT ON t BEGIN UPDATE t SET b = 0 WHERE id = NEW.id; END")
    check_schema(db, "source shop", last_id(db))
    newest = db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger' ORDER BY rowid DESC LIMIT 1").fetchone()
    assert newest[0].startswith("_viewkeeper_")


def test_reading_the_state_of_a_database_that_was_never_prepared_names_the_remedy() -> None:
    db = connect()
    with pytest.raises(SourceError, match="viewkeeper init"):
        read_state(db, "source shop")
    install_on(db, "source shop", {}, reload=False)
    assert read_state(db, "source shop").tables == {}
