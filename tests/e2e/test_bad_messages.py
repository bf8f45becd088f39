"""Messages that cannot be used: the job stops at them with everything before committed, or sets them aside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pyarrow as pa
import pytest

from tests.conftest import unique
from tests.e2e.conftest import Install
from tests.e2e.harness import Installation
from viewkeeper.config import load_config
from viewkeeper.config_groups import ALL
from viewkeeper.errors import BadMessage, NegativeCount
from viewkeeper.job.assembly import assemble
from viewkeeper.job.keeper import Keeper
from viewkeeper.job.opening import Opening
from viewkeeper.queue.consumer import MESSAGES
from viewkeeper.warehouse.warehouse import Warehouse

pytestmark = pytest.mark.e2e

ORDERS = [
    "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER, total INTEGER)",
    "INSERT INTO orders VALUES (1, 1, 10), (2, 2, 20)",
]
CUSTOMERS = [
    "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)",
    "INSERT INTO customers VALUES (1, 'Ann'), (2, 'Bob')",
]
VIEW = "SELECT o.id, c.name, o.total FROM shop.orders o JOIN crm.customers c ON c.id = o.customer_id"
ROW = {"id": 9, "customer_id": 1, "total": 5}


def insert(**row: Any) -> dict[str, Any]:
    return {"relation": "orders", "op": "insert", "after": {**ROW, **row}}


def message(position: int, *changes: dict[str, Any], source: str = "shop") -> bytes:
    return orjson.dumps({"source": source, "txn": str(position), "position": position, "changes": list(changes)})


def without(column: str) -> dict[str, Any]:
    return {"relation": "orders", "op": "insert", "after": {k: v for k, v in ROW.items() if k != column}}


BAD = {
    "not JSON": (b"{oops", "JSON"),
    "empty": (b"", "JSON"),
    "no object": (b"[1]", ""),
    "an unknown relation": (message(900, {**insert(), "relation": "ordres"}), "'ordres'"),
    "another source": (message(900, insert(), source="crm"), "'crm'"),
    "a missing column": (message(900, without("total")), "total"),
    "a wrong type": (message(900, insert(total="much")), "total"),
    "an integer out of range": (message(900, insert(total=2**63)), "total"),
    "an op without its row": (message(900, {"relation": "orders", "op": "update", "after": ROW}), "update"),
    "a part without its beginning": (
        orjson.dumps({**orjson.loads(message(900, insert())), "part": 2, "parts": 2}),
        "part 2",
    ),
}


@pytest.fixture
def shop(install: Install) -> Installation:
    world = install({"shop": ORDERS, "crm": CUSTOMERS}, {"paid": VIEW})
    with opened(world):
        return world


@contextmanager
def opened(world: Installation) -> Iterator[Keeper]:
    """The job of a group up to its stream; opening loads the views first if need be."""
    project = assemble(load_config(world.conf)).part(ALL)
    warehouse = Warehouse(project.config.warehouse)
    with warehouse.lock():
        yield Opening(project, warehouse).open()


def maintain_all(world: Installation) -> None:
    """The job without its stream: everything that the topics hold goes to the keeper in one batch."""
    with opened(world) as keeper:
        rows = [
            {"topic": topic, "offset": m.offset(), "value": m.value(), "timestamp": m.timestamp()[1]}
            for topic in keeper.queue.inlets
            for m in world.broker.messages(topic)
        ]
        keeper.maintain(pa.Table.from_pylist(rows, MESSAGES))
        keeper.finish()


def read(world: Installation) -> list[int]:
    """The orders in the view."""
    return sorted(world.reader().read("paid").read_all()["id"].to_pylist())


@pytest.mark.parametrize("kind", BAD)
def test_the_job_stops_at_a_bad_message_with_all_before_it_committed(shop: Installation, kind: str) -> None:
    value, reason = BAD[kind]
    topic = shop.topics["shop"]
    position = int(shop.cut().positions["shop"])
    value = value.replace(b'"position":900', b'"position":%d' % (position + 2))
    shop.write("shop", "INSERT INTO orders VALUES (3, 1, 5)")  # what the first message tells of
    shop.broker.send(topic, message(position + 1, insert(id=3)), value, message(position + 1000, insert(id=4)))
    for _ in range(2):  # a restart comes to the same end
        with pytest.raises(BadMessage) as stopped:
            maintain_all(shop)
        (problem,) = stopped.value.problems
        assert problem.place == f"topic {topic} partition 0 offset 1"
        assert reason in problem.what
        assert "reload" in problem.remedy
        assert shop.cut().last_update == 1
    assert read(shop) == [1, 2, 3]


def test_run_says_where_it_stopped_and_exits_3(shop: Installation) -> None:
    shop.write("shop", "INSERT INTO orders VALUES (3, 1, 30)")
    shop.deliver()
    offset = shop.broker.messages(shop.topics["shop"])[-1].offset()
    shop.broker.send(shop.topics["shop"], b"{oops")
    shop.write("shop", "INSERT INTO orders VALUES (4, 1, 40)")
    shop.deliver()
    ended = shop.run("run", "--until-idle")
    assert ended.code == 3
    assert ended.errors == [ended.err.splitlines()[-1]]
    assert f"topic {shop.topics['shop']} partition 0 offset {offset + 2}: not JSON" in ended.errors[0]
    assert "Traceback" not in ended.err
    assert read(shop) == [1, 2, 3]

    # Loading anew is one of the two remedies that the error names.
    shop.done("init", "--reload")
    shop.done("run", "--until-idle")
    assert read(shop) == [1, 2, 3, 4]
    shop.done("verify")


def test_quarantine_goes_on_and_says_that_exactness_is_no_longer_promised(install: Install) -> None:
    source = unique("shop").replace("-", "_")  # its name is that of the topic <source>.rejected
    sql = VIEW.replace("shop.", f"{source}.")
    world = install(
        {source: ORDERS, "crm": CUSTOMERS}, {"paid": sql, "names": "SELECT name FROM crm.customers"},
        bad_messages="quarantine",
    )  # fmt: skip
    world.done("init")
    position = int(world.cut().positions[source])
    # The bad messages stand for two transactions that together change nothing; capture goes on after them.
    world.write(source, "INSERT INTO orders VALUES (9, 1, 5)")
    world.write(source, "DELETE FROM orders WHERE id = 9")
    bad = [value.replace(b'"shop"', f'"{source}"'.encode()) for value, _ in BAD.values()]
    bad = [value.replace(b'"position":900', b'"position":%d' % world.last_id(source)) for value in bad]
    world.broker.send(world.topics[source], *bad)
    world.write(source, "INSERT INTO orders VALUES (3, 1, 30)")
    with world.capturing():
        world.done("run", "--until-idle")
    assert read(world) == [1, 2, 3]
    assert int(world.cut().positions[source]) > position
    rejected = world.broker.messages(f"{source}.rejected")
    assert [m.value() or b"" for m in rejected] == bad
    headers = dict(rejected[0].headers())
    assert (headers["topic"], headers["offset"]) == (world.topics[source].encode(), b"0")
    assert b"JSON" in headers["reason"]

    status = json.loads(world.done("status", "--json").out)["views"]
    assert not status["paid"]["exact"] and "offset 0" in status["paid"]["reason"]
    assert status["names"]["exact"]
    assert "not exact" in world.done("status").out
    verified = world.run("verify")
    assert verified.code == 0  # nothing was really missing
    assert verified.out.count("exactness is not promised") == 1

    world.done("init", "--reload", "paid")
    assert json.loads(world.done("status", "--json").out)["views"]["paid"]["exact"]
    assert "not promised" not in world.done("verify").out


def test_a_change_that_was_set_aside_is_found_by_verify_until_the_view_is_loaded_again(install: Install) -> None:
    source = unique("shop").replace("-", "_")
    sql = VIEW.replace("shop.", f"{source}.")
    world = install({source: ORDERS, "crm": CUSTOMERS}, {"paid": sql}, bad_messages="quarantine")
    world.done("init")
    # What a broken capture would send for the first transaction; capture goes on after it.
    world.write(source, "INSERT INTO orders VALUES (3, 1, 30)")
    wrong = message(world.last_id(source), insert(id=3, total="thirty"), source=source)
    world.broker.send(world.topics[source], wrong)
    world.write(source, "INSERT INTO orders VALUES (4, 2, 40)")
    world.deliver()
    maintain_all(world)
    verified = world.run("verify")
    assert verified.code == 1
    assert "1 row differs" in verified.out and '"total":30' in verified.out
    assert "exactness is not promised" in verified.out
    world.done("init", "--reload")
    assert world.run("verify").code == 0


def test_a_change_that_would_make_a_count_negative_stops_the_job_at_the_fold(shop: Installation) -> None:
    position = int(shop.cut().positions["shop"])
    never = {"relation": "orders", "op": "delete", "before": {"id": 7, "customer_id": 1, "total": 70}}
    shop.broker.send(shop.topics["shop"], message(position + 1, never))
    with pytest.raises(NegativeCount):
        maintain_all(shop)
    assert shop.cut().last_update == 1  # published cuts stand
    assert "paid" in shop.reader().inexact()
    assert "not exact" in shop.done("status").out
