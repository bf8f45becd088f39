"""The demo's processes: each writes to a log file, and none outlives the demo, however the demo ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from viewkeeper.children import dying_with_us
from viewkeeper.errors import WorldError

_PR_SET_CHILD_SUBREAPER = 36
_POLL = 0.05


class Child:
    """A ``viewkeeper`` command in a process of its own, in our process group, with its output in a file."""

    def __init__(self, name: str, log: Path, *arguments: str):
        self.name = name
        self.log = log
        # The kernel's parent-death signal holds even if we are killed ourselves; Spark's JVM ends with its driver.
        guard = dying_with_us()
        command = [*guard, sys.executable, "-m", "viewkeeper.cli", *arguments]
        with log.open("ab") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def require_alive(self) -> None:
        """Raises WorldError with the last words of its log if the process has ended."""
        code = self._process.poll()
        if code is not None:
            lines = self.log.read_text(errors="replace").strip().splitlines() or ["without a word"]
            said = lines[-1].removeprefix("viewkeeper: ")
            raise WorldError.at(f"the {self.name}", f"ended with exit code {code} ({said})", f"see {self.log}")

    def ask_to_end(self) -> None:
        """SIGTERM: it finishes what it has in hand."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> int | None:
        """Its exit code, or None if it has not ended within that time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


class Household:
    """Every process that comes to be below us from now on, theirs included.

    We become the parent of each whose own parent ends, so that none is out of sight.
    """

    def __init__(self) -> None:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._before = frozenset(_descendants())

    def end(self, grace: float) -> None:
        """Returns when none runs any more: they are asked to end and, after ``grace`` seconds, killed."""
        deadline = time.monotonic() + grace
        for pid in self._running():
            _signal(pid, signal.SIGTERM)
        while running := self._running():
            if time.monotonic() > deadline:
                for pid in running:
                    _signal(pid, signal.SIGKILL)
            time.sleep(_POLL)

    def _running(self) -> list[int]:
        return [pid for pid in _descendants() if pid not in self._before]


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _descendants() -> Iterator[int]:
    """The processes below us that still run."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                # pid (name) state parent …; the name may hold anything, even ')'
                state, parent = Path("/proc", entry, "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            except OSError:
                continue
            children.setdefault(int(parent), []).append((int(entry), state))
    pending = [os.getpid()]
    while pending:
        for pid, state in children.get(pending.pop(), []):
            pending.append(pid)
            if state not in "ZX":
                yield pid
