"""Several projects on one SQLite file: each has what it needs, whatever the others do."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from viewkeeper.capture import lag, sqlite_triggers
from viewkeeper.capture.sqlite_capture import SqliteCapture
from viewkeeper.capture.sqlite_triggers import check_schema, install, install_marks
from viewkeeper.errors import SourceError, UsageError
from viewkeeper.managers.sources import sqlite_log as log
from viewkeeper.managers.sources.sqlite import SqliteSource
from viewkeeper.managers.sources.sqlite_projects import Who
from viewkeeper.managers.sources.sqlite_schema import OWN
from viewkeeper.messages import Ask

ANN = Who("a1", "shop", "/ann/warehouse", "ann.shop")
BOB = Who("b2", "store", "/bob/warehouse", "bob.store")
EVE = Who("e3", "shop", "/eve/warehouse", "ann.shop")  # a copy of Ann's configuration, with a warehouse of its own


class Shop:
    """A database and those who use it."""

    def __init__(self, path: Path):
        self.path = str(path)
        self.db = sqlite3.connect(self.path, isolation_level=None)
        self.db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b TEXT)")
        self.db.execute("CREATE TABLE u (id INTEGER PRIMARY KEY)")

    def capture(self, who: Who) -> SqliteCapture:
        return SqliteCapture(who.source, self.path, who.topic, {}, who=lambda: who)

    def source(self, who: Who) -> SqliteSource:
        return SqliteSource(who.source, self.path, lambda: who)

    def state(self) -> log.LogState:
        return log.read_state(self.db, "source shop")

    def told(self, who: Who) -> list[tuple[str, Any]]:
        """Relation and key of the log's rows that go into somebody's topic."""
        condition, parameters = self.state().told_to(who)
        query = f"SELECT relation, coalesce(a0, b0) FROM {log.LOG} WHERE op <> 'boundary' AND {condition} ORDER BY id"
        return list(self.db.execute(query, parameters))

    def last(self) -> int:
        return log.last_id(self.db)

    def triggers_on(self) -> set[str]:
        """Of the database's own tables."""
        found = self.db.execute("SELECT tbl_name FROM sqlite_schema WHERE type = 'trigger'")
        return {table for (table,) in found if not table.startswith(OWN)}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop.db")


def test_a_second_project_leaves_the_first_ones_triggers_and_columns(shop: Shop) -> None:
    assert shop.capture(ANN).install({"t": ["id", "a"]})
    assert shop.capture(BOB).install({"u": ["id"]})
    assert shop.capture(BOB).install({"u": ["id"], "t": ["b"]})
    assert not shop.capture(ANN).install({"t": ["id", "a"]}), "nothing is new to her"
    shop.db.execute("INSERT INTO t VALUES (1, 'x', 'y')")
    shop.db.execute("INSERT INTO u VALUES (2)")
    assert shop.told(ANN) == [("t", 1)]
    assert shop.told(BOB) == [("t", 1), ("u", 2)]
    assert shop.db.execute(f"SELECT a0, a1, a2 FROM {log.LOG} WHERE relation = 't'").fetchone() == (1, "x", "y")


def test_what_a_project_needs_no_more_stays_for_the_other(shop: Shop) -> None:
    shop.capture(ANN).install({"t": ["id", "a"], "u": ["id"]})
    shop.capture(BOB).install({"t": ["id"]})
    shop.capture(ANN).install({})
    assert shop.triggers_on() == {"t"}
    assert shop.state().tables["t"].used == ("id",)


def test_two_sources_of_one_project_on_one_file_are_two(shop: Shop) -> None:
    second = Who("a1", "again", "/ann/warehouse", "ann.again")
    shop.capture(ANN).install({"t": ["id"]})
    shop.capture(second).install({"u": ["id"]})
    assert shop.triggers_on() == {"t", "u"}


def test_the_log_is_pruned_only_as_far_as_everyone_who_needs_a_relation_has_come(shop: Shop) -> None:
    shop.capture(ANN).install({"t": ["id"]})
    shop.capture(BOB).install({"t": ["id"], "u": ["id"]})
    shop.db.execute("INSERT INTO t VALUES (1, '', ''), (2, '', '')")
    shop.db.execute("INSERT INTO u VALUES (3), (4)")
    last = shop.last()
    assert shop.capture(ANN).prune(last) == last
    assert shop.told(BOB) == [("t", 1), ("t", 2), ("u", 3), ("u", 4)]
    shop.source(ANN).require(str(last))
    shop.source(BOB).require(str(shop.state().projects[BOB.key].pruned))
    assert shop.capture(BOB).prune(last) == last
    assert shop.db.execute(f"SELECT id FROM {log.LOG}").fetchall() == [(last,)], "it keeps ids from being used again"


