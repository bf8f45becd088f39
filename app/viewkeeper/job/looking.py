"""Looking at sources, all at the same time: one that is away, or does not answer, holds up nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from viewkeeper.algebra.types import Catalog, Relation
from viewkeeper.errors import SourceError, SourceUnreachable
from viewkeeper.job.patience import Stopped
from viewkeeper.managers.sources import Source

LOOK = 3.0
"""Seconds that a source may take to answer before it counts as away."""

_STOP_EVERY = 0.05

Answer = dict[str, Relation] | Exception


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


class Onlooker:
    """Looks at the same sources as often as it is told to.

    Of a source that has not answered yet it asks nothing more: its answer, whenever it comes, is the next look's. So a
    source that never answers costs one thread, and one that is slow is understood in the end.
    """

    def __init__(self, sources: Iterable[Source]):
        self._sources = list(sources)
        self._asked: dict[str, _Asked] = {}

    def look(self, stop: threading.Event, seconds: float | None = None) -> Looked:
        """Asks every source for its relations; one that has not answered after ``seconds`` counts as away.

        Raises Stopped as soon as ``stop`` is set. A thread whose source never answers holds up neither that nor the
        process's end.
        """
        for source in self._sources:
            if source.name not in self._asked:
                self._asked[source.name] = _Asked(source)
        self._wait(stop, None if seconds is None else time.monotonic() + seconds)
        looked = Looked()
        for source in self._sources:
            _note(looked, source.name, self._answer(source.name))
        return looked

    def _wait(self, stop: threading.Event, deadline: float | None) -> None:
        """Returns when every source has answered, or at the deadline."""
        for asked in self._asked.values():
            while asked.is_alive() and (deadline is None or time.monotonic() < deadline):
                if stop.is_set():
                    raise Stopped
                asked.join(_STOP_EVERY)

    def _answer(self, name: str) -> Answer:
        """What the source has answered: the next look asks it again."""
        answer = self._asked[name].answer
        if answer is None:
            return SourceUnreachable.at(f"source {name}", "has not answered yet")
        del self._asked[name]
        return answer


def look(sources: Iterable[Source], stop: threading.Event, seconds: float | None = None) -> Looked:
    """Looks at these sources once; see ``Onlooker``."""
    return Onlooker(sources).look(stop, seconds)


class _Asked(threading.Thread):
    """A source that was asked for its relations, and its answer once there is one."""

    def __init__(self, source: Source):
        super().__init__(name=f"look at {source.name}", daemon=True)
        self._source = source
        self.answer: Answer | None = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._source.describe()
        except Exception as error:  # the caller's thread raises it
            self.answer = error


def _note(looked: Looked, name: str, answer: Answer) -> None:
    if isinstance(answer, SourceError):
        looked.away[name] = answer
    elif isinstance(answer, Exception):
        raise answer
    else:
        looked.catalog.update({(name, relation): described for relation, described in answer.items()})
