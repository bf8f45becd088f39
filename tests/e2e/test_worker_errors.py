"""What fails in a Spark worker reaches the driver as the error it is, and leaves no files behind."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core import worlds
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
