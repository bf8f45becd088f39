"""The command line: what may be asked, and how the answer ends.

Exit codes: 0 done; 1 ``verify`` found a difference; 2 the user must change something; 3 the world must.
Each command is ``run(args) -> int`` in ``viewkeeper.commands.<name>``, imported only when it is called.
"""

from __future__ import annotations

import argparse
import importlib
import io
import logging
import os
import re
import select
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from viewkeeper.commands.lab import arguments as lab
from viewkeeper.errors import Problem, UsageError, ViewkeeperError

INTERRUPTED = 130

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


@dataclass(frozen=True)
class _Command:
    name: str
    summary: str
    description: str
    example: str
    arguments: Callable[[argparse.ArgumentParser], None]


def _broker(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--dir",
        metavar="D",
        default="./broker",
        help="where it keeps its data and its log (default: ./broker)",
    )
    p.add_argument(
        "--port",
        metavar="P",
        type=int,
        default=9092,
        help="where clients connect; P+1 is its own (default: 9092)",
    )


def _conf(p: argparse.ArgumentParser) -> None:
    p.add_argument("conf", metavar="CONF", help="the configuration file, such as conf/demo.yaml")


def _capture(p: argparse.ArgumentParser) -> None:
    _conf(p)
    p.add_argument("sources", metavar="SOURCE", nargs="*", help="only these sources (default: all)")
    # The names of sources may also follow these: argparse would not find them there by itself.
    p.add_argument(
        "--remove",
        metavar="SOURCE",
        nargs="*",
        help="take triggers and change log, or publication and slot, out of the sources again, and end",
    )
    p.add_argument(
        "--print",
        metavar="SOURCE",
        nargs="*",
        help="print Debezium's configuration for a Kafka Connect of your own, as its REST API takes it, and end",
    )


def _init(p: argparse.ArgumentParser) -> None:
    _conf(p)
    p.add_argument(
        "--reload",
        metavar="VIEW",
        nargs="*",
        help="load these views again (without a name: all); needed after a view's SQL changed",
    )


def _run(p: argparse.ArgumentParser) -> None:
    _conf(p)
    p.add_argument(
        "--until-idle",
        action="store_true",
        help="handle all that the sources had committed when it started, fold the views, and end",
    )


def _view(p: argparse.ArgumentParser) -> None:
    _conf(p)
    p.add_argument("view", metavar="VIEW", help="a view of the configuration")


def _status(p: argparse.ArgumentParser) -> None:
    _conf(p)
    p.add_argument("--json", action="store_true", help="one JSON object instead of text")


def _watch(p: argparse.ArgumentParser) -> None:
    _conf(p)
    p.add_argument(
        "--every",
        metavar="D",
        type=_pace,
        default=timedelta(milliseconds=500),
        help="the time between two frames, at least 100ms (default: 500ms)",
    )


def _tail(p: argparse.ArgumentParser) -> None:
    _view(p)
    p.add_argument(
        "-n",
        metavar="N",
        dest="last",
        type=_count,
        default=10,
        help="first the last N messages (default: 10)",
    )
    p.add_argument("--from-start", action="store_true", help="first all messages that the topic holds")
    p.add_argument("--no-follow", action="store_true", help="end at the end of the topic instead of waiting for more")


def _read(p: argparse.ArgumentParser) -> None:
    _conf(p)
    p.add_argument("views", metavar="VIEW", nargs="+", help="views of the configuration, of one group")
    when = p.add_mutually_exclusive_group()
    when.add_argument("--cut", metavar="N", type=_count, help="as they stood at cut N of their group")
    when.add_argument("--update", metavar="K", type=_count, help="as they stood after update K of their group")
    p.add_argument(
        "--format", choices=("table", "json", "csv"), default="table", help="how to print it (default: table)"
    )


def _vacuum(p: argparse.ArgumentParser) -> None:
    _conf(p)
    p.add_argument(
        "--keep",
        metavar="D",
        type=_age,
        help="what was the newest cut at some time within D stays (default: keep: of the configuration, or 7d)",
    )
    p.add_argument(
        "--removed",
        action="store_true",
        help="also delete views, and groups, that neither the configuration nor a newest cut has",
    )


