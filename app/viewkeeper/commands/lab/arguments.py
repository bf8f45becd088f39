"""The arguments of ``viewkeeper lab``; knows no algorithm, so that ``--help`` stays light."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from viewkeeper.commands.arguments.command import Command

SOURCES = range(1, 27)
UPDATES = range(10_001)
RELATIONS = range(1, 27)
HISTORIES = range(1, 1_000_001)

SCENARIOS = ("single", "local", "global")
LEVELS = ("convergent", "weak", "strong", "complete-N", "complete")


def _whole(wanted: range) -> Callable[[str], int]:
    """Reads a whole number of a range."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) not in wanted:
            between = f"from {wanted.start:,} to {wanted.stop - 1:,}"
            raise argparse.ArgumentTypeError(f"must be a whole number {between}, not {text!r}")
        return int(text)

    return read


def _share(text: str) -> float:
    """A probability that leaves room for something else to happen."""
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 0.5:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 0.5, not {text!r}")
    return share


def _seed(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None


def _add_option(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="an option of the algorithm, such as pipeline=3 or parallel=true; may be given several times",
    )


def _add_scenario(p: argparse.ArgumentParser, default: str | None) -> None:
    p.add_argument(
        "--scenario",
        choices=SCENARIOS,
        default=default,
        help="what a transaction spans: one change, several at one source, several sources "
        f"(default: {default or 'all of them'})",
    )


def _add_files(p: argparse.ArgumentParser) -> None:
    p.add_argument("--save", metavar="FILE", help="write the history to a small file, for lab replay")
    _add_svg(p)


def _add_svg(p: argparse.ArgumentParser) -> None:
    p.add_argument("--svg", metavar="FILE", help="draw it as a picture too, time running to the right")


def _run(p: argparse.ArgumentParser) -> None:
    p.add_argument("--algorithm", metavar="A", required=True, help="which; lab anomaly lists all")
    _add_option(p)
    p.add_argument("--sources", metavar="N", type=_whole(SOURCES), default=3, help="how many sources (default: 3)")
    p.add_argument(
        "--relations",
        metavar="N",
        type=_whole(RELATIONS),
        help="how many relations the view joins (default: one a source, 3 in a single source)",
    )
    p.add_argument(
        "--updates", metavar="N", type=_whole(UPDATES), default=20, help="how many transactions (default: 20)"
    )
    p.add_argument("--seed", metavar="S", type=_seed, default=7, help="draws workload and order (default: 7)")
    _add_scenario(p, "single")
    p.add_argument("--no-keys", action="store_true", help="relations without keys: rows may be there several times")
    p.add_argument("--crash", metavar="P", type=_share, default=0.0, help="how often the manager crashes, per event")
    p.add_argument("--duplicate", metavar="P", type=_share, default=0.0, help="how often an update comes twice")
    p.add_argument("--delay", metavar="P", type=_share, default=0.0, help="how often a source falls silent for a while")
    _add_files(p)


def _replay(p: argparse.ArgumentParser) -> None:
    p.add_argument("file", metavar="FILE", help="a saved history, or the name of an example of the papers")
    _add_svg(p)


def _anomaly(p: argparse.ArgumentParser) -> None:
    p.add_argument("algorithm", metavar="ALGORITHM", nargs="?", help="which (default: all, one line each)")
    _add_option(p)
    p.add_argument("--level", metavar="L", help=f"the level to break: {', '.join(LEVELS)} (default: any not promised)")
    _add_scenario(p, None)
    _add_files(p)


def _table(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--histories",
        metavar="N",
        type=_whole(HISTORIES),
        default=400,
        help="random histories for each algorithm and scenario (default: 400, about a minute)",
    )
    p.add_argument("--seed", metavar="S", type=_seed, default=7, help="draws the histories (default: 7)")
    p.add_argument(
        "--html",
        metavar="DIR",
        help="write laboratory.html there: the table, and plots (measuring those takes about 20 s more)",
    )
    p.add_argument("--csv", metavar="FILE", help="write the table as CSV")


_PARTS = (
    Command(
        "run",
        "one random history, step by step",
        "Draws a workload and an order of events by seed, and shows what happens: commits, updates, questions, "
        "answers, compensations, view states. At the end: the level of consistency that the history reached, with "
        "the evidence, and the questions per update.",
        "viewkeeper lab run --algorithm strobe --sources 3 --updates 20 --seed 7 --save strobe.json",
        _run,
    ),
    Command(
        "replay",
        "a saved history, or an example of the papers",
        "Shows a saved history in the same way. Instead of a file, the name of one of the papers' examples may be "
        "given; lab anomaly lists them.",
        "viewkeeper lab replay strobe-1996-example-1 --svg example.svg",
        _replay,
    ),
    Command(
        "anomaly",
        "the smallest history in which an algorithm breaks a level",
        "Tries small workloads one size after the other, each in every order that messages can arrive in, for the "
        "smallest history that breaks a level of consistency which the algorithm does not promise, and draws it. "
        "Without an algorithm: a list of all.",
        "viewkeeper lab anomaly convergent --svg anomaly.svg",
        _anomaly,
    ),
    Command(
        "table",
        "every algorithm measured against its promise",
        "Runs every algorithm in every scenario through random histories, with crashes and duplicates, and through "
        "the interleavings of small ones: the level reached in all of them against the promise, questions and "
        "bytes per update, and whether the view stands still while updates keep coming. Exits 1 if a promise was "
        "broken; the history is saved then.",
        "viewkeeper lab table --histories 2000 --seed 7 --html docs --csv docs/laboratory.csv",
        _table,
    ),
)


def _parts(p: argparse.ArgumentParser) -> None:
    parts = p.add_subparsers(dest="part", metavar="PART", title="parts", required=True)
    for part in _PARTS:
        part.add_to(parts)


LAB = Command(
    "lab",
    "the algorithms in simulation: level reached, questions per update",
    "Runs the algorithms of the papers under an adversarial scheduler and judges what their views "
    "showed: one history step by step (run, replay), the smallest one that breaks a level (anomaly), "
    "or all algorithms measured against their promises (table).",
    "viewkeeper lab anomaly convergent",
    _parts,
)
