"""When a view manager works: at once, when a refresh is due, or some time after it failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from viewkeeper.errors import ViewkeeperError
from viewkeeper.managers.keeping import Keeping

LONGEST = 10.0
"""Seconds after which a refresh is due that is told to wait for a number of updates: they may never come."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0


@dataclass
class Pace:
    """One manager's pace; clocks are the caller's, in seconds."""

    keeping: Keeping
    refreshed: float
    error: ViewkeeperError | None = None  # what it failed with, until it succeeds
    _pause: float = field(default=_FIRST_PAUSE, init=False)
    _again: float = field(default=0.0, init=False)
    _published: float = field(default=0.0, init=False)  # the last refresh that is in a cut

    def __post_init__(self) -> None:
        self._published = self.refreshed

    def rests(self, now: float) -> bool:
        """Whether it has failed so lately that it must not even be hurried."""
        return now < self._again

    def due(self, owed: int, now: float) -> bool:
        """Whether the manager is to work now, if it owes so many updates."""
        if not owed or self.rests(now):
            return False
        every = self.keeping.every
        if every is None:
            return True
        if isinstance(every, timedelta):
            return now - self.refreshed >= every.total_seconds()
        return owed >= every or now - self.refreshed >= LONGEST

    def succeeded(self, now: float) -> None:
        self.error, self._pause, self._again, self.refreshed = None, _FIRST_PAUSE, 0.0, now

    def published(self) -> None:
        """What it did so far is in a cut."""
        self._published = self.refreshed

    def lost(self) -> None:
        """What it did since the last cut is lost, and as due as it was."""
        self.refreshed = self._published

    def failed(self, error: ViewkeeperError, now: float) -> float:
        """Notes a failure; gives the seconds until the manager tries again."""
        pause, self.error = self._pause, error
        self._again, self._pause = now + pause, min(2 * pause, _LONGEST_PAUSE)
        return pause
