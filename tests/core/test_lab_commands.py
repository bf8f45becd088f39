"""``viewkeeper lab`` as a person uses it."""

from __future__ import annotations

import csv
import io
import os
import pty
import subprocess
import sys
import termios
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from viewkeeper import cli
from viewkeeper.algorithms.registry import Scenario
from viewkeeper.commands.lab import results, table
from viewkeeper.commands.lab.page import page
from viewkeeper.commands.lab.results import BY_RATE, BY_RELATIONS, BY_SOURCES, RUSH, Results
from viewkeeper.consistency.levels import Level
from viewkeeper.simulator.examples import EXAMPLES
from viewkeeper.simulator.files import dumps
from viewkeeper.simulator.laboratory import Subject, subjects
from viewkeeper.simulator.measure import Flow, Tally, measure_random

Captured = pytest.CaptureFixture[str]


def lab(*arguments: str) -> int:
    return cli.main(["lab", *arguments])


@pytest.mark.parametrize("part", ["run", "replay", "anomaly", "table"])
def test_the_help_of_each_part_has_an_example_that_parses(part: str, capsys: Captured) -> None:
    assert lab(part, "--help") == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    example = text.partition("example:\n")[2].strip()
    assert example.startswith(f"viewkeeper lab {part} ")
    assert cli.parser().parse_args(example.split()[1:]).part == part


@pytest.mark.parametrize("subject", subjects(), ids=str)
def test_every_algorithm_runs_step_by_step(subject: Subject, capsys: Captured) -> None:
    options = [word for name, value in subject.chosen for word in ("--option", f"{name}={str(value).lower()}")]
    sources = ["--sources", "1" if subject.name == "eca" else "3"]
    assert lab("run", "--algorithm", subject.name, *options, *sources, "--updates", "6", "--crash", "0.02") == 0
    out = capsys.readouterr().out
    assert f"level reached   {subject.promise(Scenario.SINGLE) or ''}".rstrip() in out or "complete:" in out
    assert "questions       " in out
    assert max(map(len, out.splitlines())) <= 100


def test_a_run_that_was_saved_is_replayed_the_same(tmp_path: Path, capsys: Captured) -> None:
    file, picture = tmp_path / "h.json", tmp_path / "h.svg"
    asked = ("--algorithm", "c_strobe", "--updates", "5", "--seed", "3", "--duplicate", "0.1")
    assert lab("run", *asked, "--save", str(file), "--svg", str(picture)) == 0
    first = capsys.readouterr().out
    assert lab("replay", str(file)) == 0
    second = capsys.readouterr().out
    steps = first.partition("warehouse\n")[2].partition("promised")[0]
    assert steps and steps in second
    assert picture.read_text().startswith("<svg ")


def test_no_updates_are_a_history_too(capsys: Captured) -> None:
    assert lab("run", "--algorithm", "strobe", "--updates", "0") == 0
    assert "level reached   complete" in capsys.readouterr().out


def test_an_example_of_the_papers_is_replayed_by_name(capsys: Captured) -> None:
    assert lab("replay", "strobe-1996-example-4") == 0
    out = capsys.readouterr().out
    assert "✗ the view should be {(1,2)} here" in out
    assert "level reached   convergent" in out


def test_an_anomaly_is_drawn_saved_and_breaks_again(tmp_path: Path, capsys: Captured) -> None:
    file, picture = tmp_path / "a.json", tmp_path / "a.svg"
    assert lab("anomaly", "convergent", "--scenario", "single", "--save", str(file), "--svg", str(picture)) == 0
    out = capsys.readouterr().out
    assert "single  promises nothing; breaks convergent" in out
    assert "✗ the view should be" in out
    assert "badbox" in picture.read_text()
    assert lab("replay", str(file)) == 0
    assert "none: not even convergent" in capsys.readouterr().out


def test_the_level_to_break_can_be_chosen(capsys: Captured) -> None:
    assert lab("anomaly", "strobe", "--level", "complete", "--scenario", "single") == 0
    assert "✗ the view never shows" in capsys.readouterr().out


