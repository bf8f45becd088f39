"""What the benchmark says while it runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console


@dataclass(frozen=True)
class Teller:
    """Tells of every step when it is done, how long it took and how busy the machine was."""

    console: Console

    @contextmanager
    def told(self, what: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.tell(begin, what)

    def tell(self, begin: float, what: str) -> None:
        load = os.getloadavg()[0]
        self.console.print(
            f"[dim]{time.perf_counter() - begin:7.1f} s[/]  {what} [dim](load {load:.1f})[/]", highlight=False
        )
