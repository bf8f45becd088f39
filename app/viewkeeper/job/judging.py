"""`verify --level`: which level of consistency the stored warehouse reached, judged against the sources' past.

The warehouse's states are the view as loaded, then with the changes of each update added, and at the end the view as
readers have it at the newest cut. The sources' states are recomputed, row by row; nothing of the sweep is used.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from viewkeeper.algebra.bag import UPDATE
from viewkeeper.algebra.tiny import Bag, Row, TinyView, add, plus, recompute
from viewkeeper.algebra.types import Catalog
from viewkeeper.algebra.view import Output, View
from viewkeeper.consistency.history import Global, SourceHistory, Vector
from viewkeeper.consistency.levels import Judgement, Level
from viewkeeper.consistency.mutual import judge_together
from viewkeeper.errors import UsageError
from viewkeeper.job.assembly import Project
from viewkeeper.job.past import Numbered, Past, past, rows_of
from viewkeeper.managers.sources import Source
from viewkeeper.warehouse.cuts import Cut
from viewkeeper.warehouse.reader import WarehouseReader

LIMIT = 5_000
"""Source states that a search recomputes before it says that it cannot decide."""

TOGETHER = "all views together"

State = frozenset[tuple[Row, int]]
"""A view's rows with their counts."""


@dataclass(frozen=True)
class Judged:
    """The level that a view, or all of them together, reached between two updates, and how to tell of it."""

    name: str
    since: int
    cut: Cut
    judgement: Judgement
    updates: Mapping[int, Numbered]
    history: SourceHistory
    columns: Mapping[str, tuple[str, ...]]  # per view its columns
    states: Sequence[tuple[State, ...]]  # per view its rows: after each update, and as it is stored at the cut

    @property
    def contradicts_itself(self) -> bool:
        """Do the load and the stored changes not add up to the view as it is stored?"""
        return self.states[-1] != self.states[-2]

    def reaches(self, level: Level) -> bool:
        """Is the level shown, by tables that agree with each other?"""
        return self.judgement.reaches(level) and not self.contradicts_itself

    def state(self, index: int) -> str:
        """A warehouse state in words."""
        if index > self.cut.last_update - self.since:
            return f"the view as it is stored at cut {self.cut.cut}"
        return f"the state after {self._update(self.since + index)}" if index else f"the state at update {self.since}"

    def source_state(self, vector: Vector) -> str:
        """A source state in words."""
        if vector in self.prefixes:
            return f"the source state after {self._update(self.since + self.prefixes.index(vector))}"
        return f"the source state at {self.history.described(vector)} updates"

    @cached_property
    def prefixes(self) -> list[Vector]:
        """What is included after 0, 1, … updates: the source states in the order of the numbers.

        Unlike those of the schedule, they may hold a part of a global transaction.
        """
        prefixes = [self.history.first]
        for x in self.history.order:
            prefixes.append((*prefixes[-1][:x], prefixes[-1][x] + 1, *prefixes[-1][x + 1 :]))
        return prefixes

    @cached_property
    def departure(self) -> int | None:
        """The index of the first state that is not that of the sources after the same update."""
        return next((i for i, state in enumerate(self.states) if state != self._wanted(i)), None)

    def difference(self, index: int) -> Iterator[tuple[str, dict[str, Any], int]]:
        """Rows that a state has too often, or (negative) too seldom, for its update: view, row, count."""
        for view, own, other in zip(self.columns, self.states[index], self._wanted(index), strict=True):
            for row, count in plus(dict(own), dict(other), -1).items():
                yield view, dict(zip(self.columns[view], row, strict=True)), count

    def _wanted(self, index: int) -> tuple[State, ...]:
        wanted: tuple[State, ...] = self.history.view(self.prefixes[min(index, len(self.prefixes) - 1)])
        return wanted

    def _update(self, number: int) -> str:
        update = self.updates.get(number)
        return f"update {number}" + ("" if update is None else f" ({update.source}, transaction {update.txn})")