def _verify(p: argparse.ArgumentParser) -> None:
    _conf(p)
    # VIEW may be left out and so may LEVEL: said in this order, neither is taken for the other.
    p.usage = "viewkeeper verify [-h] CONF [VIEW] [--level [LEVEL]] [--since K]"
    p.add_argument("view", metavar="VIEW", nargs="?", help="only this view (default: all)")
    p.add_argument(
        "--level",
        metavar="LEVEL",
        nargs="?",
        const="",
        type=_level,
        help="judge every state since the load: was it complete, complete-N (such as complete-10), strong, weak or "
        "convergent? Without LEVEL: say which, and whether it is less than the view's algorithm promises. Recomputes "
        "the view for each update, from the messages that the topics still hold; it costs history × data, and is "
        "meant for small data and tests",
    )
    p.add_argument(
        "--since", metavar="K", type=_count, help="with --level: judge from update K on, or from the last cut before it"
    )


def _demo(p: argparse.ArgumentParser) -> None:
    p.add_argument("--seconds", metavar="N", type=_count, default=30, help="how long the writer writes (default: 30)")
    p.add_argument("--dir", metavar="D", default="demo", help="where everything goes (default: ./demo)")
    p.add_argument("--postgres", action="store_true", help="on three PostgreSQL servers, with Debezium")


