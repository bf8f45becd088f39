"""What a group's job says of its work: a line when it is up, one now and then while it has something to do, and one
in the end."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from viewkeeper.counts import some
from viewkeeper.job.keeper import Keeper

log = logging.getLogger("viewkeeper")

ON_SCREEN, IN_FILE = 10.0, 60.0
"""Seconds between two lines, where somebody watches and where they are kept."""

_NAMED = 3


@dataclass
class Account:
    """Tells of one group; it is named where there are several."""

    keeper: Keeper
    group: str | None = None
    every: float = field(default_factory=lambda: ON_SCREEN if sys.stderr.isatty() else IN_FILE)
    _told_at: float = 0.0
    _told: tuple[int, int] = (0, 0)  # updates and cuts that were spoken of
    _since: float = field(default_factory=lambda: time.monotonic())

    def opened(self) -> None:
        """The views are loaded."""
        self._say(f"{_views(list(self.keeper.views))} at {self._stand}")

    def up(self, until_idle: bool) -> None:
        """Changes are being listened for."""
        if until_idle:  # its end is told soon enough
            self._told_at = time.monotonic()
        sources = _and(list(self.keeper.sources))
        end = f"until all that {sources} had committed is in a cut" if until_idle else "Ctrl-C ends it"
        self._say(f"up, waiting for what capture sends of {sources}; {end}")

    def now_and_then(self) -> None:
        """At the first cut, and then when the last line is long ago and there is something new to tell."""
        now, done = time.monotonic(), (self.keeper.updates_handled, self.keeper.batches)
        if done == self._told or (self._told_at and now - self._told_at < self.every):
            return
        updates, cuts = done[0] - self._told[0], done[1] - self._told[1]
        seconds = now - (self._told_at or self._since)
        rate = f", {updates / seconds:,.0f} a second" if updates >= seconds else ""
        self._say(f"{some(updates, 'update')} in {some(cuts, 'cut')}{rate}; now at {self._stand}")
        self._told, self._told_at = done, now

    def ended(self) -> None:
        """The group works no longer, for whatever reason."""
        keeper = self.keeper
        done = f"handled {some(keeper.updates_handled, 'update')} in {some(keeper.batches, 'cut')}"
        stand = "stands" if len(keeper.views) == 1 else "stand"
        self._say(f"ended: {done}; {_views(list(keeper.views))} {stand} at {self._stand}")

    @property
    def _stand(self) -> str:
        return f"cut {self.keeper.cut.cut}, update {self.keeper.cut.last_update}"

    def _say(self, line: str) -> None:
        log.info("%s%s", "" if self.group is None else f"group {self.group}: ", line)


def _views(names: Sequence[str]) -> str:
    if len(names) <= _NAMED:
        return f"view{'s' if len(names) > 1 else ''} {', '.join(names)}"
    return some(len(names), "view")


def _and(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