def test_where_nothing_can_be_broken_it_says_what_was_tried(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    from viewkeeper.commands.lab import anomalies
    from viewkeeper.simulator.anomaly import Effort

    monkeypatch.setattr(anomalies, "_ONE", Effort(systematic=200, at_random=10))
    assert lab("anomaly", "sweep_sequential", "--scenario", "single") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "promises complete; nothing was broken in 200 small histories (all interleavings of 1 over 3" in out
    assert "and 10 random ones" in out
    assert lab("anomaly", "eca", "--scenario", "global") == 0
    assert "cannot be: its views have one source" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "lab: the following arguments are required: PART; see: viewkeeper lab --help"),
        (["run"], "lab run: the following arguments are required: --algorithm"),
        (["run", "--algorithm", "strobbe"], "lab run: there is no algorithm strobbe; did you mean strobe?"),
        (
            ["run", "--algorithm", "strobe", "--sources", "0"],
            "lab run: argument --sources: must be a whole number from",
        ),
        (
            ["run", "--algorithm", "strobe", "--sources", "27"],
            "lab run: argument --sources: must be a whole number from",
        ),
        (
            ["run", "--algorithm", "strobe", "--updates", "-1"],
            "lab run: argument --updates: must be a whole number from",
        ),
        (["run", "--algorithm", "strobe", "--crash", "2"], "lab run: argument --crash: must be a number from 0 to 0.5"),
        (["run", "--algorithm", "strobe", "--scenario", "all"], "lab run: argument --scenario: invalid choice: 'all'"),
        (
            ["run", "--algorithm", "strobe", "--relations", "2"],
            "lab run: 2 relations cannot be in 3 sources; leave --relations out, or give more of them",
        ),
        (
            ["run", "--algorithm", "strobe", "--no-keys"],
            "lab run: strobe cannot keep such a view; it needs keys: leave out --no-keys",
        ),
        (
            ["run", "--algorithm", "eca"],
            "lab run: eca cannot keep such a view; it needs all relations in one source: give --sources 1 --rel",
        ),
        (
            ["run", "--algorithm", "eca", "--sources", "1", "--scenario", "global"],
            "lab run: a global transaction needs several sources; give --sources 2 or more",
        ),
        (
            ["run", "--algorithm", "sweep_sequential", "--option", "pipe=3"],
            "lab run: sweep_sequential has no option pipe; did you mean pipeline?",
        ),
        (
            ["run", "--algorithm", "sweep_sequential", "--option", "pipeline=0"],
            "lab run: option pipeline must be a whole number from 1, not '0'; ",
        ),
        (["run", "--algorithm", "strobe", "--save", "/nowhere/h"], "/nowhere/h: cannot be written: no such file"),
        (["replay", "nowhere.json"], "nowhere.json: does not exist; give the path of a saved history"),
        (["anomaly", "swep"], "lab anomaly: there is no algorithm swep; did you mean sweep?"),
        (["anomaly", "strobe", "--level", "weakly"], "lab anomaly: there is no level weakly; did you mean weak?"),
        (["anomaly", "strobe", "--level", "complete-N"], "lab anomaly: strobe knows no N; ask for strong or complete"),
        (["anomaly", "--save", "x.json"], "lab anomaly: only one history can be written; name an algorithm"),
        (["anomaly", "--option", "pipeline=3"], "lab anomaly: --option needs an algorithm; name one"),
        (
            ["run", "--algorithm", "strobe", "--colour"],
            "lab run: unrecognized arguments: --colour; see: viewkeeper lab",
        ),
        (["anomaly", "strobe", "--svg", "/nowhere/x"], "/nowhere/x: cannot be written: no such file"),
        (["table", "--csv", "/nowhere/x"], "/nowhere/x: cannot be written: no such file"),
        (["table", "--histories", "0"], "lab table: argument --histories: must be a whole number from 1"),
        (["table", "--html", "/dev/null/x"], "/dev/null/x: cannot be a folder: "),
    ],
)
def test_a_bad_argument_is_one_sentence_and_exit_2(arguments: list[str], said: str, capsys: Captured) -> None:
    assert lab(*arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"viewkeeper: {said}")
    assert err.count("\n") == 1


