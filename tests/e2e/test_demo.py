"""The demo as a person runs it: to its end, broken off by Ctrl-C, and killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.scale import scaled
from viewkeeper import cli

pytestmark = pytest.mark.e2e

SECONDS = 300.0
"""More than a demo ever needs, on a machine that does other things too."""


@contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A demo in a session of its own, as a terminal would give it, and the file that gets its output."""
    output = folder / "output"
    command = [sys.executable, "-m", "viewkeeper.cli", "demo", "--dir", str(folder / "demo"), *arguments]
    with output.open("w") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, text=True
        )
    try:
        yield process, output
    finally:
        for pid in _session(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def _session(leader: int) -> list[int]:
    """The processes that still run in a session, whoever their parent is."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path("/proc", entry, "stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == leader and fields[0] not in "ZX":
                found.append(int(entry))
    return found


def test_a_demo_proves_its_views_and_leaves_them_readable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with demo(tmp_path, "--seconds", "3") as (process, output):
        _require_proof(process, output)
    conf = str(tmp_path / "demo" / "demo.yaml")
    assert cli.main(["read", conf, "order_overview", "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("order_id,line,customer_id,customer,city,product,quantity,cents,_count\n")
    assert cli.main(["verify", conf]) == 0
    for name in ("broker", "job", "capture", "spark"):
        assert (tmp_path / "demo" / "logs" / f"{name}.log").exists()


def test_a_demo_on_postgresql_servers_proves_its_views_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with demo(tmp_path, "--postgres", "--seconds", str(scaled(2, 5))) as (process, output):
        _require_proof(process, output)
    counted = re.search(r"([0-9,]+) transactions came as ([0-9,]+) updates", output.read_text())
    assert counted is not None and counted[1] == counted[2]
    conf = tmp_path / "demo" / "demo.yaml"
    assert conf.stat().st_mode & 0o077 == 0, "it holds passwords"
    assert cli.main(["read", str(conf), "customer_orders", "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("order_id,customer,city,status,_count\n")
    for name in ("broker", "job", "capture", "spark", "connect", "postgres-shop"):
        assert (tmp_path / "demo" / "logs" / f"{name}.log").exists()


def _require_proof(process: subprocess.Popen[str], output: Path) -> None:
    """The demo ends well, with all six opinions the same, and nothing runs any more."""
    assert process.wait(SECONDS) == 0, output.read_text()
    assert _session(process.pid) == []
    said = output.read_text()
    assert "PROVEN" in said and "FAILED" not in said
    assert said.count(" equal to ") == 6


@pytest.mark.parametrize(
    ("kind", "after"),
    [
        ([], "databases"),  # the broker starts
        ([], "views"),  # the job starts Spark
        (["--postgres"], "databases"),
    ],
)
def test_ctrl_c_ends_the_demo_and_every_process_of_it(tmp_path: Path, kind: list[str], after: str) -> None:
    with demo(tmp_path, *kind) as (process, output):
        eventually(lambda: f"  {after} " in output.read_text(), SECONDS, f"the step {after}")
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(30) == 130
        assert _session(process.pid) == []
    said = output.read_text()
    assert said.splitlines()[-1] == "viewkeeper: demo: interrupted"
    assert "Traceback" not in said


def test_a_killed_demo_takes_its_processes_along(tmp_path: Path) -> None:
    with demo(tmp_path) as (process, output):
        eventually(lambda: "  views " in output.read_text(), SECONDS, "the views are loaded")
        eventually(lambda: len(_session(process.pid)) >= 5, SECONDS, "demo, broker, job, capture and Spark run")
        process.kill()
        eventually(lambda: _session(process.pid) == [], SECONDS, "no process is left")