def test_a_project_whose_tables_are_idle_does_not_hold_back_the_log_of_others(shop: Shop) -> None:
    shop.capture(ANN).install({"t": ["id"]})
    shop.capture(BOB).install({"u": ["id"]})
    idle = shop.source(ANN).last_change()
    shop.db.executemany("INSERT INTO u VALUES (?)", [(i,) for i in range(20)])
    assert shop.source(ANN).last_change() == idle, "nobody will tell her of more"
    shop.capture(BOB).prune(shop.last())
    assert shop.told(BOB) == [("u", 19)], "the newest row stays"
    shop.source(ANN).require(idle)
    snapshot = shop.source(ANN).freeze(idle, hold=True)
    assert snapshot.since == int(idle)


def test_removing_one_projects_capture_leaves_the_others_and_says_so(shop: Shop) -> None:
    shop.capture(ANN).install({"t": ["id", "a"], "u": ["id"]})
    shop.capture(BOB).install({"t": ["id"]})
    shop.db.execute("INSERT INTO u VALUES (1)")
    shop.db.execute("INSERT INTO t VALUES (2, '', '')")
    ann = shop.source(ANN)
    position = ann.position(ann.freeze(None))
    assert shop.capture(ANN).remove() == [
        "no longer captured for this project; the change log stays for /bob/warehouse"
    ]
    assert shop.triggers_on() == {"t"}
    assert shop.told(BOB) == [("t", 2)]
    for who in (ann, shop.source(ANN)):
        with pytest.raises(SourceError, match="no longer captured for this project"):
            who.require(position)
    assert shop.capture(BOB).remove() == ["triggers and change log removed"]
    assert shop.triggers_on() == set()


def test_who_keeps_a_log_long_is_named_with_the_way_to_be_rid_of_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag, "IDLE", 0.0)
    shop.capture(ANN).install({"t": ["id"]})
    shop.capture(BOB).install({"t": ["id"], "u": ["id"]})
    shop.db.execute("INSERT INTO t VALUES (1, '', ''), (2, '', '')")
    shop.db.execute("INSERT INTO u VALUES (3)")
    shop.capture(ANN).prune(shop.last())
    (warning,) = shop.capture(ANN).warnings({"t": ["id"]})
    assert lag.sqlite_lag("shop", shop.path, 0, True, ANN).kept_for == [warning]
    assert re.search(
        r"keeps 3 rows for the project of /bob/warehouse alone, .* nothing since 20\d\d-\d\d-\d\dT", warning
    )
    assert warning.endswith("run `viewkeeper capture --forget /bob/warehouse`")
    assert lag.sqlite_lag("shop", shop.path, 0, True, BOB).kept_for == [], "she has moved"
    with pytest.raises(UsageError, match="is this project; use --remove"):
        shop.capture(ANN).forget("/ann/warehouse")
    assert shop.capture(ANN).forget("/nobody") == []
    assert shop.capture(ANN).forget("/bob/warehouse") == ["no longer captured for the project of /bob/warehouse"]
    assert shop.capture(ANN).warnings({"t": ["id"]}) == []
    assert shop.triggers_on() == {"t"}
    with pytest.raises(SourceError, match="no longer captured for this project, only for others"):
        shop.source(BOB).require(str(shop.last()))


def test_marks_are_not_kept_for_a_neighbour_who_has_no_use_for_them(shop: Shop) -> None:
    shop.capture(ANN).install({"t": ["id"]})
    shop.capture(BOB).install({"u": ["id"]})
    install_marks("shop", shop.path, [["shop", "crm"]], ANN)
    for i in range(5):
        shop.db.execute(f"INSERT INTO {log.GLOBAL_TXN} VALUES ('g{i}', 'shop,crm')")
    shop.capture(ANN).prune(shop.last())
    assert shop.db.execute(f"SELECT count(*) FROM {log.LOG} WHERE op = 'part'").fetchone() == (1,), "the newest row"


