"""What happens to real PostgreSQL databases in the middle of a batch: every state of every view stays right."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from tests.conftest import eventually
from tests.e2e.pg_shop import MOMENTS, VIEWS, VOID, at_moment, before_and_after, beside
from tests.e2e.pg_world import World, when
from viewkeeper.managers.readers import workers
from viewkeeper.messages import Ask

pytestmark = pytest.mark.e2e

# ---- what ignores snapshots

FRESH = "INSERT INTO orders SELECT i, i % 4, 5, 'f' FROM generate_series(11, 18) i"
TRUNCATES: dict[str, list[list[str]]] = {
    "empties a table": [["TRUNCATE orders"], ["INSERT INTO orders VALUES (1, 1, 1, 'n')", FRESH]],
    "empties and fills it": [
        ["INSERT INTO orders VALUES (99, 1, 1, 'gone')", "TRUNCATE orders", FRESH, "UPDATE orders SET total = 6"],
        ["DELETE FROM orders WHERE id = 11"],
    ],
    "empties two tables": [["TRUNCATE orders, lines", FRESH], ["INSERT INTO lines VALUES (1, 1, 1), (2, 2, 2)"]],
}


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


def test_oracle_a_view_that_is_added_behind_a_truncate_is_loaded_behind_it(world: World) -> None:
    before_and_after(world)
    world.write("shop", "TRUNCATE lines", "INSERT INTO lines SELECT i, i % 4, 9 FROM generate_series(1, 8) i")
    before_and_after(world)
    world.views["late"] = "SELECT l.id, l.qty, o.total FROM shop.lines l JOIN shop.orders o ON o.id = l.id"
    world.open()
    before_and_after(world)
    world.batch()
    world.check()
    del world.views["late"]
    world.open()


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
def nothing_prepared(shared_world: World) -> Iterator[None]:
    """Prepared transactions outlive a test that fails: then they are rolled back."""
    yield
    for name, made in shared_world.databases.items():
        for (left,) in made.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
            with shared_world.databases[name].connect() as connection:
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
        world.maintain(messages)
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
    assert min(used) >= 2 and max(used) <= allowed
    world.check()
    snapshot = source.freeze(None)
    worker = pickle.loads(pickle.dumps(source))
    ask = Ask("shop", "orders", ("id",), ("customer_id",), pa.table({"customer_id": [1, 2]}))
    try:
        with ThreadPoolExecutor(workers([source], 100)) as pool:  # as many as Spark would start
            asked = [pool.submit(worker.ask, ask, snapshot) for _ in range(100)]
            eventually(lambda: look() or all(each.done() for each in asked), 60)
            assert len({each.result().rows.num_rows for each in asked}) == 1
    finally:
        source.release(snapshot)
        worker.close()
    assert 3 <= max(used) <= allowed


def test_a_row_budget_is_kept_within_a_third(shared_world: World) -> None:
    rate, rows, shop = 2_000, 6_000, shared_world.databases["shop"]
    shop.execute(f"INSERT INTO lines SELECT i, 500, 1 FROM generate_series(10001, {10000 + rows}) i")
    with beside(shared_world, {"packed": VIEWS["packed"]}, max_rows_per_second=rate) as world:
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
    shared_world.write("crm", "DELETE FROM customers WHERE id = 500")


# ---- values that the log leaves out


def test_oracle_a_text_that_a_user_types_is_kept_and_a_large_value_that_did_not_change_is_known(world: World) -> None:
    """Debezium's own word for a value left out is a text like any other; its real one is in no message of a FULL table.

    A key that changes beside a large value is the case in which an insertion could lack one.
    """
    world.write("crm", "UPDATE customers SET name = '__debezium_unavailable_value' WHERE id = 1")
    world.write("crm", "UPDATE customers SET name = name || '!' WHERE id = 1")
    world.write("crm", "ALTER TABLE customers ALTER name SET STORAGE EXTERNAL")
    world.write("crm", "UPDATE customers SET name = repeat('long ', 2000) WHERE id = 3")
    world.write("crm", "UPDATE customers SET name = name WHERE id = 3")
    world.write("crm", "UPDATE customers SET id = 77 WHERE id = 3")
    world.write("crm", "UPDATE customers SET id = 3 WHERE id = 77")
    world.write("crm", "UPDATE customers SET name = 'c' || id WHERE id IN (1, 3)")
    world.batch()
    world.check()
