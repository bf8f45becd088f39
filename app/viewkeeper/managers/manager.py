"""A view manager: drives its view's algorithm against the sources and counts what it asks them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa

from viewkeeper.algebra.view import View
from viewkeeper.algorithms.sweep import Queue, Sweep, drive
from viewkeeper.managers.sources import Source
from viewkeeper.messages import Answer, Ask


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


def add_tallies(one: Tallies, other: Mapping[str, Tally]) -> Tallies:
    """Both tallies together, source by source."""
    return {source: one.get(source, Tally()) + other.get(source, Tally()) for source in {*one, *other}}


@dataclass
class Asking:
    """What every manager of a view has: sources to ask, each in its snapshot, and a tally of what it asked."""

    view: View
    sources: Mapping[str, Source]
    snapshots: Mapping[str, Any]
    tallies: Tallies = field(default_factory=dict)

    def _ask(self, ask: Ask) -> Answer:
        answer = self.sources[ask.source].ask(ask, self.snapshots[ask.source])
        tally = self.tallies.setdefault(ask.source, Tally())
        tally.questions += 1
        tally.keys += 0 if ask.keys is None else len(ask.keys)
        tally.rows += len(answer.rows)
        return answer

    def _compensated(self, source: str) -> None:
        self.tallies.setdefault(source, Tally()).compensated += 1


@dataclass
class ViewManager(Asking):
    """Keeps one view by a columnar sweep: turns the changes of its relations into its own change, update by update."""

    def change(self, queue: Queue, starts: Mapping[int, pa.Table]) -> Iterator[pa.Table]:
        """ΔV_k of every update that the starts belong to, in pieces."""
        sweep = Sweep(self.view, queue, on_compensated=self._compensated)
        for occurrence, table in starts.items():
            yield from drive(sweep.changes_from(occurrence, table), self._ask)

    def whole(self, queue: Queue, number: int) -> Iterator[pa.Table]:
        """The view as of an update in full, in pieces: view columns, ``_count`` and ``_update``."""
        sweep = Sweep(self.view, queue, on_compensated=self._compensated)
        return drive(sweep.whole(number), self._ask)
