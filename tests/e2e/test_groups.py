"""Groups in the real job: each is kept by itself, so what slows or stops one leaves the others alone."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.e2e.conftest import Install, MakeDatabase
from tests.e2e.harness import PATIENCE, Installation, Running, Writers
from tests.e2e.many_views import GROUPS, KEPT_BY, TABLES, VIEWS
from tests.e2e.oracle import Oracle
from tests.e2e.small_groups import COUNTS, RS, SMALL, ST, WRITES, R, S, T, check_exact, grouped, locked, status

pytestmark = [pytest.mark.e2e, pytest.mark.long]


def test_check_shows_how_the_views_are_split(install: Install) -> None:
    world = install(TABLES, VIEWS, groups="auto")
    world.kept_by = KEPT_BY
    world.configure()
    said = world.done("check").out.splitlines()
    shown = [line.split(maxsplit=3)[2:] for line in said if line.split()[1] == "group"]
    assert [name for name, _ in shown] == [f"{group}:" for group in GROUPS]
    assert shown[0][1] == f"views {', '.join(GROUPS['shop'])} (sources crm, shop, stock), level strong"
    assert shown[1][1].endswith("(sources bank, ledger), level complete")

    world.configure(groups={"money": ["credits"], "books": {"views": ["balances"], "level": "complete"}})
    said = world.done("check").out.splitlines()
    assert [line.split()[2] for line in said if line.split()[:2] == ["ok", "group"]] == ["money:", "books:", "all:"]
    (warning,) = [line for line in said if line.startswith("warning") and "share" in line and "bank" in line]
    assert "groups money, books, all" in warning and "promise nothing to each other" in warning


def test_oracle_a_slow_view_delays_only_its_group(install: Install) -> None:
    """Groups that share a source, one with a view that is refreshed every hour; and one that promises nothing."""
    kept_by = {
        "counts": {"algorithm": "refresh", "every": "1h"},
        "third": {"algorithm": "complete_n", "complete_n": 3},
        "loose": {"algorithm": "convergent"},
    }
    views = {"counts": COUNTS, "third": RS, "rs": RS, "st": ST, "loose": RS}
    world = grouped(install, views, kept_by, groups={"slow": ["counts", "third"]})
    slow, rest = Oracle(world, "slow", ["counts", "third"]), Oracle(world, "all", ["rs", "st"])
    world.done("init")
    assert {group: set(cut.versions) for group, cut in world.newest_cuts().items()} == {
        "all": {"rs", "st"},
        "slow": {"counts", "third"},
        "loose": {"loose"},
    }
    with world.capturing():
        job = world.start("run")
        with Writers(world, 3, WRITES, pause=0.2) as writers:
            world.await_cut(2, job)
            world.await_cut(0, job, "loose")
            writers.wait_for(10)
        world.await_position(job)
        assert world.cut("slow").cut == 0
        told = status(world)
        assert "refresh" in told["views"]["counts"]["waits_for"]
        assert told["views"]["third"]["waits_for"] in ("view counts", "the next of every 3 updates")
        assert told["views"]["rs"]["waits_for"] is None
        refused = world.run("run")
        assert refused.code == 2 and len(refused.errors) == 1, refused.err
        assert job.terminate().code == 0
        assert world.cut("slow").cut == 0
        world.done("run", "--until-idle")  # waits for no refresh, and leaves no rest of a run of three
    check_exact(slow, rest)
    assert rest.read("st") == rest.final("st")
    assert world.cut("slow").last_update > 0
    assert Oracle(world, "loose", ["loose"]).read("loose")  # right or wrong: it is there


def test_oracle_a_source_that_is_away_stops_only_what_asks_it(install: Install) -> None:
    world = grouped(install, {"rs": RS, "r": R, "t": T, "st": ST}, groups={"left": ["rs", "r"], "right": ["t"]})
    world.views["t_only"] = "SELECT id FROM c.t WHERE price > 1"
    world.configure(groups={"left": ["rs", "r", "t_only"], "right": ["t"]})
    del world.views["st"]
    world.configure()
    left, right = Oracle(world, "left", ["rs", "r", "t_only"]), Oracle(world, "right", ["t"])
    world.done("init")
    with world.capturing():
        job = world.start("run")
        world.write("a", "INSERT INTO r VALUES (4, 2)")
        world.write("c", "INSERT INTO t VALUES (3, 'p', 9)")
        world.await_cut(0, job, "left")
        world.await_cut(0, job, "right")
        with locked(world, "b"):
            before = world.cut("left").cut
            world.write("c", "INSERT INTO t VALUES (4, 'q', 8)")  # nobody asks b for it
            world.await_cut(before, job, "left")
            world.write("a", "UPDATE r SET x = 1 WHERE id = 2", "INSERT INTO r VALUES (5, 2)")
            eventually(lambda: _waits(world, "rs"), PATIENCE, "rs waits for b")
            held = world.cut("left")
            for i in range(3):
                before = world.cut("right").cut
                world.write("c", f"UPDATE t SET price = {i} WHERE id = 4")
                world.await_cut(before, job, "right")
            assert world.cut("left") == held
            told = status(world)
            assert told["views"]["r"]["waits_for"] == "view rs" and told["groups"]["left"]["trouble"]
            assert not told["groups"]["right"]["trouble"] and told["views"]["t"]["waits_for"] is None
        world.await_position(job, "left")

        # Gone, and back: a manager that has the file open does not even notice.
        away = world.database("b").rename(world.folder / "away.db")
        world.write("a", "DELETE FROM r WHERE id = 1", "INSERT INTO r VALUES (6, 1)")
        world.await_cut(_moved(world, "right"), job, "right")
        away.rename(world.database("b"))
        world.write("b", "INSERT INTO s VALUES (3, 1, 'q')")
        world.await_position(job, "left")
        assert job.terminate().code == 0
    check_exact(left, right)


def _moved(world: Installation, group: str) -> int:
    """A change of the group's source; gives the cut before it."""
    before = world.cut(group).cut
    world.write("c", "INSERT INTO t SELECT max(id) + 1, 'p', 1 FROM t")
    return before


