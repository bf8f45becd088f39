"""What an operator meets: retention, a capture that is down, spark-submit, signals."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

import viewkeeper
from tests.conftest import eventually
from tests.e2e.conftest import Install
from tests.e2e.harness import PATIENCE, Installation
from tests.e2e.oracle import Oracle
from tests.e2e.shop import TABLES, VIEWS

pytestmark = [pytest.mark.e2e, pytest.mark.long]

SPARK_SUBMIT = str(Path(sys.executable).with_name("spark-submit"))
JOB = str(Path(viewkeeper.__file__).parents[1] / "job.py")


def empty(world: Installation, source: str) -> None:
    """Removes every message of the source's topic, as retention would."""
    admin = AdminClient(world.broker.client())
    topic = TopicPartition(world.topics[source], 0, -1)
    for future in admin.delete_records([topic]).values():
        future.result(30)


def test_a_missing_capture_and_lost_messages_end_the_job_with_their_remedy(install: Install) -> None:
    """Both in one installation: the second half begins where the first left it."""
    world = install(TABLES, VIEWS)
    oracle = Oracle(world)
    world.done("init")
    world.write("shop", "DELETE FROM orders WHERE id = 4")
    missing = world.run("run", "--until-idle")
    assert missing.code == 3
    assert missing.errors == [missing.err.splitlines()[-1]]
    assert "source shop" in missing.errors[0] and "viewkeeper capture" in missing.errors[0]

    world.deliver()
    empty(world, "shop")
    for command in (["run"], ["init"]):
        lost = world.run(*command)
        assert lost.code == 3
        assert len(lost.errors) == 1 and world.topics["shop"] in lost.errors[0]
        assert lost.errors[0].endswith(f"'viewkeeper init {world.conf} --reload overview same_customer picking'")
    world.done("init", "--reload", "overview", "same_customer", "picking")
    oracle.check_ends_at_sources()
    with world.capturing():  # it knows from the newest cut what need not be sent again
        world.write("shop", "DELETE FROM orders WHERE id = 5")
        eventually(lambda: len(world.messages("shop")) == 1, PATIENCE, "one update is sent")
    world.done("run", "--until-idle")
    oracle.check_ends_at_sources()
    world.done("verify")


def test_a_topic_that_retention_emptied_of_what_a_cut_holds_is_no_loss(install: Install) -> None:
    world = install(TABLES, VIEWS)
    oracle = Oracle(world)
    world.done("init")
    with world.capturing():
        world.write("crm", "UPDATE customers SET name = name || '!'")
        world.done("run", "--until-idle")
        empty(world, "crm")
        world.write("crm", "DELETE FROM customers WHERE id = 1")
    with world.capturing():
        world.write("crm", "DELETE FROM customers WHERE id = 2")
        world.done("run", "--until-idle")
    oracle.check_ends_at_sources()
    assert world.cut().last_update in (2, 3)
    world.done("verify")


def test_spark_submit_runs_the_job_and_sigterm_ends_it_well(install: Install) -> None:
    world = install(TABLES, VIEWS)
    oracle = Oracle(world)
    world.done("init")
    with world.capturing():
        job = world.submit(SPARK_SUBMIT, JOB)
        world.write("shop", "DELETE FROM orders WHERE id = 4", "DELETE FROM lines WHERE order_id = 4")
        world.await_position(job)
        ended = job.terminate()
    assert ended.code == 0, ended.err
    assert "Traceback" not in ended.err
    flood = [line for line in ended.err.splitlines() if " INFO " in line]
    assert not flood and len(ended.err.splitlines()) < 20, ended.err
    assert "ended: handled " in ended.out, "spark-submit writes there what its Python says"
    eventually(job.leaves_nothing, PATIENCE, "what spark-submit started has ended")
    assert oracle.check() == 1
    oracle.check_ends_at_sources()
