"""Large batches: swept by Spark's workers instead of the driver, cut into pieces on their way, and the same result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.core.worlds import per_update
from tests.e2e.conftest import Install
from tests.e2e.harness import Installation, Writers
from tests.e2e.oracle import Oracle
from tests.e2e.shop import TABLES, VIEWS, WRITES, series
from viewkeeper.config import load_config
from viewkeeper.integrator.arrange import untouched
from viewkeeper.integrator.integrator import number
from viewkeeper.job.assembly import assemble
from viewkeeper.job.freezing import frozen
from viewkeeper.job.opening import Opening
from viewkeeper.managers import managers as managers_module
from viewkeeper.managers import spark_stage
from viewkeeper.managers.managers import Task, Work
from viewkeeper.managers.spark_stage import LARGE, SparkStage
from viewkeeper.queue.consumer import MESSAGES
from viewkeeper.warehouse.warehouse import Warehouse

pytestmark = [pytest.mark.e2e, pytest.mark.long]


def test_oracle_a_transaction_of_more_rows_than_the_driver_sweeps_is_exact(install: Install) -> None:
    world = install(TABLES, {name: VIEWS[name] for name in ("overview", "picking")})
    oracle = Oracle(world)
    world.done("init")
    rows = LARGE + 5_000
    world.write(
        "shop", f"INSERT INTO lines SELECT value % 12, 10 + value, 'p' || (value % 7), 2 FROM {series(1, rows)}"
    )
    world.write("stock", "UPDATE products SET price = 3 WHERE code = 'p1'", "DELETE FROM shelves WHERE product = 'p2'")
    world.deliver()
    world.write("shop", "DELETE FROM lines WHERE n % 3 = 0", "UPDATE orders SET customer_id = 1 WHERE id = 2")
    with world.capturing():
        world.done("run", "--until-idle")
    assert len(world.messages("shop")) > 3 * world.cut().last_update  # the updates came in pieces
    assert (world.folder / "warehouse" / "scratch").is_dir()  # the workers' files passed through it
    assert not [path for path in (world.folder / "warehouse" / "scratch").rglob("*") if path.is_file()]
    assert 3 <= oracle.check(reads=2) <= 4
    oracle.check_ends_at_sources()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One Spark session for the tests in this process."""
    import threading

    from viewkeeper.job.session import spark_session

    session = spark_session(tmp_path_factory.mktemp("spark") / "spark.log", threading.Event())
    yield session
    session.stop()


def test_agree_driver_and_workers_sweep_a_batch_alike(
    install: Install, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices of a few rows, so that the changes of one update are swept by different workers."""
    monkeypatch.setattr(spark_stage, "SLICE", 7)
    monkeypatch.setattr(managers_module, "LARGE", 1)
    world = install(TABLES, VIEWS)
    world.done("init")
    with world.capturing(), Writers(world, seed=9, writes=WRITES, pause=0.02) as writers:
        writers.wait_for(60)
    world.deliver()
    world.write("shop", "DELETE FROM lines")  # not delivered: the answers must be compensated for it
    project = assemble(load_config(world.conf))
    warehouse = Warehouse(project.config.warehouse)
    with warehouse.lock():
        keeper = Opening(project, warehouse).open()
        received = keeper.queue.receive(everything(world))
        batch = number(untouched(received), 0, list(project.views.values()))
        tasks = [Task(name, 0, batch.last, batch.starts[name]) for name in project.views]
        here, there = ({}, {})
        with frozen(project.sources, keeper.queue.positions(), hold=True) as at:
            work = Work(batch.queue, received.updates, batch.number_of, at.snapshots)
            results = []
            for tallies, stage in (
                (here, None),
                (there, SparkStage(spark, project.sources, tmp_path / "scratch", there)),
            ):
                managers = replace(keeper.managers, tallies=tallies, large_stage=stage)
                outcomes = managers.answer(tasks, work)
                results.append({name: per_update(project.views[name], o.tables) for name, o in outcomes.items()})
    assert results[0].keys() == results[1].keys() == VIEWS.keys()
    for name in VIEWS:
        assert _kept(results[0][name]) == _kept(results[1][name]), name
    changed = sum(len(rows) for changes in results[0].values() for rows in changes.values())
    assert changed > 10, "however many writes went into one update"
    assert there.keys() == here.keys()
    assert all(there[source].questions > here[source].questions for source in here)
    assert not list((tmp_path / "scratch").iterdir())


def everything(world: Installation) -> pa.Table:
    """All messages of the sources' topics, as one batch."""
    rows = [
        {"topic": m.topic(), "offset": m.offset(), "value": m.value(), "timestamp": m.timestamp()[1]}
        for source in world.tables
        for m in world.broker.messages(world.topics[source])
    ]
    return pa.Table.from_pylist(rows, MESSAGES)


def _kept(changes: dict[int, Any]) -> dict[int, Any]:
    return {k: bag for k, bag in changes.items() if bag}
