"""A real PostgreSQL as a source: snapshots, answers, and everything that must not be silently wrong."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from tests.conftest import eventually
from tests.e2e.conftest import MakeDatabase
from tests.e2e.postgres import VERSIONS, Database, Servers
from viewkeeper.config_sources import PostgresConfig
from viewkeeper.errors import SourceError, SourceUnreachable
from viewkeeper.local.postgres import PostgresServer, binaries_of
from viewkeeper.managers.sources.postgres import PostgresSnapshot, PostgresSource
from viewkeeper.messages import Ask, Reached

pytestmark = pytest.mark.e2e

SHOP = (
    "CREATE TABLE customers (id int PRIMARY KEY, name text)",
    "CREATE TABLE orders (id int8 PRIMARY KEY, customer_id int, total numeric(10,2), note text)",
    "CREATE INDEX ON orders (customer_id)",
    "INSERT INTO customers VALUES (1, 'Ann'), (2, 'Bob')",
    "INSERT INTO orders VALUES (10, 1, 5.00, NULL), (11, 1, 7.50, 'x'), (12, 2, 1.00, NULL)",
)
USED = {"customers": ["id", "name"], "orders": ["id", "customer_id", "total"]}

Made = Callable[..., PostgresSource]


@pytest.fixture
def source_of() -> Iterator[Made]:
    """Makes sources; their connections end with the test."""
    made: list[PostgresSource] = []

    def make(database: Database, watch: dict[str, list[str]] | None = USED, **settings: Any) -> PostgresSource:
        made.append(PostgresSource("shop", database.config(**settings)))
        made[-1].watch(watch or {})
        return made[-1]

    yield make
    for source in made:
        source.close()


@pytest.fixture(params=VERSIONS)
def shop(request: pytest.FixtureRequest, new_database: MakeDatabase) -> Database:
    return new_database(*SHOP, version=request.param)


def question(relation: str, *columns: str, **keys: list[Any]) -> Ask:
    return Ask("shop", relation, columns, tuple(keys), pa.table(keys) if keys else None)


def rows(source: PostgresSource, ask: Ask, snapshot: PostgresSnapshot | None = None) -> list[tuple[Any, ...]]:
    """The answer's rows, sorted; in a snapshot of its own if none is given."""
    own = snapshot or source.freeze(None)
    try:
        answer = source.ask(ask, own).rows
    finally:
        if snapshot is None:
            source.release(own)
    assert set(answer["_count"].to_pylist()) <= {1}
    return sorted((tuple(row.values()) for row in answer.drop_columns(["_count"]).to_pylist()), key=repr)


def xid(connection: psycopg.Connection[Any]) -> int:
    found = connection.execute("SELECT pg_current_xact_id()::text::int8 & 4294967295").fetchone()
    assert found is not None
    return int(found[0])


def in_another_process(source: PostgresSource, ask: Ask, snapshot: PostgresSnapshot) -> list[tuple[Any, ...]]:
    return rows(source, ask, snapshot)


# ---- snapshots


def test_every_question_of_a_snapshot_sees_one_state_in_all_threads_and_processes(
    shop: Database, source_of: Made
) -> None:
    source, ask = source_of(shop), question("orders", "id", "total", customer_id=[1, 2])
    snapshot = source.freeze(None)
    before = rows(source, ask, snapshot)
    shop.execute("DELETE FROM orders WHERE id = 10", "INSERT INTO orders VALUES (13, 2, 2, NULL)")
    assert rows(source, ask, snapshot) == before
    elsewhere: list[Any] = []
    thread = threading.Thread(target=lambda: elsewhere.append(rows(source, ask, snapshot)))
    thread.start()
    thread.join()
    assert elsewhere == [before]
    with ProcessPoolExecutor(1, get_context("spawn")) as other:
        for _ in range(2):
            assert other.submit(in_another_process, source, ask, snapshot).result(60) == before
    source.release(snapshot)
    assert [row[0] for row in rows(source, ask)] == [11, 12, 13]


