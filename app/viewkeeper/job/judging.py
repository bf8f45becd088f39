"""`verify --level`: which level of consistency the stored warehouse reached, judged against the sources' past.

The warehouse's states are the view as loaded, then with the changes of each update added, and at the end the view as
readers have it at the newest cut. The sources' states are recomputed, row by row, or by the query of a view that has
one; nothing of the sweep is used. States are judged by their numbers, because that is how they are read: see
``consistency.by_number``.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import pyarrow as pa

from viewkeeper.algebra.bag import UPDATE
from viewkeeper.algebra.tiny import Bag, Name, Row, TinyView, add, plus, recompute
from viewkeeper.algebra.types import Catalog
from viewkeeper.algebra.view import View
from viewkeeper.algorithms.complete_n import CompleteN
from viewkeeper.algorithms.sweep import Queue
from viewkeeper.consistency.by_number import NumberedStates
from viewkeeper.consistency.history import Global, SourceHistory, Vector
from viewkeeper.consistency.levels import Judgement, Level
from viewkeeper.consistency.mutual import blamed
from viewkeeper.errors import UsageError
from viewkeeper.job.assembly import Project, keeping_of
from viewkeeper.job.past import Numbered, Past, past, rows_of
from viewkeeper.managers.keeping import Keeping
from viewkeeper.managers.recomputing import recompute_bag
from viewkeeper.managers.sources import Source
from viewkeeper.warehouse.cuts import Cut
from viewkeeper.warehouse.reader import WarehouseReader

LIMIT = 5_000
"""Source states that a search recomputes before it says that it cannot decide."""

TOGETHER = "all views together"

State = frozenset[tuple[Row, int]]
"""A view's rows with their counts."""


class Difference(NamedTuple):
    """Rows that a state has too often, or (negative) too seldom, of one view."""

    view: str
    schema: pa.Schema
    rows: list[tuple[Row, int]]


@dataclass(frozen=True)
class Judged:
    """The level that a view, or all of them together, reached between two updates, and how to tell of it."""

    name: str
    since: int
    asked_since: int | None  # where the judgement was asked to begin
    cut: Cut
    promise: Level
    n: int | None  # of complete-N, where that was judged
    judgement: Judgement
    updates: Mapping[int, Numbered]
    order: Sequence[int]  # the number of each update since then, in delivery order
    history: SourceHistory
    schemas: Mapping[str, pa.Schema]  # per view its columns
    published: frozenset[int]  # the updates after which the algorithms leave the views as the sources are
    numbers: Sequence[int]  # of all states but the last one the update
    states: Sequence[tuple[State, ...]]  # per view its rows: after these updates, and as it is stored at the cut

    @property
    def contradicts_itself(self) -> bool:
        """Do the load and the stored changes not add up to the view as it is stored?"""
        return self.states[-1] != self.states[-2]

    def reaches(self, level: Level) -> bool:
        """Is the level shown, by tables that agree with each other?"""
        return self.judgement.reaches(level) and not self.contradicts_itself

    def state(self, index: int) -> str:
        """A warehouse state in words."""
        if index == len(self.numbers):
            views = "the view as it is" if len(self.schemas) == 1 else "the state of the views as they are"
            return f"{views} stored at cut {self.cut.cut}"
        return f"the state after {self._update(self.numbers[index])}" if index else f"the state at update {self.since}"

    def source_state(self, vector: Vector) -> str:
        """A source state in words."""
        if vector in self.prefixes:
            return f"the source state after {self._update(self.since + self.prefixes.index(vector))}"
        return f"the source state at {self.history.described(vector)} updates"

    @cached_property
    def prefixes(self) -> list[Vector]:
        """What is included after 0, 1, … numbers: the source states in their order."""
        return prefixes(self.history, self.order, self.since)

    @cached_property
    def wrong_end(self) -> int | None:
        """The index of the last state if that is not the sources', else of the first if that is not, else None."""
        ends = (len(self.states) - 1, 0)
        return next((i for i in ends if self.states[i] != self._wanted(i)), None)

    @cached_property
    def departure(self) -> int | None:
        """The index of the first published state that is not that of the sources after the same update."""
        told = (i for i, number in enumerate(self.numbers) if number in self.published)
        return next((i for i in (*told, len(self.numbers)) if self.states[i] != self._wanted(i)), None)

    def difference(self, index: int) -> Iterator[Difference]:
        """What a state has too much of, or too little, for its update; only of the views that disagree."""
        return self._between(self.states[index], self._wanted(index))

    def contradiction(self) -> Iterator[Difference]:
        """What the load and the stored changes have too much of, or too little, for the view as it is stored."""
        return self._between(self.states[-2], self.states[-1])

    def _between(self, owns: tuple[State, ...], others: tuple[State, ...]) -> Iterator[Difference]:
        for (view, schema), own, other in zip(self.schemas.items(), owns, others, strict=True):
            if rows := plus(dict(own), dict(other), -1):
                yield Difference(view, schema, sorted(rows.items(), key=repr))

    def _wanted(self, index: int) -> tuple[State, ...]:
        number = self.numbers[min(index, len(self.numbers) - 1)]
        wanted: tuple[State, ...] = self.history.view(self.prefixes[number - self.since])
        return wanted

    def _update(self, number: int) -> str:
        update = self.updates.get(number)
        return f"update {number}" + ("" if update is None else f" ({update.source}, transaction {update.txn})")


