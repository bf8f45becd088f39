"""Tables that change while views are kept of them, and tables of which none can be kept."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.conftest import MakeDatabase
from tests.e2e.pg_shop import SHOP, TAGGED, VIEWS, at_moment, before_and_after, beside
from tests.e2e.pg_world import World, when
from viewkeeper import cli
from viewkeeper.capture import postgres_setup
from viewkeeper.capture.postgres_setup import PostgresCapture
from viewkeeper.errors import SourceError, SourceUnreachable, ViewkeeperError

pytestmark = pytest.mark.e2e


# ---- tables that change


@pytest.mark.parametrize(
    ("did", "undone", "found"),
    [
        ("RENAME total TO sum", "RENAME sum TO total", r"table orders: .*total does not exist: it was altered"),
        ("ALTER total TYPE bigint", "ALTER total TYPE int", r"the type of column orders\.total was changed"),
        ("REPLICA IDENTITY DEFAULT", "REPLICA IDENTITY FULL", r"the REPLICA IDENTITY of table orders was changed"),
        ("ENABLE ROW LEVEL SECURITY", "DISABLE ROW LEVEL SECURITY", r"table orders was altered"),
    ],
)
def test_oracle_a_used_table_that_is_altered_stops_the_job_until_that_is_undone(
    world: World, did: str, undone: str, found: str
) -> None:
    before_and_after(world)
    messages, cut = world.unread(), world.cut
    with (
        at_moment(world, "before the first answer", lambda: world.write("shop", f"ALTER TABLE orders {did}")),
        pytest.raises(
            SourceError, match=rf"source shop: {found}.*; undo that, or run `viewkeeper init --reload`"
        ) as job,
    ):
        world.maintain(messages)
    assert job.value.exit_code == 3
    for look in (world.job._look_at_sources, world.open):
        with pytest.raises(ViewkeeperError, match=r"orders.*(renamed|no column|altered|changed|IDENTITY|security)"):
            look()
    world.write("shop", f"ALTER TABLE orders {undone}")
    assert world.open().cut == cut, "nothing was written"
    world.batch()
    world.check()


def test_a_delete_that_was_not_logged_in_full_is_never_taken_for_one_that_was(world: World) -> None:
    """Its message holds the key and NULL for all else: it comes after the change of the table that it tells of."""
    cut = world.cut
    world.write("shop", "INSERT INTO orders VALUES (501, 1, 1, 'x')")
    not_logged = ["ALTER TABLE orders REPLICA IDENTITY DEFAULT", "DELETE FROM orders WHERE id = 501"]
    with at_moment(world, "after the freeze", lambda: [world.write("shop", one) for one in not_logged]):
        before_and_after(world)
        with pytest.raises(SourceError, match="the REPLICA IDENTITY of table orders was changed"):
            world.batch()
    assert world.cut == cut
    world.write("shop", "ALTER TABLE orders REPLICA IDENTITY FULL")
    world.open(*VIEWS)
    before_and_after(world)
    world.batch()
    world.check()


def test_a_table_that_was_renamed_and_renamed_back_with_changes_in_between_stops_the_job(world: World) -> None:
    """They came under a name that no view knows. The job says so by itself, before any other change comes."""
    cut = world.cut
    world.write("shop", "ALTER TABLE orders RENAME TO ordered")
    world.write("shop", "UPDATE ordered SET total = total + 100 WHERE id = 1")
    world.write("shop", "ALTER TABLE ordered RENAME TO orders")
    world.batch()
    assert world.cut == cut
    found = r"source shop: table orders was renamed or moved.*may be missing; run `viewkeeper init --reload`"
    for look in (world.job._look_at_sources, world.open):
        with pytest.raises(SourceError, match=found):
            look()
    world.open(*VIEWS)
    before_and_after(world)
    world.batch()
    world.check()


def test_oracle_columns_that_no_view_uses_may_come_and_go(world: World) -> None:
    before_and_after(world)
    alter = ["ALTER TABLE orders ADD extra int DEFAULT 5", "ALTER TABLE customers ADD extra text NOT NULL DEFAULT 'e'"]
    with at_moment(world, "before the first answer", lambda: world.write("shop", alter[0])):
        world.batch()
    world.write("crm", alter[1])
    before_and_after(world)
    world.batch()
    world.write("shop", "ALTER TABLE orders DROP extra")
    world.write("crm", "ALTER TABLE customers DROP extra")
    before_and_after(world)
    world.batch()
    world.check()


ADDED = {
    "the column, then a change": ["ALTER TABLE orders ADD extra int DEFAULT 5", "UPDATE orders SET extra = 7"],
    "a change, then the column, then a change": [
        "UPDATE orders SET total = total + 1 WHERE id = 1",
        "ALTER TABLE orders ADD extra int DEFAULT 5",
        "UPDATE orders SET extra = 7 WHERE id = 1",
    ],
}


@pytest.mark.parametrize("added", ADDED)
def test_oracle_a_view_of_a_column_that_was_just_added_is_loaded_behind_what_was_logged_without_it(
    world: World, added: str
) -> None:
    """The topic holds changes of the table that lack the column, of the transaction that added it too."""
    sql = "SELECT o.id, o.extra, l.qty FROM shop.orders o JOIN shop.lines l ON l.id = o.id"
    late = lambda: Counter(world.databases["shop"].execute(sql.replace("shop.", "")))  # noqa: E731
    before_and_after(world)
    world.write("shop", *ADDED[added])
    world.write("shop", "UPDATE orders SET extra = 8 WHERE id = 3")
    before = world.cut.last_update
    world.views["late"] = sql
    world.open()
    loaded = world.cut.last_update
    assert loaded >= before + 3 and world.read("late", loaded) == late()
    world.write("shop", "UPDATE orders SET extra = 9 WHERE id = 2")
    world.batch()
    assert world.read("late") == late()
    world.open()
    assert world.read("late") == late(), "what is read again, of before the column, is passed over"
    del world.views["late"]
    world.open()
    world.write("shop", "ALTER TABLE orders DROP extra")
    before_and_after(world)
    world.batch()
    world.check()


def test_oracle_where_only_the_key_is_logged_views_of_the_key_are_exact(shared_world: World) -> None:
    with beside(shared_world, {"tagged": TAGGED}) as world:
        world.open()
        world.write("shop", "UPDATE tags SET note = 'c' WHERE id < 4", "UPDATE words SET length = 9 WHERE word = 'w1'")
        world.write("shop", "UPDATE tags SET word = 'w3' WHERE id = 1", "DELETE FROM tags WHERE id = 2")
        world.write(
            "shop", "INSERT INTO tags VALUES (7, 'w3', NULL)", "UPDATE tags SET id = 8, note = 'x' WHERE id = 3"
        )
        world.batch()
        assert world.read("tagged") == Counter(world.databases["shop"].execute(TAGGED.replace("shop.", "")))
        assert len(world.read("tagged")) == 6
        assert world.cut.last_update == 3


def test_a_table_is_captured_only_when_no_transaction_runs_that_may_have_changed_it_before(
    new_database: MakeDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one that began while the table was being published: its number is past that of the publishing."""
    made = new_database(*SHOP)
    capture = PostgresCapture("shop", made.config(topic="t"), tmp_path / "shop.json")
    monkeypatch.setattr(postgres_setup, "WAIT_SECONDS", 0.5)
    with made.connect(autocommit=False) as other:
        write = lambda: other.execute("INSERT INTO orders VALUES (900, 1, 1, 'x')")  # noqa: E731
        with when(capture, "_do", write, after=True), pytest.raises(SourceUnreachable, match="would be missing"):
            capture.install({"orders": ["id"]})


