"""Ending a long-running command by SIGTERM, Ctrl-C or the end of its terminal."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from viewkeeper import signals

T = TypeVar("T")

_LOOK_EVERY = 0.05


def stoppable(work: Callable[[threading.Event], T]) -> T:
    """Runs the work in a thread of its own; the event that it is given is set by the signals that ask to end.

    Not by the signals' handler itself: that interrupts the main thread anywhere, also while it waits for the event and
    holds the lock that setting it needs.
    """
    signals.note()
    stop = threading.Event()
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work(stop))
        except BaseException as error:  # raised again by the main thread
            failures.append(error)

    thread = threading.Thread(target=run, name="work")
    thread.start()
    while thread.is_alive():
        if signals.received:
            stop.set()
        thread.join(_LOOK_EVERY)
    if failures:
        raise failures[0]
    return results[0]
