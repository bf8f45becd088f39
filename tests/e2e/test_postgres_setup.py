"""Publication and slot: made as far as the role may, never with a gap, and refused with the statement that helps."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import eventually
from tests.e2e.conftest import MakeDatabase
from tests.e2e.postgres import VERSIONS, Database, Servers, database
from viewkeeper.capture import RELATION, postgres_setup
from viewkeeper.capture.postgres_claims import Claimant
from viewkeeper.capture.postgres_setup import PostgresCapture
from viewkeeper.errors import SourceError, SourceUnreachable
from viewkeeper.warehouse.layout import Layout

pytestmark = pytest.mark.e2e

TABLES = [
    "CREATE TABLE orders (id int PRIMARY KEY, customer int, note text)",
    "CREATE TABLE lines (id int PRIMARY KEY, order_id int)",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    "ALTER TABLE lines REPLICA IDENTITY FULL",
]
ORDERS = {"orders": ["id", "customer"]}
BOTH = {**ORDERS, "lines": ["id", "order_id"]}


class Shop:
    """A database whose capture is set up, and as which role."""

    def __init__(self, made: Database, file: Path):
        self.db = made
        self.file = file

    def capture(self, role: str = "", file: Path | None = None, **settings: Any) -> PostgresCapture:
        url = self.db.server.url(self.db.name, role) if role else self.db.url
        section = self.db.config(topic="shop.updates", **{"url": url, **settings})
        return PostgresCapture("shop", section, file or self.file)

    def published(self) -> set[str]:
        rows = self.db.execute(f"SELECT tablename FROM pg_publication_tables WHERE pubname = '{self.db.slot}'")
        return {name for (name,) in rows}

    def slots(self) -> list[tuple[Any, ...]]:
        query = "SELECT plugin, confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name ="
        return self.db.execute(f"{query} '{self.db.slot}'")

    def problems(self, relations: dict[str, list[str]] = BOTH, **settings: Any) -> list[str]:
        return [str(f) for f in self.capture(**settings).findings(relations) if f.verdict == "problem"]


@pytest.fixture
def shop(new_database: MakeDatabase, tmp_path: Path) -> Shop:
    return Shop(new_database(*TABLES, name="shop"), tmp_path / "shop.json")


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_missing_is_made_once(new_database: MakeDatabase, tmp_path: Path, version: int) -> None:
    shop = Shop(new_database(*TABLES, version=version), tmp_path / "shop.json")
    capture = shop.capture()
    assert capture.install(BOTH)
    assert capture.installed() == [
        f"publication {shop.db.slot} for lines, orders",
        f"slot {shop.db.slot}",
    ]
    before = shop.slots()
    assert not shop.capture().install(BOTH)
    assert not capture.install(BOTH) and capture.installed() == []
    assert shop.slots() == before and before[0][0] == "pgoutput"
    assert shop.problems() == []


def test_tables_join_and_leave_the_publication_with_the_views_that_use_them(shop: Shop) -> None:
    shop.capture().install(ORDERS)
    assert shop.published() == {"orders"}
    assert shop.capture().install(BOTH)
    assert shop.published() == {"orders", "lines"}
    assert not shop.capture().install({"lines": ["id"]})
    assert shop.published() == {"lines"}
    assert shop.capture().since() == {"lines": {RELATION: 0}}
    assert shop.capture().install(BOTH)
    assert shop.capture().since()["orders"][RELATION] > 0, "orders was not captured for a while"


def test_what_is_captured_stays_so_if_it_is_installed_again(shop: Shop) -> None:
    """Views that wait for another source may need it: their columns are not known, their tables are."""
    assert shop.capture().captured() == {}
    shop.capture().install(BOTH)
    before = shop.capture().since(), shop.slots()
    assert shop.capture().captured() == {"orders": [], "lines": []}
    assert not shop.capture().install({**shop.capture().captured(), **ORDERS})
    assert shop.published() == {"orders", "lines"} and (shop.capture().since(), shop.slots()) == before


def test_a_publication_that_somebody_else_made_is_left_as_it_is(shop: Shop) -> None:
    shop.db.execute(f"CREATE PUBLICATION {shop.db.slot} FOR ALL TABLES")
    shop.capture().install(BOTH)
    shop.capture().install(ORDERS)
    assert shop.published() == {"orders", "lines"}
    told = shop.capture().remove()
    assert f"slot {shop.db.slot} removed" in told
    assert any("left publication" in line for line in told)


def test_a_table_of_a_published_schema_needs_no_more(shop: Shop) -> None:
    shop.db.execute(f"CREATE PUBLICATION {shop.db.slot} FOR TABLES IN SCHEMA public")
    shop.capture().install(BOTH)
    assert shop.capture().installed() == []
    assert shop.problems() == []


def test_what_was_made_is_removed(shop: Shop) -> None:
    shop.capture().install(BOTH)
    assert shop.capture().remove() == [f"slot {shop.db.slot} removed", f"publication {shop.db.slot} removed"]
    assert shop.slots() == [] and shop.published() == set()
    assert shop.capture().remove() == ["nothing to remove"]
    assert shop.capture().install(BOTH)
    assert shop.capture().since() == {"lines": {RELATION: 0}, "orders": {RELATION: 0}}


@pytest.mark.parametrize(
    ("filter_", "what"),
    [
        ("FOR TABLE orders WHERE (customer > 0)", "filters rows or columns of orders"),
        ("FOR TABLE orders (id, customer)", "filters rows or columns of orders"),
        ("FOR TABLE orders WITH (publish = 'insert, update')", "leaves out delete, truncate"),
    ],
)
def test_a_filtered_publication_is_refused(shop: Shop, filter_: str, what: str) -> None:
    shop.db.execute(f"CREATE PUBLICATION {shop.db.slot} {filter_}")
    with pytest.raises(SourceError, match=what):
        shop.capture().install(ORDERS)
    assert shop.slots() == []
    (problem,) = shop.problems(ORDERS)
    statements = problem.removeprefix(f"publication {shop.db.slot} {what}; ")
    shop.db.execute(*statements.split("; "))
    assert shop.problems(ORDERS) == []


GAPS: dict[str, Callable[[Shop], tuple[str, ...]]] = {
    "taken out and put back": lambda s: (
        f"ALTER PUBLICATION {s.db.slot} DROP TABLE orders",
        f"ALTER PUBLICATION {s.db.slot} ADD TABLE orders",
    ),
    "publication made anew": lambda s: (
        f"DROP PUBLICATION {s.db.slot}",
        f"CREATE PUBLICATION {s.db.slot} FOR TABLE orders, lines",
    ),
    "publication gone": lambda s: (f"DROP PUBLICATION {s.db.slot}",),
    "operations left out for a while": lambda s: (
        f"ALTER PUBLICATION {s.db.slot} SET (publish = 'insert')",
        f"ALTER PUBLICATION {s.db.slot} SET (publish = 'insert, update, delete, truncate')",
    ),
    "filtered for a while": lambda s: (
        f"ALTER PUBLICATION {s.db.slot} SET TABLE orders WHERE (id > 0), lines",
        f"ALTER PUBLICATION {s.db.slot} SET TABLE orders, lines",
    ),
    "table made anew": lambda s: (
        "DROP TABLE orders",
        *(t for t in TABLES if "orders" in t),
        f"ALTER PUBLICATION {s.db.slot} ADD TABLE orders",
    ),
    "slot gone": lambda s: (f"SELECT pg_drop_replication_slot('{s.db.slot}')",),
}


@pytest.mark.parametrize("gap", GAPS)
def test_a_gap_in_the_capture_is_refused_until_the_views_are_loaded_again(shop: Shop, gap: str) -> None:
    shop.capture().install(BOTH)
    shop.db.execute(*GAPS[gap](shop))
    with pytest.raises(SourceError, match=r"changes may be missing; run `viewkeeper init --reload`"):
        shop.capture().install(BOTH)
    assert any("changes may be missing" in problem for problem in shop.problems())
    assert shop.capture().install(BOTH, reload=True)
    assert shop.capture().since()["orders"][RELATION] > 0
    assert not shop.capture().install(BOTH)
    assert shop.problems() == []


def test_other_changes_of_the_publication_are_no_gap(shop: Shop) -> None:
    shop.capture().install(ORDERS)
    shop.db.execute(
        f"ALTER PUBLICATION {shop.db.slot} ADD TABLE lines",
        "ALTER TABLE orders ADD COLUMN more int",
        "ALTER TABLE orders ALTER COLUMN customer TYPE bigint",
        "TRUNCATE orders",
    )
    shop.capture().install(ORDERS)
    assert shop.published() == {"orders", "lines"}, "what somebody else has put in stays in"


def test_a_publication_that_is_given_away_is_no_gap_and_what_its_new_owner_does_is(shop: Shop) -> None:
    shop.capture().install(ORDERS)
    heir = f"heir_{shop.db.name}"
    shop.db.execute(f"CREATE ROLE {heir}", f"ALTER PUBLICATION {shop.db.slot} OWNER TO {heir}")
    try:
        assert not shop.capture().install(ORDERS)
        assert not any("changes may be missing" in problem for problem in shop.problems(ORDERS))
        shop.db.execute(*GAPS["operations left out for a while"](shop))
        with pytest.raises(SourceError, match="changes may be missing"):
            shop.capture().install(ORDERS)
    finally:
        shop.db.execute(f"REASSIGN OWNED BY {heir} TO current_user", f"DROP ROLE {heir}")


def test_a_table_counts_as_captured_once_older_transactions_have_ended(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.capture().install(ORDERS)
    monkeypatch.setattr(postgres_setup, "WAIT_SECONDS", 0.2)
    with closing(shop.db.connect(autocommit=False)) as older:
        older.execute("INSERT INTO lines VALUES (1, 1)")
        pid = older.info.backend_pid
        with pytest.raises(
            SourceUnreachable, match=rf"changes of lines by an older transaction.*\(process {pid}, \d+ s old"
        ):
            shop.capture().install(BOTH)
        assert shop.capture().since() == {"orders": {RELATION: 0}}
        monkeypatch.setattr(postgres_setup, "WAIT_SECONDS", 60)
        done = threading.Event()
        waiting = threading.Thread(target=lambda: (shop.capture().install(BOTH), done.set()))
        waiting.start()
        assert not done.wait(0.3)
        older.commit()
        waiting.join(60)
    assert done.is_set()
    assert shop.capture().since() == {"lines": {RELATION: 0}, "orders": {RELATION: 0}}


def test_two_that_install_at_once_make_it_once(shop: Shop, tmp_path: Path) -> None:
    failures: list[Exception] = []

    def install() -> None:
        try:
            shop.capture().install(BOTH)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=install) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert shop.problems() == []


def test_a_slot_of_another_database_is_refused(shop: Shop, new_database: MakeDatabase) -> None:
    other = new_database()
    other.execute(f"SELECT pg_create_logical_replication_slot('{shop.db.slot}', 'pgoutput')")
    with pytest.raises(SourceError, match=rf"slot {shop.db.slot} is somebody else's \(database {other.name}"):
        shop.capture().install(BOTH)


def test_a_log_without_old_values_is_refused_unless_no_used_column_needs_them(shop: Shop) -> None:
    shop.db.execute("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
    assert shop.problems() == [
        'the log does not tell old values of orders (customer); ALTER TABLE "public"."orders" REPLICA IDENTITY FULL'
    ]
    assert shop.problems({"orders": ["id"], "lines": ["id"]}) == []
    shop.db.execute(
        "CREATE UNIQUE INDEX pair ON orders (id, customer)", "ALTER TABLE orders ALTER customer SET NOT NULL"
    )
    shop.db.execute("ALTER TABLE orders REPLICA IDENTITY USING INDEX pair")
    assert shop.problems() == []
    shop.db.execute("ALTER TABLE orders REPLICA IDENTITY NOTHING")
    assert len(shop.problems({"orders": ["id"]})) == 1


@dataclass
class Projects:
    """Several projects on one database, each with its warehouse."""

    shop: Shop
    folder: Path

    def capture(
        self, name: str, kafka: str = "kafka:9092", source: str = "shop", **settings: Any
    ) -> PostgresCapture:  # fmt: skip
        section = self.shop.db.config(**{"topic": "shop.updates", **settings})
        claimant = Claimant(Layout(self.folder / name, "all"), kafka)
        return PostgresCapture(source, section, self.folder / name / "captures" / f"{source}.json", claimant)


@pytest.fixture
def projects(shop: Shop, tmp_path: Path) -> Projects:
    return Projects(shop, tmp_path)


def test_a_table_stays_published_as_long_as_a_project_uses_it(projects: Projects) -> None:
    """Two warehouses of one configuration share slot, publication and topic: whoever captures serves both."""
    one, other = projects.capture("one"), projects.capture("other")
    one.install(BOTH)
    other.install(ORDERS)
    one.install({"lines": BOTH["lines"]})
    assert projects.shop.published() == {"orders", "lines"}, "the other one uses orders"
    other.install({"lines": BOTH["lines"]})
    assert projects.shop.published() == {"lines"} or projects.shop.published() == {"orders", "lines"}
    used = f"which is used by {projects.folder / 'other'} on {socket.gethostname()}"
    name = projects.shop.db.slot
    assert one.remove() == [f"left slot {name}, {used}", f"left publication {name}, {used}"]
    assert projects.shop.slots() and projects.shop.published()
    other.remove()
    assert not projects.shop.slots() and not projects.shop.published()


def test_what_a_project_with_two_sources_on_the_database_uses_is_kept_of_both(projects: Projects) -> None:
    name = projects.shop.db.slot
    more = {"source": "more", "slot": f"s_{name}", "publication": f"s_{name}", "topic": "more"}
    one, other = projects.capture("one"), projects.capture("other")
    other.install(BOTH)
    projects.capture("other", **more).install(ORDERS)
    one.install(BOTH)
    one.install(ORDERS)
    assert projects.shop.published() == {"orders", "lines"}, "the other one uses lines"
    assert one.remove()[0].startswith(f"left slot {name}, which is used by {projects.folder / 'other'} on ")
    projects.capture("other", **more).remove()
    other.remove()
    assert not projects.shop.slots() and not projects.shop.published()


def test_a_slot_of_its_own_is_removed_though_others_use_the_publication(projects: Projects) -> None:
    """Left behind, it would hold back the log for ever."""
    name = projects.shop.db.slot
    one, other = projects.capture("one"), projects.capture("other", slot=f"s_{name}", publication=name, topic="other")
    one.install(ORDERS)
    other.install(ORDERS)
    assert other.remove()[0] == f"slot s_{name} removed"
    assert projects.shop.slots() and projects.shop.published() == {"orders"}
    one.remove()
    assert not projects.shop.slots() and not projects.shop.published()


@pytest.mark.parametrize(
    "settings",
    [
        {"topic": "elsewhere"},
        {"kafka": "other:9092"},
        {"publication": "mine"},
        {"slot": "mine", "publication": "mine"},
        {"slot": "mine"},
    ],
)
def test_a_project_that_would_take_another_ones_changes_is_refused_by_name(
    projects: Projects, settings: dict[str, Any]
) -> None:
    """The slot has one reader, and the topic lacks what the publication of whoever fills it does not have."""
    projects.capture("one").install(BOTH)
    second = projects.capture("second", **settings)
    named = (
        rf"another project \(warehouse {projects.folder / 'one'} on .*\) reads slot .* into topic shop.updates at kafka"
    )
    with pytest.raises(SourceError, match=named):
        second.install(BOTH)
    assert any(re.search(named, str(f)) for f in second.findings(BOTH) if f.verdict == "problem")
    apart = projects.capture("third", slot=f"s_{projects.shop.db.slot}", publication="third", topic="third")
    assert apart.install(BOTH)
    assert not projects.capture("one").install(BOTH), "the first one is as it was"
    apart.remove()


def test_check_leaves_no_name_behind(projects: Projects) -> None:
    assert projects.capture("one").findings(BOTH)
    assert not (projects.folder / "one").exists()


def test_types_that_debezium_dies_of_are_named_before_it_does(shop: Shop) -> None:
    """Wherever in the database they are, used or not; it reads all types at its start."""
    shop.db.execute(
        "CREATE TYPE mood AS ENUM ('ok')", "CREATE DOMAIN list AS mood[]", "CREATE DOMAIN pair AS int4range"
    )
    assert shop.problems() == []
    capture = shop.capture()
    assert capture.install(BOTH)
    capture.require_same_slot(lambda: 0)
    shop.db.execute("CREATE SCHEMA far", 'CREATE DOMAIN far."Our mood" AS mood', "CREATE TYPE blank AS ENUM ()")
    found = r'a domain over an enumeration, or one without labels: blank, far\."Our mood"; make it a domain over text'
    assert len(shop.problems()) == 1 and re.search(found, shop.problems()[0])
    for work in (lambda: capture.install(BOTH), lambda: capture.require_same_slot(lambda: 0)):
        with pytest.raises(SourceError, match=rf"source shop: Debezium cannot start in a database that has {found}"):
            work()
    shop.db.execute('DROP DOMAIN far."Our mood"', "ALTER TYPE blank ADD VALUE 'one'")
    capture.install(BOTH)


@pytest.fixture
def clerk(shop: Shop) -> Iterator[str]:
    """A role that may nothing but log in."""
    role = f"clerk {shop.db.name}"
    shop.db.execute(f'CREATE ROLE "{role}" LOGIN')
    yield role
    shop.db.execute(f'DROP OWNED BY "{role}"', f'DROP ROLE "{role}"')


def test_a_role_without_rights_gets_the_statements_and_needs_no_more(shop: Shop, clerk: str) -> None:
    shop.db.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
    with pytest.raises(SourceError) as refused:
        shop.capture(clerk).install(BOTH)
    statements = [problem.remedy.partition(", as their owner")[0] for problem in refused.value.problems]
    assert statements == [
        f'ALTER ROLE "{clerk}" REPLICATION',
        f'GRANT USAGE ON SCHEMA "public" TO "{clerk}"',
        f'GRANT SELECT ON "public"."lines", "public"."orders" TO "{clerk}"',
        f'CREATE PUBLICATION "{shop.db.slot}" FOR TABLE "public"."lines", "public"."orders"',
    ]
    assert refused.value.problems[-1].remedy.endswith(f", as their owner, who needs CREATE on database {shop.db.name}")
    shop.db.execute(*statements)
    assert shop.capture(clerk).install(BOTH)
    assert shop.capture(clerk).findings(BOTH)
    assert shop.problems(role=clerk) == []
    shop.db.execute("CREATE TABLE more (id int PRIMARY KEY)", f'GRANT SELECT ON more TO "{clerk}"')
    with pytest.raises(SourceError, match=r'ALTER PUBLICATION ".*" ADD TABLE "public"."more"'):
        shop.capture(clerk).install({**BOTH, "more": ["id"]})


def test_a_grant_of_the_used_columns_is_enough(shop: Shop, clerk: str) -> None:
    shop.db.execute(f'ALTER ROLE "{clerk}" REPLICATION', f'GRANT SELECT (id, customer) ON orders TO "{clerk}"')
    shop.db.execute(f"CREATE PUBLICATION {shop.db.slot} FOR TABLE orders")
    assert shop.problems(ORDERS, role=clerk) == []
    assert len(shop.problems({"orders": ["id", "note"]}, role=clerk)) == 1


def test_servers_that_cannot_be_captured_are_refused(postgres: Servers, tmp_path: Path) -> None:
    plain = postgres.own(wal_level="replica", max_replication_slots="1", max_slot_wal_keep_size="1GB")
    with database(plain, TABLES) as made:
        shop = Shop(made, tmp_path / "plain.json")
        plain.execute("SELECT pg_create_physical_replication_slot('taken')")
        assert shop.problems() == [
            "wal_level is replica, so changes cannot be read from its log; "
            "ALTER SYSTEM SET wal_level = 'logical', then restart the server",
            "the server has no replication slot left; ALTER SYSTEM SET max_replication_slots = …, then restart the "
            "server; or drop one nobody uses",
        ]
        plain.execute("SELECT pg_drop_replication_slot('taken')")
        with postgres.standby(plain) as standby:
            eventually(lambda: standby.execute("SELECT pg_is_in_recovery()") == [(True,)], 30, "the standby is one")
            copied = Shop(Database(standby, made.name), tmp_path / "standby.json")
            eventually(
                lambda: "orders" in str(copied.db.execute("SELECT relname FROM pg_class")), 30, "it has followed"
            )
            with pytest.raises(SourceError, match="the server is a standby"):
                copied.capture().install(BOTH)


def test_a_slot_whose_log_was_thrown_away_is_told_and_made_anew_at_a_reload(postgres: Servers, tmp_path: Path) -> None:
    small = postgres.own(max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB")
    with database(small, TABLES) as made:
        shop = Shop(made, tmp_path / "small.json")
        shop.capture().install(BOTH)
        for _ in range(6):
            small.execute("SELECT pg_logical_emit_message(false, 'x', 'y')", "SELECT pg_switch_wal()", "CHECKPOINT")
        assert any("has thrown away the log" in problem for problem in shop.problems())
        with pytest.raises(SourceError, match="thrown away"):
            shop.capture().install(BOTH)
        with pytest.raises(SourceError, match="changes may be missing"):
            shop.capture().require_same_slot(lambda: 0)
        assert shop.capture().install(BOTH, reload=True)
        assert shop.problems() == []


def test_a_slot_that_only_other_tables_hold_back_is_moved_on(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.capture().install(BOTH)
    assert shop.capture().prune(0) == 0
    monkeypatch.setattr(postgres_setup, "_FORWARD_BYTES", 1000)
    shop.db.execute("CREATE TABLE other AS SELECT repeat('x', 1000) FROM generate_series(1, 100)")
    assert shop.capture().prune(0) > 1000
    peeked = shop.db.execute(
        f"SELECT count(*) FROM pg_logical_slot_peek_binary_changes('{shop.db.slot}', NULL, NULL, "
        f"'proto_version', '1', 'publication_names', '{shop.db.slot}', 'messages', 'true')"
    )
    assert peeked == [(3,)], "BEGIN, message, COMMIT"


def test_a_wrong_password_or_an_absent_server_is_one_sentence_without_it(shop: Shop) -> None:
    absent = f"postgresql://clerk:s3cret@127.0.0.1:1/{shop.db.name}"
    with pytest.raises(SourceUnreachable) as away:
        shop.capture(url=absent).install(BOTH)
    unknown = shop.db.server.url(shop.db.name, "nobody here", "s3cret")
    with pytest.raises(SourceError) as refused:
        shop.capture(url=unknown).install(BOTH)
    for error in (away.value, refused.value):
        assert "s3cret" not in str(error)
        assert str(error).startswith("source shop: ") and "\n" not in str(error)
