"""Sources that are away when the job starts: what is known all the same, and what changes when they come."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import eventually
from viewkeeper.config import Config
from viewkeeper.errors import SourceError, SourceUnreachable, UsageError, ViewError
from viewkeeper.job.assembly import assemble, make_capture
from viewkeeper.job.joining import join
from viewkeeper.job.moving import refuse_other_histories, settle_groups
from viewkeeper.job.named_relations import relations_named
from viewkeeper.job.patience import Stopped
from viewkeeper.managers.sources.sqlite import SqliteSource
from viewkeeper.warehouse.warehouse import Warehouse

from .away_worlds import RS, TABLES, VIEWS, Place, begun, joined


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.made(tmp_path)


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


def test_a_view_that_cannot_be_understood_holds_back_only_its_group(place: Place) -> None:
    right = {"one": "SELECT id FROM a.r", "other": "SELECT id FROM d.u"}
    whole = begun(place.configure(right, groups="auto"))
    project = begun(place.configure(right | {"one": "SELECT nothing FROM a.r"}, groups="auto"))
    assert project.groups == whole.groups and project.refused.keys() == {"one"}
    assert project.understands(project.group_of("other")) and not project.understands(project.group_of("one"))
    with pytest.raises(ViewError, match=r"views\.one\.sql"):
        joined(project, project.group_of("one"))
    for lost in ("SELECT id FROM a.r WHERE (", "SELECT id FROM nowhere.r"):  # nobody knows where it belongs
        with pytest.raises(ViewError, match=r"views\.one\.sql"):
            begun(place.configure(right | {"one": lost}, groups="auto"))


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


def test_an_index_made_while_its_group_waited_is_no_alteration(place: Place) -> None:
    config = place.configure(groups="auto")
    place.take_away("b")
    project = begun(config)
    place.bring_back("b")
    place.write("a", "CREATE INDEX r_x ON r (x)")
    assert joined(project, "a").views.keys() == {"r", "rs"}
    place.write("a", "DROP INDEX r_x", "CREATE UNIQUE INDEX r_y ON r (y)")
    part = joined(project, "a")
    part.understood.install(part.captures["a"])  # it knows of all unique keys: they are for capture to mind
    place.write("a", "DROP TABLE r")
    with pytest.raises(SourceError, match="source a: table r was altered"):
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


@pytest.mark.parametrize("lost", [False, True])
def test_a_group_joins_while_another_that_shares_its_source_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """Between the look at the other's newest cut and the question for its log, that group cuts, and capture prunes."""
    config = place.configure({"r": VIEWS["r"], "rs": RS}, groups={"left": ["r"], "right": ["rs"]})
    whole, capture = assemble(config), make_capture(config, "a")
    whole.understood.install(capture)
    place.write("a", "INSERT INTO r VALUES (1, 1, 'p')")
    place.cut("left", ["r"], a=whole.sources["a"].last_change())
    place.take_away("b")
    project = begun(config)
    settle_groups(project)
    place.bring_back("b")
    asked, require = [], SqliteSource.require

    def at_work(source: SqliteSource, position: str) -> None:
        asked.append(position)
        if len(asked) < 3:
            place.write("a", f"INSERT INTO r VALUES ({len(asked) + 1}, 1, 'q')")
            later = whole.sources["a"].last_change()
            place.cut("left", ["r"], a=later)
            capture.prune(int(later))
        elif lost:
            capture.remove()
        require(source, position)

    monkeypatch.setattr(SqliteSource, "require", at_work)
    if lost:
        with pytest.raises(UsageError, match=r"group left: .*load all of these together"):
            joined(project, "right")
    else:
        assert joined(project, "right").views.keys() == {"rs"}
    assert asked == sorted(set(asked), key=int) and len(asked) == 3


def test_views_leave_a_group_whose_source_is_away(place: Place) -> None:
    config = place.configure({"rs": RS, "r": VIEWS["r"], "t": VIEWS["t"]})
    place.cut("all", ["rs", "r", "t"], a="1", b="2", c="3")
    config = place.configure({"rs": RS})
    place.take_away("b")
    settle_groups(begun(config))
    cut = Warehouse(config.warehouse, "all").newest()
    assert cut is not None and cut.versions.keys() == {"rs"} and cut.positions == {"a": "1", "b": "2"}
    assert cut.offsets.keys() == {"a", "b"}
