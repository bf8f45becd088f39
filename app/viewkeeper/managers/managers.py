"""The managers of the views that are not swept in columns: what each makes of a batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.algebra.bag import COUNT, UPDATE
from viewkeeper.algebra.types import Catalog
from viewkeeper.algebra.view import View
from viewkeeper.algorithms.registry import SWEEP
from viewkeeper.algorithms.sweep import Queue
from viewkeeper.managers.contents import Stored
from viewkeeper.managers.keeping import REFRESH, Keeping
from viewkeeper.managers.manager import Tallies, ViewManager
from viewkeeper.managers.sources import Source
from viewkeeper.managers.stages import Pieces
from viewkeeper.managers.stepwise import RUN, StepwiseManager
from viewkeeper.messages import Update


@dataclass
class Managers:
    """Hands a batch to each view's manager; ``stored`` gives a view as of the last cut."""

    views: Mapping[str, View]
    keeping: Mapping[str, Keeping]
    catalog: Catalog
    sources: Mapping[str, Source]
    stored: Callable[[str], Iterable[pa.RecordBatch]]
    tallies: Tallies = field(default_factory=dict)
    run: int = RUN  # changed rows that an algorithm receives at a time

    @property
    def swept(self) -> frozenset[str]:
        """The views that stages sweep in columns."""
        return frozenset(name for name in self.views if self.keeping[name].algorithm == SWEEP)

    def changes(
        self, concerned: Collection[str], queue: Queue, received: Sequence[Update], first: int,
        snapshots: Mapping[str, Any],
    ) -> dict[str, Pieces]:  # fmt: skip
        """Per view the batch concerns its change, lazily; it must be used before the snapshots are released.

        The updates received are numbered from ``first`` on. Swept views are left out.
        """
        batch = (queue, received, first)
        return {
            name: self._change(name, snapshots, *batch)
            for name in self.views
            if name in concerned and name not in self.swept
        }

    def anew(self, name: str, start: int, queue: Queue, number: int, snapshots: Mapping[str, Any]) -> Pieces:
        """A view's change when it is computed anew as of ``number``, from occurrence ``start`` on."""
        manager = ViewManager(self.views[name], self.sources, snapshots, self.tallies)
        return refreshed(manager, queue, number, partial(self.stored, name), start)

    def _change(
        self, name: str, snapshots: Mapping[str, Any], queue: Queue, received: Sequence[Update], first: int
    ) -> Pieces:
        view, keeping, stored = self.views[name], self.keeping[name], partial(self.stored, name)
        if keeping.algorithm == REFRESH:
            manager = ViewManager(view, self.sources, snapshots, self.tallies)
            return refreshed(manager, queue, first + len(received) - 1, stored)
        stepwise = StepwiseManager(
            view, self.sources, snapshots, self.tallies,
            keeping=keeping, catalog=self.catalog, stored=stored, run=self.run,
        )  # fmt: skip
        return stepwise.change(queue, received, first)


def refreshed(manager: ViewManager, queue: Queue, number: int, stored: Stored, start: int = 0) -> Iterator[pa.Table]:
    """What a refresh (see ``algorithms.refresh``) changes: the view as of ``number`` minus what is stored.

    Recomputed in columns, by the as-of law, as a load is: a view is too large to be put together row by row.
    """
    yield from manager.whole(queue, number, start)
    for batch in stored():
        table = pa.Table.from_batches([batch])
        table = table.set_column(table.column_names.index(COUNT), COUNT, pc.negate(table[COUNT]))
        yield table.append_column(UPDATE, pa.repeat(pa.scalar(number, pa.int64()), len(table)))
