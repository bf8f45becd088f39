"""Processes that end with the one that started them."""

from __future__ import annotations

import shutil
from typing import Literal


def dying_with_us(signal: Literal["KILL", "QUIT"] = "KILL") -> list[str]:
    """What to put before a command so that the kernel ends it when its starter ends, even by kill -9.

    The parent-death signal needs no cooperation of the program. Where there is no setpriv, nothing is put before it.
    """
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", signal] if setpriv else []
