"""Where everything stands, as ``status --json`` says it: the job, groups with their tables, sources, views."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from viewkeeper.commands.status_groups import configured_groups
from viewkeeper.commands.status_lag import Behind, Lags, captured, in_no_cut
from viewkeeper.commands.status_sources import Looked, Start, look_at_sources
from viewkeeper.config import Config
from viewkeeper.consistency.levels import Level
from viewkeeper.errors import UsageError, WarehouseError
from viewkeeper.job.assembly import keeping_of
from viewkeeper.job.named_relations import relations_named
from viewkeeper.job.status import StatusFile
from viewkeeper.managers.keeping import weakest
from viewkeeper.messages import Reached
from viewkeeper.warehouse.cuts import Cut
from viewkeeper.warehouse.groups import groups
from viewkeeper.warehouse.reader import WarehouseReader

NOT_ASKED = {"questions": 0, "keys": 0, "rows": 0, "compensated": 0}


@dataclass(frozen=True)
class JobState:
    """The one job of a warehouse; counts are sums over its groups. ``cut`` and its like are null for several groups."""

    running: bool = False
    pid: int | None = None
    started: str | None = None
    heartbeat: str | None = None
    waiting: str | None = None
    level: str | None = None
    cut: int | None = None
    last_update: int | None = None
    updates_handled: int = 0
    batches: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CutState:
    """The newest cut of a group."""

    cut: int
    last_update: int
    committed_at: datetime
    level: str


@dataclass(frozen=True)
class RowState:
    """A row of the ViewUpdateTable: the transactions of its update, and per view the letter of its color."""

    update: int
    transactions: list[str]
    colors: Mapping[str, str]


@dataclass(frozen=True)
class TableState:
    """A group's ViewUpdateTable: its last gray rows, then those in no cut: ``pending``, ``more`` of them left out."""

    views: list[str]
    rows: list[RowState]
    pending: int
    more: int


@dataclass(frozen=True)
class GroupState:
    """A group. ``waiting``: what keeps it back, ``trouble``: whether that ought not to be so, ``error``: why it ended.

    ``unnumbered`` counts updates that have arrived and wait for other parts of their transactions, or their numbers.
    """

    views: list[str]
    cut: CutState | None
    algorithm: str
    level: str
    running: bool
    started: str | None
    heartbeat: str | None
    waiting: str | None
    trouble: bool
    error: str | None
    unnumbered: int
    updates_handled: int
    batches: int
    asked: Mapping[str, Mapping[str, int]]
    seconds: Mapping[str, float]
    table: TableState
    lost: str | None = None


@dataclass(frozen=True)
class SourceState:
    """A source. ``position`` is where the group stands that is furthest back; ``positions`` has all of them.

    ``messages_behind`` counts the messages of ``updates_behind`` updates that the topic holds and that some group has
    in no cut. What the source's own log holds and the topic does not is ``uncaptured``: changes of rows, or bytes of
    the log (``uncaptured_bytes``), of which nobody knows whether they hold any. ``kept_for`` says, in words, for which
    other projects that do not move the log is kept.
    """

    topic: str
    position: str | None
    positions: Mapping[str, str]
    last_change: str | None
    messages_behind: int | str | None
    asked: Mapping[str, int]
    updates_behind: int | str | None = None
    capture_running: bool | str | None = None
    uncaptured: int | None = None
    uncaptured_bytes: int | None = None
    kept_for: Sequence[str] = ()


@dataclass(frozen=True)
class ViewState:
    """A view. ``behind`` counts all that concerns it and is in no cut: updates that are ``owed`` by its manager or
    ``held``, that have ``arrived``, that are ``unread`` in topics, and changes that are ``uncaptured``.

    ``behind`` is null where one of these cannot be known; ``behind_at_least`` then counts the others.
    ``lost`` says what is missing of what the newest cut counts on.
    ``moved_from`` names the group that the warehouse has it in, where that is not the configuration's.
    """

    group: str
    loaded: bool
    folded: int | None
    version: int | None
    exact: bool
    reason: str | None
    algorithm: str
    level: str
    behind: int | None
    owed: int | None
    held: int | None
    waits_for: str | None
    moved_from: str | None
    arrived: int | None = None
    unread: int | None = None
    uncaptured: int | None = None
    behind_at_least: int | None = None
    lost: str | None = None