def test_a_project_that_comes_back_does_not_take_what_it_missed_for_known(shop: Shop) -> None:
    shop.capture(ANN).install({"t": ["id"]})
    shop.capture(BOB).install({"t": ["id"]})
    position = shop.source(ANN).last_change()
    shop.capture(ANN).remove()
    shop.db.execute("INSERT INTO t VALUES (1, '', '')")
    shop.capture(BOB).prune(shop.last())
    shop.capture(ANN).install({"t": ["id"]})
    with pytest.raises(SourceError, match=r"its change log begins at .*init --reload"):
        shop.source(ANN).require(position)
    assert min(shop.capture(ANN).since()["t"].values()) > int(position)


def test_a_relation_that_was_dropped_from_the_needs_for_a_while_begins_anew_though_others_captured_it(
    shop: Shop,
) -> None:
    shop.capture(ANN).install({"t": ["id"], "u": ["id"]})
    shop.capture(BOB).install({"t": ["id"]})
    shop.capture(ANN).install({"u": ["id"]})
    before = shop.last()
    assert shop.capture(ANN).install({"t": ["id"], "u": ["id"]})
    since = shop.capture(ANN).since()
    assert since["u"]["id"] < before < since["t"]["id"]


def test_an_interruption_that_one_project_mends_by_loading_is_told_to_the_other(shop: Shop) -> None:
    shop.capture(ANN).install({"t": ["id", "a"]})
    shop.capture(BOB).install({"t": ["id"], "u": ["id"]})
    bob = shop.source(BOB)
    bob.watch({"t": ["id"]})
    position = str(shop.last())
    bob.require(position)
    shop.db.execute("DROP TRIGGER _viewkeeper_1_after_insert")
    shop.db.execute("INSERT INTO t VALUES (1, '', '')")
    shop.capture(ANN).install({"t": ["id", "a"]}, reload=True)
    with pytest.raises(SourceError, match=r"t\.id was not captured for a while.*init --reload"):
        bob.require(position)
    since = shop.capture(BOB).since()
    assert since["t"]["id"] > int(position) >= since["u"]["id"]


def test_what_one_project_prunes_hides_no_replaced_row_from_another(shop: Shop) -> None:
    shop.capture(ANN).install({"t": ["id", "a"]})
    shop.capture(BOB).install({"u": ["id"]})
    shop.db.execute("INSERT INTO t VALUES (1, 'x', '')")
    shop.db.execute("CREATE UNIQUE INDEX one ON t (a)")
    shop.db.execute("INSERT OR REPLACE INTO t VALUES (2, 'x', '')")  # row 1 goes unseen
    shop.db.execute("INSERT INTO u VALUES (3)")
    shop.capture(BOB).prune(shop.last())
    with pytest.raises(SourceError, match="a unique index was added while changes were made"):
        shop.capture(ANN).install({"t": ["id", "a"]})


def test_rows_that_were_replaced_unseen_are_told_to_the_other_though_one_project_loads(shop: Shop) -> None:
    shop.capture(ANN).install({"t": ["id", "a"]})
    shop.capture(BOB).install({"t": ["id"]})
    bob = shop.source(BOB)
    bob.watch({"t": ["id"]})
    position = str(shop.last())
    bob.require(position)
    shop.db.execute("INSERT INTO t VALUES (1, 'x', '')")
    shop.db.execute("CREATE UNIQUE INDEX one ON t (a)")
    shop.db.execute("INSERT OR REPLACE INTO t VALUES (2, 'x', '')")
    shop.capture(ANN).install({"t": ["id", "a"]}, reload=True)
    with pytest.raises(SourceError, match=r"t\.id was not captured for a while.*init --reload"):
        bob.require(position)


