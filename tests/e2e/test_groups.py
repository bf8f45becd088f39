"""Groups in the real job: each is kept by itself, so what slows, stops or moves one leaves the others alone."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa
import pytest

from tests.conftest import eventually
from tests.e2e.conftest import Install
from tests.e2e.harness import PATIENCE, Installation, Write, Writers
from tests.e2e.many_views import GROUPS, KEPT_BY, TABLES, VIEWS
from tests.e2e.oracle import Oracle
from viewkeeper.config import load_config
from viewkeeper.errors import SourceUnreachable, UsageError
from viewkeeper.job.assembly import assemble
from viewkeeper.job.joining import begin
from viewkeeper.job.moving import settle_groups
from viewkeeper.job.opening import Opening
from viewkeeper.job.run import Groups
from viewkeeper.queue.consumer import MESSAGES
from viewkeeper.warehouse.warehouse import Warehouse

pytestmark = pytest.mark.e2e

SMALL = {
    "a": [
        "CREATE TABLE r (id INTEGER PRIMARY KEY, x INTEGER)",
        "CREATE INDEX r_x ON r (x)",
        "INSERT INTO r VALUES (1, 1), (2, 2), (3, 1)",
    ],
    "b": [
        "CREATE TABLE s (id INTEGER PRIMARY KEY, x INTEGER, y TEXT)",
        "CREATE TABLE u (id INTEGER PRIMARY KEY, y TEXT)",
        "CREATE INDEX s_x ON s (x)",
        "CREATE INDEX s_y ON s (y)",
        "INSERT INTO s VALUES (1, 1, 'p'), (2, 2, 'q')",
        "INSERT INTO u VALUES (1, 'p'), (2, 'q')",
    ],
    "c": [
        "CREATE TABLE t (id INTEGER PRIMARY KEY, y TEXT, price INTEGER)",
        "CREATE INDEX t_y ON t (y)",
        "INSERT INTO t VALUES (1, 'p', 1), (2, 'q', 2)",
    ],
}
R = "SELECT id, x FROM a.r"
S = "SELECT id, x, y FROM b.s"
T = "SELECT id, y, price FROM c.t"
RS = "SELECT r.id AS r, s.id AS s, s.y FROM a.r r JOIN b.s s ON s.x = r.x"
ST = "SELECT s.id AS s, t.id AS t FROM b.s s JOIN c.t t ON t.y = s.y"
COUNTS = "SELECT x, count(*) AS many FROM a.r GROUP BY x"


def writer(statement: str, *values: Any) -> Write:
    """Transactions of a few rows; values are few, so that changes meet."""

    def write(rng: random.Random, db: sqlite3.Connection) -> None:
        for _ in range(rng.randint(1, 3)):
            if rng.random() < 0.4:
                db.execute(f"DELETE FROM {statement.split()[4]} WHERE id = ?", (rng.randint(1, 6),))
            else:
                db.execute(statement, (rng.randint(1, 6), *(rng.choice(choices) for choices in values)))

    return write


WRITES = {
    "a": [writer("INSERT OR REPLACE INTO r VALUES (?, ?)", range(1, 4))],
    "b": [writer("INSERT OR REPLACE INTO s VALUES (?, ?, ?)", range(1, 4), "pq")],
    "c": [writer("INSERT OR REPLACE INTO t VALUES (?, ?, ?)", "pq", range(9))],
}


def grouped(
    install: Install, views: dict[str, str], kept_by: dict[str, Any] | None = None, **settings: Any
) -> Installation:
    world = install(SMALL, views, **settings)
    world.kept_by = kept_by or {}
    world.configure()
    return world


def keep(world: Installation, *reload: str) -> None:
    """The job without its streams: every group takes all that its topics hold in one batch, and folds."""
    config = load_config(world.conf)
    project = assemble(config)
    with Warehouse(config.warehouse).lock():
        settle_groups(project, reload)
        for group in project.groups:
            part = project.part(group)
            mine = [view for view in reload if view in part.views]
            keeper = Opening(part, Warehouse(config.warehouse, group), mine).open()
            rows = [
                {"topic": topic, "offset": m.offset(), "value": m.value(), "timestamp": m.timestamp()[1]}
                for topic in keeper.queue.inlets
                for m in world.broker.messages(topic)
            ]
            keeper.targets = keeper.queue.passed()
            keeper.maintain(pa.Table.from_pylist(rows, MESSAGES))
            keeper.finish()


def check_exact(*oracles: Oracle) -> None:
    for oracle in oracles:
        oracle.check()
        oracle.check_ends_at_sources()


def status(world: Installation) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(world.done("status", "--json").out)
    return state


@contextmanager
def locked(world: Installation, source: str) -> Iterator[None]:
    """Another program holds the database, so that nobody can even read it."""
    with closing(world.connect(source)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        db.execute("BEGIN EXCLUSIVE")
        yield
        db.execute("ROLLBACK")


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


def test_oracle_a_source_that_is_away_at_the_start_holds_back_only_its_groups(install: Install) -> None:
    """Groups that share a source, one of which uses the source that is away; another that shares nothing."""
    world = grouped(install, {"r": R, "rs": RS, "t": T}, groups={"left": ["r"], "both": ["rs"], "right": ["t"]})
    oracles = [Oracle(world, *of) for of in (("left", ["r"]), ("both", ["rs"]), ("right", ["t"]))]
    away = world.database("b").rename(world.folder / "away.db")
    job = world.start("run")
    world.await_cut(-1, job, "left")
    world.await_cut(-1, job, "right")
    eventually(lambda: status(world)["groups"]["both"]["trouble"], PATIENCE, "a group waits")
    told = status(world)["groups"]
    assert "b.db" in told["both"]["waiting"] and told["both"]["running"] and told["both"]["cut"] is None
    assert not told["left"]["trouble"] and not told["right"]["trouble"]
    world.write("a", "INSERT INTO r VALUES (4, 2)")  # in the log of a source that one of them reads, and one will
    away.rename(world.database("b"))
    world.await_cut(-1, job, "both")
    with world.capturing():
        for source, change in {"a": "r SET x = 3 - x", "b": "s SET x = 3 - x", "c": "t SET price = 7"}.items():
            world.write(source, f"UPDATE {change} WHERE id < 3")
        for group in ("left", "both", "right"):
            world.await_position(job, group)
        assert job.terminate().code == 0
    check_exact(*oracles)


def test_a_job_that_waits_for_a_source_is_stopped_at_once(install: Install) -> None:
    world = grouped(install, {"r": R, "rs": RS})
    world.database("b").rename(world.folder / "away.db")
    job = world.start("run")
    eventually(lambda: "trying again" in job.err.read_text() or not job.alive, PATIENCE, "it waits")
    ended = job.terminate()
    assert (ended.code, ended.errors) == (0, []), ended.err
    assert not status(world)["groups"]["all"]["running"]


def test_a_group_whose_source_does_not_come_ends_alone(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    world = grouped(install, {"r": R, "s": S, "rs": RS}, groups={"left": ["r"], "right": ["s"], "both": ["rs"]})
    world.done("init")
    config = load_config(world.conf)
    world.database("b").rename(world.folder / "away.db")
    with Warehouse(config.warehouse).lock(), pytest.raises(SourceUnreachable) as caught:
        Groups(begin(config, threading.Event()), until_idle=True, stop=threading.Event(), patience=1.0).run()
    assert caught.value.exit_code == 3
    assert [problem.place for problem in caught.value.problems] == ["source b", "source b"]
    stopped = {record.args[0] for record in caplog.records if "other groups go on" in record.msg and record.args}
    assert stopped == {"right", "both"}
    told = status(world)["groups"]
    assert told["left"]["heartbeat"] and told["left"]["error"] is None
    assert all("there is no database" in told[group]["error"] for group in stopped)


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
            assert all(f"views {view} at cut" in ended.err for view in "rst"), "every group tells of itself"
            eventually(job.leaves_nothing, PATIENCE, "what the job started has ended")
            assert not any(told["running"] for told in status(world)["groups"].values())


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