# ---- what cannot be kept

UNFIT = {
    "parted": ("PARTITION BY HASH (id)", "is partitioned, and its log tells of its partitions; name the tables"),
    "part": (None, "is a partition of another table; it cannot be kept"),
    "parent": ("", "inherits from a table, or is inherited from, and its log tells of each table alone"),
    "child": (None, "inherits from a table, or is inherited from, and its log tells of each table alone"),
    "unlogged": (None, 'is unlogged, and no log tells of it; ALTER TABLE "public"."unlogged" SET LOGGED'),
    "foreigner": (None, "is a foreign table, of which no log tells"),
    "secured": ("", 'has row-level security, .*; ALTER TABLE "public"."secured" DISABLE ROW LEVEL SECURITY'),
    "looked": (None, "is a view, of which no log tells"),
    "stored": (None, "is a materialized view, of which no log tells"),
}
MORE = (
    "CREATE TABLE part PARTITION OF parted FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
    "CREATE TABLE child (more int) INHERITS (parent)",
    "CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)",
    "CREATE FOREIGN DATA WRAPPER nothing",
    "CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing",
    "CREATE FOREIGN TABLE foreigner (id int) SERVER nowhere",
    "ALTER TABLE secured ENABLE ROW LEVEL SECURITY",
    "CREATE VIEW looked AS SELECT id FROM fine",
    "CREATE MATERIALIZED VIEW stored AS SELECT id FROM fine",
)
COLUMNS = {
    "double": ("int GENERATED ALWAYS AS (id * 2) STORED", "is generated, and the log does not tell its value; write"),
    "span": ("interval", "leave it out"),
    "place": ("point", "leave it out"),
    "address": ("inet", ""),
}


