"""``viewkeeper broker``: a real single-node Kafka in the foreground."""

from __future__ import annotations

import argparse
from pathlib import Path

from viewkeeper import signals
from viewkeeper.local.broker import Broker


def run(args: argparse.Namespace) -> int:
    """Runs the broker until Ctrl-C or SIGTERM, which are the way to end it and so a success."""
    signals.interrupt()
    with Broker(Path(args.dir), args.port) as broker:
        print(
            f"Kafka is ready at {broker.bootstrap} (data and log in {broker.directory}); Ctrl-C ends it",
            flush=True,
        )
        broker.wait()
    return 0
