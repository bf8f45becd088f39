"""What long work says of itself while it goes on: how much is done, how fast, and how long it may still take."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

log = logging.getLogger("viewkeeper")

EVERY = 5.0
"""Seconds between two lines."""

LARGE_BATCH = 10_000
"""Messages in a batch from which on a job seems to have a backlog."""


@dataclass
class Progress:
    """Tells of one piece of work now and then; ``unit`` is what its amount counts."""

    what: str
    unit: str = "rows"
    begun: float = field(default_factory=time.monotonic)
    told: float = field(default_factory=time.monotonic)

    @property
    def due(self) -> bool:
        """Whether the next call of ``at`` says something."""
        return time.monotonic() - self.told >= EVERY

    def at(self, amount: int, done: float | None = None) -> None:
        """So much was made, and this share of the work, between 0 and 1, is done."""
        if not self.due:
            return
        self.told = now = time.monotonic()
        line = f"{self.what}: {amount:,} {self.unit}, {amount / (now - self.begun):,.0f} a second"
        if done:
            line += f", {done:.0%} done, about {duration((now - self.begun) * (1 - done) / done)} left"
        log.info("%s", line)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun


@dataclass
class CatchingUp:
    """Tells how far a job has come that works off a backlog: batch by batch, as long as these are large.

    ``remaining`` counts the messages that are still to be read; it is asked for seldom.
    """

    remaining: Callable[[], int]
    _progress: Progress | None = None
    _messages: int = 0
    _updates: int = 0

    def batch(self, messages: int, updates: int) -> None:
        """A batch of so many messages and updates was handled."""
        if messages < LARGE_BATCH:
            self._progress = None
            return
        if self._progress is None:
            self._progress, self._messages, self._updates = Progress("catching up", "updates"), 0, 0
        self._messages += messages
        self._updates += updates
        if self._progress.due:
            self._progress.at(self._updates, self._messages / (self._messages + self.remaining()))


def duration(seconds: float) -> str:
    """A length of time as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
