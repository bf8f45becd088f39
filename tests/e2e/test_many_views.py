"""Twenty views over six databases in three groups: at every cut of a group its views are one state of the sources."""

from __future__ import annotations

import os
import random
import signal

import pytest

from tests.conftest import eventually
from tests.e2e.conftest import Install
from tests.e2e.harness import PATIENCE, Installation, Running, Writers, pause_of
from tests.e2e.many_views import GROUPS, KEPT_BY, TABLES, VIEWS, WRITES
from tests.e2e.oracle import Oracle
from tests.scale import scaled

pytestmark = [pytest.mark.e2e, pytest.mark.long]

CUTS = scaled(4, 10)
"""What a group commits before the job is killed at some moment."""
SEED = int(os.environ.get("VIEWKEEPER_TEST_SEED", "6"))
KILLED = -signal.SIGKILL
# Steps that groups take side by side: which of them the kill finds in the middle of a commit is left to chance.
COMMIT_STEPS = ("changes:5", "updates:4", "cut:6", "topics-sent:4", "fold:3")


@pytest.fixture
def world(install: Install) -> Installation:
    world = install(TABLES, VIEWS, groups="auto", fold="2s", min_cut_interval="50ms")
    world.kept_by = KEPT_BY
    world.configure()
    return world


def await_cuts(world: Installation, job: Running, more: int) -> None:
    """Waits until every group has committed so many cuts more."""
    before = world.newest_cuts()
    for group in GROUPS:
        world.await_cut(before[group].cut + more - 1, job, group)


def test_oracle_at_every_cut_all_views_of_a_group_are_one_state_whatever_is_killed(world: Installation) -> None:
    """Replay: VIEWKEEPER_TEST_SEED chooses the writes and the moments of the kills."""
    oracles = {group: Oracle(world, group, views) for group, views in GROUPS.items()}
    rng = random.Random(SEED)
    capture = world.start_capture()
    with Writers(world, SEED, WRITES, pause=0.8):
        for step in rng.sample(COMMIT_STEPS, scaled(1, len(COMMIT_STEPS))):  # the first load happens here, too
            assert world.run("run", crash_after=step).code == KILLED, step
        for _ in range(scaled(1, 3)):
            job = world.start("run")
            await_cuts(world, job, CUTS)
            pause_of(rng, 1.0)
            job.kill()
            capture.kill()
            capture = world.start("capture")
    world.done("run", "--until-idle")
    eventually(job.leaves_nothing, PATIENCE, "what the killed job started has ended")
    assert capture.terminate().code == 0

    cuts = world.newest_cuts()
    assert {group: cuts[group].versions.keys() for group in cuts} == {g: v.keys() for g, v in GROUPS.items()}
    assert {group: cut.level for group, cut in cuts.items()} == {
        "shop": "strong",
        "bank": "complete",
        "staff": "strong",
    }
    for group, oracle in oracles.items():
        assert oracle.check(reads=4) > 10, group
        oracle.check_ends_at_sources()
    said = world.done("verify").out
    assert said.count("equal to recomputation") == len(VIEWS)
    said = world.done("verify", "--level").out  # exit 1 if a view, or a group together, is less than it promises
    assert said.count("all views together: ") == len(GROUPS)
