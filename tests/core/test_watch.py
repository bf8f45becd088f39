"""``viewkeeper watch``: a frame fits its screen, and the terminal is as it was when it ends."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from viewkeeper import cli
from viewkeeper.capture.lag import Lag
from viewkeeper.commands import watch
from viewkeeper.commands.status_sources import Looked
from viewkeeper.commands.status_state import Observer, State
from viewkeeper.config import load_config
from viewkeeper.queue.outstanding import Outstanding

from .status_worlds import Place, table, waiting

WIDTH, HEIGHT = 100, 30
DOWN = Looked(None, "unknown: kafka: is down", Lag(True, bytes=None))
ALTERNATE, ORIGINAL = b"\x1b[?1049h", b"\x1b[?1049l"


def groups(place: Place, many: int, views: int = 3) -> State:
    """Groups that all wait for something."""
    names = {f"group_{i}": [f"view_{i}_{j}" for j in range(views)] for i in range(many)}
    config = place.configure({view: "shop.t" for group in names.values() for view in group}, groups=names)
    for group, members in names.items():
        place.status(
            group,
            {view: waiting(9, 3, "its manager") for view in members},
            table=table(members, ["g" * views] * 3 + ["r" * (views - 1) + "w"] * 9, more=12_345),
        )
    return Observer(config).look({"shop": Looked(None, Outstanding([], 1_234), Lag(True)), "crm": DOWN})


def drawn(state: State) -> list[str]:
    lines = [line.plain for line in watch.frame(state, WIDTH, HEIGHT)]
    assert len(lines) <= HEIGHT and max(map(len, lines)) <= WIDTH
    return lines


def test_a_frame_shows_the_job_the_lag_and_each_groups_table(tmp_path: Path) -> None:
    lines = drawn(groups(Place(tmp_path), 1))
    assert lines[0].startswith(f"job {os.getpid()} is running since ")
    assert lines[1] == "updates behind: crm unknown, shop 1,234 (kafka: is down)"
    assert any(line.startswith("group group_0: no cut yet: run 'viewkeeper init") for line in lines)
    assert "update          view_0_0  view_0_1  view_0_2" in lines
    assert [line.split() for line in lines if line.startswith("behind")] == [["behind", "–", "–", "–"]]
    assert "view_0_0, view_0_1, view_0_2 wait for its manager" in lines
    assert lines[-1].startswith("w white: ")


@pytest.mark.parametrize(("many", "views"), [(2, 3), (3, 20), (3, 60), (5, 3), (20, 3), (40, 1)])
def test_a_frame_fits_its_screen_and_counts_what_does_not(tmp_path: Path, many: int, views: int) -> None:
    lines = drawn(groups(Place(tmp_path), many, views))
    shown = sum(line.startswith("group ") for line in lines)
    assert shown == many or f"… and {many - shown} more groups" in lines
    rows = sum(line.startswith("U") for line in lines)
    assert rows >= many or many > 4


def test_many_troubles_leave_room_for_the_groups(tmp_path: Path) -> None:
    place = Place(tmp_path)
    groups(place, 12)
    for i in range(12):
        place.status(f"group_{i}", {}, pid=None, error="source shop: " + "is gone " * 30)
    lines = drawn(Observer(load_config(tmp_path / "conf.yaml")).look({}))
    assert "… and 7 more" in lines and sum(line.startswith("group group_11: ") for line in lines) == 1


def test_without_a_terminal_it_prints_one_frame(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "look_at_sources", lambda *_: dict.fromkeys(("crm", "shop"), DOWN))
    groups(Place(tmp_path), 2)
    assert cli.main(["watch", str(tmp_path / "conf.yaml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("group group_") for line in lines) == 2
    assert "updates behind: crm unknown, shop unknown (kafka: is down)" in lines
    assert max(map(len, lines)) <= WIDTH


@pytest.mark.parametrize("every", ["0s", "50ms", "soon"])
def test_a_pace_that_no_screen_keeps_up_with_is_refused(every: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["watch", "conf.yaml", "--every", every]) == 2
    assert "--every" in capsys.readouterr().err


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_moves_until_it_is_told_to_end_and_restores_the_terminal(tmp_path: Path, end: signal.Signals) -> None:
    """With the broker down: nobody waits for a look at it."""
    place = Place(tmp_path)
    groups(place, 1)
    screen, terminal = pty.openpty()
    command = [sys.executable, "-m", "viewkeeper.cli", "watch", str(tmp_path / "conf.yaml"), "--every", "100ms"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=subprocess.PIPE, env=environment)
    os.close(terminal)
    try:
        said = read_until(screen, b"U4 ", process)
        place.status("group_0", {}, table=table(["view_0_0"], ["w"], first=4711))
        said += read_until(screen, b"U4711 ", process)
        process.send_signal(end)
        said += read_until(screen, ORIGINAL, process)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        os.close(screen)
    assert (process.returncode, errors) == (0, b"")
    assert said.count(ALTERNATE) == said.count(ORIGINAL) == 1


def read_until(screen: int, wanted: bytes, process: subprocess.Popen[bytes]) -> bytes:
    """What the terminal got, up to these bytes and a little more."""
    said, deadline = b"", time.monotonic() + 30
    while wanted not in said:
        assert time.monotonic() < deadline and process.poll() in (None, 0), f"{wanted!r} is missing: {said!r}"
        if select.select([screen], [], [], 0.1)[0]:
            said += os.read(screen, 65536)
    return said
