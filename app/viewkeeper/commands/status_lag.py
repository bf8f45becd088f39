"""How far views are behind their sources, wherever what they lack is: with the job, in topics, in the sources' logs.

A view that lacks something is never said to lack nothing: what cannot be known makes the whole unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from viewkeeper.capture.lag import Lag
from viewkeeper.commands.status_sources import Looked
from viewkeeper.config import Config
from viewkeeper.job.named_relations import Named
from viewkeeper.messages import Reached
from viewkeeper.warehouse.cuts import Cut

Parts = Sequence[int | None]
"""Counts by source; None is one that cannot be known."""


@dataclass(frozen=True)
class Behind:
    """What a view lacks. ``kept``: updates that its manager or the merge process has."""

    loaded: bool = False
    kept: int = 0
    arrived: int = 0
    unread_parts: Parts = ()
    uncaptured_parts: Parts = ()

    @property
    def unread(self) -> int | None:
        return _sum(self.unread_parts)

    @property
    def uncaptured(self) -> int | None:
        return _sum(self.uncaptured_parts)

    @property
    def at_least(self) -> int | None:
        known = [part for part in self._parts if part is not None]
        return sum(known) if self.loaded else None

    @property
    def total(self) -> int | None:
        return _sum(self._parts) if self.loaded else None

    @property
    def _parts(self) -> list[int | None]:
        return [self.kept, self.arrived, *self.unread_parts, *self.uncaptured_parts]


@dataclass(frozen=True)
class Lags:
    """What views lack, by one look at their sources."""

    config: Config
    named: Mapping[str, Named]
    looked: Mapping[str, Looked]

    def of(self, view: str, cut: Cut | None, told: Mapping[str, Any]) -> Behind:
        """``told`` is what the group's job has written, which counts as long as it speaks of this cut."""
        if cut is None or view not in cut.versions:
            return Behind()
        relations = self._relations(view, cut)
        fresh = told.get("cut") == cut.cut and "read" in told
        about, arrived = told.get("views", {}).get(view, {}), told.get("arrived", {})
        return Behind(
            True,
            kept=about.get("behind", 0) if fresh else 0,
            arrived=sum(arrived.get(source, 0) for source in relations) if fresh else 0,
            unread_parts=[
                self._unread(source, names, cut, told if fresh else {}) for source, names in relations.items()
            ],
            uncaptured_parts=[self._uncaptured(source, names) for source, names in relations.items()],
        )

    def _relations(self, view: str, cut: Cut) -> dict[str, set[str]]:
        """The relations of a view by source, in small letters; where its SQL cannot be read, any of the cut's."""
        found: dict[str, set[str]] = {}
        for source, relation in self.named[view]:
            found.setdefault(source, set()).add(relation.casefold())
        return found or {source: set() for source in cut.positions if source in self.config.sources}

    def _unread(self, source: str, names: Collection[str], cut: Cut, told: Mapping[str, Any]) -> int | None:
        topic = self.looked[source].topic if source in self.looked else "nobody has looked yet"
        if isinstance(topic, str) or source not in cut.positions:
            return None
        offset = told.get("read", {}).get(source, cut.offsets[source])
        past = topic.past(offset, Reached.parse(cut.positions[source]))
        return topic.rest + sum(not names or update.concerns(names) for update in past)

    def _uncaptured(self, source: str, names: Collection[str]) -> int | None:
        looked = self.looked.get(source)
        if looked is None or isinstance(looked.lag, str) or looked.lag.bytes != 0 or looked.is_doubtful:
            return None
        return _changes(looked.lag, names)


def in_no_cut(
    name: str, names: Collection[str], cuts: Sequence[Cut], looked: Looked | None
) -> tuple[int | str | None, int | str | None]:
    """The messages, and the updates, of these relations of a source that some of these cuts lack."""
    if looked is None:
        return None, None
    topic = looked.topic
    if isinstance(topic, str):
        return topic, topic
    past = {told for cut in cuts for told in topic.past(cut.offsets[name], Reached.parse(cut.positions[name]))}
    behind = [told for told in past if not names or told.concerns(names)]
    return topic.rest + sum(told.messages for told in behind), topic.rest + len(behind)


def captured(names: Collection[str], looked: Looked | None) -> dict[str, Any]:
    """What is to be said of a source's capture, as far as these relations are concerned."""
    if looked is None or isinstance(looked.lag, str):
        return {"capture_running": None if looked is None else looked.lag}
    lag: Lag = looked.lag
    changes = _changes(lag, names) if lag.bytes == 0 else None
    kept = {"kept_for": list(lag.kept_for)}
    return {"capture_running": lag.running, "uncaptured": changes, "uncaptured_bytes": lag.bytes, **kept}


def _changes(lag: Lag, names: Collection[str]) -> int:
    """Changes of these relations, or of any if none is named; what is of no relation is of all."""
    return sum(n for relation, n in lag.changes.items() if not (names and relation) or relation.casefold() in names)


def _sum(parts: Parts) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
