"""A view manager: drives its view's algorithm against the sources; and what counts the questions they are asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import pyarrow as pa

from viewkeeper.algebra.bag import UPDATE, SignedBag
from viewkeeper.algebra.view import Occurrence, View, in_full
from viewkeeper.algorithms.sweep import Queue, Sweep, drive
from viewkeeper.managers.recomputing import recomputed
from viewkeeper.managers.sources import Source
from viewkeeper.messages import Answer, Ask
from viewkeeper.warehouse.mapped import gather


@dataclass
class Tally:
    """What a source was asked: questions, keys in them, rows answered, and answers that had to be compensated."""

    questions: int = 0
    keys: int = 0
    rows: int = 0
    compensated: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Tally)))


Tallies = dict[str, Tally]


def copied(tallies: Mapping[str, Tally]) -> Tallies:
    """The tallies as they are now."""
    return {source: replace(tally) for source, tally in tallies.items()}


def add_tallies(one: Tallies, other: Mapping[str, Tally]) -> Tallies:
    """Both tallies together, source by source."""
    return {source: one.get(source, Tally()) + other.get(source, Tally()) for source in {*one, *other}}


def asked_since(before: Mapping[str, Tally], now: Mapping[str, Tally]) -> dict[str, dict[str, int]]:
    """Per source that was asked in between, what was asked of it."""
    found = {}
    for source, tally in now.items():
        last = asdict(before.get(source, Tally()))
        more = {name: count - last[name] for name, count in asdict(tally).items()}
        if any(more.values()):
            found[source] = more
    return found


@dataclass
class Asker:
    """Asks sources, each in its snapshot, and counts what it asks; any thread may."""

    sources: Mapping[str, Source]
    snapshots: Mapping[str, Any]
    tallies: Tallies = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __call__(self, ask: Ask) -> Answer:
        answer = self.sources[ask.source].ask(ask, self.snapshots[ask.source])
        with self._lock:
            tally = self.tallies.setdefault(ask.source, Tally())
            tally.questions += 1
            tally.keys += 0 if ask.keys is None else len(ask.keys)
            tally.rows += len(answer.rows)
        return answer

    def compensated(self, source: str) -> None:
        """Notes that an answer of the source alone would have been wrong."""
        with self._lock:
            self.tallies.setdefault(source, Tally()).compensated += 1


@dataclass
class Asking:
    """What every manager of a view has: somebody to ask, who hears which sources' answers were compensated."""

    view: View
    ask: Callable[[Ask], Answer]
    compensated: Callable[[str], None] = lambda source: None


@dataclass
class ViewManager(Asking):
    """Keeps one view by a columnar sweep: turns the changes of its relations into its own change, update by update."""

    def change(self, queue: Queue, starts: Mapping[int, pa.Table]) -> Iterator[pa.Table]:
        """ΔV_k of every update that the starts belong to, in pieces."""
        sweep = Sweep(self.view, queue, on_compensated=self.compensated)
        for occurrence, table in starts.items():
            yield from drive(sweep.changes_from(occurrence, table), self.ask)

    def whole(
        self, queue: Queue, number: int, start: int = 0, on_progress: Callable[[float], None] = lambda share: None
    ) -> Iterator[pa.Table]:
        """The view as of an update in full, in pieces: view columns, ``_count`` and ``_update``.

        The sweep begins at occurrence ``start``: best one of few rows. ``on_progress`` hears which share is done. A
        view with a query is not swept: its relations as of the update are put together, and the query runs over them.
        """
        if self.view.query is not None:
            return self._recomputed(queue, number, on_progress)
        sweep = Sweep(self.view, queue, on_compensated=self.compensated, on_progress=on_progress)
        return drive(sweep.whole(number, start), self.ask)

    def _recomputed(self, queue: Queue, number: int, on_progress: Callable[[float], None]) -> Iterator[pa.Table]:
        relations = []
        for done, occurrence in enumerate(self.view.occurrences, 1):
            relations.append(self._relation(occurrence, queue, number))
            on_progress(done / (len(self.view.occurrences) + 1))
        for piece in recomputed(self.view, relations):
            yield piece.append_column(UPDATE, pa.repeat(pa.scalar(number, pa.int64()), len(piece)))
        on_progress(1.0)

    def _relation(self, occurrence: Occurrence, queue: Queue, number: int) -> pa.Table:
        """A relation as of an update, by the same as-of law: a view that shows nothing else, in full."""
        itself = in_full(occurrence.source, occurrence.relation, occurrence.columns)
        sweep = Sweep(itself, queue, on_compensated=self.compensated)
        schema = SignedBag.empty(itself.schema).table.schema
        pieces = (piece.select(schema.names) for piece in drive(sweep.whole(number), self.ask))
        return gather((batch for piece in pieces for batch in piece.to_batches()), schema)
