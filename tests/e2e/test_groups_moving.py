"""Views that leave a group, for another one or for good: the others go on, and a view that moves is loaded again."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Install
from tests.e2e.oracle import Oracle
from tests.e2e.small_groups import RS, ST, R, S, T, check_exact, grouped, keep, status
from viewkeeper.errors import UsageError

pytestmark = [pytest.mark.e2e, pytest.mark.long]


def test_oracle_a_view_moves_to_another_group_only_by_a_load(install: Install) -> None:
    views = {"rs": RS, "r": R, "st": ST, "t": T}
    world = grouped(install, views, groups={"left": ["rs", "r"], "right": ["st", "t"]}, fold="every_cut")
    left, right = Oracle(world, "left", ["rs"]), Oracle(world, "right", ["st", "t", "r"])
    keep(world)
    world.write("a", "INSERT INTO r VALUES (4, 2)")
    world.write("c", "INSERT INTO t VALUES (3, 'p', 9)")
    world.deliver()
    keep(world)

    world.configure(groups={"left": ["rs"], "right": ["st", "t", "r"]})
    for command in ("init", "run"):
        refused = world.run(command)
        assert refused.code == 2
        (error,) = refused.errors
        assert "views.r: moves from group left to group right" in error
        assert f"'viewkeeper init {world.conf} --reload r'" in error
    assert set(world.cut("left").versions) == {"rs", "r"}, "a refusal changes nothing"
    world.write("a", "INSERT INTO r VALUES (5, 1)", "DELETE FROM r WHERE id = 2")  # in no cut of any group yet
    world.write("b", "UPDATE s SET y = 'p' WHERE id = 2")
    right.topic_begins["r"] = world.broker.end(world.topics["view.r"])
    with world.capturing():
        world.done("init", "--reload", "r")
    assert set(world.cut("left").versions) == {"rs"} and set(world.cut("right").versions) == {"st", "t", "r"}
    world.write("a", "UPDATE r SET x = 2 WHERE id = 5")
    world.write("b", "INSERT INTO s VALUES (3, 2, 'q')")
    world.deliver()
    keep(world)
    check_exact(left, right)

    # The whole group goes into the other one, and comes back under its old name.
    world.configure(groups={"right": ["st", "t", "r", "rs"]})
    with pytest.raises(UsageError, match="moves from group left to group right"):
        keep(world)
    world.write("c", "DELETE FROM t WHERE id = 1")
    world.deliver()
    everything = Oracle(world, "right", views)
    everything._start = right._start
    everything.topic_begins = {"r": right.topic_begins["r"], "rs": world.broker.end(world.topics["view.rs"])}
    keep(world, "rs")
    world.write("b", "DELETE FROM s WHERE id = 1")
    world.deliver()
    keep(world)
    assert world.cut("left").versions == {} and world.cut("left").positions == {}
    check_exact(everything)
    world.done("verify")


def test_oracle_a_removed_view_and_a_removed_group_leave_their_tables(install: Install) -> None:
    world = grouped(install, {"rs": RS, "s": S, "t": T}, groups={"left": ["rs", "s"], "right": ["t"]})
    left = Oracle(world, "left", ["s"])
    keep(world)
    world.write("a", "INSERT INTO r VALUES (4, 2)")
    world.write("b", "INSERT INTO s VALUES (3, 2, 'q')")
    world.deliver()
    keep(world)
    for view in ("rs", "t"):
        del world.views[view]
    world.configure(groups={"left": ["s"]})
    world.write("b", "DELETE FROM s WHERE id = 1")
    world.write("a", "INSERT INTO r VALUES (7, 2)")
    with world.capturing():
        world.done("run", "--until-idle")
    assert set(world.cut("left").versions) == {"s"} and set(world.cut("left").positions) == {"b"}
    assert world.cut("right").versions == {}
    check_exact(left)
    for view in ("rs", "t"):
        assert (world.folder / "warehouse" / "views" / view).is_dir()
        assert world.run("read", view).code == 2
    assert list(status(world)["groups"]) == ["left"]

    # They may come back, by a load of their own.
    world.views |= {"rs": RS, "t": T}
    world.configure(groups={"left": ["rs", "s"], "right": ["t"]})
    world.write("c", "INSERT INTO t VALUES (9, 'q', 1)")
    world.deliver()
    keep(world)
    world.done("verify")