@dataclass
class Judging:
    """Judges views at a cut where the snapshots of the sources stand."""

    project: Project
    warehouse: WarehouseReader
    cut: Cut
    sources: Mapping[str, Source]
    snapshots: Mapping[str, Any]
    n: int | None = None

    def judge(self, names: Sequence[str], since: int | None) -> list[Judged]:
        """A judgement for each view, and for several views also one of all together."""
        firsts = {name: self._first(name, since) for name in names}
        views = {name: self.project.views[name] for name in names}
        catalog = self._catalog(views)
        known = Recomputation(views, self._past(firsts, views, catalog), catalog)
        judged = [self._judge(known, name, [name], first) for name, first in firsts.items()]
        if len(names) > 1:
            judged.append(self._judge(known, TOGETHER, names, max(firsts.values())))
        return judged

    def _first(self, view: str, since: int | None) -> int:
        """The update that the judgement of a view begins at: its load, unless a later one was asked for."""
        loaded = self.warehouse.loaded(view)
        assert loaded is not None, "only views of the newest cut are judged"
        if since is None:
            return loaded
        place = self.project.config.place("views", view)
        if since < loaded:
            raise UsageError.at(place, f"update {since} came before its load", f"the first is --since {loaded}")
        if since > self.cut.last_update:
            raise UsageError.at(place, f"there is no update {since}", f"the newest is {self.cut.last_update}")
        return since

    def _catalog(self, views: Mapping[str, View]) -> Catalog:
        """The relations of these views, with the columns that any view of the project uses."""
        catalog: Catalog = {}
        for source, name in sorted({pair for view in views.values() for pair in view.relations}):
            relation, used = self.project.catalog[source, name], self.project.used(source)[name]
            columns = tuple(column for column in relation.columns if column.name in used)
            catalog[source, name] = replace(relation, columns=columns)
        return catalog

    def _past(self, firsts: Mapping[str, int], views: Mapping[str, View], catalog: Catalog) -> Past:
        since: dict[str, int] = {}
        for name, first in firsts.items():
            for source in views[name].sources:
                since[source] = min(first, since.get(source, first))
        return past(self.project, self.warehouse, self.cut, since, catalog, self.sources, self.snapshots)

    def _judge(self, known: Recomputation, name: str, views: Sequence[str], since: int) -> Judged:
        history = known.history(views, since)
        states = list(zip(*(self._states(view, since) for view in views), strict=True))
        judgement = judge_together(views, states, history, self.n, LIMIT)
        updates = {update.number: update for update in known.past.updates}
        columns = {view: tuple(o.name for o in self.project.views[view].outputs) for view in views}
        return Judged(name, since, self.cut, judgement, updates, history, columns, states)

    def _states(self, view: str, since: int) -> list[State]:
        """The view's state at ``since``, after each later update, and as it is stored at the cut."""
        columns = self.project.views[view].outputs
        changes: dict[int, Bag] = {}
        for table in self.warehouse.changes(view, since + 1, self.cut.last_update):
            for (row, count), number in zip(rows_of(table, columns), table[UPDATE].to_pylist(), strict=True):
                add(changes.setdefault(number, {}), {row: count})
        # The load as it was written, if it is still there; counted back from the newest state otherwise.
        begin = max((c for c in self.warehouse.cuts(0, self.cut.cut) if c.last_update <= since), key=lambda c: c.cut)
        states = [self._read(view, columns, begin, since)]
        for number in range(since + 1, self.cut.last_update + 1):
            change = changes.get(number)
            states.append(frozenset(plus(dict(states[-1]), change).items()) if change else states[-1])
        return [*states, self._read(view, columns, self.cut, self.cut.last_update)]

    def _read(self, view: str, columns: Sequence[Output], cut: Cut, update: int) -> State:
        bag: Bag = {}
        for row, count in rows_of(self.warehouse.read(view, cut, update).read_all(), columns):
            add(bag, {row: count})
        return frozenset(bag.items())


class Recomputation:
    """Views over any source state of the past; relations that did not change in between give the same again."""

    def __init__(self, views: Mapping[str, View], known: Past, catalog: Catalog):
        self.past = known
        self._tiny = {name: TinyView.of(view, catalog) for name, view in views.items()}
        self._relations = {name: sorted(view.relations) for name, view in views.items()}
        self._states: dict[tuple[str, tuple[int, ...]], State] = {}

    def history(self, views: Sequence[str], since: int) -> SourceHistory:
        """The views over the sources from update ``since`` on, its schedule the order of the numbers."""
        begin = self.past.counts(since)
        sources = self.past.sources
        updates = [update for update in self.past.updates if update.number > since]
        order = tuple(sources.index(update.source) for update in updates)

        def view(vector: Vector) -> tuple[State, ...]:
            counts = tuple(map(operator.add, begin, vector))
            return tuple(self._state(name, counts) for name in views)

        lengths = tuple(order.count(x) for x in range(len(sources)))
        return SourceHistory(sources, lengths, view, order, _together(updates, order), since)

    def _state(self, view: str, counts: tuple[int, ...]) -> State:
        relations = self._relations[view]
        versions = self.past.versions(relations, counts)
        if (view, versions) not in self._states:
            bag = recompute(self._tiny[view], self.past.relations(relations, versions))
            self._states[view, versions] = frozenset(bag.items())
        return self._states[view, versions]


def _together(updates: Sequence[Numbered], order: Sequence[int]) -> tuple[Global, ...]:
    """The global transactions among the updates: for each part its source, and its place among the source's updates."""
    parts: dict[str, set[tuple[int, int]]] = {}
    seen: Counter[int] = Counter()
    for update, source in zip(updates, order, strict=True):
        if update.part_of is not None:
            parts.setdefault(update.part_of, set()).add((source, seen[source]))
        seen[source] += 1
    return tuple(frozenset(each) for each in parts.values() if len(each) > 1)
