"""kill -9 at any moment, then a restart: the same result as no kill, in the tables and in the topics."""

from __future__ import annotations

import random
import signal

import pytest

from tests.conftest import eventually
from tests.e2e.conftest import Install
from tests.e2e.harness import PATIENCE, Writers, pause_of
from tests.e2e.oracle import Oracle
from tests.e2e.shop import TABLES, VIEWS, WRITES

pytestmark = [pytest.mark.e2e, pytest.mark.long]

KILLED = -signal.SIGKILL
# The n-th time that a step is reached. The first cut that is sent after a kill may be one that the topics lacked.
COMMIT_STEPS = (
    "changes:2", "updates", "cut:2", "clear:3", "topics-sent", "topics-sent:3", "topics", "topics:3", "fold:2",
)  # fmt: skip


def test_oracle_a_kill_after_any_step_of_the_first_load_changes_nothing(install: Install) -> None:
    world = install(TABLES, VIEWS)
    oracle = Oracle(world)
    for step in ("load", "load:3", "cut", "topics-sent", "topics"):
        assert world.run("init", crash_after=step).code == KILLED, step
    assert "at cut 0" in world.done("init").out
    oracle.check()
    oracle.check_ends_at_sources()
    assert "nothing to do" in world.done("init").out


def test_oracle_a_kill_after_any_step_of_a_commit_changes_nothing(install: Install) -> None:
    """Each restart clears up after the last kill, and is itself killed at the next step."""
    world = install(TABLES, VIEWS, fold="every_cut")
    oracle = Oracle(world)
    world.done("init")
    with world.capturing(), Writers(world, seed=2, writes=WRITES, pause=0.3) as writers:
        for step in COMMIT_STEPS:
            killed = world.start("run", crash_after=step)
            assert killed.wait().code == KILLED, step
            writers.wait_for(5)
        eventually(killed.leaves_nothing, PATIENCE, "what the killed job started has ended")
    with world.capturing():
        world.done("run", "--until-idle")
    assert oracle.check() > len(COMMIT_STEPS)
    oracle.check_ends_at_sources()
    world.done("verify")


def test_oracle_kills_of_job_and_capture_at_random_moments_change_nothing(install: Install) -> None:
    """The first load happens under the writers, too."""
    world = install(TABLES, VIEWS, min_cut_interval="1ms")
    oracle = Oracle(world)
    rng = random.Random(8)
    capture = world.start_capture()
    with Writers(world, seed=3, writes=WRITES, pause=0.3) as writers:
        for _ in range(3):
            before = -1 if (cut := world.reader().newest()) is None else cut.cut
            job = world.start("run")
            world.await_cut(before + 2, job)
            pause_of(rng, 1.5)
            job.kill()
            capture.kill()
            capture = world.start("capture")
        writers.wait_for(20)
    world.done("run", "--until-idle")
    assert capture.terminate().code == 0
    assert oracle.check() > 20
    oracle.check_ends_at_sources()
    world.done("verify")
