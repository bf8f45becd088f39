"""Loads where a source began to tell of transactions later than its partner, or forgot what it had told."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from tests.conftest import eventually
from tests.e2e.conftest import Install
from tests.e2e.harness import PATIENCE, Installation
from tests.e2e.test_global_transactions import BOTH, SPANNED, TABLES, V1, V2, maintain
from tests.e2e.test_lost_history import install_capture, open_and_close
from tests.e2e.test_marked_transactions import mark
from viewkeeper.config import load_config
from viewkeeper.errors import SourceError
from viewkeeper.job.assembly import make_capture, oldest_position

pytestmark = pytest.mark.e2e

ALL_VIEWS = ("v1", "v2", "both")


@pytest.fixture
def world(install: Install) -> Installation:
    world = install(TABLES, {**V1, **V2, **BOTH}, global_txn=[SPANNED], global_txn_patience="1h")
    open_and_close(world)
    return world


def write(world: Installation, source: str, n: int, marked: bool = True) -> None:
    """Makes row 1 say n, as a part of G<n>."""
    table = {"shop": "r", "crm": "s"}[source]
    world.write(source, *([mark(f"G{n}")] if marked else []), f"UPDATE {table} SET n = {n} WHERE id = 1")


def transfer(world: Installation, n: int) -> None:
    for source in SPANNED:
        write(world, source, n)


def first_row(world: Installation) -> tuple[int, int]:
    """What both databases say in row 1, as the view over both has it."""
    (row,) = [row for row in world.reader().read("both").read_all().to_pylist() if row["id"] == 1]
    return row["r"], row["s"]


def lose_topic(world: Installation, source: str) -> None:
    admin, topic = AdminClient(world.broker.client()), world.topics[source]
    for deleted in admin.delete_topics([topic]).values():
        deleted.result(PATIENCE)
    eventually(lambda: topic not in admin.list_topics(timeout=PATIENCE).topics, PATIENCE, f"{topic} is gone")


def goes_on(world: Installation, n: int) -> None:
    transfer(world, n)
    world.deliver()
    maintain(world)
    assert first_row(world) == (n, n), "nothing waits for what nobody will tell"


def test_a_topic_that_was_lost_does_not_make_whole_transactions_incomplete(world: Installation) -> None:
    for n in (1, 2, 3):
        transfer(world, n)
    world.deliver()
    maintain(world)
    config = load_config(world.conf)
    make_capture(config, "crm").prune(oldest_position(config.warehouse, "crm"))
    lose_topic(world, "crm")
    open_and_close(world, *ALL_VIEWS)
    assert first_row(world) == (3, 3)
    goes_on(world, 4)


def test_parts_from_before_a_source_was_captured_are_not_waited_for(install: Install) -> None:
    world = install(TABLES, V1, global_txn=[SPANNED], global_txn_patience="1h")
    open_and_close(world)
    write(world, "shop", 1)
    write(world, "crm", 1, marked=False)  # it has nothing to mark it with
    world.deliver()
    maintain(world)
    world.views = {**V1, **V2, **BOTH}
    world.configure()
    open_and_close(world, *ALL_VIEWS)
    assert first_row(world) == (1, 1)
    goes_on(world, 2)


def test_a_log_removed_with_a_part_that_nobody_told_is_not_waited_for(world: Installation) -> None:
    transfer(world, 1)
    world.deliver()
    maintain(world)
    write(world, "shop", 2)
    world.deliver()
    write(world, "crm", 2)
    make_capture(load_config(world.conf), "crm").remove()
    with pytest.raises(SourceError, match="has no change log any more"):
        install_capture(world)
    open_and_close(world, *ALL_VIEWS)
    assert first_row(world) == (2, 2)
    goes_on(world, 3)


def test_a_missing_part_is_made_up_for_by_an_empty_transaction_with_its_mark(world: Installation) -> None:
    write(world, "shop", 1)
    world.deliver()
    maintain(world)
    assert first_row(world) == (0, 0)
    world.write("crm", mark("G1"))
    world.deliver()
    maintain(world)
    assert first_row(world) == (1, 0)
