"""PostgreSQL's snapshots as positions: what a snapshot includes is decided by transaction visibility, never by LSN.

A commit is logged before it becomes visible, so a transaction may have come out of the log and still be missing from a
later snapshot. The log names transactions by 32 bits; ``pg_current_snapshot()`` speaks of 64. No transaction that is
still asked about is 2³¹ transactions away from the snapshot's end, so the missing half is known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

_TEXT = re.compile(r"(\d+):(\d+):((?:\d+(?:,\d+)*)?)")
_EPOCH = 1 << 32


@dataclass(frozen=True)
class PgSnapshot:
    """All transactions below ``xmin`` are over, none from ``xmax`` on has begun, those in ``running`` are not over."""

    xmin: int
    xmax: int
    running: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> PgSnapshot:
        """The snapshot that PostgreSQL writes as ``xmin:xmax:xip,…``."""
        found = _TEXT.fullmatch(text)
        if not found:
            raise ValueError(f"no snapshot: {text!r}")
        running = tuple(sorted(int(xid) for xid in found[3].split(",") if xid))
        return cls(int(found[1]), int(found[2]), running)

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.running))}"

    def widened(self, xids: np.ndarray) -> np.ndarray:
        """The 64-bit numbers of transactions that the log names by their last 32 bits."""
        behind = (self.xmax - np.asarray(xids, np.int64)) % _EPOCH
        return self.xmax - np.where(behind >= _EPOCH // 2, behind - _EPOCH, behind)

    def includes(self, positions: np.ndarray) -> np.ndarray:
        """Per 32-bit xid: is what that transaction did, visible in this snapshot?"""
        xids = self.widened(positions)
        visible = xids < self.xmax
        late = np.flatnonzero(visible & (xids >= self.xmin))
        if len(late) and len(self._running):
            visible[late] = ~np.isin(xids[late], self._running)
        return np.asarray(visible)

    @cached_property
    def _running(self) -> np.ndarray:
        return np.array(self.running, np.int64)
