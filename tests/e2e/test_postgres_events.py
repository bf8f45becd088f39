"""What happens to real PostgreSQL databases in the middle of a batch: every state of every view stays right."""

from __future__ import annotations

import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.conftest import SharedBroker, eventually, unique
from tests.e2e.conftest import MakeDatabase
from tests.e2e.pg_world import World, Worlds, asked_by_workers, when
from tests.e2e.postgres import Debezium, Servers, database
from viewkeeper import cli
from viewkeeper.capture import postgres_setup
from viewkeeper.capture.postgres_setup import PostgresCapture
from viewkeeper.errors import SourceError, SourceUnreachable, ViewkeeperError
from viewkeeper.messages import Ask

pytestmark = pytest.mark.e2e

SHOP = (
    "CREATE TABLE orders (id int PRIMARY KEY, customer_id int, total int NOT NULL, note text)",
    "CREATE TABLE lines (id int PRIMARY KEY, customer_id int, qty int)",
    "CREATE INDEX ON orders (customer_id)",
    "CREATE INDEX ON lines (customer_id)",
    "ALTER TABLE orders REPLICA IDENTITY FULL",
    "ALTER TABLE lines REPLICA IDENTITY FULL",
    "INSERT INTO orders SELECT i, i % 4, i, 'n' FROM generate_series(1, 8) i",
    "INSERT INTO lines SELECT i, i % 4, i FROM generate_series(1, 8) i",
    "CREATE TABLE tags (id int, word text, note text, PRIMARY KEY (word, id))",
    "CREATE TABLE words (word text PRIMARY KEY, length int)",
    "ALTER TABLE words REPLICA IDENTITY FULL",
    "INSERT INTO tags SELECT i, 'w' || i % 3, 'n' FROM generate_series(1, 6) i",
    "INSERT INTO words SELECT 'w' || i, i FROM generate_series(0, 3) i",
)
CRM = (
    "CREATE TABLE customers (id int PRIMARY KEY, name text)",
    "ALTER TABLE customers REPLICA IDENTITY FULL",
    "INSERT INTO customers SELECT i, 'c' || i FROM generate_series(0, 4) i",
)
VIEWS = {
    "bought": "SELECT o.id, c.name, o.total FROM shop.orders o JOIN crm.customers c ON o.customer_id = c.id",
    "pairs": "SELECT a.id AS one, b.id AS other, c.name FROM shop.orders a JOIN shop.orders b "
    "ON a.customer_id = b.customer_id JOIN crm.customers c ON c.id = a.customer_id WHERE a.id < b.id",
    "packed": "SELECT l.id, l.qty, c.name FROM shop.lines l JOIN crm.customers c ON l.customer_id = c.id",
}


TAGGED = "SELECT t.id, w.word, w.length FROM shop.tags t JOIN shop.words w ON t.word = w.word"


@pytest.fixture(scope="module")
def shared(
    postgres: Servers, tmp_path_factory: pytest.TempPathFactory, broker: SharedBroker, shared_debezium: Debezium
) -> Iterator[World]:
    """One world for all tests of this file: their databases are captured once."""
    server = postgres.own(max_prepared_transactions="10")
    worlds = Worlds(tmp_path_factory.mktemp("worlds"), broker, shared_debezium)
    with database(server, SHOP, "shop") as shop, database(server, CRM, "crm") as crm:
        world = worlds({"shop": shop, "crm": crm}, {**VIEWS, "tagged": TAGGED}, statement_timeout="3s")
        yield world
        worlds.end()  # while the databases are still there


@contextmanager
def beside(shared: World, views: dict[str, str], **sections: Any) -> Iterator[World]:
    """Another warehouse over the same databases and topics."""
    world = World(shared.folder / unique("beside"), shared.broker, shared.databases, views, **sections)
    world.topics = shared.topics
    try:
        yield world
    finally:
        world.end()


@pytest.fixture
def world(shared: World, request: pytest.FixtureRequest) -> World:
    """The world of this file as the last test has left it; opened anew where that one failed."""
    failed = request.session.testsfailed
    if not hasattr(shared, "keeper") or getattr(shared, "failures", 0) != failed:
        shared.views = dict(VIEWS)
        shared.open("bought", "pairs", "packed") if hasattr(shared, "keeper") else shared.open()
    shared.failures = failed  # type: ignore[attr-defined]
    return shared


