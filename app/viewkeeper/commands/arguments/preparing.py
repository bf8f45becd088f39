"""Before the job, and beside it: ``check``, ``explain``, ``init`` and ``capture``."""

from __future__ import annotations

import argparse

from viewkeeper.commands.arguments.command import Command, conf, view


def _init(p: argparse.ArgumentParser) -> None:
    conf(p)
    p.add_argument(
        "--reload",
        metavar="VIEW",
        nargs="*",
        help="load these views again (without a name: all); needed after a view's SQL changed",
    )


def _capture(p: argparse.ArgumentParser) -> None:
    conf(p)
    p.add_argument("sources", metavar="SOURCE", nargs="*", help="only these sources (default: all)")
    # The names of sources may also follow these: argparse would not find them there by itself.
    p.add_argument(
        "--remove",
        metavar="SOURCE",
        nargs="*",
        help="take triggers and change log, or publication and slot, out of the sources again, and end",
    )
    p.add_argument(
        "--forget",
        metavar="WAREHOUSE",
        help="the project of that warehouse was given up: SQLite's change logs are no longer kept for it; and end",
    )
    p.add_argument(
        "--print",
        metavar="SOURCE",
        nargs="*",
        help="print Debezium's configuration for a Kafka Connect of your own, as its REST API takes it, and end",
    )


def _check(p: argparse.ArgumentParser) -> None:
    conf(p)
    p.add_argument(
        "--sql",
        action="store_true",
        help="instead of what is fine, print the statements that PostgreSQL servers lack: a script for each source "
        "and role, to be pasted into psql",
    )


CHECK = Command(
    "check",
    "validate configuration, SQL, sources, topics and indexes",
    "Checks the configuration, every view's SQL against the sources as they are, that sources and "
    "Kafka can be reached (for at most 30 s), that look-ups by join columns have an index, and that each "
    "PostgreSQL server logs what capture needs and lets its role read it. "
    "Changes nothing. Warnings do not make it fail.",
    "viewkeeper check conf/demo.yaml",
    _check,
)

EXPLAIN = Command(
    "explain",
    "the sweep plan of a view and the questions it asks",
    "Shows, for a change in each relation of the view, which relations are asked in which order, "
    "for which columns and keys, and where each condition is applied.",
    "viewkeeper explain conf/demo.yaml order_overview",
    view,
)

INIT = Command(
    "init",
    "create topics and capture, load the views",
    "Creates what is missing: the topics, the capture in each source (triggers and a change log, or a "
    "publication and a replication slot), and the first load of each view. Does nothing twice.",
    "viewkeeper init conf/demo.yaml --reload order_overview",
    _init,
)

CAPTURE = Command(
    "capture",
    "send the sources' changes to their topics",
    "Sends every committed change of the captured tables to its source's topic, until Ctrl-C or "
    "SIGTERM: the change log of SQLite by itself, that of PostgreSQL by Debezium in Kafka Connect, which it "
    "starts. A capture that starts again goes on after its own last message.",
    "viewkeeper capture conf/demo.yaml shop crm",
    _capture,
)
