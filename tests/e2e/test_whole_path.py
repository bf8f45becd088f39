"""A change in one database reaches exact views while others change theirs: every single update is checked."""

from __future__ import annotations

import json

import pytest

from tests.conftest import eventually
from tests.e2e.conftest import Install
from tests.e2e.harness import PATIENCE, Writers
from tests.e2e.oracle import Oracle
from tests.e2e.shop import TABLES, VIEWS, WRITES

pytestmark = pytest.mark.e2e


def test_oracle_every_update_is_exact_under_concurrent_writers(install: Install) -> None:
    world = install(TABLES, VIEWS, fold="2s")
    oracle = Oracle(world)
    world.done("init")
    with world.capturing():
        job = world.start("run")
        world.write("crm", "DELETE FROM customers WHERE id = 5")
        world.await_cut(0, job)
        with Writers(world, seed=1, writes=WRITES) as writers:
            writers.wait_for(80)
            world.await_cut(3, job)
            assert world.done("verify").out.count("equal to recomputation") == len(VIEWS)
            refused = world.run("run")
            writers.wait_for(80)
        world.await_position(job)
        eventually(
            lambda: set((cut := world.cut()).folded.values()) == {cut.last_update},
            PATIENCE, "a cut names what was folded, though nothing arrives",
        )  # fmt: skip
        ended = job.terminate()
    assert ended.code == 0, ended.err
    eventually(job.leaves_nothing, PATIENCE, "the job's processes have ended")

    assert refused.code == 2
    assert len(refused.errors) == 1 and "another job" in refused.errors[0]
    assert world.done("verify").out.count("equal to recomputation") == len(VIEWS)
    assert oracle.check() > 30
    oracle.check_ends_at_sources()
    asked = json.loads(world.done("status", "--json").out)["sources"]
    assert sum(source["asked"]["compensated"] for source in asked.values()) > 0
