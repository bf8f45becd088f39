"""Every algorithm in the real job: one run, one view an algorithm, each judged on the stored warehouse."""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import SharedBroker
from tests.e2e.conftest import Install
from tests.e2e.harness import PATIENCE, Installation, Write, Writers
from tests.e2e.test_lost_history import opened
from viewkeeper import cli
from viewkeeper.algorithms.registry import ALGORITHMS
from viewkeeper.config import load_config
from viewkeeper.consistency.levels import Level
from viewkeeper.job.assembly import keeping_of
from viewkeeper.queue import consumer

pytestmark = pytest.mark.e2e

TABLES = {
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
        "INSERT INTO s VALUES (1, 1, 'p'), (2, 2, 'q'), (3, 3, 'p')",
        "INSERT INTO u VALUES (1, 'p'), (2, 'q')",
    ],
    "c": [
        "CREATE TABLE t (id INTEGER PRIMARY KEY, y TEXT, price DECIMAL(8,2))",
        "CREATE INDEX t_y ON t (y)",
        "INSERT INTO t VALUES (1, 'p', 1.50), (2, 'q', 2)",
    ],
}

CHAIN = (
    "SELECT r.id AS r, s.id AS s, t.id AS t, r.x, t.price FROM a.r r JOIN b.s s ON s.x = r.x "
    "JOIN c.t t ON t.y = s.y WHERE t.price > 0.5"
)
ONE_SOURCE = "SELECT s.id AS s, u.id AS u, s.x FROM b.s s JOIN b.u u ON u.y = s.y"

OPTIONS: dict[str, dict[str, Any]] = {
    "refresh": {"every": 5},
    "complete_n": {"complete_n": 4},
    "sweep_sequential": {"parallel": True, "pipeline": 3},
}
VIEWS = {name: ONE_SOURCE if name == "eca" else CHAIN for name in ALGORITHMS}
KEPT_BY = {name: {"algorithm": name, **OPTIONS.get(name, {})} for name in VIEWS}


def writer(*tables: str) -> Write:
    """Transactions of a few rows over these tables: values are few, so that changes meet."""
    values = {
        "r": lambda rng: (rng.randint(1, 3),),
        "s": lambda rng: (rng.randint(1, 3), rng.choice("pq")),
        "t": lambda rng: (rng.choice("pq"), rng.choice(("0.50", "0.75", "3.00"))),
        "u": lambda rng: (rng.choice("pq"),),
    }

    def write(rng: random.Random, db: sqlite3.Connection) -> None:
        for _ in range(rng.randint(1, 3)):
            table, key = rng.choice(tables), rng.randint(1, 6)
            if rng.random() < 0.4:
                db.execute(f"DELETE FROM {table} WHERE id = ?", (key,))
            else:
                row = (key, *values[table](rng))
                db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    return write


WRITES: dict[str, list[Write]] = {"a": [writer("r")], "b": [writer("s", "u")], "c": [writer("t")]}


@pytest.fixture(scope="module")
def world(broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """All algorithms after a few batches under concurrent writers, and the real job until idle."""
    world = Installation(tmp_path_factory.mktemp("algorithms"), broker, TABLES, dict(VIEWS), kept_by=KEPT_BY)
    try:
        world.done("init")
        with world.capturing():
            with Writers(world, seed=12, writes=WRITES, pause=0.4) as writers:
                keep_a_while(world)
                writers.wait_for(6)
            world.done("run", "--until-idle")
        yield world
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *(f"{name}:\n{text}" for name, text in world.logs())])) from error
    finally:
        world.end()


def keep_a_while(world: Installation) -> None:
    """The job without its stream, for a few batches; like the job, it waits for messages enough to refresh."""
    with opened(world) as keeper:
        offsets = {inlet.topic: inlet.offset for inlet in keeper.queue.inlets.values()}
        deadline = time.monotonic() + PATIENCE
        while keeper.batches < 4:
            assert time.monotonic() < deadline, "updates arrive"
            messages = consumer.read(world.broker.client(), offsets, seconds=0.2)
            for topic, offset in zip(messages["topic"].to_pylist(), messages["offset"].to_pylist(), strict=True):
                offsets[topic] = max(offsets[topic], offset + 1)
            keeper.maintain(messages)


@pytest.mark.parametrize("view", [name for name in VIEWS if ALGORITHMS[name].promise])
def test_an_algorithm_reaches_its_level_on_the_stored_warehouse(
    world: Installation, view: str, capsys: pytest.CaptureFixture[str]
) -> None:
    level = keeping_of(load_config(world.conf).views[view]).level
    text = f"complete-{OPTIONS[view]['complete_n']}" if level is Level.COMPLETE_N else str(level)
    code = cli.main(["verify", str(world.conf), view, "--level", text])
    said = capsys.readouterr()
    assert code == 0, f"{said.out}{said.err}"
    assert f"{view}: {text} from update 0 to {world.cut().last_update}" in said.out


