"""One capture of several sources: none of them waits for another, and none ends with another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from tests.conftest import eventually
from tests.e2e.conftest import Install
from tests.e2e.harness import PATIENCE, Installation, Running
from viewkeeper.capture.side_by_side import SideBySide
from viewkeeper.commands import capture_attendance
from viewkeeper.config import load_config
from viewkeeper.errors import SourceUnreachable

pytestmark = pytest.mark.e2e

TABLES = {
    "a": ["CREATE TABLE r (id INTEGER PRIMARY KEY, x INTEGER)", "CREATE TABLE q (id INTEGER PRIMARY KEY, x INTEGER)"],
    "b": ["CREATE TABLE s (id INTEGER PRIMARY KEY, x INTEGER)"],
}
VIEWS = {"r": "SELECT id, x FROM a.r", "qs": "SELECT q.id, s.id AS s FROM a.q JOIN b.s ON s.x = q.x"}


@pytest.fixture
def world(install: Install) -> Installation:
    """Both sources' capture is in place."""
    made: Installation = install(TABLES, VIEWS)
    made.configure()
    with made.capturing():
        pass
    return made


def take_away(world: Installation, source: str) -> Path:
    return world.database(source).rename(world.folder / f"{source}.away")


def told(world: Installation, source: str) -> list[tuple[str, int]]:
    """The rows that the topic tells as new, in order."""
    changes = [change for _, message in world.messages(source) for change in message["changes"]]
    return [(change["relation"], change["after"]["id"]) for change in changes]


def await_told(world: Installation, source: str, rows: list[tuple[str, int]]) -> None:
    eventually(lambda: told(world, source) == rows, PATIENCE, f"{source} tells {rows}")


def await_said(capture: Running, what: str) -> None:
    eventually(lambda: what in capture.err.read_text() or not capture.alive, PATIENCE, what)
    assert capture.alive, capture.err.read_text()


# ---- sources that are away


def test_a_source_that_is_away_holds_up_no_other_and_is_captured_once_it_comes(world: Installation) -> None:
    """A view waits for it; what the other source logs for that view stays logged."""
    away = take_away(world, "b")
    with world.capturing() as capture:
        world.write("a", "INSERT INTO r VALUES (1, 1)", "INSERT INTO q VALUES (2, 1)")
        await_told(world, "a", [("r", 1), ("q", 2)])
        await_said(capture, "source b: there is no database")
        away.rename(world.database("b"))
        world.write("b", "INSERT INTO s VALUES (3, 1)")
        await_told(world, "b", [("s", 3)])
        world.write("a", "INSERT INTO q VALUES (4, 1)")
        await_told(world, "a", [("r", 1), ("q", 2), ("q", 4)])
    assert capture.out.read_text().splitlines() == ["capturing a; Ctrl-C ends it", "capturing b; Ctrl-C ends it"]


def test_a_source_that_was_not_asked_for_may_be_away(world: Installation) -> None:
    take_away(world, "b")
    capture = world.start("capture", "a")
    world.write("a", "INSERT INTO q VALUES (1, 1)")
    await_told(world, "a", [("q", 1)])
    ended = capture.terminate()
    assert (ended.code, ended.err) == (0, "")


def test_a_source_that_comes_for_the_first_time_gets_its_capture(install: Install) -> None:
    world: Installation = install(TABLES, VIEWS)
    world.configure()
    away = take_away(world, "b")
    with world.capturing() as capture:
        away.rename(world.database("b"))
        eventually(lambda: "capturing b" in capture.out.read_text(), PATIENCE, "b is captured")
        world.write("b", "INSERT INTO s VALUES (1, 1)")
        await_told(world, "b", [("s", 1)])
    assert "b: created triggers and change log for s" in capture.out.read_text()


def test_a_source_none_of_whose_views_is_understood_begins_once_one_is(install: Install) -> None:
    """Nobody can say yet what it is to log, and it logs nothing."""
    world: Installation = install(TABLES, {"qs": VIEWS["qs"]})
    world.configure()
    away = take_away(world, "b")
    capture = world.start("capture", "a")
    await_said(capture, "source a: every view of it waits for another source")
    away.rename(world.database("b"))
    eventually(lambda: "capturing a" in capture.out.read_text(), PATIENCE, "a is captured")
    world.write("a", "INSERT INTO q VALUES (1, 1)")
    await_told(world, "a", [("q", 1)])
    assert capture.terminate().code == 0


def test_a_capture_that_waits_for_every_source_is_stopped_at_once(world: Installation) -> None:
    for source in TABLES:
        take_away(world, source)
    capture = world.start("capture")
    await_said(capture, "trying again")
    ended = capture.terminate()
    assert (ended.code, ended.out, ended.errors) == (0, "", []), ended.err


def test_where_no_source_comes_at_all_that_is_the_end(world: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture_attendance, "FIRST_START", 0.5)
    for source in TABLES:
        take_away(world, source)
    with pytest.raises(SourceUnreachable) as caught, SideBySide(threading.Event()) as captures:
        capture_attendance.Attendance(load_config(world.conf), ["a", "b"], captures).take()
    assert [problem.place for problem in caught.value.problems] == ["source a", "source b"]


def test_a_view_that_turns_out_to_be_wrong_when_its_source_comes_is_told_and_holds_up_nothing(
    world: Installation,
) -> None:
    world.views["wrong"] = "SELECT nope FROM b.s"
    world.configure()
    away = take_away(world, "b")
    with world.capturing() as capture:
        away.rename(world.database("b"))
        await_said(capture, "views.wrong.sql")
        world.write("b", "INSERT INTO s VALUES (3, 1)")
        await_told(world, "b", [("s", 3)])
    assert capture.err.read_text().count("views.wrong.sql") == 1


# ---- sources that fail


def be_an_older_copy(world: Installation) -> None:
    later = {"source": "b", "txn": "9", "position": 2**61, "changes": []}
    world.broker.send(world.topics["b"], orjson.dumps(later))


def lose_a_trigger(world: Installation) -> None:
    with closing(world.connect("b")) as db:
        (name,) = db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 's'").fetchone()
        db.execute(f"DROP TRIGGER {name}")


def be_no_database(world: Installation) -> None:
    world.database("b").write_bytes(b"no database, but long enough to be taken for one" * 100)


@pytest.mark.parametrize(
    ("fail", "what"),
    [
        (be_an_older_copy, "is it an older copy?"),
        (lose_a_trigger, "trigger"),
        (be_no_database, "file is not a database"),
    ],
)
def test_a_source_that_fails_ends_alone_and_the_command_with_its_error(
    world: Installation, fail: Callable[[Installation], None], what: str
) -> None:
    fail(world)
    capture = world.start_capture()
    await_said(capture, "no longer captured here")
    assert what in capture.err.read_text()
    world.write("a", "INSERT INTO r VALUES (1, 1)", "INSERT INTO q VALUES (2, 1)")
    await_told(world, "a", [("r", 1), ("q", 2)])
    ended = capture.terminate()
    assert ended.code == 3
    assert len(ended.errors) == 1 and ended.errors[0].startswith("viewkeeper: source b: ") and what in ended.errors[0]
    assert ended.err.splitlines()[-1] == ended.errors[0]

    alone = world.run("capture", "b")
    assert (alone.code, alone.errors) == (3, ended.errors)
    assert "no longer captured" not in alone.err