def before_and_after(world: World) -> None:
    """Updates of all relations, so that the batch asks every source about them."""
    world.write("crm", "UPDATE customers SET name = name || 'x' WHERE id < 3")
    world.write("shop", "UPDATE orders SET total = total + 1 WHERE id < 4", "UPDATE lines SET qty = qty + 1")
    world.write("crm", "DELETE FROM customers WHERE id = 2")
    world.write("crm", "INSERT INTO customers VALUES (2, 'again')")


# ---- what ignores snapshots

MOMENTS: dict[str, tuple[str, int, bool]] = {
    "before the freeze": ("freeze", 1, False),
    "after the freeze": ("freeze", 1, True),
    "before the first answer": ("ask", 1, False),
    "between two answers": ("ask", 2, False),
    "after the last answer": ("confirm", 1, False),
}
VOID = "was truncated, rewritten or altered while it was read"

FRESH = "INSERT INTO orders SELECT i, i % 4, 5, 'f' FROM generate_series(11, 18) i"
TRUNCATES: dict[str, list[list[str]]] = {
    "empties a table": [["TRUNCATE orders"], ["INSERT INTO orders VALUES (1, 1, 1, 'n')", FRESH]],
    "empties and fills it": [
        ["INSERT INTO orders VALUES (99, 1, 1, 'gone')", "TRUNCATE orders", FRESH, "UPDATE orders SET total = 6"],
        ["DELETE FROM orders WHERE id = 11"],
    ],
    "empties two tables": [["TRUNCATE orders, lines", FRESH], ["INSERT INTO lines VALUES (1, 1, 1), (2, 2, 2)"]],
}


@contextmanager
def at_moment(world: World, moment: str, action: Callable[[], object]) -> Iterator[None]:
    """Does it at a moment of the next batch, in which the shop is asked as Spark's workers ask."""
    shop = world.source("shop")
    method, call, after = MOMENTS[moment]
    with asked_by_workers(shop), when(shop, method, action, call, after):
        yield


@pytest.mark.parametrize(
    ("moment", "did"),
    [
        *((moment, "empties and fills it") for moment in MOMENTS),
        ("before the first answer", "empties a table"),
        ("between two answers", "empties two tables"),
    ],
)
def test_oracle_a_truncate_in_the_middle_of_a_batch_leaves_every_view_right(
    world: World, caplog: pytest.LogCaptureFixture, moment: str, did: str
) -> None:
    before_and_after(world)
    cut = world.cut.cut
    with at_moment(world, moment, lambda: [world.write("shop", *one) for one in TRUNCATES[did]]):
        world.batch()
    assert world.cut.cut == cut + 1
    assert world.cut.level == "strong"
    told = {"before the freeze": "", "after the freeze": "emptied orders is not visible yet"}.get(moment, VOID)
    assert told in caplog.text if told else not caplog.text
    before_and_after(world)
    world.batch()
    assert world.cut.level == "complete"
    world.check()


REWRITES: dict[str, list[str]] = {
    "retypes an unused column": [
        "ALTER TABLE orders ALTER note TYPE varchar(9)",
        "ALTER TABLE orders ALTER note TYPE text COLLATE \"C\" USING note || 'r'",
    ],
    "compacts it": ["VACUUM FULL orders"],
    "sorts it": ["CLUSTER orders USING orders_pkey"],
}


@pytest.mark.parametrize(
    ("moment", "did"),
    [
        ("after the freeze", "retypes an unused column"),
        ("before the first answer", "retypes an unused column"),
        ("between two answers", "retypes an unused column"),
        ("after the last answer", "compacts it"),
        ("between two answers", "compacts it"),
        ("before the first answer", "sorts it"),
    ],
)
def test_oracle_a_table_rewritten_in_the_middle_of_a_batch_is_asked_again(
    world: World, caplog: pytest.LogCaptureFixture, moment: str, did: str
) -> None:
    before_and_after(world)

    def rewrite() -> None:
        with world.databases["shop"].connect() as connection:
            for statement in REWRITES[did]:
                connection.execute(statement.encode())

    with at_moment(world, moment, rewrite):
        world.batch()
    assert VOID in caplog.text
    assert world.cut.level == "complete"
    world.check()


