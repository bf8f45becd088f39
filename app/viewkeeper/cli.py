"""The command line: what may be asked, and how the answer ends.

Exit codes: 0 done; 1 ``verify`` found a difference; 2 the user must change something; 3 the world must.
Each command is ``run(args) -> int`` in ``viewkeeper.commands.<name>``, imported only when it is called; what may be
asked of it is told apart from it, in ``viewkeeper.commands.arguments`` and ``viewkeeper.commands.lab.arguments``.
"""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import select
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NoReturn

from viewkeeper import signals
from viewkeeper.commands.arguments import here, keeping, preparing, reading
from viewkeeper.commands.lab.arguments import LAB
from viewkeeper.commands.logs import Pasteable
from viewkeeper.errors import Problem, UsageError, ViewkeeperError
from viewkeeper.remedies import completed

INTERRUPTED = 130

ENDED_BY_SIGNALS = ("run", "capture", "broker", "watch", "tail")
"""Commands that go on until they are asked to end: then they have done all they were to do."""

_EXIT_CODES = """\
exit codes:
  0  done
  1  verify found a difference, lab table a broken promise
  2  you must change something: the configuration, a view's SQL, the arguments
  3  the world must change: a source, Kafka, the warehouse or a message cannot be used
"""


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line in the same one line as every other error."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        # A subcommand would leave what it does not know to the one above, which would point to its own help.
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        command = self.prog.removeprefix("viewkeeper").strip() or "arguments"
        raise UsageError.at(command, message, f"see: {self.prog} --help")


COMMANDS = (
    here.DEMO,
    here.BROKER,
    preparing.CHECK,
    preparing.EXPLAIN,
    preparing.INIT,
    preparing.CAPTURE,
    keeping.RUN,
    keeping.STATUS,
    keeping.WATCH,
    reading.TAIL,
    reading.READ,
    reading.VACUUM,
    reading.VERIFY,
    LAB,
)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = _Parser(
        prog="viewkeeper",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Keeps joined tables in a Delta lakehouse exactly in step with several databases.",
        epilog=f"Each command explains itself: viewkeeper COMMAND --help\n\n{_EXIT_CODES}",
    )
    top.add_argument("--version", action="store_true", help="print the version and end")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Parser)
    for command in COMMANDS:
        command.add_to(commands, f"\n\n{_EXIT_CODES}")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; every failure is one line a problem on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = next((a for a in arguments if not a.startswith("-")), "viewkeeper")
    if name in ("lab", "status", "watch"):
        _draw_what_can_be_drawn()
    with signals.noted() if name in (*ENDED_BY_SIGNALS, "demo") else nullcontext():
        return _end_of(name, arguments)


def _end_of(name: str, arguments: list[str]) -> int:
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except ViewkeeperError as e:
        _report(e.problems)
        return e.exit_code
    except KeyboardInterrupt:
        if name in ENDED_BY_SIGNALS:
            return 0
        _report([Problem(name, "interrupted")])
        return INTERRUPTED
    except SystemExit as e:  # argparse's --help
        return e.code if isinstance(e.code, int) else 0
    except Exception as e:
        if isinstance(e, BrokenPipeError) and _reader_is_gone():
            _drop_output()
            return 0
        return _internal_error(name, e)


def _draw_what_can_be_drawn() -> None:
    """Where the output's encoding lacks a letter of a diagram, a question mark stands for it; never so with data."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def _dispatch(arguments: list[str]) -> int:
    args = parser().parse_args(arguments)
    # For commands that set up no log of their own: a warning reads like every other line of ours.
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Pasteable("viewkeeper: %(message)s"))
    if args.version:
        from importlib.metadata import version

        print(f"viewkeeper {version('viewkeeper')}")
        return 0
    if args.command is None:
        raise UsageError.at("arguments", "no command was given", "see: viewkeeper --help")
    command = importlib.import_module(f"viewkeeper.commands.{args.command}")
    if signals.received:  # before there was anything to end
        raise KeyboardInterrupt
    return int(command.run(args))


def _report(problems: Sequence[Problem]) -> None:
    for problem in problems:
        print("viewkeeper:", completed(" ".join(str(problem).split())), file=sys.stderr)


def _internal_error(command: str, error: Exception) -> int:
    """A defect of ours: the terminal gets one line, a log file the traceback."""
    from viewkeeper.local.logs import write_traceback

    said = " ".join(f"{type(error).__name__}: {error}".split())
    _report([Problem("internal error", said, f"see {write_traceback(command, error)}")])
    return 3


def _reader_is_gone() -> bool:
    """Was it our own output whose reader ended (``viewkeeper tail … | head``)?"""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _drop_output() -> None:
    """Lets the interpreter's last flush go nowhere instead of failing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