def test_what_a_snapshot_includes_is_decided_by_visibility_and_not_by_log_order(
    shop: Database, source_of: Made
) -> None:
    source = source_of(shop)
    with shop.connect(autocommit=False) as early, shop.connect(autocommit=False) as late:
        early.execute("INSERT INTO customers VALUES (3, 'early')")
        late.execute("INSERT INTO customers VALUES (4, 'late')")
        xids = [xid(early), xid(late)]
        late.commit()  # begun second, over first
        snapshot = source.freeze(None)
        early.commit()
        later = xid(early)
    contains = source.contains(snapshot)
    assert list(contains.includes(np.array([*xids, later]))) == [False, True, False]
    assert [row[0] for row in rows(source, question("customers", "id"), snapshot)] == [1, 2, 4]
    source.release(snapshot)


def test_the_position_of_a_load_covers_every_commit_that_the_snapshot_includes(shop: Database, source_of: Made) -> None:
    source = source_of(shop)
    shop.execute("INSERT INTO customers VALUES (3, 'C')")
    ended = int(source.last_change())
    snapshot = source.freeze(None)
    position = Reached.parse(source.position(snapshot))
    assert (position.last, position.snapshot) == (0, str(source.contains(snapshot)))
    assert position.until >= ended
    source.release(snapshot)


def test_a_snapshot_that_is_gone_is_asked_for_anew(shop: Database, source_of: Made) -> None:
    source = source_of(shop)
    snapshot = source.freeze(None)
    worker = pickle.loads(pickle.dumps(source))
    source.release(snapshot)
    source.release(snapshot)
    with pytest.raises(SourceUnreachable, match="source shop: the snapshot is gone"):
        worker.ask(question("customers", "id"), snapshot)
    worker.close()


def test_the_mark_lies_behind_all_that_is_committed_and_the_log_goes_on_past_it(
    shop: Database, source_of: Made
) -> None:
    source = source_of(shop)
    shop.execute("INSERT INTO customers VALUES (3, 'C')")
    before = source.last_change()
    mark = source.mark()
    assert int(before) <= int(mark) < int(source.last_change())
    assert source.reached(str(Reached(int(mark))), mark)
    assert not source.reached(str(Reached(0, int(mark) + 5, "1:1:")), mark)


def test_a_barrier_comes_out_of_the_log_while_the_snapshot_is_held(shop: Database, source_of: Made) -> None:
    source = source_of(shop)
    shop.execute("CREATE PUBLICATION p FOR ALL TABLES")
    shop.execute(f"SELECT pg_create_logical_replication_slot('{shop.slot}', 'pgoutput')")
    snapshot = source.freeze(None)
    token = source.barrier(snapshot)
    options = "'proto_version', '1', 'publication_names', 'p', 'messages', 'true'"
    peek = f"SELECT data FROM pg_logical_slot_peek_binary_changes('{shop.slot}', NULL, NULL, {options})"
    assert any(token.encode() in data for (data,) in shop.execute(peek))
    source.release(snapshot)


