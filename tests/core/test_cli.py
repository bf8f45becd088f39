"""The command line: one line an error, the right exit code, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from viewkeeper import cli
from viewkeeper.errors import ConfigError, Problem, SourceError, ViewError
from viewkeeper.local.logs import write_traceback


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets a test say what the command ``status`` does."""

    def install(run: Any) -> None:
        module = ModuleType("viewkeeper.commands.status")
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "viewkeeper.commands.status", module)

    return install


def raising(error: BaseException) -> Any:
    def run(args: object) -> int:
        raise error

    return run


@pytest.mark.parametrize("name", [c.name for c in cli.COMMANDS])
def test_the_help_of_each_command_has_an_example_and_the_exit_codes(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"viewkeeper {name}" in text.partition("example:")[2]
    assert "exit codes:" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda c: c.name)
def test_the_example_in_the_help_is_a_command_line_that_parses(command: Any) -> None:
    assert cli.parser().parse_args(command.example.split()[1:]).command == command.name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "viewkeeper: arguments: no command was given; see: viewkeeper --help\n"),
        (["red"], "viewkeeper: arguments: argument COMMAND: invalid choice: 'red'"),
        (
            ["read", "x"],
            "viewkeeper: read: the following arguments are required: VIEW; see: viewkeeper read --help\n",
        ),
        (["read", "x", "v", "--cut", "-1"], "viewkeeper: read: argument --cut: must be a whole number"),
        (
            ["read", "x", "v", "--cut", "1", "--update", "2"],
            "viewkeeper: read: argument --update: not allowed with",
        ),
        (["check", "x", "--loud"], "viewkeeper: check: unrecognized arguments: --loud; see: viewkeeper check --help"),
        (["check", "nowhere.yaml"], "viewkeeper: nowhere.yaml: does not exist; give the path"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(said)
    assert err.count("\n") == 1


def test_every_problem_is_one_line_on_stderr(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    command(raising(ConfigError([Problem("a", "wrong\nin two lines", "mend it"), Problem("b", "missing")])))
    assert cli.main(["status", "x"]) == 2
    assert capsys.readouterr().err == "viewkeeper: a: wrong in two lines; mend it\nviewkeeper: b: missing\n"


@pytest.mark.parametrize(("error", "code"), [(ViewError, 2), (SourceError, 3)])
def test_the_exit_code_says_who_must_act(command: Any, error: Any, code: int) -> None:
    command(raising(error.at("here", "no")))
    assert cli.main(["status", "x"]) == code


def test_an_interrupted_command_exits_130(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    command(raising(KeyboardInterrupt()))
    assert cli.main(["status", "x"]) == 130
    assert capsys.readouterr().err == "viewkeeper: status: interrupted\n"


def test_the_traceback_of_a_defect_goes_to_a_log_file_only(
    command: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIEWKEEPER_LOGS", str(tmp_path))
    command(raising(ZeroDivisionError("of all\nthings")))
    assert cli.main(["status", "x"]) == 3
    log = tmp_path / "errors.log"
    assert capsys.readouterr().err == (f"viewkeeper: internal error: ZeroDivisionError: of all things; see {log}\n")
    assert "Traceback" in log.read_text()


def test_nobody_else_reads_the_log_of_errors_or_can_foresee_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIEWKEEPER_LOGS", str(tmp_path / "logs"))
    before = os.umask(0)
    try:
        file = write_traceback("run", ValueError("secret"))
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        file.chmod(0o644)
        assert write_traceback("run", ValueError("again")).stat().st_mode & 0o777 == 0o600
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("VIEWKEEPER_LOGS", str(tmp_path / "file" / "logs"))
        first, second = (write_traceback("run", ValueError("x")) for _ in range(2))
    finally:
        os.umask(before)
    assert first != second, "a name that can be foreseen may be another's link"
    assert [f.parent.stat().st_mode & 0o777 for f in (first, second)] == [0o700, 0o700]


def test_a_reader_that_ends_early_is_no_error() -> None:
    # `viewkeeper tail … | head -1` must end quietly.
    script = (
        "import sys, types\n"
        "from viewkeeper import cli\n"
        "module = types.ModuleType('viewkeeper.commands.status')\n"
        "module.run = lambda args: [print('x' * 1000, flush=True) for _ in range(10**6)] and 0\n"
        "sys.modules['viewkeeper.commands.status'] = module\n"
        "sys.exit(cli.main(['status', 'x']))\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.wait(30) == 0
    assert child.stderr.read() == b""


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from viewkeeper import cli\n"
        "cli.main(['--help'])\n"
        "heavy = {'pyarrow', 'pyspark', 'pydantic', 'confluent_kafka', 'deltalake', 'sqlglot', 'rich'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)\n"
    )
    environment = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
