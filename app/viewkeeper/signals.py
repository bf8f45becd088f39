"""The signals that ask a command to end: Ctrl-C, a service manager's SIGTERM, SIGHUP of a terminal that is gone.

The first one is enough: what comes after it would only disturb the ending, so it is ignored from then on.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

received: list[int] = []
"""The signal that asked this process to end, once it was noted. A list, because a handler may not wait for a lock."""


@contextmanager
def noted() -> Iterator[None]:
    """Inside, a signal that asks to end is only noted, so that it meets no import or half-made object."""
    before = {number: signal.getsignal(number) for number in ENDING}
    note()
    try:
        yield
    finally:
        for number, handler in before.items():  # Python, ending, would give a handler up, but leaves what is ignored
            signal.signal(number, signal.SIG_IGN if received else handler)


def note() -> None:
    """From now on, a signal that asks to end is noted in ``received``, for those who look there."""
    _handle(_note)


def interrupt() -> None:
    """From now on, a signal that asks to end raises KeyboardInterrupt, as Ctrl-C does; at once if one was noted."""
    _handle(_interrupt)
    if received:
        raise KeyboardInterrupt


def ignore() -> None:
    """From now on, such signals are ignored here, and by every program that takes the place of this one."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def pass_over() -> None:
    """From now on, such signals are passed over: the command is ending already.

    By a handler that does nothing: Python complains of one that comes in the moment in which it is told to ignore it.
    """
    for number in ENDING:
        signal.signal(number, _pass_over)


def _pass_over(*_: object) -> None: ...


def _handle(handler: Callable[[int, FrameType | None], Any]) -> None:
    for number in ENDING:
        # Under nohup the end of the terminal is to be ignored.
        if not received and not (number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN):
            signal.signal(number, handler)


def _note(number: int, _: FrameType | None) -> None:
    received.append(number)
    pass_over()


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    _note(number, frame)
    raise KeyboardInterrupt