def test_a_standby_that_is_stuck_does_not_hold_up_barriers_and_marks(postgres: Servers, source_of: Made) -> None:
    server = postgres.own(synchronous_standby_names="nobody")
    server.execute("SET synchronous_commit = local; CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(Database(server, "postgres"), {"t": ["id"]}, statement_timeout="5s")
    snapshot = source.freeze(None)
    begin = time.monotonic()
    source.barrier(snapshot)
    source.mark()
    assert time.monotonic() - begin < 2
    source.release(snapshot)


# ---- what ignores snapshots


@pytest.mark.parametrize(
    "statement",
    ["TRUNCATE orders", "ALTER TABLE orders ALTER total TYPE numeric(12,3)", "ALTER TABLE orders RENAME TO other"],
)
def test_answers_are_void_after_a_table_was_emptied_or_rewritten(
    shop: Database, source_of: Made, statement: str
) -> None:
    source = source_of(shop)
    snapshot = source.freeze(None)
    source.confirm(snapshot)
    shop.execute(statement)
    with pytest.raises((SourceUnreachable, SourceError), match="orders"):
        rows(source, question("orders", "id", "total"), snapshot)
        source.confirm(snapshot)
    source.release(snapshot)


def test_an_older_snapshot_sees_a_truncated_table_empty_and_says_so(shop: Database, source_of: Made) -> None:
    source = source_of(shop)
    snapshot = source.freeze(None)
    shop.execute("TRUNCATE orders")
    assert rows(source, question("orders", "id"), snapshot) == []
    with pytest.raises(SourceUnreachable, match="table orders was truncated, rewritten or altered while it was read"):
        source.confirm(snapshot)
    source.release(snapshot)
    again = source.freeze(None)
    source.confirm(again)
    source.release(again)


def test_columns_that_swap_their_names_while_they_are_read_void_the_answers(shop: Database, source_of: Made) -> None:
    shop.execute("ALTER TABLE customers ADD nick text")
    source = source_of(shop)
    snapshot = source.freeze(None)
    shop.execute(
        "ALTER TABLE customers RENAME name TO former",
        "ALTER TABLE customers RENAME nick TO name",
    )
    assert rows(source, question("customers", "name"), snapshot) == [(None,), (None,)]
    with pytest.raises(SourceUnreachable, match="customers"):
        source.confirm(snapshot)
    source.release(snapshot)
    with pytest.raises(SourceError, match=r"column customers\.name was dropped or renamed; .*init --reload"):
        source.freeze(None)


@pytest.mark.parametrize(
    ("statements", "found"),
    [
        (["DROP TABLE orders"], "table orders was dropped or renamed"),
        (["CREATE TABLE o2 (LIKE orders)", "DROP TABLE orders", "ALTER TABLE o2 RENAME TO orders"], "made anew"),
        (["ALTER TABLE orders DROP total"], r"column orders\.total was dropped or renamed"),
        (["ALTER TABLE orders RENAME total TO sum"], r"column orders\.total was dropped or renamed"),
        (["ALTER TABLE orders ALTER total TYPE numeric(12,2)"], r"type of column orders\.total was changed"),
        (["ALTER TABLE customers ALTER name TYPE varchar(50)"], r"type of column customers\.name was changed"),
        (["ALTER TABLE orders REPLICA IDENTITY NOTHING"], "REPLICA IDENTITY of table orders was changed"),
        (["ALTER TABLE orders ENABLE ROW LEVEL SECURITY"], "table orders was altered"),
        (["CREATE TABLE child () INHERITS (orders)"], "table orders was altered"),
        (["ALTER TABLE orders SET UNLOGGED"], "table orders was altered"),
    ],
)
def test_what_was_done_to_a_used_table_stops_the_next_snapshot(
    new_database: MakeDatabase, source_of: Made, statements: list[str], found: str
) -> None:
    shop = new_database(*SHOP)
    source = source_of(shop)
    source.release(source.freeze(None))
    known = source.identity()
    shop.execute(*statements)
    for refuse in (lambda: source.freeze(None), lambda: source.require_identity(known)):
        with pytest.raises(SourceError, match=rf"source shop: .*{found}.*init --reload"):
            refuse()


SWAPPED = ["RENAME total TO t", "RENAME customer_id TO total", "RENAME t TO customer_id"]


@pytest.mark.parametrize(
    ("statements", "found"),
    [
        (["RENAME TO o2", "RENAME TO orders"], "table orders was renamed or moved, if only for a while"),
        (["SET SCHEMA beside", "SET SCHEMA public"], "table orders was renamed or moved, if only for a while"),
        ([*SWAPPED, *SWAPPED], "columns of table orders were renamed, if only for a while"),
        (
            ["ADD n numeric(8,2)", "RENAME total TO t", "RENAME n TO total", "RENAME total TO n", "RENAME t TO total"],
            "columns of table orders were renamed, if only for a while",
        ),
    ],
)
def test_what_was_done_to_a_used_table_and_undone_stops_the_next_snapshot(
    new_database: MakeDatabase, source_of: Made, statements: list[str], found: str
) -> None:
    """Changes in between came under other names, or in none that is read: nobody can tell any more."""
    shop = new_database(*SHOP, "CREATE SCHEMA beside")
    source = source_of(shop)
    source.release(source.freeze(None))
    known = source.identity()
    table = "orders"
    for statement in statements:
        shop.execute(f"ALTER TABLE {table} {statement}")
        kind, _, name = statement.rpartition(" ")
        table = {"RENAME TO": name, "SET SCHEMA": f"{name}.orders"}.get(kind, table)
    again = source_of(shop)
    for refuse in (lambda: source.freeze(None), source.identity, lambda: again.require_identity(known)):
        with pytest.raises(SourceError, match=rf"source shop: {found}.*; run `viewkeeper init --reload`"):
            refuse()


def test_two_tables_that_changed_names_and_changed_them_back_are_noticed(
    new_database: MakeDatabase, source_of: Made
) -> None:
    shop = new_database(*SHOP)
    source = source_of(shop)
    source.release(source.freeze(None))
    for one, other in (("orders", "customers"), ("customers", "orders")):
        shop.execute(*(f"ALTER TABLE {a} RENAME TO {b}" for a, b in ((one, "x"), (other, one), ("x", other))))
    with pytest.raises(SourceError, match=r"table (orders|customers) was renamed or moved"):
        source.freeze(None)


@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER PUBLICATION p DROP TABLE orders", "ALTER PUBLICATION p ADD TABLE orders"],
        ["DROP PUBLICATION p", "CREATE PUBLICATION p FOR TABLE orders, customers"],
        ["ALTER PUBLICATION p SET (publish = 'insert')"],
        ["DROP PUBLICATION p"],
    ],
)
def test_a_table_that_leaves_the_publication_is_noticed_at_the_next_snapshot(
    new_database: MakeDatabase, statements: list[str]
) -> None:
    shop = new_database(*SHOP, "CREATE PUBLICATION p FOR TABLE orders, customers")
    source = PostgresSource("shop", shop.config(publication="p"))
    source.watch(USED)
    source.release(source.freeze(None))
    shop.execute("CREATE TABLE more (id int)", "ALTER PUBLICATION p ADD TABLE more")
    source.release(source.freeze(None))
    heir = f"heir_{shop.name}"
    shop.execute(f"CREATE ROLE {heir}", f"ALTER PUBLICATION p OWNER TO {heir}")
    source.release(source.freeze(None))
    shop.execute(*statements)
    with pytest.raises(SourceError, match=r"table \w+ was not in the publication as it is now all the time"):
        source.freeze(None)
    source.close()
    shop.execute(f"REASSIGN OWNED BY {heir} TO current_user", f"DROP ROLE {heir}")


