"""The public streaming-consistency test: payments move money and make none, so no reader ever sees any made.

The checker itself is tried on histories that go wrong in ``tests/core/test_consistency_bench.py``.
"""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Install
from viewkeeper.bench.consistency_check import check
from viewkeeper.bench.consistency_world import TABLES, VIEWS, Writer, kept

pytestmark = pytest.mark.e2e

PAYMENTS = 50_000
SEED = 6


def test_credits_and_debits_of_fifty_thousand_payments_are_equal_at_every_cut(install: Install) -> None:
    """The job runs while they are made, corrected and taken back, and while accounts get new owners."""
    world = install(TABLES, VIEWS)
    world.kept_by = kept(every="250ms")
    world.configure()
    writer = Writer(world.connect, accounts=1_000, seed=SEED)
    world.done("init")
    with world.capturing():
        job = world.start("run")
        writer.write(100)
        world.await_cut(0, job)
        begun = world.cut()
        writer.write(PAYMENTS - 100, commit=20, pause=0.002)
        written = world.cut()
        world.await_position(job)
        assert job.terminate().code == 0
    report = check(world.folder / "warehouse", writer.books)
    print(f"seed {SEED}: {report}")
    assert not report.violations, f"seed {SEED}: {report}"
    assert written.cut > begun.cut, "cuts were made while the payments were"
    assert report.cuts == 1 + world.cut().cut and report.updates > 100
    assert {0, world.cut().cut} <= set(report.read)