def prefixes(history: SourceHistory, order: Sequence[int], since: int) -> list[Vector]:
    """What is included after 0, 1, … numbers past ``since``; ``order`` has the number of each update of the history.

    Unlike those of the schedule, they would hold a part of a global transaction if its parts had several numbers.
    """
    found: list[Vector] = []
    vector = history.first
    for number, x in zip(order, history.order, strict=True):
        found += [vector] * (number - since - len(found))
        vector = (*vector[:x], vector[x] + 1, *vector[x + 1 :])
    return [*found, vector]


@dataclass
class Judging:
    """Judges views at a cut where the snapshots of the sources stand."""

    project: Project
    warehouse: WarehouseReader
    cut: Cut
    sources: Mapping[str, Source]
    snapshots: Mapping[str, Any]
    queue: Queue = field(default_factory=Queue)
    n: int | None = None

    def judge(self, names: Sequence[str], since: int | None) -> list[Judged]:
        """A judgement for each view, and for several views also one of all together."""
        together: dict[str, Sequence[str]] = {name: [name] for name in names}
        firsts = {name: self._first(name, since) for name in names}
        if len(names) > 1:
            together[TOGETHER] = names
            firsts[TOGETHER] = max(firsts.values())
        known = self._known(together, firsts)
        begins = {name: self._begin(known, together[name], first) for name, first in firsts.items()}
        if begins != firsts:
            known = self._known_before(together, firsts, begins)
        return [
            self._judge(known, name, views, begins[name], None if since is None else firsts[name])
            for name, views in together.items()
        ]

    def _first(self, view: str, since: int | None) -> int:
        """The update that the judgement of a view is to begin at: its load, unless a later one was asked for."""
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

    def _begin(self, known: Recomputation, views: Sequence[str], first: int) -> int:
        """The update to begin at: ``first``, or the last cut before it if that lies inside a step of many updates.

        Inside a step a view is still as it was before the step, which is no fault: only from a state that was
        published can it be said what the states after it show. A load is a cut as well, so none is passed by.
        """
        if all(self._state(view, first) == known.state(view, first) for view in views):
            return first
        return self._last_cut(first).last_update

    def _last_cut(self, update: int) -> Cut:
        """The last cut that holds no update past this one."""
        return max((cut for cut in self._cuts if cut.last_update <= update), key=lambda cut: cut.cut)

    @cached_property
    def _cuts(self) -> list[Cut]:
        return self.warehouse.cuts(0, self.cut.cut)

    def _known(self, together: Mapping[str, Sequence[str]], begins: Mapping[str, int]) -> Recomputation:
        """The past that is needed to judge each of these from where it begins."""
        views = {name: self.project.views[name] for names in together.values() for name in names}
        catalog = self._catalog(views)
        since: dict[str, int] = {}
        for name, begin in begins.items():
            for source in (source for view in together[name] for source in views[view].sources):
                since[source] = min(begin, since.get(source, begin))
        frozen = (self.sources, self.snapshots, self.queue)
        known = past(self.project, self.warehouse, self.cut, since, catalog, *frozen)
        return Recomputation(views, known, catalog)

    def _known_before(
        self, together: Mapping[str, Sequence[str]], firsts: Mapping[str, int], begins: Mapping[str, int]
    ) -> Recomputation:
        """The past from earlier updates on than were asked for; if that is lost, a later cut is the remedy."""
        try:
            return self._known(together, begins)
        except UsageError as error:
            (name, first), *_ = ((name, first) for name, first in firsts.items() if begins[name] != first)
            following = min(cut.last_update for cut in self._cuts if cut.last_update >= first)
            raise UsageError.at(
                error.problems[0].place,
                f"no longer holds all updates after {begins[name]}, the last cut before {first}, and {name} "
                f"{'are' if name == TOGETHER else 'is'} not as the sources were after {first}",
                f"judge from a cut with --since {following}",
            ) from None

    def _catalog(self, views: Mapping[str, View]) -> Catalog:
        """The relations of these views, with the columns that any view of the project uses."""
        catalog: Catalog = {}
        for source, name in sorted({pair for view in views.values() for pair in view.relations}):
            relation, used = self.project.catalog[source, name], self.project.used(source)[name]
            columns = tuple(column for column in relation.columns if column.name in used)
            catalog[source, name] = replace(relation, columns=columns)
        return catalog

    def _judge(self, known: Recomputation, name: str, views: Sequence[str], since: int, asked: int | None) -> Judged:
        history = known.history(views, since)
        promise = Promise.of([keeping_of(self.project.config.views[view]) for view in views])
        cuts = {since, *(cut.last_update for cut in self._cuts)}
        published = promise.published(since, self.cut.last_update) | cuts
        numbers: Sequence[int] = range(since, self.cut.last_update + 1)
        states = list(zip(*(self._states(view, since) for view in views), strict=True))
        if len(views) > 1:
            # Views that take steps of their own agree only where all of them are published: at cuts.
            numbers = [number for number in numbers if number in published]
            states = [*(states[number - since] for number in numbers), states[-1]]
        n = promise.n if self.n is None else self.n
        order = [update.number for update in known.past.updates if update.number > since]
        numbered = NumberedStates(states, numbers, since, prefixes(history, order, since), cuts, history)
        judgement = blamed(numbered.judge(n, LIMIT), views, states, history)
        updates = {update.number: update for update in known.past.updates}
        schemas = {view: self.project.views[view].schema for view in views}
        return Judged(
            name, since, asked, self.cut, promise.level, n, judgement, updates,
            order, history, schemas, frozenset(published), numbers, states,
        )  # fmt: skip

    def _states(self, view: str, since: int) -> list[State]:
        """The view's state at ``since``, after each later update, and as it is stored at the cut."""
        columns = self.project.views[view].outputs
        changes: dict[int, Bag] = {}
        for table in self.warehouse.changes(view, since + 1, self.cut.last_update):
            for (row, count), number in zip(rows_of(table, columns), table[UPDATE].to_pylist(), strict=True):
                add(changes.setdefault(number, {}), {row: count})
        states = [self._state(view, since)]
        for number in range(since + 1, self.cut.last_update + 1):
            change = changes.get(number)
            states.append(frozenset(plus(dict(states[-1]), change).items()) if change else states[-1])
        return [*states, self._read(view, self.cut, self.cut.last_update)]

    def _state(self, view: str, update: int) -> State:
        """The view after an update: the load as it was written, if it is still there, or counted back from the end."""
        return self._read(view, self._last_cut(update), update)

    def _read(self, view: str, cut: Cut, update: int) -> State:
        bag: Bag = {}
        columns = self.project.views[view].outputs
        for row, count in rows_of(self.warehouse.read(view, cut, update).read_all(), columns):
            add(bag, {row: count})
        return frozenset(bag.items())


