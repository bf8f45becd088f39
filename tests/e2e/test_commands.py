"""check, explain, tail and read, against a real broker, real databases and real Delta tables."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import SharedBroker, unique
from viewkeeper import cli
from viewkeeper.commands.check import BROKER_SECONDS
from viewkeeper.config import load_config
from viewkeeper.local.broker import free_ports
from viewkeeper.warehouse.cuts import WarehouseTransaction
from viewkeeper.warehouse.warehouse import Warehouse

pytestmark = pytest.mark.e2e

SQL = (
    "SELECT o.id, c.name, o.total FROM shop.orders o JOIN crm.customers c ON o.customer_id = c.id "
    "WHERE o.total > 0 AND o.total <> c.id"
)


@dataclass(frozen=True)
class World:
    """A configuration with two databases, and how to call a command on it."""

    conf: Path
    capsys: pytest.CaptureFixture[str]

    def run(self, command: str, *arguments: str) -> tuple[int, str, str]:
        code = cli.main([command, str(self.conf), *arguments])
        return code, *self.capsys.readouterr()


Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path, broker: SharedBroker, capsys: pytest.CaptureFixture[str]) -> Make:
    """Builds a world; keywords change its SQL, its bootstrap, or leave a database out."""

    def build(sql: str = SQL, bootstrap: str = broker.bootstrap, without: str = "") -> World:
        tables = {
            "shop": "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER, total INTEGER)",
            "crm": "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)",
        }
        for name, table in tables.items():
            if name != without:
                with sqlite3.connect(tmp_path / f"{name}.db") as database:
                    database.execute(table)
                database.close()
        config = {
            "kafka": {"bootstrap": bootstrap},
            "warehouse": "warehouse",
            "sources": {name: {"kind": "sqlite", "path": f"{name}.db", "topic": unique(name)} for name in tables},
            "views": {"paid": {"sql": sql, "topic": unique("view")}},
        }
        (tmp_path / "conf.yaml").write_text(json.dumps(config))
        return World(tmp_path / "conf.yaml", capsys)

    return build


def test_check_says_what_is_fine_and_warns_of_a_missing_index(make: Make) -> None:
    world = make()
    code, out, err = world.run("check")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "ok      configuration: 2 sources, 1 view"
    assert "ok      source shop: sqlite, 1 relation" in lines
    assert any("0 topics there, 3 to be created by init" in line for line in lines)
    assert "ok      view paid: 3 columns from shop.orders o, crm.customers c" in lines
    (warning,) = [line for line in lines if line.startswith("warning")]
    assert "shop.orders has no index that starts with customer_id" in warning
    assert warning.endswith("CREATE INDEX orders_customer_id ON orders (customer_id)")


def test_check_reports_the_problems_of_a_view_with_their_place(make: Make) -> None:
    world = make(SQL.replace("c.name", "c.nam"))
    code, _, err = world.run("check")
    assert code == 2
    assert re.search(rf"{re.escape(str(world.conf))}:\d+:\d+: views\.paid\.sql: ", err), err
    assert "name" in err.splitlines()[-1]


def test_check_reports_what_cannot_be_reached_together(make: Make) -> None:
    world = make(bootstrap=f"127.0.0.1:{free_ports()}", without="crm")
    began = time.monotonic()
    code, out, err = world.run("check")
    assert time.monotonic() - began < 2 * BROKER_SECONDS, "it waits for nobody"
    assert "trying again" not in err and "Connection refused" in err
    assert code == 3
    assert "ok      source shop" in out
    said = [line for line in err.splitlines() if line.startswith("viewkeeper: ")]
    assert any("crm" in line for line in said) and any("kafka 127.0.0.1" in line for line in said)
    assert "Traceback" not in err


def test_check_refuses_a_topic_of_several_partitions(make: Make, broker: SharedBroker) -> None:
    world = make()
    topic = load_config(world.conf).sources["shop"].topic
    admin = AdminClient(broker.client())
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)
    code, _, err = world.run("check")
    assert code == 3
    assert f"topic {topic}: has more than one partition" in err


def test_explain_shows_the_questions_of_each_sweep(make: Make) -> None:
    code, out, err = make().run("explain", "paid")
    assert (code, err) == (0, "")
    from_orders, from_customers = out.split("a change of ")[1:]
    assert from_orders.startswith("shop.orders o\n")
    assert "1. asks crm for crm.customers c, as it stands before this update" in from_orders
    assert "keys      id = o.customer_id" in from_orders
    assert "1. asks shop for shop.orders o, as it stands with this update" in from_customers
    assert "keys      customer_id = c.id" in from_customers
    assert "selection o.total > 0" in from_customers
    assert from_orders.count("keeps") == 2 and "o.total <> c.id" in from_orders
    assert "name text = c.name" in out


def test_a_misspelt_view_gets_the_nearest_name(make: Make) -> None:
    world = make()
    for command in ("explain", "tail", "read"):
        code, _, err = world.run(command, "piad")
        assert code == 2
        assert err.endswith("has no view piad; did you mean paid?\n")


def test_tail_shows_the_last_messages_in_order(make: Make, broker: SharedBroker) -> None:
    world = make()
    topic = load_config(world.conf).views["paid"].topic
    broker.create(topic)
    assert world.run("tail", "paid", "--no-follow") == (0, "", "")
    broker.send(topic, *(f'{{"n":{n}}}' for n in range(30)))
    assert world.run("tail", "paid", "--no-follow", "-n", "2") == (0, '{"n":28}\n{"n":29}\n', "")
    assert world.run("tail", "paid", "--no-follow", "-n", "0") == (0, "", "")
    assert world.run("tail", "paid", "--no-follow")[1].count("\n") == 10
    assert world.run("tail", "paid", "--no-follow", "--from-start")[1].count("\n") == 30


def test_tail_sees_no_aborted_message_and_reaches_back_over_commit_markers(make: Make, broker: SharedBroker) -> None:
    world = make()
    topic = load_config(world.conf).views["paid"].topic
    broker.create(topic)
    producer = Producer(broker.client(transactional_id=topic))
    producer.init_transactions(30)
    for n in range(40):
        producer.begin_transaction()
        producer.produce(topic, str(n))
        producer.flush()
        producer.commit_transaction() if n % 8 == 0 else producer.abort_transaction()
    assert world.run("tail", "paid", "--no-follow", "-n", "4") == (0, "8\n16\n24\n32\n", "")


def test_tail_of_a_topic_that_is_not_there_names_the_remedy(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("viewkeeper.commands.tail.FIRST_START", 0.1)
    code, _, err = make().run("tail", "paid", "--no-follow")
    assert code == 3
    assert "does not exist; run: viewkeeper init" in err


ROWS = pa.table(
    {
        "id": pa.array([1, 2, 2**53 + 1]),
        "name": pa.array(['Ann, "A"', None, ""]),
        "paid": pa.array([True, False, None]),
        "total": pa.array([Decimal("1.50"), Decimal("-2.00"), None], pa.decimal128(10, 2)),
        "at": pa.array([datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), None, None], pa.timestamp("us", tz="UTC")),
        "raw": pa.array([b"\x00\xff", None, b""]),
        "score": pa.array([1.5, float("nan"), None]),
        "_count": pa.array([1, 3, 1]),
    }
)


@pytest.fixture
def loaded(make: Make) -> World:
    """A world whose view was loaded at cut 0."""
    world = make()
    warehouse = Warehouse(load_config(world.conf).warehouse)
    warehouse.open()
    warehouse.load("paid", ROWS.schema.remove(ROWS.schema.get_field_index("_count")), SQL, [ROWS], 0)
    warehouse.commit(
        WarehouseTransaction(last_update=0, positions={"shop": "1"}, offsets={"shop": 0}, level="complete")
    )
    return world


def test_read_json_is_an_array_with_one_row_a_line(loaded: World) -> None:
    code, out, err = loaded.run("read", "paid", "--format", "json")
    assert (code, err) == (0, "")
    rows = {row["id"]: row for row in json.loads(out)}
    assert len(out.splitlines()) == 5
    assert rows[1] == {
        "id": 1,
        "name": 'Ann, "A"',
        "paid": True,
        "total": "1.50",
        "at": "2026-01-02T03:04:05Z",
        "raw": "AP8=",
        "score": 1.5,
        "_count": 1,
    }
    assert rows[2]["score"] == "NaN" and rows[2]["_count"] == 3
    assert 2**53 + 1 in rows


def test_read_csv_tells_null_from_empty_text(loaded: World) -> None:
    code, out, _ = loaded.run("read", "paid", "--format", "csv", "--cut", "0")
    assert code == 0
    header, *rows = out.splitlines()
    assert header == "id,name,paid,total,at,raw,score,_count"
    assert sorted(rows) == [
        '1,"Ann, ""A""",true,1.50,2026-01-02T03:04:05Z,AP8=,1.5,1',
        "2,,false,-2.00,,,NaN,3",
        '9007199254740993,"",,,,"",,1',
    ]


def test_read_table_fits_the_terminal(loaded: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    code, out, _ = loaded.run("read", "paid")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 60
    assert "NULL" in out and "3 rows" in out


def test_read_refuses_what_is_not_there(loaded: World) -> None:
    for arguments in (["--cut", "7"], ["--update", "7"]):
        code, out, err = loaded.run("read", "paid", *arguments)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1 and "7" in err


def test_read_before_the_first_load_says_what_to_do(make: Make) -> None:
    code, out, err = make().run("read", "paid")
    assert (code, out) == (2, "")
    assert "viewkeeper init" in err
