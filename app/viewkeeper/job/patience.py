"""Waiting for a world that is away for a while: back off, say so, try again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from viewkeeper.errors import KafkaError, SourceUnreachable, ViewkeeperError, WarehouseUnreachable

log = logging.getLogger("viewkeeper")
T = TypeVar("T")

FIRST_START = 30.0
"""Seconds after which `check` and a first start give up."""

RETRYABLE = (SourceUnreachable, KafkaError, WarehouseUnreachable)


class Stopped(Exception):
    """The job was asked to stop while it waited."""


def patiently(
    work: Callable[[], T],
    *,
    seconds: float | None = None,
    stop: threading.Event | None = None,
    waiting: Callable[[ViewkeeperError | None], None] = lambda error: None,
    retryable: tuple[type[ViewkeeperError], ...] = RETRYABLE,
) -> T:
    """Does the work, again after each retryable error, until it succeeds, ``seconds`` have passed or ``stop`` is set.

    ``waiting`` hears of each error that is waited for, and of None once it is over.
    """
    stop = stop or threading.Event()
    deadline = None if seconds is None else time.monotonic() + seconds
    pause = 0.2
    failed = False
    while True:
        try:
            result = work()
        except retryable as error:
            if deadline is not None and time.monotonic() + pause > deadline:
                raise
            failed = True
            waiting(error)
            log.warning("%s; trying again in %.1f s", error, pause)
            if stop.wait(pause):
                raise Stopped from error
            pause = min(pause * 2, 10.0)
        else:
            if failed:
                waiting(None)
                log.info("going on")
            return result