@dataclass(frozen=True)
class Promise:
    """What views that are kept so promise together; ``step`` is the number of updates between states that all show.

    There is no such number where an algorithm takes its own steps; then the cuts are what all show.
    """

    level: Level
    step: int | None

    @classmethod
    def of(cls, keepings: Sequence[Keeping]) -> Promise:
        """The promise for transactions of any kind: those over several sources are whole under one number."""
        steps = {_step(keeping) for keeping in keepings}
        step = steps.pop() if len(steps) == 1 else None
        level = min(keeping.level for keeping in keepings)
        return cls(level if step is not None else min(level, Level.STRONG), step)

    @property
    def n(self) -> int | None:
        """The N of complete-N."""
        return self.step if self.step != 1 else None

    def published(self, first: int, last: int) -> set[int]:
        """The updates of this range after which every state is promised to be that of the sources."""
        return set() if self.step is None else {k for k in range(first, last + 1) if k % self.step == 0}


def _step(keeping: Keeping) -> int | None:
    match keeping.level:
        case Level.COMPLETE:
            return 1
        case Level.COMPLETE_N:
            return int(keeping.options.get("complete_n", CompleteN.complete_n))
    return None


class Recomputation:
    """Views over any source state of the past; relations that did not change in between give the same again."""

    def __init__(self, views: Mapping[str, View], known: Past, catalog: Catalog):
        self.past = known
        self._views = views
        self._catalog = catalog
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

    def state(self, view: str, number: int) -> State:
        """The view over the sources after an update."""
        return self._state(view, self.past.counts(number))

    def _state(self, view: str, counts: tuple[int, ...]) -> State:
        relations = self._relations[view]
        versions = self.past.versions(relations, counts)
        if (view, versions) not in self._states:
            bag = self._recompute(view, self.past.relations(relations, versions))
            self._states[view, versions] = frozenset(bag.items())
        return self._states[view, versions]

    def _recompute(self, view: str, relations: Mapping[Name, Bag]) -> Bag:
        """Row by row; a view that has a query, by the query."""
        if self._views[view].query is not None:
            return recompute_bag(self._views[view], self._catalog, relations)
        return recompute(self._tiny[view], relations)


def _together(updates: Sequence[Numbered], order: Sequence[int]) -> tuple[Global, ...]:
    """The global transactions among the updates: for each part its source, and its place among the source's updates."""
    parts: dict[str, set[tuple[int, int]]] = {}
    seen: Counter[int] = Counter()
    for update, source in zip(updates, order, strict=True):
        if update.part_of is not None:
            parts.setdefault(update.part_of, set()).add((source, seen[source]))
        seen[source] += 1
    return tuple(frozenset(each) for each in parts.values() if len(each) > 1)
