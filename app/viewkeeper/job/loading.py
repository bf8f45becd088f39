"""Views in full: the first load, a view added or loaded again, and `verify`. All are one mechanism:

freeze the sources, recompute as of update k, compensate whatever the answers hold beyond k.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from viewkeeper.algebra.bag import COUNT, UPDATE, SignedBag
from viewkeeper.algebra.view import View
from viewkeeper.algorithms.sweep import Queue
from viewkeeper.managers.manager import Tallies, ViewManager
from viewkeeper.managers.sources import Source
from viewkeeper.warehouse.cuts import Cut
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.spill import Consolidator
from viewkeeper.warehouse.warehouse import Warehouse

log = logging.getLogger("viewkeeper")

PROGRESS = 5.0
"""Seconds between two lines about a long load."""


@contextmanager
def frozen(sources: Mapping[str, Source], positions: Mapping[str, str] | None) -> Iterator[dict[str, Any]]:
    """Snapshots of all sources, held until the block ends; without positions, a fresh start."""
    snapshots: dict[str, Any] = {}
    try:
        for name, source in sources.items():
            delivered = None if positions is None else positions[name]
            snapshots[name] = source.freeze(delivered, hold=True)
        yield snapshots
    finally:
        for name, snapshot in snapshots.items():
            sources[name].release(snapshot)


def whole(
    view: View, sources: Mapping[str, Source], snapshots: Mapping[str, Any], number: int, tallies: Tallies
) -> Iterator[pa.Table]:
    """The view as of update ``number``, where the snapshots stand: tables of its columns and ``_count``."""
    manager = ViewManager(view, sources, snapshots, tallies)
    begin = told = time.monotonic()
    rows = 0
    for piece in manager.whole(Queue(), number):
        yield piece.drop_columns([UPDATE])
        rows += len(piece)
        if time.monotonic() - told > PROGRESS:
            told = time.monotonic()
            log.info("view %s: %s rows, %s a second", view.name, f"{rows:,}", f"{rows / (told - begin):,.0f}")


def load(
    views: Iterable[View], sources: Mapping[str, Source], snapshots: Mapping[str, Any], number: int,
    warehouse: Warehouse, tallies: Tallies,
) -> None:  # fmt: skip
    """Writes views as of update ``number``; the next cut names what was written."""
    for view in views:
        begin = time.monotonic()
        with Consolidator(view.schema.append(pa.field(COUNT, pa.int64()))) as bag:
            for piece in whole(view, sources, snapshots, number, tallies):
                bag.add(piece)
            warehouse.load(view.name, view.schema, view.sql, bag.results(), number)
        log.info("view %s loaded as of update %d in %.1f s", view.name, number, time.monotonic() - begin)


@dataclass(frozen=True)
class Comparison:
    """A view against its recomputation: rows in it, and those that differ (more in the view: positive)."""

    view: str
    rows: int
    differing: int
    examples: list[tuple[dict[str, Any], int]]


def compare(
    view: View, sources: Mapping[str, Source], snapshots: Mapping[str, Any], warehouse: WarehouseReader, cut: Cut,
    examples: int = 20,
) -> Comparison:  # fmt: skip
    """The view at a cut minus its recomputation at the same cut, in bounded memory."""
    schema = view.schema.append(pa.field(COUNT, pa.int64()))
    rows = differing = 0
    shown: list[tuple[dict[str, Any], int]] = []
    with Consolidator(schema) as difference:
        for stored in warehouse.read(view.name, cut=cut):
            rows += len(stored)
            difference.add(pa.Table.from_batches([stored]))
        for piece in whole(view, sources, snapshots, cut.last_update, {}):
            difference.add((-SignedBag(piece)).table)
        for table in difference.results():
            differing += len(table)
            for row in table.slice(0, examples - len(shown)).to_pylist():
                count = row.pop(COUNT)
                shown.append((row, count))
    return Comparison(view.name, rows, differing, shown)
