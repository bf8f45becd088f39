"""What the job leaves behind: ``tail``, ``read``, ``vacuum`` and ``verify``."""

from __future__ import annotations

import argparse

from viewkeeper.commands.arguments.command import Command, conf, view
from viewkeeper.commands.arguments.values import age, count, level


def _tail(p: argparse.ArgumentParser) -> None:
    view(p)
    p.add_argument(
        "-n",
        metavar="N",
        dest="last",
        type=count,
        default=10,
        help="first the last N messages (default: 10)",
    )
    p.add_argument("--from-start", action="store_true", help="first all messages that the topic holds")
    p.add_argument("--no-follow", action="store_true", help="end at the end of the topic instead of waiting for more")
    p.add_argument(
        "--format",
        choices=("text", "json"),
        help="for people, or the messages as they are (default: text on a terminal, else json)",
    )


def _read(p: argparse.ArgumentParser) -> None:
    conf(p)
    p.add_argument("views", metavar="VIEW", nargs="+", help="views of the configuration, of one group")
    when = p.add_mutually_exclusive_group()
    when.add_argument("--cut", metavar="N", type=count, help="as they stood at cut N of their group")
    when.add_argument("--update", metavar="K", type=count, help="as they stood after update K of their group")
    p.add_argument(
        "--format", choices=("table", "json", "csv"), default="table", help="how to print it (default: table)"
    )
    p.add_argument(
        "--limit",
        metavar="N",
        type=count,
        help="at most N rows of a table (default: 50 on a terminal, else 1000); the others are counted",
    )


def _vacuum(p: argparse.ArgumentParser) -> None:
    conf(p)
    p.add_argument(
        "--keep",
        metavar="D",
        type=age,
        help="what was the newest cut at some time within D stays (default: keep: of the configuration, or 7d)",
    )
    p.add_argument(
        "--removed",
        action="store_true",
        help="also delete views, and groups, that neither the configuration nor a newest cut has",
    )


def _verify(p: argparse.ArgumentParser) -> None:
    conf(p)
    # VIEW may be left out and so may LEVEL: said in this order, neither is taken for the other.
    p.usage = "viewkeeper verify [-h] CONF [VIEW] [--level [LEVEL]] [--since K]"
    p.add_argument("view", metavar="VIEW", nargs="?", help="only this view (default: all)")
    p.add_argument(
        "--level",
        metavar="LEVEL",
        nargs="?",
        const="",
        type=level,
        help="judge every state since the load: was it complete, complete-N (such as complete-10), strong, weak or "
        "convergent? Without LEVEL: say which, and whether it is less than the view's algorithm promises. Recomputes "
        "the view for each update, from the messages that the topics still hold; it costs history × data, and is "
        "meant for small data and tests",
    )
    p.add_argument(
        "--since", metavar="K", type=count, help="with --level: judge from update K on, or from the last cut before it"
    )


TAIL = Command(
    "tail",
    "follow the view's topic",
    "Shows the messages of the view's topic as they are committed: the change of each update, and a seal for "
    "each cut. On a terminal as text, otherwise one JSON object a line. Ctrl-C ends it.",
    "viewkeeper tail conf/demo.yaml order_overview -n 20",
    _tail,
)

READ = Command(
    "read",
    "views as they stand, at a cut, or after any update",
    "Prints the rows of the views with _count, the number of times each occurs. Without --cut and "
    "--update: at the newest cut. A table fits its terminal: long texts are shortened, and where there are too "
    "many columns, each row is a record of its own; json and csv have everything. Several views are read at one "
    "and the same cut, whatever the job writes meanwhile; they must be of one group.",
    "viewkeeper read conf/demo.yaml order_overview --update 42 --format csv",
    _read,
)

VACUUM = Command(
    "vacuum",
    "delete what no promised cut needs",
    "Deletes old versions of the views, after saying which cuts can then no longer be read, and how. "
    "The newest cut always stays, and so does every cut that was the newest within --keep. A job that "
    "runs does it by itself every hour.",
    "viewkeeper vacuum conf/demo.yaml --keep 1d --removed",
    _vacuum,
)

VERIFY = Command(
    "verify",
    "recompute at a frozen cut and compare",
    "Recomputes each view from its sources, as of one update, and compares it with the warehouse "
    "row by row. Exits 1 and prints the differing rows if they differ. With --level it judges all "
    "states that the warehouse went through instead, of each view and of all views together, and "
    "exits 1 if the level (or, with none given, what its algorithm promises) is not reached.",
    "viewkeeper verify conf/demo.yaml order_overview",
    _verify,
)
