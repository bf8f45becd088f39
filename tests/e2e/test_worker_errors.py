"""What fails in a Spark worker reaches the driver as the error it is, and leaves no files behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core import worlds
from tests.e2e.sockets import family, listening, reachable
from viewkeeper.errors import SourceUnreachable, WarehouseError
from viewkeeper.job.session import spark_session
from viewkeeper.managers.sources.sqlite import SqliteSnapshot, SqliteSource
from viewkeeper.managers.spark_stage import SparkStage
from viewkeeper.messages import Ask

pytestmark = pytest.mark.e2e

RELATIONS = worlds.catalog(worlds.relation("shop", "R", "a b"), worlds.relation("crm", "S", "b c"))
VIEW = worlds.parse_view("v", "SELECT r.a, s.c FROM shop.R r JOIN crm.S s ON r.b = s.b", RELATIONS)
INSERT = worlds.Did("shop", {"R": Counter({(1, 3): 1, (2, 3): 1})})


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    session = spark_session(tmp_path_factory.mktemp("spark") / "spark.log", threading.Event())
    yield session
    session.stop()


def test_a_source_that_fails_in_a_worker_fails_with_its_own_error(spark: Any, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    (scratch / "left-by-a-killed-job").mkdir(parents=True)
    gone = {name: SqliteSource(name, str(tmp_path / f"{name}.db")) for name in ("shop", "crm")}
    stage = SparkStage(spark, gone, scratch)
    assert not scratch.exists()

    queue = worlds.World(RELATIONS, {name: Counter() for name in RELATIONS}, [INSERT]).queue([1])
    starts = {"v": {0: queue.changes[("shop", "R")]}}
    snapshots = dict.fromkeys(gone, SqliteSnapshot(0))
    failed = stage.sweep(queue, starts, {"v": VIEW}, snapshots)["v"]
    with pytest.raises(SourceUnreachable) as here:
        gone["crm"].ask(Ask("crm", "S", ("b", "c")), snapshots["crm"])
    assert isinstance(failed, SourceUnreachable)
    assert failed.problems == here.value.problems
    assert not scratch.exists()

    scratch.write_text("in the way")
    with pytest.raises(WarehouseError, match="scratch: cannot be used"):
        stage.sweep(queue, starts, {"v": VIEW}, snapshots)


def test_a_relation_may_have_a_name_that_no_file_has(spark: Any, tmp_path: Path) -> None:
    slash = worlds.catalog(worlds.relation("shop", "R/../" + "r" * 300, "a b"), worlds.relation("crm", "S", "b c"))
    named = next(name for name in slash if name[0] == "shop")
    view = worlds.parse_view("v", f'SELECT r.a, s.c FROM shop."{named[1]}" r JOIN crm.S s ON r.b = s.b', slash)
    did = worlds.Did("shop", {named[1]: Counter({(1, 3): 1})})
    queue = worlds.World(slash, {name: Counter() for name in slash}, [did]).queue([1])
    gone = {name: SqliteSource(name, str(tmp_path / f"{name}.db")) for name in ("shop", "crm")}
    stage = SparkStage(spark, gone, tmp_path / "scratch")
    found = stage.sweep(queue, {"v": {0: queue.changes[named]}}, {"v": view}, dict.fromkeys(gone, SqliteSnapshot(0)))
    assert isinstance(found["v"], SourceUnreachable), "it came as far as asking the other source"


def test_nobody_on_another_machine_can_reach_sparks_driver(spark: Any) -> None:
    assert spark.range(0, 4, 1, 2).mapInArrow(lambda batches: batches, "id long").toArrow().num_rows == 4, (
        "workers, and results to us"
    )
    jvm = spark.sparkContext._gateway.proc.pid
    assert len(listening([jvm])) >= 1, "it does listen"
    assert reachable(family(os.getpid())) == set()


def test_spark_goes_on_when_a_service_manager_asks_every_process_of_the_job_to_end(tmp_path: Path) -> None:
    """The batch in hand is to be finished: JVM, daemon and worker get the signal in the middle of a stage."""
    # In a process of its own: a JVM that this one has from other tests may have been started for them.
    program = [sys.executable, "-m", "tests.e2e.signalled_stage", str(tmp_path / "spark.log")]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
