"""A few rows of the shown view, for the screen: those of one customer, with what moved in them lately."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Row = dict[str, Any]
Fate = Literal["new", "changed", "gone"]

GLOW = 1.5
"""Seconds a change stays visible."""


@dataclass(frozen=True)
class ShownRow:
    """A row, and its latest change if that was a moment ago."""

    row: Row
    fate: Fate | None = None
    columns: frozenset[str] = frozenset()  # those that changed


class Window:
    """The rows of ``order_overview`` that belong to one customer."""

    def __init__(self, customer: int, rows: Iterable[Row]):
        self.customer = customer
        self._rows = {_key(row): row for row in rows if row["customer_id"] == customer}
        self._moved: dict[tuple[int, int], tuple[float, ShownRow]] = {}
        self._lock = threading.Lock()

    def apply(self, changes: Iterable[tuple[Row, int]]) -> None:
        """Takes in the changes of a cut."""
        before: dict[tuple[int, int], Row] = {}
        after: dict[tuple[int, int], Row] = {}
        for row, count in changes:
            if row["customer_id"] == self.customer:
                key = _key(row)
                if count > 0:
                    after[key] = row
                elif after.get(key) == row:
                    del after[key]
                else:
                    before[key] = row
        with self._lock:
            for key in before.keys() | after.keys():
                self._move(key, self._rows.get(key), after.get(key))

    def _move(self, key: tuple[int, int], old: Row | None, new: Row | None) -> None:
        now = time.monotonic()
        if new is None:
            if old is not None:
                del self._rows[key]
                self._moved[key] = (now, ShownRow(old, "gone"))
            return
        self._rows[key] = new
        if old is None:
            self._moved[key] = (now, ShownRow(new, "new"))
        elif columns := frozenset(name for name in new if new[name] != old[name]):
            self._moved[key] = (now, ShownRow(new, "changed", columns))

    def newest(self, count: int) -> list[ShownRow]:
        """The rows of the latest orders, those that just went included."""
        with self._lock:
            now = time.monotonic()
            self._moved = {key: moved for key, moved in self._moved.items() if now - moved[0] < GLOW}
            shown = {key: ShownRow(row) for key, row in self._rows.items()}
            shown |= {key: moved for key, (_, moved) in self._moved.items()}
        return [shown[key] for key in sorted(shown, reverse=True)[:count]]


def _key(row: Row) -> tuple[int, int]:
    return row["order_id"], row["line"]