def _count(text: str) -> int:
    """A number that counts something."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"must be a whole number from 0, not {text!r}")
    return int(text)


def _age(text: str) -> timedelta:
    """A duration as the configuration has them, or none at all (0s)."""
    from viewkeeper.config_values import duration

    if re.fullmatch(r"0+\s*(ms|s|m|h|d)", text.strip()):
        return timedelta(0)
    try:
        return duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _pace(text: str) -> timedelta:
    """A duration that a screen can keep up with."""
    if (pace := _age(text)) < timedelta(milliseconds=100):
        raise argparse.ArgumentTypeError(f"must be at least 100ms, not {text!r}")
    return pace


def _level(text: str) -> str:
    """A level of consistency; empty means the highest there is."""
    if not re.fullmatch(r"(complete(-[1-9][0-9]{0,8})?|strong|weak|convergent)?", text):
        raise argparse.ArgumentTypeError(
            f"must be complete, complete-N (such as complete-10), strong, weak or convergent, not {text!r}"
        )
    return text


COMMANDS = (
    _Command(
        "demo",
        "the whole path on this machine, in one terminal",
        "Starts a broker, three sample databases, their capture, the job and a writer; shows the view "
        "move, then proves it equal to recomputation. Ctrl-C ends it, and every process with it.",
        "viewkeeper demo --seconds 20",
        _demo,
    ),
    _Command(
        "broker",
        "a real single-node Kafka for people who have none",
        "Runs a Kafka broker on 127.0.0.1 in the foreground until Ctrl-C or SIGTERM. It keeps its "
        "data, so it may be stopped and started again. Its own log is broker.log in its folder.",
        "viewkeeper broker --dir ./broker --port 9092",
        _broker,
    ),
    _Command(
        "check",
        "validate configuration, SQL, sources, topics and indexes",
        "Checks the configuration, every view's SQL against the sources as they are, that sources and "
        "Kafka can be reached (for at most 30 s), that look-ups by join columns have an index, and that each "
        "PostgreSQL server logs what capture needs and lets its role read it. "
        "Changes nothing. Warnings do not make it fail.",
        "viewkeeper check conf/demo.yaml",
        _conf,
    ),
    _Command(
        "explain",
        "the sweep plan of a view and the questions it asks",
        "Shows, for a change in each relation of the view, which relations are asked in which order, "
        "for which columns and keys, and where each condition is applied.",
        "viewkeeper explain conf/demo.yaml order_overview",
        _view,
    ),
    _Command(
        "init",
        "create topics and capture, load the views",
        "Creates what is missing: the topics, the capture in each source (triggers and a change log, or a "
        "publication and a replication slot), and the first load of each view. Does nothing twice.",
        "viewkeeper init conf/demo.yaml --reload order_overview",
        _init,
    ),
    _Command(
        "capture",
        "send the sources' changes to their topics",
        "Sends every committed change of the captured tables to its source's topic, until Ctrl-C or "
        "SIGTERM: the change log of SQLite by itself, that of PostgreSQL by Debezium in Kafka Connect, which it "
        "starts. A capture that starts again goes on after its own last message.",
        "viewkeeper capture conf/demo.yaml shop crm",
        _capture,
    ),
    _Command(
        "run",
        "the job: keep the views in step (init included)",
        "Follows the topics of all sources and keeps every view exact, until Ctrl-C or SIGTERM: then "
        "it finishes the batch and exits 0. Capture must be running for the changes to arrive.",
        "viewkeeper run conf/demo.yaml --until-idle",
        _run,
    ),
    _Command(
        "status",
        "lag, positions, questions asked per source, newest cuts",
        "Shows where the views stand: each source's position and lag and what was asked of it; each group's "
        "newest cut, its age and what is on its way to the next; each view's promise, how far it is behind and "
        "what it waits for; and trouble first of all. Groups end with their ViewUpdateTable: a row an update, a "
        "column a view, an entry whether the view's change is owed, waits for others, or is in the newest cut. "
        "In JSON, 'cut' is that of the one group, and null if there are several: see 'groups'.",
        "viewkeeper status conf/demo.yaml --json",
        _status,
    ),
    _Command(
        "watch",
        "the groups and their ViewUpdateTables, live",
        "Shows what status shows of the groups, again and again, until Ctrl-C; how far sources are behind is "
        "looked at every five seconds. Where the output is no terminal, prints one frame and ends.",
        "viewkeeper watch conf/demo.yaml --every 1s",
        _watch,
    ),
    _Command(
        "tail",
        "follow the view's topic",
        "Prints the messages of the view's topic as they are committed, one JSON object a line: the "
        "change of each update, and a seal for each cut. Ctrl-C ends it.",
        "viewkeeper tail conf/demo.yaml order_overview -n 20",
        _tail,
    ),
    _Command(
        "read",
        "views as they stand, at a cut, or after any update",
        "Prints the rows of the views with _count, the number of times each occurs. Without --cut and "
        "--update: at the newest cut. Several views are read at one and the same cut, whatever the job "
        "writes meanwhile; they must be of one group.",
        "viewkeeper read conf/demo.yaml order_overview --update 42 --format csv",
        _read,
    ),
    _Command(
        "vacuum",
        "delete what no promised cut needs",
        "Deletes old versions of the views, after saying which cuts can then no longer be read, and how. "
        "The newest cut always stays, and so does every cut that was the newest within --keep. A job that "
        "runs does it by itself every hour.",
        "viewkeeper vacuum conf/demo.yaml --keep 1d --removed",
        _vacuum,
    ),
    _Command(
        "verify",
        "recompute at a frozen cut and compare",
        "Recomputes each view from its sources, as of one update, and compares it with the warehouse "
        "row by row. Exits 1 and prints the differing rows if they differ. With --level it judges all "
        "states that the warehouse went through instead, of each view and of all views together, and "
        "exits 1 if the level (or, with none given, what its algorithm promises) is not reached.",
        "viewkeeper verify conf/demo.yaml order_overview",
        _verify,
    ),
    _Command(
        "lab",
        "the algorithms in simulation: level reached, questions per update",
        "Runs the algorithms of the papers under an adversarial scheduler and judges what their views "
        "showed: one history step by step (run, replay), the smallest one that breaks a level (anomaly), "
        "or all algorithms measured against their promises (table).",
        "viewkeeper lab anomaly convergent",
        lab.add,
    ),
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
        sub = commands.add_parser(
            command.name,
            help=command.summary,
            description=textwrap.fill(command.description, 90),
            epilog=f"example:\n  {command.example}\n\n{_EXIT_CODES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.arguments(sub)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; every failure is one line a problem on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = next((a for a in arguments if not a.startswith("-")), "viewkeeper")
    if name in ("lab", "status", "watch"):
        _draw_what_can_be_drawn()
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except ViewkeeperError as e:
        _report(e.problems)
        return e.exit_code
    except KeyboardInterrupt:
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
        logging.lastResort.setFormatter(logging.Formatter("viewkeeper: %(message)s"))
    if args.version:
        from importlib.metadata import version

        print(f"viewkeeper {version('viewkeeper')}")
        return 0
    if args.command is None:
        raise UsageError.at("arguments", "no command was given", "see: viewkeeper --help")
    command = importlib.import_module(f"viewkeeper.commands.{args.command}")
    return int(command.run(args))


def _report(problems: Sequence[Problem]) -> None:
    for problem in problems:
        print("viewkeeper:", " ".join(str(problem).split()), file=sys.stderr)


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