def test_a_saved_history_of_an_unknown_algorithm_is_refused(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "h.json"
    file.write_text(dumps(EXAMPLES["strobe-1996-example-3"]).replace('"strobe"', '"stroboscope"'))
    assert lab("replay", str(file)) == 2
    assert f"viewkeeper: {file}: algorithm: there is no algorithm stroboscope; " in capsys.readouterr().err
    file.write_bytes(b"\xff\xfe\x00")
    assert lab("replay", str(file)) == 2
    assert "is no text, so it is no saved history" in capsys.readouterr().err


def test_a_history_is_the_same_whatever_the_hash_seed() -> None:
    def printed(seed: str) -> str:
        script = (
            "from viewkeeper import cli\n"
            "for name in ('sweep', 'nested_sweep', 'g_strobe', 'c_t_strobe', 'complete_n'):\n"
            "    cli.main(['lab', 'run', '--algorithm', name, '--scenario', 'local', '--updates', '8'])\n"
        )
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment).stdout

    assert printed("1") == printed("2") != ""


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = [sys.executable, "-m", "viewkeeper.cli", "lab", "run", "--algorithm", "strobe", "--updates", "300"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None and running.stderr is not None
        running.stdout.readline()
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 0


def test_letters_that_the_output_lacks_are_question_marks() -> None:
    command = [sys.executable, "-m", "viewkeeper.cli", "lab", "replay", "strobe-1996-example-1"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "?  ???????  U1 = +r2(2,3)" in done.stdout


def test_a_terminal_that_is_narrower_than_a_page_gets_a_page() -> None:
    reader, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (24, 60))
    command = [sys.executable, "-m", "viewkeeper.cli", "lab", "replay", "strobe-1996-example-1"]
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    with subprocess.Popen(command, stdout=terminal, env=environment) as running:
        os.close(terminal)
        printed = b"".join(iter(lambda: _read(reader), b"")).decode()
    os.close(reader)
    assert running.returncode == 0
    assert "view  SELECT r1.A, r2.B, r3.C, r3.D FROM x.r1, y.r2, z.r3 WHERE r1.B = r2.B AND" in printed
    # The lanes are dim, the words are not.
    assert "\x1b[2m│  ●  │  ┃\x1b[0m  \x1b[36mU1: +r2(2,3)" in printed


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side is closed
        return b""


def test_what_a_run_cost_is_held_against_a_formula_only_without_faults(capsys: Captured) -> None:
    assert lab("run", "--algorithm", "sweep_sequential", "--updates", "6") == 0
    assert "the papers say n−1, n = 3" in capsys.readouterr().out
    assert lab("run", "--algorithm", "sweep_sequential", "--updates", "6", "--delay", "0.3") == 0
    assert "with faults, for which there is no formula" in capsys.readouterr().out


def test_the_head_of_a_run_names_the_options_that_were_not_chosen(capsys: Captured) -> None:
    assert lab("run", "--algorithm", "complete_n", "--option", "pipeline=2", "--updates", "1", "--seed", "3") == 0
    head = capsys.readouterr().out.splitlines()[:2]
    assert head[0].startswith("complete_n pipeline=2 (")
    assert head[1] == "1 transaction, scenario single, seed 3, by default complete_n=10"
    assert lab("run", "--algorithm", "sweep_sequential", "--option", "parallel=false", "--updates", "1") == 0
    assert capsys.readouterr().out.startswith("sweep_sequential parallel=false (")


def test_a_replay_says_scenario_and_promise_as_a_run_does(capsys: Captured) -> None:
    assert lab("replay", "strobe-1996-example-4") == 0
    out = capsys.readouterr().out
    assert "\n1 transaction, scenario local\n" in out
    assert "\npromised        convergent\n" in out


# The table -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Results:
    """Results of a few histories, measured in this process, and streams that are made up."""
    few = Results(histories=4, seed=7)
    for scenario in Scenario:
        found = measure_random(subjects(), scenario, range(4), 7)
        few.cells |= {(s, scenario): found[(s, scenario)] for s in subjects() if (s, scenario) in found}
    for number, subject in enumerate(subjects(), 1):
        for stream in (RUSH, *BY_RELATIONS, *BY_RATE, *chain(*BY_SOURCES)):
            few.flows[(subject, stream)] = [Flow(number * stream.rate, 8.0, number, number, 10.0)]
    monkeypatch.setattr(table, "measure", lambda *_, **__: few)
    return few


def test_the_table_has_a_line_for_each_algorithm_and_scenario(measured: Results, capsys: Captured) -> None:
    assert lab("table") == 0
    out = capsys.readouterr().out
    assert sum(f" {scenario} " in line for line in out.splitlines() for scenario in Scenario) >= len(measured.cells)
    assert max(map(len, out.splitlines())) <= 100


def test_the_csv_has_the_same_lines(measured: Results, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "t.csv"
    assert lab("table", "--csv", str(file)) == 0
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert len(rows) == len(measured.cells)
    assert {row["algorithm"] for row in rows} == set(map(str, subjects()))
    assert f"written  {file}" in capsys.readouterr().out
    assert all(row["reached"] for row in rows)


def test_the_page_needs_nothing_but_itself(measured: Results, tmp_path: Path, capsys: Captured) -> None:
    assert lab("table", "--seed", "9", "--html", str(tmp_path / "docs")) == 0
    text = (tmp_path / "docs" / "laboratory.html").read_text()
    assert "viewkeeper lab table --histories 400 --seed 9 --html" in text
    assert text.count("<svg") == 4
    assert "eca (all in one source)" in text
    assert not any(word in text for word in ("<script", "<link", "src=", "@import", "url("))
    assert text == page(measured, table._command(cli.parser().parse_args(
        ["lab", "table", "--seed", "9", "--html", str(tmp_path / "docs")]
    )))  # fmt: skip


def test_a_broken_promise_is_exit_1_and_saved(
    measured: Results, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cell = (Subject.of("strobe", {}), Scenario.SINGLE)
    saved = dumps(EXAMPLES["strobe-1996-example-4"])
    measured.cells[cell] = Tally(histories=1, lowest=Level.CONVERGENT, broken=saved)
    assert lab("table") == 1
    out = capsys.readouterr().out
    assert "strobe, single: THE PROMISE IS BROKEN; see: viewkeeper lab replay lab-strobe-single.json" in out
    assert "convergent ✗" in out
    assert (tmp_path / "lab-strobe-single.json").read_text() == saved


def test_jobs_are_spread_over_processes_and_put_together_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    few: Any = (Subject.of("strobe", {}), Subject.of("eca", {}))
    monkeypatch.setattr(results, "subjects", lambda: few)
    found = results.measure(histories=3, seed=1, plots=False)
    assert [(str(s), str(scenario)) for s, scenario in found.cells] == [
        *(("strobe", name) for name in ("single", "local", "global")),
        *(("eca", name) for name in ("single", "local")),
    ]
    assert all(tally.histories == 3 and tally.small == 3 * results.SMALL for tally in found.cells.values())
    assert found.rush(few[0]).needs_quiet
