"""A bank in PostgreSQL under writers at full speed: its books balance in every single state of every view."""

from __future__ import annotations

import json
import os
from collections import Counter

import pytest

from tests.e2e.bank import BANK, CRM, OFFICES, VIEWS, BankWriters, Books
from tests.e2e.conftest import Install, MakeDatabase
from tests.e2e.harness import Installation
from tests.e2e.pg_oracle import PgOracle
from tests.scale import scaled

pytestmark = pytest.mark.e2e

SECONDS = float(os.environ.get("VIEWKEEPER_TEST_SECONDS", scaled(8, 25)))


def numbered(world: Installation, source: str) -> Counter[str]:
    """The source's transactions that have a number."""
    updates = world.reader().updates(1, world.cut().last_update)
    return Counter(u["txn"] for u in updates.select(["source", "txn"]).to_pylist() if u["source"] == source)


def check_every_transaction_once(world: Installation, writers: BankWriters, oracle: PgOracle) -> None:
    """Each one that was committed has a number or was loaded; none has two, and none that was rolled back has one."""
    for source in world.databases:
        found, committed = numbered(world, source), writers.committed_in(source)
        assert max(found.values(), default=1) == max(committed.values()) == 1
        assert not found.keys() & writers.others_in(source), "what was rolled back has a number"
        loaded = {txn for name, txn in oracle.loaded if name == source}
        assert committed.keys() == found.keys() | loaded


def test_oracle_the_books_balance_in_every_state_under_writers_at_full_speed(
    install: Install, new_database: MakeDatabase, record_property: pytest.RecordProperty
) -> None:
    databases = {"bank": new_database(*BANK, name="bank"), "crm": new_database(*CRM, name="crm")}
    world = install({"offices": OFFICES}, VIEWS, databases, min_cut_interval="20ms", fold="5s")
    oracle = PgOracle(world)
    with world.capturing(), BankWriters(world, seed=5) as writers:
        writers.wait_for(50)
        world.done("init")
        job = world.start("run")
        writers.write_for(SECONDS / 2)
        world.await_cut(2, job)
        assert world.done("verify").out.count("equal to recomputation") == len(VIEWS)
        writers.write_for(SECONDS / 2)
        writers.end()
        world.await_position(job)
        ended = job.terminate()
    assert ended.code == 0, ended.err
    assert world.done("verify").out.count("equal to recomputation") == len(VIEWS)
    oracle.check_ends_at_sources()
    expected = oracle.check(each=Books().turn)
    check_every_transaction_once(world, writers, oracle)
    state = json.loads(world.done("status", "--json").out)
    figures = {"updates": len(expected.changes), "seconds": writers.seconds, "cuts": world.cut().cut}
    for name, value in figures.items():
        record_property(name, value)
    print(figures, state["job"])
