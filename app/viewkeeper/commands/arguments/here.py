"""What runs on this machine for people who have nothing yet: ``demo`` and ``broker``."""

from __future__ import annotations

import argparse

from viewkeeper.commands.arguments.command import Command
from viewkeeper.commands.arguments.values import count


def _demo(p: argparse.ArgumentParser) -> None:
    p.add_argument("--seconds", metavar="N", type=count, default=30, help="how long the writer writes (default: 30)")
    p.add_argument("--dir", metavar="D", default="demo", help="where everything goes (default: ./demo)")
    p.add_argument("--postgres", action="store_true", help="on three PostgreSQL servers, with Debezium")


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


DEMO = Command(
    "demo",
    "the whole path on this machine, in one terminal",
    "Starts a broker, three sample databases, their capture, the job and a writer; shows the view "
    "move, then proves it equal to recomputation. Ctrl-C ends it, and every process with it.",
    "viewkeeper demo --seconds 20",
    _demo,
)

BROKER = Command(
    "broker",
    "a real single-node Kafka for people who have none",
    "Runs a Kafka broker on 127.0.0.1 in the foreground until Ctrl-C or SIGTERM. It keeps its "
    "data, so it may be stopped and started again. Its own log is broker.log in its folder.",
    "viewkeeper broker --dir ./broker --port 9092",
    _broker,
)