def test_what_is_done_to_a_table_without_another_name_stops_nothing(
    new_database: MakeDatabase, source_of: Made
) -> None:
    shop = new_database(*SHOP)
    source = source_of(shop)
    source.release(source.freeze(None))
    known = source.identity()
    with shop.connect() as connection:
        for statement in (
            "ALTER TABLE orders ALTER total SET STATISTICS 5",
            "ALTER TABLE orders ALTER customer_id SET NOT NULL, ALTER total SET NOT NULL",
            "GRANT SELECT ON orders TO PUBLIC",
            "GRANT SELECT (id, total) ON orders TO PUBLIC",
            "GRANT SELECT (id, total) ON orders TO PUBLIC",
            "REVOKE UPDATE ON orders FROM PUBLIC",
            "ALTER TABLE orders ALTER total SET DEFAULT 1, ALTER customer_id SET DEFAULT 1",
            "ALTER TABLE orders ALTER total SET DEFAULT 2, ALTER customer_id SET DEFAULT 2, ADD other int",
            "ALTER TABLE orders SET (fillfactor = 70)",
            "ALTER TABLE orders RESET (fillfactor)",
            "VACUUM FULL orders",
            "ANALYZE orders",
            "REINDEX TABLE orders",
            "TRUNCATE orders",
            "ALTER TABLE orders DISABLE TRIGGER ALL",
        ):
            connection.execute(statement.encode())
            source.release(source.freeze(None))
    shop.execute("ALTER TABLE orders RENAME total TO sum", "ALTER TABLE orders RENAME sum TO total")
    source.release(source.freeze(None))
    source_of(shop).require_identity(known)