@dataclass(frozen=True)
class State:
    """Everything there is to know now. ``cut`` is that of the one group, null if there are several: see ``groups``."""

    job: JobState
    cut: CutState | None
    groups: Mapping[str, GroupState]
    sources: Mapping[str, SourceState]
    views: Mapping[str, ViewState]


def gather(config: Config) -> State:
    """Looks at everything once, sources and topics included."""
    observer = Observer(config)
    return observer.look(look_at_sources(config, observer.starts()))


class Observer:
    """Looks at a warehouse as often as one likes; cheap, because it remembers what was read before."""

    def __init__(self, config: Config):
        self.config = config
        self.groups = configured_groups(config)
        self.named = {view: relations_named(section.sql, config.sources) for view, section in config.views.items()}
        self._readers: dict[str, WarehouseReader] = {}
        self._whole: dict[tuple[str, str], Cut] = {}  # per group and view, the cut at which nothing was missing

    def starts(self) -> dict[str, Start]:
        """From where on the topics of sources hold what some group has in no cut, or the job has not read."""
        found: dict[str, Start] = {}
        for group in self.groups:
            if (cut := self._reader(group).newest()) is None:
                continue
            for source, offset in cut.offsets.items():
                start = Start(offset, Reached.parse(cut.positions[source]).furthest)
                found[source] = start if source not in found else found[source].and_(start)
        return found

    def look(self, sources: Mapping[str, Looked]) -> State:
        """The warehouse and the job now, and the sources as they were looked at."""
        files = {group: StatusFile.of(self.config.warehouse, group).read() or {} for group in self.groups}
        cuts = {group: self._reader(group).newest() for group in {**self.groups, **self._left()}}
        found = {group: self._group(group, files[group], cuts[group]) for group in self.groups}
        only = next(iter(found.values())) if len(found) == 1 else None
        lags = Lags(self.config, self.named, sources)
        return State(
            job=_job(found, files, only),
            cut=None if only is None else only.cut,
            groups=found,
            sources={name: self._source(name, cuts, found, sources.get(name)) for name in self.config.sources},
            views=self._views(files, cuts, found, lags),
        )

    def _left(self) -> dict[str, None]:
        """Groups of the warehouse that the configuration does not have."""
        return dict.fromkeys(group for group in groups(self.config.warehouse) if group not in self.groups)

    def _reader(self, group: str) -> WarehouseReader:
        if group not in self._readers:
            self._readers[group] = WarehouseReader(self.config.warehouse, group, keep=self.config.keep)
        return self._readers[group]

    def _group(self, group: str, told: Mapping[str, Any], cut: Cut | None) -> GroupState:
        pid, table = told.get("pid"), told.get("table", {})
        running = pid is not None and _alive(pid)
        promised = weakest({view: keeping_of(self.config.views[view]) for view in self.groups[group]})
        return GroupState(
            views=list(self.groups[group]),
            cut=None if cut is None else CutState(cut.cut, cut.last_update, cut.committed_at, cut.level),
            algorithm=table.get("algorithm") or ("SPA" if promised is Level.COMPLETE else "PA"),
            level=str(promised),
            running=running,
            started=told.get("started"),
            heartbeat=told.get("heartbeat"),
            waiting=told.get("waiting") if running else None,
            trouble=running and bool(told.get("trouble")),
            error=told.get("error"),
            unnumbered=told.get("unnumbered", 0),
            updates_handled=told.get("updates_handled", 0),
            batches=told.get("batches", 0),
            asked=told.get("asked", {}),
            seconds=told.get("seconds", {}),
            table=TableState(
                views=table.get("views", list(self.groups[group])),
                rows=[RowState(**row) for row in table.get("rows", ())],
                pending=table.get("pending", 0),
                more=table.get("more", 0),
            ),
            lost=self._lost_of(group, told, cut),
        )

    def _source(
        self, name: str, cuts: Mapping[str, Cut | None], found: Mapping[str, GroupState], looked: Looked | None
    ) -> SourceState:
        using = {g: cut for g in found if (cut := cuts[g]) is not None and name in cut.positions}
        positions = {group: cut.positions[name] for group, cut in using.items()}
        asked = [group.asked[name] for group in found.values() if name in group.asked]
        names = {relation.casefold() for named in self.named.values() for source, relation in named if source == name}
        messages, updates = in_no_cut(name, names, list(using.values()), looked)
        return SourceState(
            topic=self.config.sources[name].topic,
            position=min(positions.values(), key=lambda text: Reached.parse(text).furthest, default=None),
            positions=positions,
            last_change=None if looked is None else looked.last_change,
            messages_behind=messages,
            asked={kind: sum(tally.get(kind, 0) for tally in asked) for kind in NOT_ASKED},
            updates_behind=updates,
            **captured(names, looked),
        )

    def _views(
        self,
        files: Mapping[str, Mapping[str, Any]],
        cuts: Mapping[str, Cut | None],
        found: Mapping[str, GroupState],
        lags: Lags,
    ) -> dict[str, ViewState]:
        inexact = self._inexact()
        states = {}
        for group, views in self.groups.items():
            told = files[group].get("views", {})
            for view in views:
                other = [g for g, c in cuts.items() if g != group and c is not None and view in c.versions]
                waiting = told.get(view, {}) | ({} if found[group].running else {"waits_for": None})
                behind = lags.of(view, cuts[group], files[group])
                states[view] = self._view(view, group, cuts[group], waiting, inexact.get(view), other, behind)
        return {view: states[view] for view in self.config.views}

    def _view(
        self,
        view: str,
        group: str,
        cut: Cut | None,
        told: Mapping[str, Any],
        inexact: str | None,
        other: list[str],
        behind: Behind,
    ) -> ViewState:
        section = self.config.views[view]
        loaded = cut is not None and view in cut.versions
        return ViewState(
            group=group,
            loaded=loaded,
            folded=cut.folded.get(view) if cut is not None and loaded else None,
            version=cut.versions.get(view) if cut is not None and loaded else None,
            exact=inexact is None,
            reason=inexact,
            algorithm=section.algorithm,
            level=str(keeping_of(section).level),
            behind=behind.total,
            owed=told.get("owed"),
            held=told.get("held"),
            waits_for=told.get("waits_for"),
            moved_from=other[0] if other and not loaded else None,
            arrived=behind.arrived if behind.loaded else None,
            unread=behind.unread if behind.loaded else None,
            uncaptured=behind.uncaptured if behind.loaded else None,
            behind_at_least=behind.at_least,
            lost=None
            if cut is None
            else self._lost(cut, (group, view), partial(self._reader(group).require_view, view)),
        )

    def _lost_of(self, group: str, told: Mapping[str, Any], cut: Cut | None) -> str | None:
        """What is missing of a group's own tables; a cut that the job has told of, and that is not there, first."""
        if cut is None:
            return None
        if (announced := told.get("cut")) is not None and announced > cut.cut:  # read before the cut was
            return f"cut {announced} was announced, and the newest that is there is {cut.cut}: was the power cut?"
        return self._lost(cut, (group, ""), self._reader(group).require_updates)

    def _lost(self, cut: Cut, what: tuple[str, str], require: Callable[[], None]) -> str | None:
        """What is missing of what a cut counts on, in words; what was whole is looked at again with the next cut."""
        if self._whole.get(what) == cut:
            return None
        try:
            require()
        except WarehouseError as error:
            return str(error)
        except UsageError:  # it was loaded again, or taken out, meanwhile
            return None
        self._whole[what] = cut
        return None

    def _inexact(self) -> dict[str, str]:
        readers = [self._reader(group) for group in self.groups]
        if not readers[0].layout.marks():
            return {}
        return {view: reason for reader in readers for view, reason in reader.inexact().items()}


def _job(found: Mapping[str, GroupState], files: Mapping[str, Mapping[str, Any]], only: GroupState | None) -> JobState:
    running = {name: group for name, group in found.items() if group.running}
    at_work = (running or found).values()
    waiting = {name: group.waiting for name, group in running.items() if group.waiting is not None}
    named = [text if only is not None else f"group {name}: {text}" for name, text in waiting.items()]
    told = next(iter(files.values())) if only is not None else {}
    steps = {step for group in at_work for step in group.seconds}
    return JobState(
        running=bool(running),
        pid=next((files[name]["pid"] for name in running), None),
        started=_least(group.started for group in at_work),
        heartbeat=_least(group.heartbeat for group in at_work),
        waiting="; ".join(named) or None,
        level=told.get("level"),
        cut=told.get("cut"),
        last_update=told.get("last_update"),
        updates_handled=sum(group.updates_handled for group in at_work),
        batches=sum(group.batches for group in at_work),
        seconds={step: sum(group.seconds.get(step, 0.0) for group in at_work) for step in sorted(steps)},
    )


def _least(texts: Iterable[str | None]) -> str | None:
    """The earliest of several times, as ISO 8601 writes them."""
    return min((text for text in texts if text is not None), default=None)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
