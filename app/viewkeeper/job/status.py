"""What the running job tells about itself: a small file per group, written at every cut and every second."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from viewkeeper.errors import ViewkeeperError
from viewkeeper.job.keeper import Keeper
from viewkeeper.job.picture import Picture
from viewkeeper.remedies import completed
from viewkeeper.warehouse.durability import FAST
from viewkeeper.warehouse.layout import write_atomically
from viewkeeper.warehouse.streams import storage

EVERY = 1.0
"""Seconds between two heartbeats."""


@dataclass
class StatusFile:
    """``<warehouse>/status/<group>.json``."""

    path: Path
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    _written: float = 0.0

    @classmethod
    def of(cls, warehouse: Path, group: str = "all") -> StatusFile:
        return cls(warehouse / "status" / f"{group}.json")

    def write(self, keeper: Keeper, *, ended: bool = False) -> None:
        """Writes the group's state now."""
        self._written = time.monotonic()
        picture = Picture(keeper)
        # In this order: an update is counted in the topic, among what arrived, or by its views; never nowhere.
        read, arrived = dict(keeper.rounds.taken), picture.arrived()
        self._store(
            {
                "pid": None if ended else os.getpid(),
                "started": self.started,
                "heartbeat": datetime.now(UTC),
                "waiting": keeper.waiting,
                "trouble": keeper.trouble is not None,
                "error": None,
                "level": keeper.level,
                "views": picture.views(),
                "table": picture.table(),
                "read": read,
                "arrived": arrived,
                "unnumbered": sum(arrived.values()),
                "cut": keeper.cut.cut,
                "last_update": keeper.cut.last_update,
                "updates_handled": keeper.updates_handled,
                "batches": keeper.batches,
                "asked": {source: asdict(tally) for source, tally in keeper.managers.tallies.items()},
                "seconds": {step: round(seconds, 3) for step, seconds in keeper.rounds.times.seconds.items()},
            }
        )

    @contextmanager
    def waiting(self) -> Iterator[Callable[[ViewkeeperError | None], None]]:
        """While a group waits to begin: notes what for, as it is told, and again every second until it is told anew.

        It stands beside what the group told last. Where it cannot be noted, it is not.
        """
        reason: ViewkeeperError | None = None
        done, turns = threading.Event(), threading.Lock()

        def note(told: ViewkeeperError | None) -> None:
            nonlocal reason
            with turns:
                reason = told
                self._waits(told)

        def beat() -> None:
            while not done.wait(EVERY):
                with turns:
                    if reason is not None:
                        self._waits(reason)

        beating = threading.Thread(target=beat, name=f"heartbeat of {self.path.stem}", daemon=True)
        beating.start()
        try:
            yield note
        finally:
            done.set()
            beating.join()
            self._waits(None)

    def failed(self, error: str) -> None:
        """Notes that the group has stopped and why, beside what it told last; where it cannot be noted, it is not."""
        self._add({"pid": None, "heartbeat": datetime.now(UTC), "error": completed(error)})

    def beat(self, keeper: Keeper) -> None:
        """Writes if the last time is long ago."""
        if time.monotonic() - self._written >= EVERY:
            self.write(keeper)

    def read(self) -> dict[str, Any] | None:
        """The last state written, or None if no job ever ran."""
        try:
            state: dict[str, Any] = orjson.loads(self.path.read_bytes())
        except (FileNotFoundError, orjson.JSONDecodeError):
            return None
        return state

    def _waits(self, reason: ViewkeeperError | None) -> None:
        """Notes what the group waits for before it can begin, or that it does so no longer."""
        self._add(
            {
                "pid": None if reason is None else os.getpid(),
                "started": self.started,
                "heartbeat": None if reason is None else datetime.now(UTC),
                "waiting": None if reason is None else completed(str(reason)),
                "trouble": reason is not None,
                "error": None,
            }
        )

    def _add(self, state: Mapping[str, Any]) -> None:
        """Writes this beside what the group told last, if it can be written."""
        with suppress(ViewkeeperError), storage(self.path):
            self._store({**(self.read() or {}), **state})

    def _store(self, state: Mapping[str, Any]) -> None:
        with storage(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path, orjson.dumps(state).decode(), FAST)
