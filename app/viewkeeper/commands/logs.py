"""What commands say while they work: one line each, with the time, to stderr."""

from __future__ import annotations

import logging


def show_log() -> None:
    """From now on, what is worth knowing is shown as it happens."""
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
