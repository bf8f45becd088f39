"""Crashes on demand: tests end the process between any two steps of a commit, as a power cut would."""

from __future__ import annotations

import os
import signal
import threading

CRASH_AFTER = "VIEWKEEPER_CRASH_AFTER"
"""The environment variable that names the step to die after: ``changes``, or ``changes:3``: the third time."""

_times: dict[str, int] = {}
_counting = threading.Lock()


def reached(step: str) -> None:
    """Kills this process, without any clean-up, if the environment says to crash after ``step``."""
    wanted = os.environ.get(CRASH_AFTER)
    if not wanted:
        return
    name, _, nth = wanted.partition(":")
    if name != step:
        return
    with _counting:  # groups take their steps at the same time
        _times[step] = _times.get(step, 0) + 1
        if _times[step] >= int(nth or 1):
            os.kill(os.getpid(), signal.SIGKILL)
