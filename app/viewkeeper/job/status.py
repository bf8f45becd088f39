"""What the running job tells about itself: a small file in the warehouse, written at every cut and every second."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from viewkeeper.job.keeper import Keeper
from viewkeeper.warehouse.layout import write_atomically

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
        """Writes the job's state now."""
        self._written = time.monotonic()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        state = {
            "pid": None if ended else os.getpid(),
            "started": self.started,
            "heartbeat": datetime.now(UTC),
            "waiting": keeper.waiting or keeper.held,
            "cut": keeper.cut.cut,
            "last_update": keeper.cut.last_update,
            "updates_handled": keeper.updates_handled,
            "batches": keeper.batches,
            "asked": {source: asdict(tally) for source, tally in keeper.stage.tallies.items()},
            "seconds": {step: round(seconds, 3) for step, seconds in keeper.times.seconds.items()},
        }
        write_atomically(self.path, orjson.dumps(state).decode())

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
