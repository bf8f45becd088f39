"""Processes that end with the one that started them, and not before."""

from __future__ import annotations

import shutil
from typing import Literal


def dying_with_us(signal: Literal["KILL", "QUIT"] = "KILL") -> list[str]:
    """What to put before a command so that the kernel ends it when its starter ends, even by kill -9.

    The parent-death signal needs no cooperation of the program. Where there is no setpriv, nothing is put before it.
    """
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", signal] if setpriv else []


def ignoring(*signals: Literal["HUP", "INT", "TERM"], umask: str = "") -> list[str]:
    """What to put before a command so that it ignores these signals: a process group's reach everybody in it.

    Programs keep what they find ignored at their start; a JVM does so with these three.
    """
    private = f"umask {umask}; " if umask else ""
    return ["sh", "-c", f'{private}trap "" {" ".join(signals)}; exec "$@"', "sh"]
