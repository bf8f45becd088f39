"""Whether a source is being captured: a file that its capture holds locked for as long as it lives."""

from __future__ import annotations

import fcntl
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from viewkeeper.capture.side_by_side import Runner

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Presence:
    """``<warehouse>/captures/<source>.lock``; the lock goes with its process, however that ends."""

    file: Path

    @classmethod
    def of(cls, warehouse: Path, source: str) -> Presence:
        return cls(warehouse / "captures" / f"{source}.lock")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Capture is there inside the block. Where that cannot be noted, it works all the same."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            opened = self.file.open("w")
        except OSError as error:
            logger.warning("%s: status will not know that capture runs", error)
            yield
            return
        with opened:
            # Shared: a second capture fences off the first by itself, and is there while both are.
            fcntl.flock(opened, fcntl.LOCK_SH)
            yield

    def is_held(self) -> bool:
        """Is a capture there?"""
        try:
            with self.file.open("r") as opened:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False
        return False


@dataclass(frozen=True)
class Present:
    """A runner whose presence is noted while it works."""

    runner: Runner
    presence: Presence

    @property
    def name(self) -> str:
        return self.runner.name

    def run(self, stop: threading.Event) -> None:
        with self.presence.held():
            self.runner.run(stop)
