"""The demo's parts, as far as they need no broker."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from viewkeeper.config import load_config
from viewkeeper.errors import UsageError
from viewkeeper.job.assembly import assemble
from viewkeeper.local import postgres
from viewkeeper.local.demo.difference import difference
from viewkeeper.local.demo.folder import MARKER, DemoFolder
from viewkeeper.local.demo.follower import FollowedView
from viewkeeper.local.demo.postgres_world import PostgresWorld
from viewkeeper.local.demo.sample import configuration
from viewkeeper.local.demo.sqlite_world import SqliteSession, SqliteWorld, sections
from viewkeeper.local.demo.transactions import BODIES
from viewkeeper.local.demo.window import Window

CONF = Path(__file__).parents[2] / "conf" / "demo.yaml"


def test_the_configuration_in_conf_is_the_one_the_demo_writes() -> None:
    assert CONF.read_text(encoding="utf-8") == configuration("127.0.0.1:19092", sections("../demo"), folder="../demo")


def test_the_demos_views_are_understood_and_every_join_has_an_index(tmp_path: Path) -> None:
    folder = DemoFolder(tmp_path / "demo")
    folder.make()
    world = SqliteWorld(folder)
    world.create()
    folder.write_config(world.configuration("127.0.0.1:1"))
    project = assemble(load_config(folder.config))
    assert list(project.views) == ["order_overview", "customer_orders"]
    for view in project.views.values():
        assert world.recompute(view.sql).total() > 1_000
    with closing(sqlite3.connect(world.databases["shop"])) as db:
        indexes = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'index'")}
    assert {"orders_of_customer", "lines_of_product"} <= indexes


def test_every_transaction_of_the_writer_does_what_it_says(tmp_path: Path) -> None:
    world = SqliteWorld(DemoFolder(tmp_path))
    world.create()
    for source, bodies in BODIES.items():
        with closing(sqlite3.connect(world.databases[source], isolation_level=None)) as db:
            db.execute("PRAGMA foreign_keys = on")
            session = SqliteSession(db)
            for body, _ in bodies:
                for seed in range(20):
                    session.begin()
                    before = db.total_changes
                    words = body(session, random.Random(seed))
                    assert (words is not None) == (db.total_changes > before), (body, seed)
                    db.execute("ROLLBACK" if seed % 2 else "COMMIT")


def test_where_there_is_no_postgresql_the_demo_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "installed", dict)
    with pytest.raises(UsageError, match=r"there is no PostgreSQL 15 to 18 on this machine; install one: "):
        PostgresWorld(DemoFolder(tmp_path)).create()


def test_an_earlier_demo_makes_room_for_the_next(tmp_path: Path) -> None:
    folder = DemoFolder(tmp_path / "demo")
    folder.make()
    (folder.root / "old").write_text("")
    folder.make()
    assert not (folder.root / "old").exists() and (folder.root / MARKER).exists()


@pytest.mark.parametrize("what", ["folder", "file", "link"])
def test_what_no_demo_made_is_left_alone(tmp_path: Path, what: str) -> None:
    target, mine = tmp_path / "demo", tmp_path / "mine"
    mine.mkdir()
    (mine / "precious").write_text("kept")
    if what == "folder":
        mine.rename(target)
    elif what == "file":
        target.write_text("kept")
    else:
        target.symlink_to(mine)
    with pytest.raises(UsageError, match=f"{target}: .*; choose another"):
        DemoFolder(target).make()
    assert "kept" in (target if what == "file" else target / "precious").read_text()


def test_a_follower_counts_only_what_is_sealed() -> None:
    view = FollowedView("v", "view.v", ("a",), Counter({(1,): 1}), rows=1)
    changes = b'[{"row":{"a":1},"count":-1},{"row":{"a":2},"count":2}]'
    change = b'{"view":"v","update":1,"source":"s","txn":"1","changes":%b}' % changes
    assert view.receive(change, 0.0) is None
    assert view.bag == {(1,): 1}
    sealed = view.receive(b'{"view":"v","sealed":1,"last_update":1,"positions":{"s":"7"}}', 3.5)
    assert sealed is not None and sealed.positions == {"s": 7} and sealed.at == 3.5
    assert view.bag == {(2,): 2} and view.rows == 2


def test_a_difference_is_signed_and_holds_no_zeros() -> None:
    one, other = Counter({(1,): 2, (2,): 1}), Counter({(1,): 2, (3,): 1})
    assert dict(difference(one, other)) == {(2,): 1, (3,): -1}


def test_the_window_tells_new_changed_and_gone_rows_apart() -> None:
    def row(order: int, city: str = "Porto", customer: int = 1) -> dict[str, object]:
        return {"order_id": order, "line": 1, "customer_id": customer, "city": city}

    window = Window(1, [row(1), row(2), row(3), row(9, customer=2)])
    window.apply([(row(4), 1), (row(2, "Cork"), 1), (row(2), -1), (row(1), -1), (row(9, "Cork", customer=2), 1)])
    shown = [(s.row["order_id"], s.row["city"], s.fate, set(s.columns)) for s in window.newest(10)]
    assert shown == [
        (4, "Porto", "new", set()),
        (3, "Porto", None, set()),
        (2, "Cork", "changed", {"city"}),
        (1, "Porto", "gone", set()),
    ]
