"""Three small sources for tests of groups: what is in them, who writes to them, how views are kept and checked."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa

from tests.e2e.conftest import Install
from tests.e2e.harness import Installation, Write
from tests.e2e.oracle import Oracle
from viewkeeper.config import load_config
from viewkeeper.job.assembly import assemble
from viewkeeper.job.moving import settle_groups
from viewkeeper.job.opening import Opening
from viewkeeper.queue.consumer import MESSAGES
from viewkeeper.warehouse.warehouse import Warehouse

SMALL = {
    "a": [
        "CREATE TABLE r (id INTEGER PRIMARY KEY, x INTEGER)",
        "CREATE INDEX r_x ON r (x)",
        "INSERT INTO r VALUES (1, 1), (2, 2), (3, 1)",
    ],
    "b": [
        "CREATE TABLE s (id INTEGER PRIMARY KEY, x INTEGER, y TEXT)",
        "CREATE TABLE u (id INTEGER PRIMARY KEY, y TEXT)",
        "CREATE INDEX s_x ON s (x)",
        "CREATE INDEX s_y ON s (y)",
        "INSERT INTO s VALUES (1, 1, 'p'), (2, 2, 'q')",
        "INSERT INTO u VALUES (1, 'p'), (2, 'q')",
    ],
    "c": [
        "CREATE TABLE t (id INTEGER PRIMARY KEY, y TEXT, price INTEGER)",
        "CREATE INDEX t_y ON t (y)",
        "INSERT INTO t VALUES (1, 'p', 1), (2, 'q', 2)",
    ],
}
R = "SELECT id, x FROM a.r"
S = "SELECT id, x, y FROM b.s"
T = "SELECT id, y, price FROM c.t"
RS = "SELECT r.id AS r, s.id AS s, s.y FROM a.r r JOIN b.s s ON s.x = r.x"
ST = "SELECT s.id AS s, t.id AS t FROM b.s s JOIN c.t t ON t.y = s.y"
COUNTS = "SELECT x, count(*) AS many FROM a.r GROUP BY x"


def writer(statement: str, *values: Any) -> Write:
    """Transactions of a few rows; values are few, so that changes meet."""

    def write(rng: random.Random, db: sqlite3.Connection) -> None:
        for _ in range(rng.randint(1, 3)):
            if rng.random() < 0.4:
                db.execute(f"DELETE FROM {statement.split()[4]} WHERE id = ?", (rng.randint(1, 6),))
            else:
                db.execute(statement, (rng.randint(1, 6), *(rng.choice(choices) for choices in values)))

    return write


WRITES = {
    "a": [writer("INSERT OR REPLACE INTO r VALUES (?, ?)", range(1, 4))],
    "b": [writer("INSERT OR REPLACE INTO s VALUES (?, ?, ?)", range(1, 4), "pq")],
    "c": [writer("INSERT OR REPLACE INTO t VALUES (?, ?, ?)", "pq", range(9))],
}


def grouped(
    install: Install, views: dict[str, str], kept_by: dict[str, Any] | None = None, **settings: Any
) -> Installation:
    world = install(SMALL, views, **settings)
    world.kept_by = kept_by or {}
    world.configure()
    return world


def keep(world: Installation, *reload: str) -> None:
    """The job without its streams: every group takes all that its topics hold in one batch, and folds."""
    config = load_config(world.conf)
    project = assemble(config)
    with Warehouse(config.warehouse).lock():
        settle_groups(project, reload)
        for group in project.groups:
            part = project.part(group)
            mine = [view for view in reload if view in part.views]
            keeper = Opening(part, Warehouse(config.warehouse, group), mine).open()
            rows = [
                {"topic": topic, "offset": m.offset(), "value": m.value(), "timestamp": m.timestamp()[1]}
                for topic in keeper.queue.inlets
                for m in world.broker.messages(topic)
            ]
            keeper.targets = keeper.queue.passed()
            keeper.maintain(pa.Table.from_pylist(rows, MESSAGES))
            keeper.finish()


def check_exact(*oracles: Oracle) -> None:
    for oracle in oracles:
        oracle.check()
        oracle.check_ends_at_sources()


def status(world: Installation) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(world.done("status", "--json").out)
    return state


@contextmanager
def locked(world: Installation, source: str) -> Iterator[None]:
    """Another program holds the database, so that nobody can even read it."""
    with closing(world.connect(source)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        db.execute("BEGIN EXCLUSIVE")
        yield
        db.execute("ROLLBACK")
