"""A bank in PostgreSQL under writers at full speed: its books balance in every single state of every view."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.conftest import eventually
from tests.e2e.bank import BANK, CRM, CUSTOMERS, OFFICES, VIEWS, Books
from tests.e2e.bank_writers import BankWriters, check_every_transaction_once
from tests.e2e.conftest import Install, MakeDatabase
from tests.e2e.harness import PATIENCE, Installation, children
from tests.e2e.pg_oracle import PgOracle
from tests.scale import scaled

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SECONDS = float(os.environ.get("VIEWKEEPER_TEST_SECONDS", scaled(8, 20)))
ROWS = int(os.environ.get("VIEWKEEPER_TEST_ROWS", scaled(50_000, 100_000)))
BUYERS = "SELECT o.id, o.note, c.name FROM bank.orders o JOIN crm.customers c ON o.customer = c.id"


def test_oracle_the_books_balance_in_every_state_under_writers_at_full_speed(
    install: Install, new_database: MakeDatabase
) -> None:
    databases = {"bank": new_database(*BANK, name="bank"), "crm": new_database(*CRM, name="crm")}
    world = install({"offices": OFFICES}, VIEWS, databases, min_cut_interval="20ms", fold="5s")
    oracle = PgOracle(world)
    with world.capturing(), BankWriters(world, seed=5, pause=0.1) as writers:
        writers.wait_for(50)
        world.done("init")
        job = world.start("run")
        world.await_cut(0, job)
        writers.pause = 0.0
        writers.write_for(SECONDS / 2)
        assert world.done("verify").out.count("equal to recomputation") == len(VIEWS)
        writers.write_for(SECONDS / 2)
        writers.end()
        world.await_position(job)
        assert world.done("verify").out.count("equal to recomputation") == len(VIEWS)
        ended = job.terminate()
    assert ended.code == 0, ended.err
    oracle.check_ends_at_sources()
    expected = oracle.check(each=Books().turn)
    check_every_transaction_once(world, writers, oracle)
    state = json.loads(world.done("status", "--json").out)
    assert sum(source["asked"]["compensated"] for source in state["sources"].values()) > 0
    figures = {"updates": len(expected.changes), "seconds": writers.seconds, "cuts": world.cut().cut}
    print(figures, state["job"]["seconds"])


def test_oracle_a_huge_transaction_goes_through_whole_while_others_go_on(
    install: Install, new_database: MakeDatabase
) -> None:
    """It is swept by Spark's workers, from what was spilled to disk meanwhile."""
    databases = {"bank": new_database(*BANK, name="bank"), "crm": new_database(*CRM, name="crm")}
    world = install({"offices": OFFICES}, {"buyers": BUYERS, "pairs": VIEWS["pairs"]}, databases)
    first = 1_000_000
    with world.capturing(), BankWriters(world, seed=7, tellers=1, clerks=0, pause=0.1) as writers:
        job = world.start("run")
        world.await_cut(0, job)
        began = time.monotonic()
        kept = f"FROM generate_series(1, {ROWS}) i WHERE i % {CUSTOMERS} > 0 AND i % 10 <> 3"
        world.write(
            "bank",
            f"INSERT INTO orders SELECT {first} + i, i % {CUSTOMERS}, 1, 1, 'huge' FROM generate_series(1, {ROWS}) i",
            f"DELETE FROM orders WHERE id > {first} AND (id - {first}) % 10 = 3",
        )
        world.write("crm", "UPDATE customers SET name = name || '!' WHERE id % 20 = 7")
        ((xid,),) = databases["bank"].execute(f"SELECT xmin::text FROM orders WHERE id = {first + 1}")
        eventually(lambda: find(world, xid) or not job.alive, PATIENCE, "the huge transaction has a number")
        seconds = time.monotonic() - began
        writers.wait_for(20)
        world.await_position(job)
        assert world.done("verify").out.count("equal to recomputation") == len(world.views)
        peaks = {name: peak(pid) for name, pid in (("job", job.process.pid), ("spark", jvm(job.process.pid)))}
        assert job.terminate().code == 0
    k = find(world, xid)
    assert k is not None and k < world.cut().last_update
    ((wanted,),) = databases["bank"].execute(f"SELECT count(*) {kept}")
    assert sum(len(table) for table in world.reader().changes("buyers", k, k)) == wanted
    assert buyers(world, k) - buyers(world, k - 1) == wanted
    print({"rows": ROWS, "seconds": seconds, "MB": peaks, "update": k, "cuts": world.cut().cut})
    assert max(peaks.values()) < 3000


def find(world: Installation, xid: str) -> int | None:
    """The number of one of the bank's transactions."""
    rows = world.reader().updates(1, world.cut().last_update).select(["_update", "source", "txn"]).to_pylist()
    return next((u["_update"] for u in rows if (u["source"], u["txn"]) == ("bank", xid)), None)


def buyers(world: Installation, k: int) -> int:
    """How many rows the view has after an update."""
    return sum(int(pc.sum(b["_count"]).as_py()) for b in world.reader().read("buyers", update=k) if len(b))


def jvm(pid: int) -> int:
    (child,) = (child for child in children(pid) if b"java" in Path(f"/proc/{child}/cmdline").read_bytes())
    return child


def peak(pid: int) -> int:
    """The most memory that a process ever had, in MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) // 1000
