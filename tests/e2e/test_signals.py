"""Signals reach every process of a command at once: a terminal and a service manager know only its process group."""

from __future__ import annotations

import os
import signal
from signal import SIGHUP, SIGINT, SIGTERM

import pytest

from tests.conftest import eventually
from tests.e2e.conftest import Install
from tests.e2e.harness import PATIENCE, Installation, Running, children
from tests.e2e.oracle import Oracle
from tests.e2e.shop import TABLES, VIEWS

pytestmark = [pytest.mark.e2e, pytest.mark.long]


def ends_well(job: Running, *numbers: signal.Signals) -> None:
    """The signals are the clean stop: exit 0, not a word of trouble, and nothing is left of it."""
    ended = job.signal_all(*numbers)
    assert (ended.code, ended.errors) == (0, []), ended.err
    assert "Traceback" not in ended.err and "trying again" not in ended.err, ended.err
    eventually(job.leaves_nothing, PATIENCE, "what it started has ended")


def at_work(world: Installation, order: int) -> Running:
    """A job that has made a cut, and has the next change before it."""
    job = world.start("run")
    for statement in (f"DELETE FROM orders WHERE id = {order}", f"DELETE FROM lines WHERE order_id = {order}"):
        before = world.cut().cut
        world.write("shop", statement)
        if "orders" in statement:
            world.await_cut(before, job)
    return job


def test_signals_to_the_process_group_of_the_job_finish_its_batch(install: Install) -> None:
    world = install(TABLES, VIEWS)
    oracle = Oracle(world)
    world.done("init")
    capture = world.start_capture()
    ends_well(at_work(world, 4), SIGTERM)
    ends_well(at_work(world, 5), SIGINT, SIGTERM, SIGTERM)
    starting = world.start("run")
    eventually(lambda: children(starting.process.pid), PATIENCE, "Spark is coming up")
    ends_well(starting, SIGHUP)
    assert "stopped while waiting" in starting.err.read_text(), "it does not wait until Spark is there"
    ends_well(capture, SIGTERM, SIGTERM)
    world.deliver()
    world.done("run", "--until-idle")
    oracle.check_ends_at_sources()
    world.done("verify")


def test_a_job_that_was_asked_to_end_before_it_began_ends_well(install: Install) -> None:
    world = install(TABLES, VIEWS)
    for command in (["run"], ["capture"], ["tail", "overview"]):
        beginning = world.start(*command)
        eventually(lambda b=beginning: SIGTERM in caught(b.process.pid), PATIENCE, "Viewkeeper itself has begun")
        ends_well(beginning, SIGTERM, SIGINT)


def caught(pid: int) -> set[int]:
    """The signals that a process has handlers for."""
    with open(f"/proc/{pid}/status") as status:
        bits = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt"))
    return {number for number in signal.valid_signals() if bits >> (number - 1) & 1}


def test_a_job_under_nohup_outlives_its_terminal(install: Install) -> None:
    world = install(TABLES, VIEWS)
    world.done("init")
    ignored = signal.signal(SIGHUP, signal.SIG_IGN)  # as nohup leaves it to what it starts
    try:
        capture = world.start_capture()
    finally:
        signal.signal(SIGHUP, ignored)
    os.killpg(capture.process.pid, SIGHUP)
    world.write("shop", "DELETE FROM orders WHERE id = 4")
    eventually(lambda: world.delivered("shop"), PATIENCE, "it goes on")
    ends_well(capture, SIGTERM)
