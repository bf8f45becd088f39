"""How many rows a second may be read of a source: a bucket that fills at that rate and holds a second's worth."""

from __future__ import annotations

import time
from collections.abc import Callable


class Budget:
    """Rows are read first and paid for afterwards, so a debt delays what comes next; without a rate all is free."""

    def __init__(
        self,
        rate: float | None,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.rate = rate
        self._now = now
        self._sleep = sleep
        self._left = rate or 0.0
        self._seen = now()

    def pay(self, rows: int) -> None:
        """Takes the rows out of the bucket, and waits until it is not empty any more."""
        if self.rate is None:
            return
        moment = self._now()
        self._left = min(self.rate, self._left + (moment - self._seen) * self.rate) - rows
        self._seen = moment
        if self._left < 0:
            self._sleep(-self._left / self.rate)