def test_what_no_view_uses_may_change(shop: Database, source_of: Made) -> None:
    source = source_of(shop)
    source.release(source.freeze(None))
    known = source.identity()
    shop.execute(
        "ALTER TABLE orders ADD extra int DEFAULT 5",
        "ALTER TABLE orders DROP note",
        "CREATE TABLE other (id int)",
        "CREATE INDEX ON orders (total)",
    )
    source.require_identity(known)
    snapshot = source.freeze(None)
    assert len(rows(source, question("orders", "id", "total"), snapshot)) == 3
    source.confirm(snapshot)
    source.release(snapshot)


def test_a_renamed_label_of_an_enumeration_is_noticed_and_an_added_one_is_harmless(
    new_database: MakeDatabase, source_of: Made
) -> None:
    mood = new_database("CREATE TYPE mood AS ENUM ('ok', 'sad')", "CREATE TABLE t (id int PRIMARY KEY, m mood)")
    source = source_of(mood, {"t": ["id", "m"]})
    source.release(source.freeze(None))
    mood.execute("ALTER TYPE mood ADD VALUE 'glad'")
    source.release(source.freeze(None))
    mood.execute("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'")
    with pytest.raises(SourceError, match="a label of an enumeration was renamed"):
        source.freeze(None)
    mood.execute("ALTER TYPE mood RENAME VALUE 'fine' TO 'ok'")
    with pytest.raises(SourceError, match="a label of an enumeration that table t uses was renamed for a while"):
        source.freeze(None)


# ---- histories


def test_a_database_of_another_name_is_not_the_one_that_was_known(new_database: MakeDatabase, source_of: Made) -> None:
    known = source_of(new_database(*SHOP)).identity()
    assert all(isinstance(value, str) for value in known.values())
    other = source_of(new_database(*SHOP))
    with pytest.raises(SourceError, match="another database than the one that the views were made from"):
        other.require_identity(known)


def test_a_history_that_went_back_is_noticed(shop: Database, source_of: Made) -> None:
    source = source_of(shop)
    known = source.identity()
    source.require_identity(known)
    with pytest.raises(SourceError, match=r"restored from a backup; run `viewkeeper init --reload`"):
        source.require_identity({**known, "xid": str(int(known["xid"]) + 1000)})
    with pytest.raises(SourceError, match="restored or promoted"):
        source.require_identity({**known, "timeline": "00000009"})
    with pytest.raises(SourceError, match=r"its log ends at .* is it an older copy"):
        source.freeze(str(2**60))
    with pytest.raises(SourceError, match="is it an older copy"):
        source.require(str(2**60))


