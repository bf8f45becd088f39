"""Commits that are logged, and so delivered, but cannot be seen yet: a synchronous standby does not answer."""

from __future__ import annotations

import threading

import pytest

from tests.conftest import eventually
from tests.e2e.pg_shop import VIEWS, Stuck, offset_of
from tests.e2e.pg_world import World
from viewkeeper import cli
from viewkeeper.capture import postgres_setup

pytestmark = pytest.mark.e2e


def test_oracle_a_commit_that_is_logged_and_not_shown_is_compensated_in_both_directions(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with Stuck(world) as stuck:
        order = stuck.hang(
            "shop",
            "INSERT INTO orders VALUES (301, 30, 1, 'h'), (302, 30, 2, 'h')",
            "UPDATE orders SET customer_id = 30 WHERE id = 15",
            "DELETE FROM orders WHERE id = 16",
        )
        customer = stuck.hang(
            "crm", "INSERT INTO customers VALUES (31, 'hidden')", "UPDATE customers SET name = 'was' WHERE id = 3"
        )
        world.batch()  # delivered and numbered, although no snapshot shows them
        world.check(ends=False)
        assert len(world.keeper.rounds.unsettled.updates) == 2
        stuck.write("crm", "INSERT INTO customers VALUES (30, 'late')")
        stuck.write("crm", "UPDATE customers SET name = name || '!' WHERE id = 0")
        stuck.write("shop", "INSERT INTO orders VALUES (311, 31, 1, 'l'), (312, 31, 2, 'l')")
        stuck.write("shop", "INSERT INTO lines VALUES (311, 31, 1), (313, 3, 1)")
        world.batch()
        assert world.cut.offsets["shop"] < offset_of(world, "shop", order)
        assert world.cut.offsets["crm"] < offset_of(world, "crm", customer)
        world.check(ends=False)
        capsys.readouterr()
        assert cli.main(["verify", str(world.conf)]) == 0, "verify compensates, too"
        assert capsys.readouterr().out.count("equal to recomputation") == 3

        world.open()  # as if killed: what is not shown must come from the topic again
        stuck.write("crm", "UPDATE customers SET name = name || '+' WHERE id = 30")
        stuck.write("shop", "UPDATE orders SET total = 9 WHERE id = 311", "DELETE FROM orders WHERE id = 312")
        world.batch()
        assert len(world.keeper.rounds.unsettled.updates) == 2
        assert world.cut.offsets["shop"] < offset_of(world, "shop", order)
        world.check(ends=False)

        world.views["late"] = (
            "SELECT o.id, o.total, l.id AS line FROM shop.orders o JOIN shop.lines l ON l.customer_id = o.customer_id"
        )
        world.open()  # a view more, loaded as of a cut that holds what is not shown
        stuck.write("shop", "INSERT INTO lines VALUES (330, 30, 3)")
        world.batch()
        world.check(ends=False)
    stuck.release()
    world.write("shop", "UPDATE orders SET total = total + 1 WHERE customer_id = 30")
    world.batch()
    assert not world.keeper.rounds.unsettled.updates
    assert world.cut.offsets["shop"] > offset_of(world, "shop", order)
    world.check()
    del world.views["late"]
    world.open()


def test_oracle_a_load_leaves_out_what_is_not_shown_and_numbers_it_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_setup, "SHOW_SECONDS", 0.2)
    with Stuck(world) as stuck:
        order = stuck.hang("shop", "INSERT INTO orders VALUES (401, 40, 1, 'h')", "DELETE FROM lines WHERE id = 1")
        stuck.hang("crm", "INSERT INTO customers VALUES (41, 'hidden')")
        eventually(lambda: any(t.xid == str(order) for t in world.sent("shop")), 30, "it was delivered")
        world.open(*VIEWS)
        assert world.cut.offsets["shop"] < offset_of(world, "shop", order)
        stuck.write("crm", "INSERT INTO customers VALUES (40, 'late')")
        stuck.write("shop", "INSERT INTO orders VALUES (411, 41, 1, 'l')")
        world.batch()
        assert world.cut.last_update >= 4, "two that hung, two that joined them"
        world.check(ends=False)
    world.write("shop", "INSERT INTO lines VALUES (1, 41, 1)")
    world.batch()
    world.check()
    assert not world.keeper.rounds.unsettled.updates


def test_oracle_a_truncate_that_is_not_shown_is_waited_for(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """What the table holds without its old rows can be asked for only when they are gone."""
    with Stuck(world) as stuck:
        stuck.hang("shop", "TRUNCATE lines", "INSERT INTO lines VALUES (601, 1, 1), (602, 3, 2)")
        stuck.write("crm", "UPDATE customers SET name = name || 't'")
        messages, cut = world.unread(), world.cut
        batch = threading.Thread(target=lambda: world.keeper.maintain(messages))
        batch.start()
        eventually(lambda: world.keeper.waiting, 60, "the job says what it waits for")
        told = str(world.keeper.waiting)
        assert world.cut == cut
    batch.join(60)
    assert "the transaction that emptied lines is not visible yet" in told
    assert world.cut.level == "strong"
    world.check()
