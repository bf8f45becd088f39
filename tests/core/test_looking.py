"""Looking at sources: all at the same time, and none for longer than it is worth waiting for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import eventually
from viewkeeper.algebra.types import INTEGER, Column, Relation
from viewkeeper.errors import SourceError, SourceUnreachable, ViewkeeperError
from viewkeeper.job import assembly, joining, status
from viewkeeper.job.assembly import Project, assemble
from viewkeeper.job.joining import join
from viewkeeper.job.looking import Onlooker, look
from viewkeeper.job.patience import Stopped
from viewkeeper.job.run import Groups
from viewkeeper.job.status import StatusFile
from viewkeeper.managers.sources.sqlite import SqliteSource

from .away_worlds import Place, begun


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place.made(tmp_path)


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


def test_a_source_that_has_not_answered_is_not_asked_again() -> None:
    told, asked = threading.Event(), []

    def slow() -> dict[str, Relation]:
        asked.append(threading.current_thread())
        told.wait(30)
        return {}

    sources: list[Any] = [Described("x", dict), Described("y", slow)]
    onlooker, stop = Onlooker(sources), threading.Event()
    for _ in range(5):
        assert list(onlooker.look(stop, seconds=0.01).away) == ["y"]
    told.set()
    asked[0].join(30)
    assert len(asked) == 1 and not onlooker.look(stop, seconds=0).away, "its answer counts, however late"
    assert not onlooker.look(stop, seconds=30).away and len(asked) == 2


# ---- sources that do not answer


def looks(source: str) -> int:
    """How many threads look at a source."""
    return sum(thread.name == f"look at {source}" for thread in threading.enumerate())


def test_a_group_whose_source_does_not_answer_gives_up_in_time(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "LOOK", 0.1)
    told: list[ViewkeeperError | None] = []
    with place.locked("b"):
        project = begun(place.configure(groups="auto"))
        before = looks("b")
        with pytest.raises(SourceUnreachable, match="source b: has not answered yet"):
            join(project, "a", threading.Event(), told.append, patience=1.5)
        assert len(told) > 1 and all("has not answered yet" in str(error) for error in told)
        assert looks("b") <= before + 1
    eventually(lambda: not looks("b"), 30, "the source answers")


def test_a_group_joins_once_its_slow_source_has_answered(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "LOOK", 0.1)
    told: list[ViewkeeperError | None] = []
    parts: list[Project] = []
    with place.locked("b"):
        project = begun(place.configure(groups="auto"))
        thread = threading.Thread(
            target=lambda: parts.append(join(project, "a", threading.Event(), told.append, patience=30))
        )
        thread.start()
        eventually(lambda: told, 30, "it waits")
    thread.join(30)
    assert parts[0].views.keys() == {"r", "rs"} and told[-1] is None


def test_commands_give_up_too_on_a_source_that_does_not_answer(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "LOOK", 0.1)
    config = place.configure()
    with place.locked("b"), pytest.raises(SourceUnreachable, match="source b: has not answered yet"):
        assemble(config, seconds=0.5)
    assert assemble(config).understands("all")


# ---- what status hears


def test_status_hears_of_a_group_that_waits_more_often_than_the_group_looks(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "EVERY", 0.05)
    looked, describe = [], SqliteSource.describe

    def counted(source: SqliteSource) -> dict[str, Relation]:
        looked.append(source.name)
        return describe(source)

    config = place.configure()
    place.take_away("b")
    project, stop, file = begun(config), threading.Event(), StatusFile.of(config.warehouse)
    monkeypatch.setattr(SqliteSource, "describe", counted)
    job = threading.Thread(target=Groups(project, until_idle=False, stop=stop).run)
    job.start()
    beats: set[str] = set()

    def heard() -> bool:
        told = file.read() or {}
        beats.update([told["heartbeat"]] if told else ())
        return len(beats) > 2 * looked.count("b") + 5

    eventually(heard, 20, "it beats")
    stop.set()
    job.join(30)
    told = file.read() or {}
    assert (told["pid"], told["heartbeat"], told["waiting"], told["trouble"]) == (None, None, None, False)


def test_a_group_that_waits_no_longer_is_not_said_to_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "EVERY", 0.01)
    file = StatusFile.of(tmp_path)
    file.failed("of old")
    with file.waiting() as waits:
        waits(SourceUnreachable.at("source b", "is away"))
        told = file.read() or {}
        assert (told["waiting"], told["trouble"], told["error"]) == ("source b: is away", True, None)
        eventually(lambda: (file.read() or {})["heartbeat"] > told["heartbeat"], 10, "it beats")
    told = file.read() or {}
    assert (told["pid"], told["heartbeat"], told["waiting"], told["trouble"]) == (None, None, None, False)
    assert not any(thread.name == "heartbeat of all" for thread in threading.enumerate()), "nobody says it again"


def test_what_cannot_be_noted_is_noted_as_soon_as_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "EVERY", 0.01)
    file = StatusFile.of(tmp_path)
    file.path.mkdir(parents=True)  # nothing can be read or written there
    with file.waiting() as waits:
        waits(SourceUnreachable.at("source b", "is away"))
        file.path.rmdir()
        eventually(lambda: (file.read() or {}).get("waiting") == "source b: is away", 10, "it is noted")
