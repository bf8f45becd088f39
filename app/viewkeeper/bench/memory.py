"""Peak memory of a job by its kinds of processes: the driver, its JVM, and Spark's Python workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

_EVERY = 0.2
_RESET_PEAK = "5"  # see proc(5), clear_refs


class MemoryWatch:
    """Watches a process and all below it, in a thread, until ``close``.

    ``field`` is what counts, a line of /proc/<pid>/status: the most that was resident, files that are mapped included
    (VmHWM), or what cannot be given back to the system without a word (RssAnon).
    """

    def __init__(self, pid: int, field: Literal["VmHWM", "RssAnon"] = "VmHWM"):
        self._pid = pid
        self._field = f"{field}:"
        self._peaks: dict[str, int] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def peaks(self) -> dict[str, float]:
        """Megabytes since the last ``reset``: ``driver``, ``jvm``, and ``workers`` (all of them together)."""
        self._sample()
        with self._lock:
            return {kind: kilobytes / 1024 for kind, kilobytes in sorted(self._peaks.items())}

    def reset(self) -> None:
        """Starts anew: peaks before do not count."""
        with self._lock:
            self._peaks = {}
            for pid, _ in _family(self._pid):
                with suppress(OSError):
                    Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._closed.wait(_EVERY):
            self._sample()

    def _sample(self) -> None:
        with self._lock:
            now: dict[str, int] = {}
            for pid, kind in _family(self._pid):
                now[kind] = now.get(kind, 0) + _kilobytes(pid, self._field)
            for kind, kilobytes in now.items():
                self._peaks[kind] = max(kilobytes, self._peaks.get(kind, 0))


def _family(root: int) -> Iterator[tuple[int, str]]:
    """The process and all below it, each with its kind."""
    pending = [(root, "driver")]
    while pending:
        pid, kind = pending.pop()
        yield pid, kind
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                children = map(int, (task / "children").read_text().split())
                pending.extend((child, _kind(child, kind)) for child in children)


def _kind(pid: int, parent: str) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return parent
    if b"java" in command.split(b"\0")[0]:
        return "jvm"
    return "workers" if b"daemon" in command else parent


def _kilobytes(pid: int, field: str) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1])
    except OSError:
        pass
    return 0