def _waits(world: Installation, view: str) -> bool:
    file = world.folder / "warehouse" / "status" / "left.json"
    return "locked" in (json.loads(file.read_bytes())["views"][view]["waits_for"] or "")


def test_oracle_a_group_that_fails_for_good_ends_alone(install: Install) -> None:
    world = grouped(install, {"r": R, "s": S}, groups="auto")
    good = Oracle(world, "a", ["r"])
    world.done("init")
    world.write("b", "INSERT INTO s VALUES (3, 3, 'r')")
    world.deliver()
    world.broker.send(world.topics["b"], b"{oops")
    with world.capturing():
        job = world.start("run")
        world.await_cut(0, job, "b")
        eventually(lambda: "group b has stopped" in job.err.read_text(), PATIENCE, "the group has stopped")
        for i in range(4, 6):
            before = world.cut("a").cut
            world.write("a", f"INSERT INTO r VALUES ({i}, 1)")
            world.await_cut(before, job, "a")
        told = status(world)["groups"]
        assert told["a"]["running"] and told["a"]["error"] is None
        assert not told["b"]["running"] and "not JSON" in told["b"]["error"]
        ended = job.terminate()
        world.write("b", "INSERT INTO s VALUES (4, 4, 'r')")  # behind the message that nobody can read
        for end in (ended, world.run("run", "--until-idle")):
            assert end.code == 3
            assert len(end.errors) == 1 and end.err.splitlines()[-1] == end.errors[0]
            assert f"topic {world.topics['b']} partition 0 offset" in end.errors[0]
    check_exact(good)
    stopped = world.reader("b").read("s").read_all()["id"].to_pylist()
    assert sorted(stopped) == [1, 2, 3], "all that came before it"


def test_a_group_that_ends_alone_lets_go_of_databases_brokers_and_threads(
    install: Install, new_database: MakeDatabase
) -> None:
    bank = new_database("CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO u VALUES (1)", name="bank")
    views = {"r": R, "s": S, "u": "SELECT id FROM bank.u"}
    world = install(SMALL, views, {"bank": bank}, groups="auto")
    world.done("init")
    job = world.start("run")
    eventually(lambda: job.err.read_text().count("at cut") == 3 or not job.alive, PATIENCE, "all groups work")
    connected = lambda: bank.execute(  # noqa: E731
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'viewkeeper'"
    )[0][0]
    held = lambda: [f for f in _files(job) if "/b.db" in f]  # noqa: E731
    eventually(lambda: connected() > 0, PATIENCE, "the group is connected")
    for source in ("bank", "b"):
        world.broker.send(world.topics[source], b"{oops")
    eventually(lambda: job.err.read_text().count("has stopped") == 2, PATIENCE, "two groups have stopped")
    eventually(lambda: connected() == 0, PATIENCE, "no connection to the database is left")
    eventually(lambda: not held(), PATIENCE, "no file is left open")
    eventually(lambda: _threads(job, "rdk:main") <= 2, PATIENCE, "no Kafka client but of the group that works")
    assert job.alive
    assert job.terminate().code == 3


def _files(job: Running) -> list[str]:
    """The files that a command has open."""
    found = []
    for link in Path(f"/proc/{job.process.pid}/fd").iterdir():
        with suppress(OSError):
            found.append(os.readlink(link))
    return found


def _threads(job: Running, name: str) -> int:
    """How many threads of a command have a name that begins so."""
    names = []
    for task in Path(f"/proc/{job.process.pid}/task").iterdir():
        with suppress(OSError):
            names.append((task / "comm").read_text())
    return sum(each.startswith(name) for each in names)


def test_both_signals_end_all_groups_with_exit_0(install: Install) -> None:
    world = grouped(install, {"r": R, "s": S, "t": T}, groups="auto")
    with world.capturing():
        for number in (signal.SIGINT, signal.SIGTERM):
            job = world.start("run")
            eventually(lambda job=job: "at cut" in job.err.read_text() or not job.alive, PATIENCE, "it works")
            for group, change in {"a": "r SET x = x + 1", "b": "s SET x = x + 1", "c": "t SET price = 7 - id"}.items():
                before = world.cut(group).cut
                world.write(group, f"UPDATE {change}")
                world.await_cut(before, job, group)
            job.process.send_signal(number)
            ended = job.wait()
            assert (ended.code, ended.errors) == (0, []), ended.err
            assert all(f"view {view} at cut" in ended.err for view in "rst"), "every group tells of itself"
            eventually(job.leaves_nothing, PATIENCE, "what the job started has ended")
            assert not any(told["running"] for told in status(world)["groups"].values())
