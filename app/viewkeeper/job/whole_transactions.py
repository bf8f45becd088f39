"""Transactions that are not whole: what is missing, and since when."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from viewkeeper.integrator.arrange import missing
from viewkeeper.messages import Received

PATIENCE = 60.0

HELD_UPDATES = 100_000
HELD_BYTES = 64 << 20
"""What may wait behind a transaction that is not whole, in updates of a source and in bytes of what they changed."""

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


@dataclass
class Unfinished:
    """Watches updates of which only the beginning has come out of a topic; after ``patience`` seconds it is told."""

    patience: float = PATIENCE
    now: Callable[[], float] = time.monotonic
    late: list[str] = field(default_factory=list)  # in words
    _since: dict[tuple[str, str], float] = field(default_factory=dict, init=False)
    _told: set[tuple[str, str]] = field(default_factory=set, init=False)

    def look(self, unfinished: Mapping[str, str]) -> bool:
        """Tells whether the rest of an update is overdue; ``unfinished`` says per source what came last of it."""
        now = self.now()
        self._since = {key: self._since.get(key, now) for key in unfinished.items()}
        self._told &= self._since.keys()
        overdue = {key: now - since for key, since in self._since.items() if now - since >= self.patience}
        self.late = [_overdue(*key, waited) for key, waited in overdue.items()]
        for key, text in zip(overdue, self.late, strict=True):
            if key not in self._told:
                self._told.add(key)
                log.warning("%s", text)
        return bool(self.late)


def held_back(waiting: Received, sources: Collection[str]) -> dict[str, str]:
    """The sources whose topics are read no further for now, because so much of them waits already; in words.

    Never one that a transaction waits for.
    """
    if all(update.part_of is None for update in waiting.updates):
        return {}
    lacking = missing(waiting, sources)
    awaited = set[str]().union(*(lacks for _, lacks in lacking))
    updates = Counter(update.source for update in waiting.updates)
    held = {}
    for source, count in updates.items():
        size = sum(table.nbytes for (of, _), table in waiting.changes.items() if of == source)
        if lacking and source not in awaited and (count > HELD_UPDATES or size > HELD_BYTES):
            own = [update for update, _ in lacking if update.source == source]
            behind = next(update.part_of.id for update in own or (u for u, _ in lacking) if update.part_of)
            held[source] = (
                f"source {source} is read no further: {count} of its updates wait behind transaction {behind}"
            )
    return held


def _overdue(source: str, words: str, waited: float) -> str:
    return f"source {source}: {words} came {waited:.0f} s ago, and the rest of it does not come"
