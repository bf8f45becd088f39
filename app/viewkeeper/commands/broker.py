"""``viewkeeper broker``: a real single-node Kafka in the foreground."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import NoReturn

from viewkeeper.local.broker import Broker


def run(args: argparse.Namespace) -> int:
    """Runs the broker until Ctrl-C or SIGTERM, which are the way to end it and so a success."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with Broker(Path(args.dir), args.port) as broker:
            print(
                f"Kafka is ready at {broker.bootstrap} (data and log in {broker.directory}); Ctrl-C ends it",
                flush=True,
            )
            broker.wait()
    except KeyboardInterrupt:
        return 0
    return 0


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
