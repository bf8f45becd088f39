"""From a source's commit to the cut that contains it, measured from outside: the writer's clock against the seal's."""

from __future__ import annotations

import statistics
import threading

from viewkeeper.local.demo.follower import Sealed
from viewkeeper.local.demo.writer import Writer

LATELY = 200
"""The moving median is that of so many transactions."""


class Latencies:
    """Seconds from commit to cut of every transaction; a seal is sent after its cut, so none is too small."""

    def __init__(self, writer: Writer):
        self._writer = writer
        self._seconds: list[float] = []
        self._lock = threading.Lock()

    def heard(self, sealed: Sealed) -> None:
        """Notes the transactions that this cut is the first to contain."""
        seen = self._writer.take_seen(sealed.positions)
        with self._lock:
            self._seconds += [max(0.0, sealed.at - written.at) for written in seen]

    def forget(self) -> None:
        """Leaves out what was measured so far: the first changes wait for a JVM that is still warming up."""
        with self._lock:
            self._seconds = []

    def lately(self) -> float | None:
        """The median of the last transactions."""
        with self._lock:
            return statistics.median(self._seconds[-LATELY:]) if self._seconds else None

    def overall(self) -> tuple[float, float] | None:
        """The median, and what 95 of 100 stay below."""
        with self._lock:
            if len(self._seconds) < 2:
                return None
            return statistics.median(self._seconds), statistics.quantiles(self._seconds, n=20)[-1]
