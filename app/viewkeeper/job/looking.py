"""Looking at sources, all at the same time: one that is away, or does not answer, holds up nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from viewkeeper.algebra.types import Catalog, Relation
from viewkeeper.errors import SourceError, SourceUnreachable
from viewkeeper.job.patience import Stopped
from viewkeeper.managers.sources import Source

_LOOK_EVERY = 0.05

Answer = tuple[str, dict[str, Relation] | Exception]


@dataclass(frozen=True)
class Looked:
    """What sources said of their relations, and why others said nothing."""

    catalog: Catalog = field(default_factory=dict)
    away: dict[str, SourceError] = field(default_factory=dict)

    def complete(self) -> Catalog:
        """The catalog; raises the error of a source that is away, first of one for which waiting is no help."""
        for error in sorted(self.away.values(), key=lambda error: isinstance(error, SourceUnreachable)):
            raise error
        return self.catalog


def look(sources: Collection[Source], stop: threading.Event, seconds: float | None = None) -> Looked:
    """Asks every source for its relations; one that has not answered after ``seconds`` counts as away.

    Raises Stopped as soon as ``stop`` is set. A thread whose source never answers holds up neither that nor the
    process's end.
    """
    answers: SimpleQueue[Answer] = SimpleQueue()
    for source in sources:
        threading.Thread(target=_ask, args=(source, answers), name=f"look at {source.name}", daemon=True).start()
    deadline = None if seconds is None else time.monotonic() + seconds
    found: dict[str, dict[str, Relation] | Exception] = {}
    while len(found) < len(sources) and (deadline is None or time.monotonic() < deadline):
        if stop.is_set():
            raise Stopped
        try:
            name, answer = answers.get(timeout=_LOOK_EVERY)
        except Empty:
            continue
        found[name] = answer
    looked = Looked()
    for source in sources:
        _note(looked, source.name, found.get(source.name, _silent(source.name)))
    return looked


def _ask(source: Source, answers: SimpleQueue[Answer]) -> None:
    try:
        answers.put((source.name, source.describe()))
    except Exception as error:  # the caller's thread raises it
        answers.put((source.name, error))


def _note(looked: Looked, name: str, answer: dict[str, Relation] | Exception) -> None:
    if isinstance(answer, SourceError):
        looked.away[name] = answer
    elif isinstance(answer, Exception):
        raise answer
    else:
        looked.catalog.update({(name, relation): described for relation, described in answer.items()})


def _silent(name: str) -> SourceUnreachable:
    return SourceUnreachable.at(f"source {name}", "has not answered yet")
