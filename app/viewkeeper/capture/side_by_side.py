"""Captures side by side, a thread each: the failure of one leaves the others their work."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Protocol, Self

from viewkeeper.errors import UserError, ViewkeeperError, raise_together

logger = logging.getLogger(__name__)


class Runner(Protocol):
    """Something that sends changes until it is told to stop."""

    @property
    def name(self) -> str: ...

    def run(self, stop: threading.Event) -> None: ...


class SideBySide:
    """The captures that a block of code starts; they work until ``stop``, whatever becomes of a single one.

    The end of the block waits until each of them has ended, and raises what they failed with. What the user must
    change, and what nobody foresaw, ends all of them at once, as an error of the block does. ``several`` says that
    there are others than the first that may fail: that one's error is told at once, because it is raised late.
    """

    def __init__(self, stop: threading.Event, several: bool = True):
        self.stop = stop
        self.several = several
        self._threads: list[threading.Thread] = []
        self._failures: list[Exception] = []

    def start(self, runner: Runner) -> None:
        thread = threading.Thread(target=self._run, args=(runner,), name=f"capture-{runner.name}")
        self._threads.append(thread)
        thread.start()

    def fail(self, error: Exception) -> None:
        """One of the captures has failed with this, or cannot even begin."""
        self._failures.append(error)
        if isinstance(error, UserError) or not isinstance(error, ViewkeeperError):
            self.stop.set()
        elif self.several and not self.stop.is_set():
            logger.warning("%s; no longer captured here", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if error is not None:
            self.stop.set()
        for thread in self._threads:
            while thread.is_alive():  # a plain join would not let Ctrl-C through
                thread.join(0.2)
        if error is None:
            raise_together(self._failures)

    def _run(self, runner: Runner) -> None:
        try:
            runner.run(self.stop)
        except Exception as error:  # the main thread raises it: a thread's own traceback would end nothing
            self.fail(error)
