"""Messages that wait until views are to be refreshed.

A cut shows all views of the group after the same update. A view that is only refreshed now and then would lag behind
the others, so the cut waits for it: the group's cuts are as far apart as the most frequent of its refreshes.
What waits here is in no cut, so a restart reads it again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa

from viewkeeper.managers.keeping import Keeping

MOST = 200_000
"""At most so many messages wait: they are in memory."""

LONGEST = 10.0
"""Seconds after which a refresh is due that is told to wait for a number of updates: they may never come."""


@dataclass
class Hold:
    """Keeps messages until there are ``messages`` of them, or the last refresh was ``seconds`` ago."""

    messages: int = MOST
    seconds: float = LONGEST
    refreshed: float = field(default_factory=time.monotonic)
    waiting: list[pa.Table] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, keeping: Iterable[Keeping], age: float = 0.0) -> Hold | None:
        """For views that are kept in these ways, last refreshed ``age`` seconds ago; None if none of them is."""
        periods = [each.every for each in keeping if each.every is not None]
        if not periods:
            return None
        counts = [period for period in periods if isinstance(period, int)]
        times = [period.total_seconds() for period in periods if isinstance(period, timedelta)]
        return cls(min([MOST, *counts]), min(times, default=LONGEST), time.monotonic() - age)

    @property
    def count(self) -> int:
        """How many messages wait."""
        return sum(map(len, self.waiting))

    @property
    def due(self) -> bool:
        """Whether what waits is to be handled now."""
        if not self.waiting:
            return False
        return self.count >= self.messages or time.monotonic() - self.refreshed >= self.seconds

    def add(self, messages: pa.Table, ends: Mapping[str, int]) -> None:
        self.ends.update(ends)
        if len(messages):
            self.waiting.append(messages)

    def take(self) -> tuple[pa.Table, dict[str, int]]:
        """Everything that waits; nothing does afterwards."""
        messages, ends = pa.concat_tables(self.waiting), self.ends
        self.waiting, self.ends, self.refreshed = [], {}, time.monotonic()
        return messages, ends