def test_two_captures_that_notice_one_alteration_write_the_triggers_once(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.db.execute("CREATE TABLE v (id INTEGER PRIMARY KEY, a TEXT, c TEXT, b TEXT)")
    shop.db.execute("CREATE UNIQUE INDEX one ON v (c)")
    for who in (ANN, BOB):
        shop.capture(who).install({"v": ["id", "a", "b"]})
    sent = shop.last()
    shop.db.execute("DROP INDEX one")
    begin = sqlite_triggers.writing

    def behind_bob(db: sqlite3.Connection) -> Any:
        monkeypatch.setattr(sqlite_triggers, "writing", begin)
        check_schema(log.connect(shop.path, "source store"), "source store", sent, who=BOB)
        shop.db.execute("INSERT INTO v VALUES (1, 'x', 'z', 'y')")
        return begin(db)

    monkeypatch.setattr(sqlite_triggers, "writing", behind_bob)
    state = check_schema(log.connect(shop.path, "source shop"), "source shop", sent, who=ANN)
    (id, *values) = shop.db.execute(f"SELECT id, a0, a1, a2 FROM {log.LOG} WHERE relation = 'v'").fetchone()
    places = state.tables["v"].layout_at(id).places
    assert {name: values[place] for name, place in places.items()} == {"id": 1, "a": "x", "b": "y"}


def test_columns_that_a_project_begins_to_need_while_another_notices_an_alteration_stay_logged(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.capture(ANN).install({"t": ["id", "b"]})
    shop.db.execute("CREATE TRIGGER mine AFTER INSERT ON t BEGIN SELECT 1; END")  # ours must be the first to fire
    begin = sqlite_triggers.writing

    def behind_bob(db: sqlite3.Connection) -> Any:
        monkeypatch.setattr(sqlite_triggers, "writing", begin)
        shop.capture(BOB).install({"t": ["id", "a"]})
        return begin(db)

    monkeypatch.setattr(sqlite_triggers, "writing", behind_bob)
    check_schema(log.connect(shop.path, "source shop"), "source shop", shop.last(), who=ANN)
    shop.db.execute("INSERT INTO t VALUES (1, 'x', 'y')")
    assert shop.state().tables["t"].used == ("a", "b", "id")
    assert shop.db.execute(f"SELECT a0, a1, a2 FROM {log.LOG} WHERE relation = 't'").fetchone() == (1, "x", "y")


def test_answers_know_where_each_undelivered_change_has_its_columns(shop: Shop) -> None:
    ann, ids_and_b = shop.source(ANN), Ask("shop", "t", ("id", "b"))
    shop.capture(ANN).install({"t": ["id", "b"]})
    position = ann.position(ann.freeze(None))
    shop.db.execute("INSERT INTO t VALUES (1, 'a1', 'b1')")
    kept = ann.freeze(position)
    for change in (
        lambda: shop.capture(BOB).install({"t": ["id", "a"]}),
        lambda: shop.capture(BOB).remove(),
        lambda: None,
    ):
        change()
        shop.db.execute("UPDATE t SET b = b || '!'")
        for snapshot in (kept, ann.freeze(position)):
            (now,) = shop.db.execute("SELECT b FROM t").fetchone()
            told = Counter({(row["id"], row["b"]): 0 for row in ann.ask(ids_and_b, snapshot).rows.to_pylist()})
            for row in ann.ask(ids_and_b, snapshot).tail.to_pylist():
                told[row["id"], row["b"]] += row["_count"]
            assert {row: n for row, n in told.items() if n} == {(1, now): 1}


def test_an_answer_with_a_column_that_undelivered_changes_lack_is_refused(shop: Shop) -> None:
    ann = shop.source(ANN)
    shop.capture(ANN).install({"t": ["id"]})
    position = ann.position(ann.freeze(None))
    shop.db.execute("INSERT INTO t VALUES (1, 'x', 'y')")
    shop.capture(ANN).install({"t": ["id", "a"]})
    with pytest.raises(SourceError, match=r"were logged without t\.a.*init --reload"):
        ann.ask(Ask("shop", "t", ("id", "a")), ann.freeze(position))
    assert ann.ask(Ask("shop", "t", ("id",)), ann.freeze(position)).tail.to_pylist() == [{"id": 1, "_count": 1}]
    assert len(ann.ask(Ask("shop", "t", ("id", "a")), ann.freeze(str(shop.last()))).rows) == 1


def test_a_project_can_leave_though_the_table_of_the_others_was_altered_unseen(shop: Shop) -> None:
    shop.capture(ANN).install({"t": ["id", "a"]})
    shop.capture(BOB).install({"t": ["id"]})
    shop.db.execute("CREATE UNIQUE INDEX one ON t (b)")
    shop.db.execute("INSERT INTO t VALUES (1, 'x', '')")
    assert "the change log stays for /bob/warehouse" in shop.capture(ANN).remove()[0]
    with pytest.raises(SourceError, match="a unique index was added while changes were made"):
        shop.capture(BOB).install({"t": ["id"]})


def test_capture_is_removed_though_the_warehouse_was_deleted_before(shop: Shop) -> None:
    shop.capture(ANN).install({"t": ["id"]})
    assert shop.capture(Who("a9", ANN.source, ANN.where, ANN.topic)).remove() == ["triggers and change log removed"]
    assert shop.triggers_on() == set()


def test_two_warehouses_of_one_configuration_share_topic_and_log(shop: Shop) -> None:
    shop.capture(ANN).install({"t": ["id"]})
    shop.capture(EVE).install({"u": ["id"]})
    shop.db.execute("INSERT INTO t VALUES (1, '', '')")
    shop.db.execute("INSERT INTO u VALUES (2)")
    assert shop.told(ANN) == shop.told(EVE) == [("t", 1), ("u", 2)], "whoever's capture runs serves both"
    shop.capture(ANN).prune(shop.last())
    assert shop.told(EVE) == [("u", 2)]


def test_a_warehouse_made_anew_in_its_folder_takes_the_place_of_the_old_one(shop: Shop) -> None:
    shop.capture(ANN).install({"t": ["id"], "u": ["id"]})
    shop.db.execute("INSERT INTO u VALUES (2)")
    again = Who("a9", ANN.source, ANN.where, ANN.topic)
    shop.capture(again).install({"t": ["id"]})
    assert set(shop.state().projects) == {again.key}
    assert shop.triggers_on() == {"t"}
    assert shop.told(again) == []
    made_anew = (
        "is captured for a warehouse that was made anew in /ann/warehouse since this began; start this command again"
    )
    with pytest.raises(SourceError, match=made_anew):
        shop.source(ANN).last_change()


def test_a_log_from_before_there_were_records_goes_on_with_all_it_knows(shop: Shop) -> None:
    shop.capture(ANN).install({"t": ["id", "a", "b"], "u": ["id"]})
    since = shop.capture(ANN).since()
    shop.db.execute("INSERT INTO t VALUES (1, '', '')")
    position = shop.source(ANN).last_change()
    shop.db.execute(f"DELETE FROM {log.STATE} WHERE key LIKE 'project:%'")
    captured = orjson.loads(shop.db.execute(f"SELECT value FROM {log.STATE} WHERE key = 'table:t'").fetchone()[0])
    shop.db.execute(
        f"UPDATE {log.STATE} SET value = ? WHERE key = 'table:t'",
        [orjson.dumps(captured | {"since": captured["since"], "fingerprint": "old"}).decode()],
    )
    shop.source(ANN).require(position)
    assert not shop.capture(ANN).install({"t": ["id", "a"], "u": ["id"]})
    assert shop.source(ANN).last_change() == position
    assert max(shop.capture(ANN).since()["t"].values()) <= max(since["t"].values())
    assert shop.told(ANN) == [("t", 1)]


# ---- marks of transactions over several sources


def test_marks_of_one_project_are_not_told_to_one_that_declares_none(shop: Shop) -> None:
    shop.capture(ANN).install({"t": ["id"]})
    shop.capture(BOB).install({"t": ["id"]})
    install_marks("shop", shop.path, [["shop", "crm"]], ANN)
    install_marks("store", shop.path, [], BOB)
    shop.db.execute(f"INSERT INTO {log.GLOBAL_TXN} VALUES ('g1', 'shop,crm')")
    assert shop.told(ANN) == [(None, "shop,crm")]
    assert shop.told(BOB) == []
    shop.capture(BOB).remove()
    shop.db.execute(f"INSERT INTO {log.GLOBAL_TXN} VALUES ('g2', 'shop,crm')")


def test_other_marks_than_another_projects_are_refused_by_name(shop: Shop) -> None:
    install("shop", shop.path, {"t": ["id"]}, who=ANN)
    install("store", shop.path, {"t": ["id"]}, who=BOB)
    install_marks("shop", shop.path, [["shop", "crm"]], ANN)
    with pytest.raises(SourceError, match=r"the project of /ann/warehouse declares other transactions.*alike in both"):
        install_marks("store", shop.path, [["store", "crm"]], BOB)
