"""Views in full: the first load, a view added or loaded again, and `verify`. All are one mechanism:

freeze the sources, recompute as of update k, compensate whatever the answers hold beyond k.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from viewkeeper.algebra.bag import COUNT, UPDATE, SignedBag
from viewkeeper.algebra.view import View
from viewkeeper.algorithms.sweep import Queue
from viewkeeper.job.progress import Progress
from viewkeeper.managers.manager import Asker, Tallies, ViewManager
from viewkeeper.managers.sources import Source
from viewkeeper.warehouse.cuts import Cut
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.spill import Consolidator
from viewkeeper.warehouse.warehouse import Warehouse

log = logging.getLogger("viewkeeper")


NOTHING = Queue()


def whole(
    view: View, sources: Mapping[str, Source], snapshots: Mapping[str, Any], number: int, tallies: Tallies,
    queue: Queue = NOTHING,
) -> Iterator[pa.Table]:  # fmt: skip
    """The view as of update ``number``: tables of its columns and ``_count``.

    ``queue`` holds what the snapshots contain beyond that update, and what they miss of those up to it.
    """
    asker = Asker(sources, snapshots, tallies)
    manager = ViewManager(view, asker, asker.compensated)
    progress = Progress(f"view {view.name}")
    done, rows = 0.0, 0

    def note(share: float) -> None:
        nonlocal done
        done = share
        progress.at(rows, done)

    for piece in manager.whole(queue, number, on_progress=note):
        yield piece.drop_columns([UPDATE])
        rows += len(piece)
        progress.at(rows, done)


def load(
    views: Iterable[View], sources: Mapping[str, Source], snapshots: Mapping[str, Any], number: int,
    warehouse: Warehouse, tallies: Tallies, queue: Queue = NOTHING,
) -> None:  # fmt: skip
    """Writes views as of update ``number``; the next cut names what was written."""
    for view in views:
        progress = Progress(f"view {view.name}")
        with Consolidator(view.schema.append(pa.field(COUNT, pa.int64()))) as bag:
            for piece in whole(view, sources, snapshots, number, tallies, queue):
                bag.add(piece)
            warehouse.load(view.name, view.schema, view.sql, bag.results(), number)
        log.info("view %s loaded as of update %d in %.1f s", view.name, number, progress.seconds)


@dataclass(frozen=True)
class Comparison:
    """A view against its recomputation: rows in it, and those that differ (more in the view: positive)."""

    view: str
    rows: int
    differing: int
    examples: list[tuple[dict[str, Any], int]]


def compare(
    view: View, sources: Mapping[str, Source], snapshots: Mapping[str, Any], warehouse: WarehouseReader, cut: Cut,
    queue: Queue = NOTHING, examples: int = 20,
) -> Comparison:  # fmt: skip
    """The view at a cut minus its recomputation at the same cut, in bounded memory."""
    schema = view.schema.append(pa.field(COUNT, pa.int64()))
    rows = differing = 0
    shown: list[tuple[dict[str, Any], int]] = []
    with Consolidator(schema) as difference:
        for stored in warehouse.read(view.name, cut=cut):
            rows += len(stored)
            difference.add(pa.Table.from_batches([stored]))
        for piece in whole(view, sources, snapshots, cut.last_update, {}, queue):
            difference.add((-SignedBag(piece)).table)
        for table in difference.results():
            differing += len(table)
            for row in table.slice(0, examples - len(shown)).to_pylist():
                count = row.pop(COUNT)
                shown.append((row, count))
    return Comparison(view.name, rows, differing, shown)
