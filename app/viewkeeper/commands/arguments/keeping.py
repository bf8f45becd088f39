"""The job, and where it stands: ``run``, ``status`` and ``watch``."""

from __future__ import annotations

import argparse
from datetime import timedelta

from viewkeeper.commands.arguments.command import Command, conf
from viewkeeper.commands.arguments.values import pace


def _run(p: argparse.ArgumentParser) -> None:
    conf(p)
    p.add_argument(
        "--until-idle",
        action="store_true",
        help="handle all that the sources had committed when it started, fold the views, and end",
    )


def _status(p: argparse.ArgumentParser) -> None:
    conf(p)
    p.add_argument("--json", action="store_true", help="one JSON object instead of text")


def _watch(p: argparse.ArgumentParser) -> None:
    conf(p)
    p.add_argument(
        "--every",
        metavar="D",
        type=pace,
        default=timedelta(milliseconds=500),
        help="the time between two frames, at least 100ms (default: 500ms)",
    )


RUN = Command(
    "run",
    "the job: keep the views in step (init included)",
    "Follows the topics of all sources and keeps every view exact, until Ctrl-C or SIGTERM: then "
    "it finishes the batch and exits 0. Capture must be running for the changes to arrive.",
    "viewkeeper run conf/demo.yaml --until-idle",
    _run,
)

STATUS = Command(
    "status",
    "lag, positions, questions asked per source, newest cuts",
    "Shows where the views stand: whether each source is captured, how many updates of its topic are in no cut, its "
    "position and what was asked of it; each group's newest cut, its age and what is on its way to the next; each "
    "view's promise, how far it is behind all that its sources have committed, and what it waits for; and trouble "
    "first of all. Groups end with their ViewUpdateTable: a row an update, a "
    "column a view, an entry whether the view's change is owed, waits for others, or is in the newest cut. "
    "In JSON, 'cut' is that of the one group, and null if there are several: see 'groups'.",
    "viewkeeper status conf/demo.yaml --json",
    _status,
)

WATCH = Command(
    "watch",
    "the groups and their ViewUpdateTables, live",
    "Shows what status shows of the groups, again and again, until Ctrl-C; how far sources are behind is "
    "looked at every five seconds. Where the output is no terminal, prints one frame and ends.",
    "viewkeeper watch conf/demo.yaml --every 1s",
    _watch,
)