def test_a_standby_is_refused_and_its_promotion_noticed(postgres: Servers, source_of: Made) -> None:
    server = postgres.own()
    server.execute("CREATE TABLE t (id int PRIMARY KEY)")
    source = source_of(Database(server, "postgres"), {"t": ["id"]})
    known = source.identity()
    server.stop()
    (server.data / "standby.signal").touch()
    server.start()
    eventually(lambda: server.execute("SELECT pg_is_in_recovery()") == [(True,)])
    for refuse in (lambda: source.freeze(None), source.identity):
        with pytest.raises(SourceError, match="the server is a standby"):
            _patiently(refuse)
    server.execute("SELECT pg_promote()")
    with pytest.raises(SourceError, match="timeline was 00000001 and is 00000002"):
        source.require_identity(known)


def _patiently(work: Callable[[], Any]) -> Any:
    """As the job does it: again, while the server is unreachable."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return work()
        except SourceUnreachable:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_slot_that_is_gone_or_was_made_anew_is_noticed(shop: Database, source_of: Made) -> None:
    source = source_of(shop)
    make = f"SELECT pg_create_logical_replication_slot('{shop.slot}', 'pgoutput')"

    def frozen() -> PostgresSnapshot:
        snapshot = source.freeze(None)
        source.release(snapshot)
        return snapshot

    with pytest.raises(SourceError, match=rf"slot {shop.slot} is gone.*init --reload"):
        source.require_unbroken(frozen(), 0)
    shop.execute(make)
    load = frozen()
    assert load.slot is not None and load.slot.flushed is not None
    source.require_unbroken(load, load.lsn)
    source.require(str(Reached(0, load.lsn, str(load.contains))))
    shop.execute("INSERT INTO customers VALUES (3, 'lost')")
    shop.execute(f"SELECT pg_drop_replication_slot('{shop.slot}')")
    shop.execute(make)
    with pytest.raises(SourceError, match="it was made anew, and changes may be lost"):
        source.require_unbroken(frozen(), load.lsn)
    shop.execute(f"SELECT pg_drop_replication_slot('{shop.slot}')")
    with pytest.raises(SourceError, match="is gone"):
        source.require(source.last_change())


# ---- failures


def test_after_a_restart_of_the_server_the_source_goes_on(postgres: Servers, source_of: Made) -> None:
    server = postgres.own()
    server.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    source = source_of(Database(server, "postgres"), {"t": ["id"]})
    snapshot = source.freeze(None)
    assert rows(source, question("t", "id"), snapshot) == [(1,)]
    server.stop("immediate")
    for work in (lambda: source.ask(question("t", "id"), snapshot), lambda: source.confirm(snapshot), source.mark):
        with pytest.raises(SourceUnreachable, match="source shop: "):
            work()
    source.release(snapshot)
    with pytest.raises(SourceUnreachable, match=r"refused"):
        source.freeze(None)
    server.start()
    assert _patiently(lambda: rows(source, question("t", "id"))) == [(1,)]


def test_a_password_is_in_no_message_and_no_repr(tmp_path: Path) -> None:
    def failure(section: PostgresConfig, kind: type[SourceError] = SourceError) -> str:
        with pytest.raises(kind) as failed:
            PostgresSource("shop", section).describe()
        return str(failed.value)

    secret = "s3cr3t-p'w\"d/@:"
    with PostgresServer(tmp_path / "pg", binaries_of(), password=secret) as server:
        right = Database(server, "postgres")
        source = PostgresSource("shop", right.config())
        assert source.describe() == {}
        texts = [repr(source), repr(source.section), repr(source._access), str(source.identity())]
        source.close()
        wrong = right.config(url=server.url(password="wr0ng-secret"))
        texts.append(failure(wrong))
        assert "password authentication failed" in texts[-1]
        missing = right.config(url=server.url("nowhere"))
        texts.append(failure(missing))
        assert 'database "nowhere" does not exist' in texts[-1]
        server.stop()
        texts.append(failure(right.config(), SourceUnreachable))
    for text in texts:
        assert "s3cr3t" not in text and "wr0ng" not in text


def test_a_role_without_rights_is_told_the_statement_that_grants_them(shop: Database, source_of: Made) -> None:
    role = f"reader_{shop.name}"
    shop.execute(f"CREATE ROLE {role} LOGIN")
    try:
        source = source_of(shop, url=shop.server.url(shop.name, role))
        assert source.describe()["orders"].key == ("id",)
        snapshot = source.freeze(None)
        grant = rf'permission denied for table orders; GRANT SELECT ON "public"."orders" TO "{role}"'
        with pytest.raises(SourceError, match=grant):
            source.ask(question("orders", "id"), snapshot)
        source.release(snapshot)
        shop.execute(f"GRANT SELECT ON orders TO {role}")
        snapshot = source.freeze(None)
        source.barrier(snapshot)
        assert len(rows(source, question("orders", "id"), snapshot)) == 3
        source.confirm(snapshot)
        source.release(snapshot)
        assert int(source.mark()) > 0
        source.require_identity(source.identity())
        source.close()
    finally:
        shop.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_locked_table_is_waited_for_as_long_as_the_timeout_says(shop: Database, source_of: Made) -> None:
    source = source_of(shop, statement_timeout="200ms")
    for ask in (question("orders", "id"), question("orders", "id", customer_id=[1])):
        snapshot = source.freeze(None)
        with shop.connect(autocommit=False) as other:
            other.execute("LOCK TABLE orders")
            with pytest.raises(SourceUnreachable, match="timeout"):
                source.ask(ask, snapshot)
        source.release(snapshot)
        assert len(rows(source, ask)) >= 2


def test_a_column_that_is_gone_is_an_error_and_no_traceback(shop: Database, source_of: Made) -> None:
    source = source_of(shop)
    with pytest.raises(SourceError, match="has no usable column nothing"):
        rows(source, question("orders", "nothing"))
    with pytest.raises(SourceError, match="there is no table nothing"):
        rows(source, question("nothing", "id"))


# ---- connections


def test_the_driver_takes_two_connections_and_workers_give_theirs_back(shop: Database, source_of: Made) -> None:
    source = source_of(shop)
    count = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'viewkeeper'"
    )
    for _ in range(3):
        snapshot = source.freeze(None)
        rows(source, question("orders", "id"), snapshot)
        source.barrier(snapshot)
        source.confirm(snapshot)
        source.release(snapshot)
    assert shop.execute(count) == [(2,)]
    assert source.readers == 4
    snapshot = source.freeze(None)
    workers = [pickle.loads(pickle.dumps(source)) for _ in range(3)]  # as one worker gets it for three tasks
    for worker in workers:
        rows(worker, question("orders", "id"), snapshot)
    source.release(snapshot)
    running = f"{count} AND state <> 'idle' AND backend_xmin IS NOT NULL AND pid <> pg_backend_pid()"
    assert shop.execute(running) == [(0,)]
    assert shop.execute(count)[0][0] <= 4
    workers[0].close()


def test_two_snapshots_may_be_held_at_a_time(shop: Database, source_of: Made) -> None:
    source = source_of(shop)
    first = source.freeze(None)
    shop.execute("DELETE FROM orders WHERE id = 10")
    second = source.freeze(None, hold=True)
    assert [len(rows(source, question("orders", "id"), snapshot)) for snapshot in (first, second, first)] == [3, 2, 3]
    source.release(first)
    assert len(rows(source, question("orders", "id"), second)) == 2
    source.release(second)


def test_a_row_budget_slows_answers_down_and_changes_nothing_else(shop: Database, source_of: Made) -> None:
    shop.execute("INSERT INTO customers SELECT i, 'n' FROM generate_series(100, 1099) i")
    source = source_of(shop, max_rows_per_second=1000)
    snapshot = source.freeze(None)
    begin = time.monotonic()
    assert len(rows(source, question("customers", "id"), snapshot)) == 1002
    assert len(rows(source, question("customers", "id", id=list(range(100, 1100))), snapshot)) == 1000
    assert time.monotonic() - begin > 0.9
    source.release(snapshot)
