"""What commands say while they work: one line each, with the time, to stderr."""

from __future__ import annotations

import logging

from viewkeeper.remedies import completed


class Pasteable(logging.Formatter):
    """Lines whose remedies can be pasted."""

    def format(self, record: logging.LogRecord) -> str:
        return completed(super().format(record))


def show_log() -> None:
    """From now on, what is worth knowing is shown as it happens."""
    shown = logging.StreamHandler()
    shown.setFormatter(Pasteable("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(handlers=[shown], level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.WARNING)