def test_check_refuses_by_name_what_no_log_tells_and_says_what_to_do(
    shared_world: World, new_database: MakeDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ", ".join(f"{name} {declared}" for name, (declared, _) in COLUMNS.items())
    tables = [f"CREATE TABLE {t} (id int PRIMARY KEY) {how}" for t, (how, _) in UNFIT.items() if how is not None]
    made = new_database(f"CREATE TABLE fine (id int PRIMARY KEY, {columns})", *tables, *MORE)
    views = {table: f"SELECT t.id FROM shop.{table} t" for table in UNFIT}
    views |= {name: f"SELECT t.id, t.{name} FROM shop.fine t" for name in COLUMNS}
    world = World(tmp := shared_world.folder / "unfit", shared_world.broker, {"shop": made}, views)
    world.configure()
    for command in ("check", "init", "run"):
        assert cli.main([command, str(world.conf)]) == 2
        told = capsys.readouterr().err
        for table, (_, reason) in UNFIT.items():
            assert re.search(rf"viewkeeper: .*:\d+:\d+: views\.{table}\.sql: shop\.{table} {reason}", told)
        for name, (_, reason) in COLUMNS.items():
            assert re.search(rf"viewkeeper: .*:\d+:\d+: views\.{name}\.sql: column t\.{name} .*{reason}", told), told
        assert "there is no table" not in told
    assert not (tmp / "warehouse" / "cuts").exists()
    world.views = {"fine": "SELECT t.id FROM shop.fine t"}
    world.configure()
    assert cli.main(["check", str(world.conf)]) == 0, capsys.readouterr().err


def test_a_view_that_cannot_be_kept_hides_nothing_that_other_views_and_sources_lack(
    shared_world: World, new_database: MakeDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the tables that it names itself, too, `check` tells what can be told."""
    clerk = "CREATE ROLE checker LOGIN"
    shop = new_database("CREATE TABLE t (id int PRIMARY KEY, a text)", "GRANT SELECT ON t TO PUBLIC")
    crm = new_database("CREATE TABLE t (id int PRIMARY KEY, a text)")
    views = {
        "bad": "SELECT t.id, t.missing FROM shop.t t",
        "good": "SELECT t.id, t.a FROM crm.t t",
    }
    shop.execute(clerk)
    try:
        world = World(shared_world.folder / "hides", shared_world.broker, {"shop": shop, "crm": crm}, views)
        shop.server.execute("ALTER ROLE checker REPLICATION")
        world.configure()
        text = world.conf.read_text().replace(shop.url, shop.server.url(shop.name, "checker"))
        world.conf.write_text(text)
        assert cli.main(["check", str(world.conf)]) == 2
        told = capsys.readouterr().err
        assert "views.bad.sql" in told
        assert 'source crm: the log does not tell old values of t (a); ALTER TABLE "public"."t" REPLICA' in told
        assert f'CREATE PUBLICATION "{shop.slot}" FOR TABLE "public"."t", as their owner' in told
    finally:
        shop.execute("DROP OWNED BY checker", "DROP ROLE checker")
