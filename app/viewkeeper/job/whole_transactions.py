"""Transactions over several sources that are not whole: who is missing, and since when."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from viewkeeper.integrator.arrange import missing
from viewkeeper.messages import Received

PATIENCE = 60.0

log = logging.getLogger("viewkeeper")


@dataclass
class Incomplete:
    """Watches what waits for other parts; nothing is ever dropped, but after ``patience`` seconds it is told."""

    patience: float = PATIENCE
    now: Callable[[], float] = time.monotonic
    late: list[str] = field(default_factory=list)  # in words, the one that waits longest first
    _since: dict[tuple[str, str, int], float] = field(default_factory=dict, init=False)
    _told: set[tuple[str, str, int]] = field(default_factory=set, init=False)

    def look(self, waiting: Received, sources: Collection[str]) -> bool:
        """Tells whether some transaction has waited too long by now."""
        now = self.now()
        found = {
            (u.part_of.id, u.source, u.offset): (u, lacking) for u, lacking in missing(waiting, sources) if u.part_of
        }
        self._since = {key: self._since.get(key, now) for key in found}
        self._told &= found.keys()
        overdue = [key for key, since in self._since.items() if now - since >= self.patience]
        self.late = []
        for key in sorted(overdue, key=self._since.__getitem__):
            update, lacking = found[key]
            waited, parts = now - self._since[key], ", ".join(sorted(lacking))
            text = f"transaction {key[0]} of {update.source} waits since {waited:.0f} s for its part of {parts}"
            self.late.append(text)
            if key not in self._told:
                self._told.add(key)
                log.warning("%s; what comes after it waits, too", text)
        return bool(self.late)