def test_cuts_and_status_tell_what_is_promised(world: Installation) -> None:
    assert {cut.level for cut in world.reader().cuts(0, world.cut().cut)} == {str(Level.CONVERGENT)}
    views = json.loads(world.done("status", "--json").out)["views"]
    assert {name: view["algorithm"] for name, view in views.items()} == {name: name for name in VIEWS}
    assert [views[name]["level"] for name in ("sweep", "complete_n", "t_strobe", "strobe", "convergent")] == [
        "complete",
        "complete-N",
        "strong",
        "convergent",
        "inconsistent",
    ]
    shown = {line.split()[0]: line for line in world.done("status").out.splitlines() if line.split()}
    assert "exact, strong" in shown["t_strobe"] and "none" in shown["convergent"]


def test_a_refreshed_view_holds_cuts_back(world: Installation) -> None:
    """The first cuts waited for five messages, and stand where every fourth update is shown."""
    cuts = world.reader().cuts(0, world.cut().cut)
    updates = [after.last_update - before.last_update for before, after in itertools.pairwise(cuts)]
    assert all(many >= 4 for many in updates[:4]) and updates[-1] == 0, updates
    assert all(cut.last_update % 4 == 0 for cut in cuts[:5])


def test_views_may_change_their_algorithm_but_leave_the_conventional_one_only_by_a_load(install: Install) -> None:
    world = install(TABLES, dict.fromkeys(("one", "two"), CHAIN), groups={"alone": ["two"]})
    world.kept_by = {"one": {"algorithm": "t_strobe"}, "two": {"algorithm": "convergent"}}
    world.configure()
    world.done("init")
    world.write("a", "INSERT INTO r VALUES (4, 2)")
    world.deliver()
    world.done("run", "--until-idle")
    world.kept_by = {"one": {"algorithm": "complete_n", "complete_n": 2}}
    world.configure()
    for _ in range(2):
        refused = world.run("init")
        assert refused.code == 2
        (error,) = refused.errors
        assert error.startswith(f"viewkeeper: {world.conf}: views.two.algorithm: was convergent since the load")
        assert error.endswith(f"; load it again with 'viewkeeper init {world.conf} --reload two'")
    world.done("init", "--reload", "two")
    world.write("a", "DELETE FROM r WHERE id = 1")
    world.write("c", "INSERT INTO t VALUES (7, 'p', 9)", "DELETE FROM t WHERE id = 2")
    world.deliver()
    with opened(world) as keeper:
        offsets = {inlet.topic: inlet.offset for inlet in keeper.queue.inlets.values()}
        assert keeper.maintain(consumer.read(world.broker.client(), offsets, seconds=1.0))
        assert keeper.cut.last_update == 2 and len(keeper.rounds.pending) == 1, "the third update waits for a fourth"
        assert keeper.cut.level == "complete-N"
        assert not keeper.release()
        keeper.targets = keeper.queue.passed()
        assert keeper.release() and not keeper.release(), "what was held back is handled when it is time, and once"
    assert cli.main(["verify", str(world.conf)]) == 0


def test_check_and_explain_tell_of_the_algorithm(install: Install) -> None:
    world = install(TABLES, {"v": CHAIN, "w": "SELECT r.x, s.y FROM a.r r JOIN b.s s ON r.x = s.x"})
    world.kept_by = {"v": {"algorithm": "strobe"}, "w": {"algorithm": "refresh", "every": "1h"}}
    world.configure()
    said = world.done("check").out
    assert "kept by strobe (convergent)" in said and "strobe may show the middle of a transaction" in said
    explained = world.done("explain", "v").out
    assert "from      strobe-1996, Algorithm 1" in explained and "promises  convergent:" in explained
    assert "assumes   the view shows the key of every relation" in explained
    assert "asks b for b.s\n" in explained
    assert "is computed anew, as a load is, every 3600 s" in world.done("explain", "w").out

    world.kept_by = {"v": {"algorithm": "eca"}, "w": {"algorithm": "t_strobe"}}
    world.configure()
    refused = world.run("check")
    assert refused.code == 2
    place = f"viewkeeper: {world.conf}: views"
    assert refused.errors == [
        f"{place}.v.algorithm: eca cannot keep the view: its relations are in 3 sources (a, b, c); "
        "choose an algorithm for several sources, such as sweep",
        f"{place}.w.algorithm: t_strobe cannot keep the view: it does not show r.id and s.id, part of a key; "
        "add r.id, s.id to the SELECT list",
    ]