def test_a_truncate_of_a_relation_that_no_view_uses_is_no_matter(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.write("shop", "CREATE TABLE IF NOT EXISTS other (id int PRIMARY KEY)")
    before_and_after(world)
    with at_moment(world, "between two answers", lambda: world.write("shop", "TRUNCATE other")):
        world.batch()
    assert VOID not in caplog.text
    world.check()


# ---- transactions


@pytest.fixture
def nothing_prepared(shared: World) -> Iterator[None]:
    """Prepared transactions outlive a test that fails: then they are rolled back."""
    yield
    for name, made in shared.databases.items():
        for (left,) in made.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
            with shared.databases[name].connect() as connection:
                connection.execute(f"ROLLBACK PREPARED '{left}'".encode())


@pytest.mark.usefixtures("nothing_prepared")
def test_oracle_transactions_that_overlap_are_numbered_as_they_commit(world: World) -> None:
    """Ids in another order than commits; savepoints rolled back and kept; prepared ones that commit batches later."""
    shop, crm = world.databases["shop"], world.databases["crm"]
    with (
        shop.connect(autocommit=False) as early, shop.connect(autocommit=False) as late,
        crm.connect(autocommit=False) as other, shop.connect(autocommit=False) as prepared,
    ):  # fmt: skip
        early.execute("INSERT INTO orders VALUES (201, 3, 1, 'early')")
        late.execute("INSERT INTO orders VALUES (202, 7, 2, 'late')")
        other.execute("INSERT INTO customers VALUES (7, 'seven')")
        for connection, keep in ((early, True), (late, False)):
            connection.execute("SAVEPOINT s")
            connection.execute(f"UPDATE lines SET qty = qty + 7 WHERE id = {3 if keep else 4}")
            connection.execute("SAVEPOINT deeper")
            connection.execute(f"DELETE FROM orders WHERE id = {12 if keep else 13}")
            connection.execute(f"{'RELEASE' if keep else 'ROLLBACK TO'} SAVEPOINT s".encode())
        prepared.execute("UPDATE orders SET customer_id = 7 WHERE id = 14")
        prepared.execute("SAVEPOINT s")
        prepared.execute("INSERT INTO lines VALUES (200, 7, 7)")
        prepared.execute("PREPARE TRANSACTION 'two'")
        prepared.commit()
        late.commit()
        with when(world.source("shop"), "ask", other.commit):
            world.write("crm", "UPDATE customers SET name = name || 'o'")
            world.batch()  # early and the prepared one run on
        world.check(ends=False)
        early.commit()
        world.write("crm", "UPDATE customers SET name = name || 'p' WHERE id IN (3, 7)")
        world.batch()
        world.check()
        with when(world.source("shop"), "ask", lambda: prepared.execute("COMMIT PREPARED 'two'")):
            prepared.autocommit = True
            world.write("crm", "UPDATE customers SET name = name || 'q' WHERE id IN (3, 7)")
            world.batch()
    world.batch()
    world.check()
    ids = [int(t.xid) for t in world.sent("shop")]
    assert ids != sorted(ids), "ids came in the order of commits after all"


# ---- logged, and not shown


class Stuck:
    """A synchronous standby that never answers: commits are logged, and then hang before they can be seen."""

    def __init__(self, world: World):
        self.server = world.databases["shop"].server
        self.world = world
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Stuck:
        self._set("nobody")
        eventually(self._effective, 30, "commits hang")
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """The standby is wanted no more: what hangs goes on."""
        self._set("")
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        self._threads = []

    def _set(self, names: str) -> None:
        self.local("postgres", f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        self.local("postgres", "SELECT pg_reload_conf()")

    def _effective(self) -> bool:
        """Whether commits hang by now; the one that tries it is let go."""
        query = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        thread = threading.Thread(target=lambda: self.server.execute("SELECT pg_logical_emit_message(true, 'x', 'y')"))
        thread.start()
        try:
            eventually(lambda: not thread.is_alive() or self._hanging(), 30)
            return thread.is_alive()
        finally:
            self.local("postgres", query)
            thread.join(30)

    def _hanging(self) -> int:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        return int(self.local("postgres", waiting)[0][0])

    def local(self, name: str, *statements: str) -> list[tuple[Any, ...]]:
        """One transaction that waits for no standby, in that database."""
        url = self.server.url(name)
        with psycopg.connect(url, autocommit=True, options="-c synchronous_commit=local") as connection:
            if len(statements) == 1:
                cursor = connection.execute(statements[0].encode())
                return cursor.fetchall() if cursor.description else []
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement.encode())
        return []

    def write(self, source: str, *statements: str) -> None:
        self.local(self.world.databases[source].name, *statements)

    def hang(self, source: str, *statements: str) -> int:
        """A transaction whose commit hangs; its xid."""
        before, xids = self._hanging(), list[int]()

        def work() -> None:
            with self.world.databases[source].connect() as connection, connection.transaction():
                for statement in statements:
                    connection.execute(statement.encode())
                row = connection.execute("SELECT pg_current_xact_id()::text::int8 & 4294967295").fetchone()
                assert row is not None
                xids.append(row[0])

        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()
        eventually(lambda: self._hanging() > before, 30, "it hangs")
        return xids[0]


def offset_of(world: World, source: str, xid: int) -> int:
    """The offset of a transaction's END."""
    return next(t.offset for t in world.sent(source) if t.xid == str(xid))


def test_oracle_a_commit_that_is_logged_and_not_shown_is_compensated_in_both_directions(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with Stuck(world) as stuck:
        order = stuck.hang(
            "shop",
            "INSERT INTO orders VALUES (301, 30, 1, 'h'), (302, 30, 2, 'h')",
            "UPDATE orders SET customer_id = 30 WHERE id = 15",
            "DELETE FROM orders WHERE id = 16",
        )
        customer = stuck.hang(
            "crm", "INSERT INTO customers VALUES (31, 'hidden')", "UPDATE customers SET name = 'was' WHERE id = 3"
        )
        world.batch()  # delivered and numbered, although no snapshot shows them
        world.check(ends=False)
        assert len(world.keeper.unsettled.updates) == 2
        stuck.write("crm", "INSERT INTO customers VALUES (30, 'late')")
        stuck.write("crm", "UPDATE customers SET name = name || '!' WHERE id = 0")
        stuck.write("shop", "INSERT INTO orders VALUES (311, 31, 1, 'l'), (312, 31, 2, 'l')")
        stuck.write("shop", "INSERT INTO lines VALUES (311, 31, 1), (313, 3, 1)")
        world.batch()
        assert world.cut.offsets["shop"] < offset_of(world, "shop", order)
        assert world.cut.offsets["crm"] < offset_of(world, "crm", customer)
        world.check(ends=False)
        capsys.readouterr()
        assert cli.main(["verify", str(world.conf)]) == 0, "verify compensates, too"
        assert capsys.readouterr().out.count("equal to recomputation") == 3

        world.open()  # as if killed: what is not shown must come from the topic again
        stuck.write("crm", "UPDATE customers SET name = name || '+' WHERE id = 30")
        stuck.write("shop", "UPDATE orders SET total = 9 WHERE id = 311", "DELETE FROM orders WHERE id = 312")
        world.batch()
        assert len(world.keeper.unsettled.updates) == 2
        assert world.cut.offsets["shop"] < offset_of(world, "shop", order)
        world.check(ends=False)

        world.views["late"] = (
            "SELECT o.id, o.total, l.id AS line FROM shop.orders o JOIN shop.lines l ON l.customer_id = o.customer_id"
        )
        world.open()  # a view more, loaded as of a cut that holds what is not shown
        stuck.write("shop", "INSERT INTO lines VALUES (330, 30, 3)")
        world.batch()
        world.check(ends=False)
    stuck.release()
    world.write("shop", "UPDATE orders SET total = total + 1 WHERE customer_id = 30")
    world.batch()
    assert not world.keeper.unsettled.updates
    assert world.cut.offsets["shop"] > offset_of(world, "shop", order)
    world.check()
    del world.views["late"]
    world.open()


def test_oracle_a_load_leaves_out_what_is_not_shown_and_numbers_it_later(world: World) -> None:
    with Stuck(world) as stuck:
        order = stuck.hang("shop", "INSERT INTO orders VALUES (401, 40, 1, 'h')", "DELETE FROM lines WHERE id = 1")
        stuck.hang("crm", "INSERT INTO customers VALUES (41, 'hidden')")
        eventually(lambda: any(t.xid == str(order) for t in world.sent("shop")), 30, "it was delivered")
        world.open(*VIEWS)
        assert world.cut.offsets["shop"] < offset_of(world, "shop", order)
        stuck.write("crm", "INSERT INTO customers VALUES (40, 'late')")
        stuck.write("shop", "INSERT INTO orders VALUES (411, 41, 1, 'l')")
        world.batch()
        assert world.cut.last_update >= 4, "two that hung, two that joined them"
        world.check(ends=False)
    world.write("shop", "INSERT INTO lines VALUES (1, 41, 1)")
    world.batch()
    world.check()
    assert not world.keeper.unsettled.updates


# ---- connections


def test_oracle_connections_that_are_cut_in_the_middle_of_a_batch_are_made_anew(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def cut_all() -> None:
        world.databases["shop"].server.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'viewkeeper'"
        )

    for moment in ("before the freeze", "after the freeze", "between two answers", "after the last answer"):
        before_and_after(world)
        caplog.clear()
        with at_moment(world, moment, cut_all):
            world.batch()
        assert "trying again" in caplog.text and "going on" not in caplog.records[0].message
        world.check()


def test_a_question_that_takes_too_long_is_waited_for_and_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    before_and_after(world)
    messages = world.unread()
    told: list[str] = []
    with world.databases["shop"].connect(autocommit=False) as other:
        other.execute("LOCK TABLE orders")

        def release() -> None:
            eventually(lambda: world.keeper.waiting is not None, 60, "the job says that it waits")
            told.append(str(world.keeper.waiting))
            other.rollback()

        thread = threading.Thread(target=release)
        thread.start()
        world.keeper.maintain(messages)
        thread.join()
    assert "source shop: " in told[0] and "timeout" in told[0]
    assert world.keeper.waiting is None
    world.check()


def test_no_more_connections_are_used_than_allowed(world: World) -> None:
    world.open()
    source, shop = world.source("shop"), world.databases["shop"]
    allowed, used = source.section.max_connections, list[int]()
    count = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'viewkeeper'"
    )

    def look() -> None:
        used.append(shop.execute(count)[0][0])

    for _ in range(2):
        before_and_after(world)
        with when(source, "ask", look), when(source, "confirm", look, after=True):
            world.batch()
    assert set(used) == {2}
    world.check()
    snapshot = source.freeze(None)
    worker = pickle.loads(pickle.dumps(source))
    ask = Ask("shop", "orders", ("id",), ("customer_id",), pa.table({"customer_id": [1, 2]}))
    try:
        with ThreadPoolExecutor(source.readers) as workers:
            asked = [workers.submit(worker.ask, ask, snapshot) for _ in range(100)]
            eventually(lambda: look() or all(each.done() for each in asked), 60)
            assert len({each.result().rows.num_rows for each in asked}) == 1
    finally:
        source.release(snapshot)
        worker.close()
    assert 3 <= max(used) <= allowed


def test_a_row_budget_is_kept_within_a_third(shared: World) -> None:
    rate, rows, shop = 2_000, 6_000, shared.databases["shop"]
    shop.execute(f"INSERT INTO lines SELECT i, 500, 1 FROM generate_series(10001, {10000 + rows}) i")
    with beside(shared, {"packed": VIEWS["packed"]}, max_rows_per_second=rate) as world:
        begin = time.monotonic()
        world.open()
        assert rows <= rate * (time.monotonic() - begin + 1), "a second's worth may be read at once"
        world.write("crm", "INSERT INTO customers VALUES (500, 'many')")
        messages = world.unread()
        begin = time.monotonic()
        world.keeper.maintain(messages)
        seconds = time.monotonic() - begin
        assert rows / 1.3 <= rate * (seconds + 1)
        assert seconds < 1.3 * rows / rate + 3
        assert sum(world.read("packed").values()) > rows
    shop.execute("DELETE FROM lines WHERE customer_id = 500")
    shared.write("crm", "DELETE FROM customers WHERE id = 500")


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
        world.keeper.maintain(messages)
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


def test_oracle_where_only_the_key_is_logged_views_of_the_key_are_exact(shared: World) -> None:
    with beside(shared, {"tagged": TAGGED}) as world:
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
