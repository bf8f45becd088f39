"""Sources that are away when the job starts: what is known all the same, and what changes when they come."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import eventually
from viewkeeper.algebra.types import INTEGER, Column, Relation
from viewkeeper.config import Config, load_config
from viewkeeper.errors import SourceError, SourceUnreachable, UsageError, ViewError
from viewkeeper.job.assembly import Project, assemble, make_capture
from viewkeeper.job.joining import begin, join
from viewkeeper.job.looking import look
from viewkeeper.job.moving import refuse_other_histories, settle_groups
from viewkeeper.job.named_relations import relations_named
from viewkeeper.job.patience import Stopped
from viewkeeper.warehouse.cuts import WarehouseTransaction
from viewkeeper.warehouse.warehouse import Warehouse

TABLES = {
    "a": ["CREATE TABLE r (id INTEGER PRIMARY KEY, x INTEGER, y TEXT)", "CREATE TABLE q (id INTEGER PRIMARY KEY)"],
    "b": ["CREATE TABLE s (id INTEGER PRIMARY KEY, x INTEGER)"],
    "c": ["CREATE TABLE t (id INTEGER PRIMARY KEY, x INTEGER)"],
    "d": ["CREATE TABLE u (id INTEGER PRIMARY KEY, x INTEGER)"],
}
RS = "SELECT r.id, r.y, s.id AS s FROM a.r JOIN b.s ON s.x = r.x"
VIEWS: dict[str, Any] = {
    "r": "SELECT id, x FROM a.r",
    "rs": RS,
    "loose": {"sql": RS, "algorithm": "convergent"},
    "t": "SELECT id FROM C.T WHERE x > 1",
    "counts": {
        "sql": "WITH n AS (SELECT x, count(*) AS n FROM c.t GROUP BY x) "
        "SELECT n.n FROM n WHERE n.x IN (SELECT x FROM d.u)",
        "algorithm": "refresh",
    },
    "u": "SELECT id FROM d.u",
}


@dataclass
class Place:
    """Databases, each of which may be taken away, and a configuration of views over them."""

    folder: Path

    def configure(self, views: Mapping[str, Any] = VIEWS, **settings: Any) -> Config:
        conf = {
            "kafka": {"bootstrap": "127.0.0.1:1"},
            "warehouse": "warehouse",
            "sources": {source: {"kind": "sqlite", "path": f"{source}.db"} for source in TABLES},
            "views": {name: {"sql": view} if isinstance(view, str) else view for name, view in views.items()},
            **settings,
        }
        (self.folder / "conf.yaml").write_text(json.dumps(conf))
        return load_config(self.folder / "conf.yaml")

    def write(self, source: str, *statements: str) -> None:
        with closing(sqlite3.connect(self.folder / f"{source}.db")) as db:
            for statement in statements:
                db.execute(statement)
            db.commit()

    def take_away(self, *sources: str) -> None:
        for source in sources:
            (self.folder / f"{source}.db").rename(self.folder / f"{source}.away")

    def bring_back(self, *sources: str) -> None:
        for source in sources:
            (self.folder / f"{source}.away").rename(self.folder / f"{source}.db")

    def cut(self, group: str, views: Sequence[str], **positions: str) -> None:
        """The first cut of a group."""
        warehouse = Warehouse(self.folder / "warehouse", group)
        warehouse.open()
        schema = assemble(load_config(self.folder / "conf.yaml")).views
        for view in views:
            warehouse.load(view, schema[view].schema, schema[view].sql, [], 0)
        warehouse.commit(WarehouseTransaction(0, positions, dict.fromkeys(positions, 0), "complete", views=views))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    for source, statements in TABLES.items():
        made.write(source, *statements)
    return made


def begun(config: Config) -> Project:
    return begin(config, threading.Event())


def joined(project: Project, group: str) -> Project:
    return join(project, group, threading.Event(), patience=0.0)


# ---- what a view's text tells


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        (RS, {("a", "r"), ("b", "s")}),
        (VIEWS["counts"]["sql"], {("c", "t"), ("d", "u")}),
        ("SELECT 1 AS one FROM A.R, b.\"s\" WHERE x = 'FROM c.t' -- FROM d.u", {("a", "R"), ("b", "s")}),
        ("WITH b AS (SELECT id FROM a.r) SELECT id FROM b UNION SELECT id FROM b.s", {("a", "r"), ("b", "s")}),
        ("SELECT id FROM a.r WHERE EXISTS (SELECT 1 FROM b.s WHERE x = (SELECT max(x) FROM c.t))",
         {("a", "r"), ("b", "s"), ("c", "t")}),
        ("SELECT user.id FROM a.r AS user", {("a", "r")}),  # a name that DuckDB keeps for itself
        ("SELECT id FROM a.r WHERE y = X'00ff'", {("a", "r")}),
        ("SELECT id FROM elsewhere.r JOIN a.r USING (id)", {("a", "r")}),
        ("SELECT FROM WHERE (", set()),
        ("", set()),
    ],
)  # fmt: skip
def test_a_statement_names_its_relations_in_subqueries_and_ctes_too(sql: str, named: set[tuple[str, str]]) -> None:
    assert relations_named(sql, TABLES) == named


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"groups": "auto"},
        {"groups": "auto", "global_txn": [["b", "c"]]},
        {"groups": {"left": ["r", "t"], "right": ["rs", "u"], "own": ["loose"]}},
    ],
)
def test_agree_the_split_is_the_same_whatever_is_away(place: Place, settings: dict[str, Any]) -> None:
    config = place.configure(**settings)
    whole = assemble(config)
    for away in ((), ("a",), ("b",), ("c", "d"), ("a", "b", "c", "d")):
        place.take_away(*away)
        project = begun(config)
        place.bring_back(*away)
        assert (project.groups, project.sources_of) == (whole.groups, whole.sources_of), away
        assert project.views == {n: v for n, v in whole.views.items() if v.sources.isdisjoint(away)}, away
        assert list(project.sources) == [name for name in whole.sources if name not in away]
        for group, views in whole.groups.items():
            assert project.understands(group) == all(view in project.views for view in views)
            part = project.part(group) if project.understands(group) else joined(project, group)
            wanted = whole.part(group)
            assert (part.views, part.group, part.used("a")) == (wanted.views, group, wanted.used("a"))
            assert part.sources.keys() == wanted.sources.keys() == part.captures.keys()
            assert all(part.catalog[name] == whole.catalog[name] for v in part.views.values() for name in v.relations)


def test_a_source_that_no_view_uses_may_be_away(place: Place) -> None:
    config = place.configure({"r": VIEWS["r"]})
    place.take_away("b")
    assert begun(config).understands("all")


def test_all_views_that_can_be_judged_are_judged_at_the_start(place: Place) -> None:
    wrong = {"one": "SELECT nothing FROM a.r", "two": "SELECT FROM", "late": "SELECT nothing FROM b.s"}
    config = place.configure(VIEWS | wrong, groups="auto")
    place.take_away("b")
    with pytest.raises(ViewError) as caught:
        begun(config)
    assert {problem.place.rpartition(": ")[2] for problem in caught.value.problems} == {
        "views.one.sql",
        "views.two.sql",
    }
    config = place.configure(VIEWS | {"late": wrong["late"]}, groups="auto")
    project = begun(config)
    place.bring_back("b")
    with pytest.raises(ViewError, match=r"views\.late\.sql"):
        joined(project, project.group_of("late"))


# ---- looking


@dataclass
class Described:
    """A source as far as looking at it goes."""

    name: str
    describe: Callable[[], Any]


def test_sources_are_looked_at_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=30)
    table = Relation("x", "r", (Column("id", INTEGER),))

    def there() -> dict[str, Relation]:
        meeting.wait()
        return {"r": table}

    def away() -> dict[str, Relation]:
        meeting.wait()
        raise SourceUnreachable.at("source y", "is away")

    def broken() -> dict[str, Relation]:
        meeting.wait()
        raise SourceError.at("source z", "is no database")

    sources: list[Any] = [Described("x", there), Described("y", away), Described("z", broken)]
    looked = look(sources, threading.Event())
    assert looked.catalog == {("x", "r"): table} and list(looked.away) == ["y", "z"]
    with pytest.raises(SourceError, match="is no database"):  # waiting is no help
        looked.complete()


def test_a_source_that_does_not_answer_holds_up_neither_the_others_nor_a_stop() -> None:
    never, stop = threading.Event(), threading.Event()
    sources: list[Any] = [Described("x", dict), Described("y", never.wait)]
    looked = look(sources, stop, seconds=0.1)
    assert list(looked.away) == ["y"]
    with pytest.raises(SourceUnreachable, match="source y: has not answered yet"):
        looked.complete()
    stopping = threading.Timer(0.1, stop.set)
    stopping.start()
    before = time.monotonic()
    with pytest.raises(Stopped):
        look(sources, stop)
    assert time.monotonic() - before < 5
    never.set()


def test_what_is_no_error_of_a_source_is_raised() -> None:
    sources: list[Any] = [Described("x", lambda: {}["r"])]
    with pytest.raises(KeyError):
        look(sources, threading.Event())


# ---- joining


def test_a_group_joins_when_its_source_comes_and_tells_what_it_waits_for(place: Place) -> None:
    config = place.configure(groups="auto")
    place.take_away("b")
    project, told, parts = begun(config), [], []
    stop = threading.Event()
    thread = threading.Thread(target=lambda: parts.append(join(project, "a", stop, told.append, 30)))
    thread.start()
    eventually(lambda: told, 30, "it waits")
    place.bring_back("b")
    thread.join(30)
    assert parts[0].views.keys() == {"r", "rs"}
    assert "there is no database" in str(told[0]) and told[-1] is None


def test_a_group_that_waits_gives_up_or_is_stopped(place: Place) -> None:
    config = place.configure(groups="auto")
    place.take_away("b")
    project, stop = begun(config), threading.Event()
    with pytest.raises(SourceUnreachable, match="source b: there is no database"):
        joined(project, "a")
    stop.set()
    with pytest.raises(Stopped):
        join(project, "a", stop)


def test_a_table_altered_while_its_group_waited_is_noticed(place: Place) -> None:
    config = place.configure(groups="auto")
    place.take_away("b")
    project = begun(config)
    place.bring_back("b")
    place.write("a", "ALTER TABLE r ADD COLUMN z INTEGER")
    with pytest.raises(SourceError, match="source a: table r was altered while the job waited"):
        joined(project, "a")


# ---- what is captured


def captured(config: Config, source: str) -> dict[str, list[str]]:
    return make_capture(config, source).captured()


def test_what_a_waiting_view_may_use_stays_captured(place: Place) -> None:
    views, groups = {"r": VIEWS["r"], "rs": RS}, {"left": ["r"], "right": ["rs"]}
    config = place.configure(views | {"q": "SELECT id FROM a.q"}, groups=groups)
    assemble(config).understood.install(make_capture(config, "a"))
    assert captured(config, "a") == {"q": ["id"], "r": ["id", "x", "y"]}
    since = make_capture(config, "a").since()

    config = place.configure(views, groups=groups)
    place.take_away("b")
    project = begun(config)
    left = project.part("left")
    left.understood.install(left.captures["a"])
    assert captured(config, "a") == {"r": ["id", "x", "y"]}, "y is for rs alone; nobody names q any more"
    assert make_capture(config, "a").since() == {"r": since["r"]}, "without a gap"

    place.bring_back("b")
    place.write("b", "ALTER TABLE s ADD COLUMN w TEXT")
    right = joined(project, "right")
    for part in (right, left):  # in whatever order
        part.understood.install(part.captures["a"])
        assert captured(config, "a") == {"r": ["id", "x", "y"]}
    assert make_capture(config, "a").since() == {"r": since["r"]}


def test_what_only_a_waiting_view_uses_is_captured_once_it_is_understood(place: Place) -> None:
    late = "SELECT r.id, q.id AS q, s.id AS s FROM a.R r JOIN a.q ON q.id = r.id JOIN b.s ON s.x = r.x"
    config = place.configure({"r": VIEWS["r"], "late": late}, groups={"left": ["r"], "right": ["late"]})
    place.take_away("b")
    project = begun(config)
    left = project.part("left")
    left.understood.install(left.captures["a"])
    assert captured(config, "a") == {"r": ["id", "x"]}
    place.bring_back("b")
    right = joined(project, "right")
    right.understood.install(right.captures["a"])
    assert captured(config, "a") == {"q": ["id"], "r": ["id", "x"]}


# ---- groups that share a source


def test_a_group_that_waited_and_starts_afresh_takes_no_source_that_others_cannot_go_on_with(place: Place) -> None:
    """Loaded from an older copy of the database, it would lift the positions there past those of the other's cut."""
    config = place.configure({"r": VIEWS["r"], "rs": RS}, groups={"left": ["r"], "right": ["rs"]})
    whole = assemble(config)
    whole.understood.install(make_capture(config, "a"))
    place.write("a", "INSERT INTO r VALUES (1, 1, 'p'), (2, 1, 'q')")
    place.cut("left", ["r"], a=whole.sources["a"].last_change())

    place.take_away("b")
    project = begun(config)
    settle_groups(project)
    place.bring_back("b")
    joined(project, "right")
    make_capture(config, "a").remove()
    place.write("a", "DELETE FROM sqlite_sequence")
    project.understood.install(make_capture(config, "a"))
    with pytest.raises(UsageError, match=r"source a: group left: .*load all of these together"):
        joined(project, "right")
    with pytest.raises(UsageError, match="group left"):
        settle_groups(project)  # a is there: at the start it is seen too
    place.take_away("a")
    refuse_other_histories(begun(config), "right")  # who cannot start cannot do harm


def test_views_leave_a_group_whose_source_is_away(place: Place) -> None:
    config = place.configure({"rs": RS, "r": VIEWS["r"], "t": VIEWS["t"]})
    place.cut("all", ["rs", "r", "t"], a="1", b="2", c="3")
    config = place.configure({"rs": RS})
    place.take_away("b")
    settle_groups(begun(config))
    cut = Warehouse(config.warehouse, "all").newest()
    assert cut is not None and cut.versions.keys() == {"rs"} and cut.positions == {"a": "1", "b": "2"}
    assert cut.offsets.keys() == {"a", "b"}
