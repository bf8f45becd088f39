"""kill -9 of everything in turn, under load, each started again: nothing is lost, and nothing is there twice."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SharedBroker, eventually
from tests.e2e.bank import BANK, CRM, OFFICES, VIEWS, Books
from tests.e2e.bank_writers import BankWriters, check_every_transaction_once
from tests.e2e.conftest import Install
from tests.e2e.harness import PATIENCE, Installation, Running, children, pause_of
from tests.e2e.pg_oracle import PgOracle
from tests.e2e.postgres import Servers, database
from viewkeeper.config import load_config
from viewkeeper.job.assembly import assemble
from viewkeeper.job.opening import Opening
from viewkeeper.local.broker import Broker, free_ports
from viewkeeper.managers.sources.postgres import PostgresSource
from viewkeeper.warehouse.warehouse import Warehouse

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ROUNDS = int(os.environ.get("VIEWKEEPER_TEST_ROUNDS", "1"))
SEED = int(os.environ.get("VIEWKEEPER_TEST_SEED", "6"))


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker for one test alone, to be killed."""
    with Broker(tmp_path / "broker", free_ports()) as started:
        yield started


@dataclass
class Fleet:
    """Everything that runs, to be killed piece by piece. After each kill the views must move on."""

    world: Installation
    writers: BankWriters
    broker: Broker
    capture: Running
    job: Running
    rng: random.Random

    def kills(self, rounds: int) -> Iterator[Callable[[], None]]:
        """Everything once a round, in any order."""
        for _ in range(rounds):
            away = [partial(self.kill_source, source) for source in self.world.databases]
            every = [self.kill_connect, self.kill_capture, self.kill_broker, self.kill_job_and_connect, *away]
            yield from self.rng.sample(every, len(every))

    def goes_on(self) -> None:
        """Waits until a cut holds what the sources hold now."""
        self.writers.wait_for(20)
        self.world.await_position(self.job)

    def kill_connect(self) -> None:
        """The Java process; the command that supervises it starts another."""
        eventually(lambda: children(self.capture.process.pid), PATIENCE, "Connect runs")
        (java,) = children(self.capture.process.pid)
        os.kill(java, signal.SIGKILL)
        eventually(lambda: java not in children(self.capture.process.pid), PATIENCE, "Connect is gone")

    def kill_job_and_connect(self) -> None:
        self.job.kill()
        self.kill_connect()
        self.job = self.world.start("run")

    def kill_capture(self) -> None:
        self.capture.kill()
        eventually(self.capture.leaves_nothing, PATIENCE, "Connect ends with its supervisor")
        self.capture = self.world.start("capture")

    def kill_broker(self) -> None:
        assert self.broker.pid is not None
        os.kill(self.broker.pid, signal.SIGKILL)
        self.broker.stop()
        self.broker.start()

    def kill_source(self, source: str) -> None:
        """The source is away until the job says that it waits for it."""
        server = self.world.databases[source].server
        server.kill()
        eventually(
            lambda: f"source {source}" in (self.state()["job"]["waiting"] or ""), PATIENCE, f"{source} is missed"
        )
        server.start()

    def state(self) -> Any:
        return json.loads(self.world.done("status", "--json").out)


def test_oracle_kills_of_everything_in_turn_under_load_change_nothing(
    install: Install, postgres: Servers, own_broker: Broker
) -> None:
    servers = {"bank": postgres.own(), "crm": postgres.own()}
    with database(servers["bank"], BANK, "bank") as bank, database(servers["crm"], CRM, "crm") as crm:
        world = install(
            {"offices": OFFICES}, VIEWS, {"bank": bank, "crm": crm}, SharedBroker(own_broker.bootstrap),
            min_cut_interval="20ms", fold="5s",
        )  # fmt: skip
        oracle = PgOracle(world)
        capture = world.start_capture()
        with BankWriters(world, seed=SEED, tellers=3, clerks=1, pause=0.05) as writers:
            writers.wait_for(20)
            job = world.start("run")
            world.await_cut(0, job)
            fleet = Fleet(world, writers, own_broker, capture, job, random.Random(SEED))
            for kill in fleet.kills(ROUNDS):
                pause_of(fleet.rng, 1.0)
                kill()
                fleet.goes_on()
            writers.end()
            world.await_position(fleet.job)
        assert world.done("verify").out.count("equal to recomputation") == len(VIEWS)
        assert [running.terminate().code for running in (fleet.job, fleet.capture)] == [0, 0]
        oracle.check_ends_at_sources()
        oracle.check(each=Books().turn)
        check_every_transaction_once(world, writers, oracle)


def test_oracle_a_crash_takes_nothing_back_that_a_load_has_seen(install: Install, postgres: Servers) -> None:
    """A server whose commits do not wait for the log loses the last ones, if nothing else has flushed it."""
    server = postgres.own(synchronous_commit="off", wal_writer_delay="10s")
    with database(server, ["CREATE TABLE t (id int PRIMARY KEY)", "ALTER TABLE t REPLICA IDENTITY FULL"]) as db:
        world = install({}, {"v": "SELECT t.id FROM s.t t"}, {"s": db})
        project = assemble(load_config(world.conf))
        project.captures["s"].install(project.used("s"))
        db.execute("INSERT INTO t VALUES (1)")
        warehouse = Warehouse(project.config.warehouse)
        with warehouse.lock():
            Opening(project, warehouse).open()
        server.restart("kill")
        left = db.execute("SELECT id FROM t")
        assert world.reader().read("v").read_all()["id"].to_pylist() == [id for (id,) in left]


def test_a_crashed_server_that_uses_transaction_ids_again_is_still_the_same(postgres: Servers) -> None:
    """Those of transactions that ended without a trace in its log."""
    server = postgres.own(wal_writer_delay="10s")
    with database(server) as db:
        source = PostgresSource("s", db.config(topic="s"))
        with db.connect() as connection:
            for _ in range(20):
                connection.execute("BEGIN")
                connection.execute("SELECT pg_current_xact_id()")
                connection.execute("ROLLBACK")
        known = source.identity()
        server.restart("kill")
        source.close()
        source.require_identity(known)
