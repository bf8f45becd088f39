"""Transactions over several sources that real writers mark, from their databases through capture to the cuts."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import orjson
import pytest

from tests.conftest import eventually
from tests.e2e.conftest import Install
from tests.e2e.harness import PATIENCE, Installation, Write, Writers
from tests.e2e.oracle import Oracle
from tests.e2e.test_global_transactions import BOTH, SPANNED, TABLES, V1, V2, check_whole, numbered
from tests.scale import scaled

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SEED = int(os.environ.get("VIEWKEEPER_TEST_SEED", "6"))
SPARE = "CREATE TABLE spare (id INTEGER PRIMARY KEY)"
"""A table that no view uses."""


@pytest.fixture
def world(install: Install) -> Installation:
    tables = {source: [*statements, SPARE] for source, statements in TABLES.items()}
    return install(tables, {**V1, **V2, **BOTH}, global_txn=[SPANNED], global_txn_patience="1h")


def mark(id: str) -> str:
    return f"INSERT INTO _viewkeeper_global_txn (id, sources) VALUES ('{id}', 'shop, crm')"


def transfer(world: Installation, n: int) -> None:
    """Makes row 1 of both databases say n, or leaves one of them as it is but for a table that no view uses."""
    parts = {"shop": f"UPDATE r SET n = {n} WHERE id = 1", "crm": f"UPDATE s SET n = {n} WHERE id = 1"}
    if n % 5 == 0:
        parts = {"shop": f"INSERT INTO spare VALUES ({n})", "crm": f"INSERT INTO s VALUES ({1000 + n}, {n})"}
    for source in SPANNED if n % 2 else SPANNED[::-1]:
        world.write(source, mark(f"G{n}"), parts[source])


class Transfers:
    """A program that writes one transaction over both databases after the other, until the block ends."""

    def __init__(self, world: Installation):
        self.world = world
        self.done = 0
        self.failures: list[BaseException] = []

    @contextmanager
    def going_on(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._transfer, args=(stop,))
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(PATIENCE)
        if self.failures:
            raise self.failures[0]

    def _transfer(self, stop: threading.Event) -> None:
        try:
            while not stop.wait(0.2):
                transfer(self.world, self.done + 1)
                self.done += 1
        except BaseException as error:
            self.failures.append(error)

    def wait_for(self, more: int) -> None:
        goal = self.done + more
        eventually(lambda: self.done >= goal or self.failures, PATIENCE, f"{more} transactions")


def local(table: str) -> list[Write]:
    def write(rng: random.Random, db: sqlite3.Connection) -> None:
        for _ in range(rng.randrange(1, 4)):
            row = rng.randrange(10, 20)
            db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({row}, {rng.randrange(100)})")

    return [write]


def test_oracle_marked_transactions_have_one_number_each_whatever_is_killed(world: Installation) -> None:
    """Replay: VIEWKEEPER_TEST_SEED. Row 1 says the same in both databases after every transaction over them."""
    oracle = Oracle(world)
    capture = world.start_capture()
    assert "created _viewkeeper_global_txn" in capture.out.read_text()
    transfers = Transfers(world)
    with Writers(world, SEED, {"shop": local("r"), "crm": local("s")}, pause=0.4), transfers.going_on():
        transfers.wait_for(5)
        job = world.start("run")  # loads while they are written
        world.await_cut(0, job)
        for _ in range(scaled(1, 3)):
            capture.kill()
            transfers.wait_for(10)  # these are read at once
            capture = world.start_capture()
            transfers.wait_for(5)
            job.kill()
            transfers.wait_for(5)
            job = world.start("run")
            world.await_cut(world.cut().cut, job)
    assert job.terminate().code == 0
    world.done("run", "--until-idle")
    assert capture.terminate().code == 0

    assert oracle.check() > 10
    oracle.check_ends_at_sources()
    check_whole(world)
    parts = [name for names in numbered(world) for name in names if name.startswith("G")]
    assert len(parts) == len(set(parts)) > 20
    assert parts == sorted(parts, key=lambda name: int(name[1:]))
    last = world.cut().last_update
    for update in random.Random(SEED).sample(range(last + 1), min(20, last)):
        shown = world.reader().read("both", update=update).read_all().to_pylist()
        assert {row["r"] == row["s"] for row in shown if row["id"] == 1} == {True}, update
    world.done("verify")


def test_a_part_that_one_source_has_not_written_is_waited_for_by_name(world: Installation) -> None:
    world.configure(global_txn_patience="1s")
    world.done("init")
    with world.capturing():
        world.write("shop", mark("G1"), "UPDATE r SET n = 1 WHERE id = 1")
        ended = world.run("run", "--until-idle")
        assert ended.code == 3 and "transaction G1 of shop waits" in ended.errors[-1], ended.err
        assert world.cut().last_update == 0
        world.write("crm", mark("G1"), "INSERT INTO spare VALUES (1)")
        world.done("run", "--until-idle")
    assert numbered(world) == [["G1"]]
    ((_, told),) = world.messages("crm")
    assert told["changes"] == [] and orjson.dumps(told["global_txn"]) == b'{"id":"G1","sources":["crm","shop"]}'
