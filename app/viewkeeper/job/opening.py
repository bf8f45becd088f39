"""Before the first batch: everything a job needs is made, checked and loaded; doing it again does nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from viewkeeper.algebra.view import View
from viewkeeper.algorithms.sweep import Queue
from viewkeeper.capture import captured_since
from viewkeeper.config_sources import SqliteConfig
from viewkeeper.errors import (
    KafkaError,
    Problem,
    SourceError,
    SourceUnreachable,
    TopicLost,
    UsageError,
    WarehouseError,
    WarehouseUnreachable,
)
from viewkeeper.job.assembly import Project
from viewkeeper.job.freezing import Frozen
from viewkeeper.job.fresh_start import FreshStarts
from viewkeeper.job.inlets import inlets
from viewkeeper.job.keeper import Keeper
from viewkeeper.job.loading import NOTHING, load
from viewkeeper.job.outlived import outlived
from viewkeeper.job.patience import FIRST_START, Stopped, patiently
from viewkeeper.job.publishing import Publishing
from viewkeeper.job.quarantine import Quarantine
from viewkeeper.job.understood import used_by
from viewkeeper.job.whole_transactions import Incomplete
from viewkeeper.managers.keeping import CONVERGENT, weakest
from viewkeeper.managers.manager import Tallies
from viewkeeper.managers.managers import Managers
from viewkeeper.messages import Reached, Rejected
from viewkeeper.queue import consumer
from viewkeeper.queue.drain import Drain
from viewkeeper.queue.update_queue import UpdateQueue
from viewkeeper.warehouse.cuts import Cut, WarehouseTransaction
from viewkeeper.warehouse.pace import FoldPace
from viewkeeper.warehouse.topics import ViewTopics, ensure_topics
from viewkeeper.warehouse.warehouse import Warehouse

log = logging.getLogger("viewkeeper")


@dataclass
class Opening:
    """Opens a warehouse for a project; the caller holds the warehouse's lock."""

    project: Project
    warehouse: Warehouse
    reload: Collection[str] = ()
    stop: threading.Event = field(default_factory=threading.Event)
    tallies: Tallies = field(default_factory=dict)
    _keepers: list[Keeper] = field(default_factory=list, init=False)

    def open(self) -> Keeper:
        """The keeper that goes on from the newest cut, every view loaded.

        1 topics, 2 the newest cut, 3 capture, 4 views that are missing. A crash after any step leaves what the next
        start completes: only the cut at the end of a load makes it count.
        """
        patiently(self._ensure_topics, seconds=FIRST_START, stop=self.stop)
        cut = self.warehouse.open()
        known = self._known(cut)
        patiently(partial(self._require_identities, known), seconds=FIRST_START, stop=self.stop)
        patiently(self._install_capture, seconds=FIRST_START, stop=self.stop)
        if cut is not None and known:
            patiently(partial(self._check_sources, cut, known), seconds=FIRST_START, stop=self.stop)
        missing = [view for name, view in self.project.views.items() if name not in known]
        if cut is None or not known:
            cut = self._load_all(cut)
        elif missing:
            cut = self._load_missing(cut, known, missing)
        elif gone := cut.versions.keys() - known.keys():
            cut = self.warehouse.leave(gone, self.project.sources)
            self._fresh.source_identities.remember(self.project.sources)  # what only those used is none of ours now
        keeper = self._keeper(cut, self.project.views)
        patiently(lambda: self._check_topics(keeper), seconds=FIRST_START, stop=self.stop)
        return keeper

    def close(self) -> None:
        """Closes what was opened: every keeper that was made, and the sources."""
        while self._keepers:
            self._keepers.pop().close()
        for source in self.project.sources.values():
            source.close()

    @property
    def _fresh(self) -> FreshStarts:
        return FreshStarts(self.project)

    @property
    def _level(self) -> str:
        return str(weakest(self.project.keeping))

    def _ensure_topics(self) -> None:
        config = self.project.config
        names = [config.sources[name].topic for name in self.project.sources]
        names += [config.views[name].topic for name in self.project.views]
        if config.bad_messages == "quarantine":
            names += [config.rejected_topic(name) for name in self.project.sources]
        ensure_topics(config.kafka.client(), dict.fromkeys(names, 1))

    def _known(self, cut: Cut | None) -> dict[str, View]:
        """The views that go on as they are; refuses those whose definition changed since they were loaded."""
        if cut is None:
            return {}
        going_on = {n: v for n, v in self.project.views.items() if n in cut.versions and n not in self.reload}
        found = {name: list(outlived(self.project, self.warehouse, view)) for name, view in going_on.items()}
        if concerned := [name for name in going_on if found[name]]:
            also = self._cut_off(cut, {name: view for name, view in going_on.items() if not found[name]})
            remedy = self._load_again([*concerned, *also])  # one command, whichever problem it is read with
            raise UsageError(Problem(place, what, remedy) for name in concerned for place, what in found[name])
        return going_on

    def _load_again(self, names: Sequence[str]) -> str:
        together = " ".join(dict.fromkeys([*self.reload, *names]))
        those = "it" if len(names) == 1 else "them"
        return f"load {those} again with 'viewkeeper init {self.project.config.pasted} --reload {together}'"

    def _cut_off(self, cut: Cut, views: Mapping[str, View]) -> list[str]:
        """Those of the views that cannot go on from the cut either: who loads others again must load them, too."""
        sources = {source for view in views.values() for source in view.sources if source in cut.positions}
        lost: set[str] = set()
        for source in sources:
            with suppress(SourceUnreachable, KafkaError):  # it may be as it was
                lost |= set() if self._intact(source, cut) else {source}
        return [name for name, view in views.items() if view.sources & lost]

    def _install_capture(self) -> None:
        """Makes every source log the changes that views need."""
        for capture in self.project.captures.values():
            self.project.understood.install(capture, bool(self.reload))

    def _require_identities(self, known: Mapping[str, View]) -> None:
        """Nothing may be put into a source before it has shown to be the one that known views were made from."""
        names = sorted({source for view in known.values() for source in view.sources})
        used = {name: used_by(known, name) for name in names}
        self._fresh.source_identities.require({name: self.project.sources[name] for name in names}, used)

    def _check_sources(self, cut: Cut, known: Mapping[str, View]) -> None:
        """Raises what to do where a change since the cut, of a relation that known views use, may be in no log."""
        self._require_identities(known)
        names = sorted({source for view in known.values() for source in view.sources})
        for name in names:
            self.project.sources[name].require(cut.positions[name])
        since = {name: capture.since() for name, capture in self.project.captures.items() if name in cut.positions}
        stale = {name: found for name, view in known.items() if (found := _interrupted(view, since, cut))}
        if stale:
            place, remedy = self.project.config.place, self._load_again(list(stale))
            what = "{} was not captured for a while, so changes of it may be missing"
            told = {view: what.format(".".join(relations[0])) for view, relations in stale.items()}
            raise UsageError(Problem(place("views", view), said, remedy) for view, said in told.items())
        self._fresh.source_identities.learn({name: self.project.sources[name] for name in names})

    def _load_all(self, cut: Cut | None) -> Cut:
        """Every view from one freeze of all sources: cut 0, or a fresh start after everything was lost."""
        number = 0 if cut is None else cut.last_update

        def attempt() -> Cut:
            with self._fresh.start(list(self.project.sources), cut) as start:
                self._write(list(self.project.views.values()), number, start.at, start.point.queue)
                return self._loaded(number, start.point.positions, start.point.offsets)

        cut = patiently(attempt, seconds=FIRST_START, stop=self.stop)
        self._fresh.know(list(self.project.sources))
        return cut

    def _load_missing(self, cut: Cut, known: Mapping[str, View], missing: list[View]) -> Cut:
        """Views added to a warehouse: loaded at its newest cut, the others undisturbed."""
        marked = self._marked(known, missing)
        used = patiently(lambda: self._staying(cut, known), seconds=FIRST_START, stop=self.stop)
        new = [name for name in self.project.sources if name not in used]
        self._refuse_joining(used, new)
        keeper = self._keeper(replace(cut, positions={name: cut.positions[name] for name in used}), known)
        self._check_topics(keeper)
        # A relation captured only lately has no past: the other views must first come up to where its capture began.
        began = {name: self.project.captures[name].begun(_used(missing, name)) for name in used}
        catch_up(keeper, self.project, {name: str(position) for name, position in began.items()})

        def attempt() -> Cut:
            lately = self._lately(keeper, used, missing)
            # Sources that no other view uses are taken as they are now.
            with keeper.standstill(lately) as (at, queue), self._fresh.start(new) as start:
                queue = queue.and_older(start.point.queue.changes)
                self._write(missing, keeper.cut.last_update, at.and_also(start.at), queue)
                still = keeper.cut
                positions = {name: still.positions[name] for name in used} | lately | start.point.positions
                offsets = {name: still.offsets[name] for name in used} | start.point.offsets
                return self._loaded(still.last_update, positions, offsets)

        cut = patiently(attempt, seconds=FIRST_START, stop=self.stop)
        self._fresh.know(new)
        # What was loaded again may have become another table; those of the other views are what they were.
        self._fresh.source_identities.remember({name: self.project.sources[name] for name in used})
        for name, reason in marked.items():
            self.warehouse.mark_inexact(name, reason)
        return cut

    def _staying(self, cut: Cut, known: Mapping[str, View]) -> set[str]:
        """The sources that go on from the cut: those of known views, and what transactions may span with them."""
        staying = {source for view in known.values() for source in view.sources}
        spans = [set(spanned) & self.project.sources.keys() for spanned in self.project.config.global_txn]
        while joining := {
            name
            for spanned in spans
            if spanned & staying
            for name in spanned - staying
            if name in cut.positions and self._intact(name, cut)
        }:
            staying |= joining
        return staying

    def _intact(self, name: str, cut: Cut) -> bool:
        """Whether source and topic are those of the cut, and nothing after it is lost."""
        source, topic = self.project.sources[name], self.project.config.sources[name].topic
        try:
            self._fresh.source_identities.require({name: source})
            source.require(cut.positions[name])
            self._fresh.topic_identities.require([topic])
            consumer.require(self.project.config.kafka.client(), {topic: cut.offsets[name]})
        except SourceUnreachable:
            raise
        except (SourceError, TopicLost):
            return False
        return True

    def _refuse_joining(self, used: Collection[str], new: Collection[str]) -> None:
        """A transaction over old and new sources may be in the views in part already: they must be loaded together."""
        config = self.project.config
        for spanned in config.global_txn:
            joins = sorted(set(spanned) & set(new))
            if joins and set(spanned) & set(used):
                names = " ".join(self.project.views)
                raise UsageError.at(
                    config.place("global_txn"),
                    f"source {joins[0]} joins group {self.project.group}, where transactions may span it and others",
                    f"load the group's views together: 'viewkeeper init {config.pasted} --reload {names}'",
                )

    def _lately(self, keeper: Keeper, used: Collection[str], missing: list[View]) -> dict[str, str]:
        """Where sources stand that keep a change log, in which the capture of a relation began after the newest cut.

        At the last change before that point and at the point itself the source holds the same; a cut that stands
        there says that its views need nothing from before. (A snapshot is later than the capture in any case.)
        """
        logged = [name for name in used if isinstance(self.project.config.sources[name], SqliteConfig)]
        began = {name: self._captured_since(name, missing) for name in logged}
        reached = {name: Reached.parse(keeper.cut.positions[name]).last for name in logged}
        return {name: str(since) for name, since in began.items() if since > reached[name]}

    def _captured_since(self, source: str, views: list[View]) -> int:
        since = self.project.captures[source].since()
        return max((captured_since(since[name], columns) for name, columns in _used(views, source).items()), default=0)

    def _marked(self, known: Mapping[str, View], missing: list[View]) -> dict[str, str]:
        """The views to load that share a source with one that is no longer exact, and the reason.

        The message that was set aside may be the source's newest: at the newest cut a load would lack it too. So
        views that were marked together are loaded again together, and a view that is new shares the mark.
        """
        reasons = self.warehouse.inexact()
        marked: dict[str, str] = {}
        for view in missing:
            shared = [n for n, other in known.items() if n in reasons and other.sources & view.sources]
            if not shared:
                continue
            if view.name in reasons:
                names = " ".join([view.name, *shared])
                raise UsageError.at(
                    self.project.config.place("views", view.name),
                    f"lost its exactness together with {', '.join(shared)}",
                    f"load them again together: 'viewkeeper init {self.project.config.pasted} --reload {names}'",
                )
            marked[view.name] = reasons[shared[0]]
        return marked

    def _loaded(self, number: int, positions: Mapping[str, str], offsets: Mapping[str, int]) -> Cut:
        """The cut that makes what was written count; until then the sources must remember where they were frozen."""
        transaction = WarehouseTransaction(
            number, dict(positions), dict(offsets), self._level, views=self.project.views
        )
        try:
            return self.warehouse.commit(transaction)
        except WarehouseUnreachable as error:
            raise WarehouseError(error.problems) from error  # it may be through: only a new start can tell

    def _write(self, views: list[View], number: int, at: Frozen, queue: Queue = NOTHING) -> None:
        load(views, at.sources, at.snapshots, number, self.warehouse, self.tallies, queue)
        at.confirm()

    def _keeper(self, cut: Cut, views: Mapping[str, View]) -> Keeper:
        config = self.project.config
        sources = {name: s for name, s in self.project.sources.items() if name in cut.positions}
        self._forgive(views)
        for name in views:
            if self.project.keeping[name].algorithm == CONVERGENT:
                self.warehouse.mark_uncompensated(name)
        keeper = Keeper(
            views=views,
            sources=sources,
            queue=UpdateQueue(inlets(self.project, cut, sources, views), config.bad_messages == "quarantine"),
            publishing=Publishing(
                views,
                self.warehouse,
                ViewTopics(
                    config.kafka.client(),
                    self.warehouse.id(),
                    {name: config.views[name].topic for name in views},
                    group=self.project.group,
                ),
                FoldPace(config.fold),
                config.min_cut_interval.total_seconds(),
            ),
            managers=Managers(
                views,
                self.project.keeping,
                self.project.catalog,
                sources,
                self.warehouse.read,
                self.tallies,
            ),
            drain=Drain(config.kafka.client()),
            cut=cut,
            set_aside=lambda rejected: self._set_aside(rejected, views),
            incomplete=Incomplete(config.global_txn_patience.total_seconds()),
            stop=self.stop,
        )
        self._keepers.append(keeper)
        return keeper

    def _set_aside(self, rejected: Sequence[Rejected], views: Mapping[str, View]) -> None:
        Quarantine(self.project.config, self.warehouse, views).set_aside(rejected)
        self._forgive(views)

    def _forgive(self, views: Mapping[str, View]) -> None:
        """A row whose message was set aside stays in its table: the views that lack it are not to stop over it."""
        if self.project.config.bad_messages != "quarantine":
            return
        marked = self.warehouse.inexact()
        exact = {pair for name, view in views.items() if name not in marked for pair in view.relations}
        inexact = {pair for name, view in views.items() if name in marked for pair in view.relations}
        for name, source in self.project.sources.items():
            source.forgive([relation for owner, relation in inexact - exact if owner == name])

    def _check_topics(self, keeper: Keeper) -> None:
        """The topics still hold what is needed, and view topics hold every cut there is."""
        config = self.project.config
        needed = {config.sources[name].topic: offset for name, offset in keeper.queue.offsets().items()}
        consumer.require(config.kafka.client(), needed)
        self._fresh.topic_identities.require(list(needed))
        keeper.publishing.topics.catch_up(self.warehouse)


def _used(views: list[View], source: str) -> dict[str, list[str]]:
    return used_by({view.name: view for view in views}, source)


def _interrupted(view: View, since: Mapping[str, Mapping[str, Mapping[str, int]]], cut: Cut) -> list[tuple[str, str]]:
    """The relations of a view of which something was captured only after the cut."""
    return [
        (name, relation)
        for name in sorted(view.sources & since.keys())
        for relation, columns in _used([view], name).items()
        if captured_since(since[name].get(relation, {}), columns) > Reached.parse(cut.positions[name]).furthest
    ]


def catch_up(keeper: Keeper, project: Project, targets: Mapping[str, str]) -> None:
    """Keeps the views, without Spark, until every source's target position is reached."""
    client = project.config.kafka.client()
    deadline = time.monotonic() + FIRST_START
    keeper.targets = targets
    while behind := keeper.behind(targets):
        if keeper.stop.is_set():
            raise Stopped
        if time.monotonic() > deadline:
            raise no_capture(project, (keeper.undelivered(targets) or behind)[0])
        topics = {i.topic: i.offset for i in keeper.queue.inlets.values()}
        messages = consumer.read(client, topics, seconds=0.5)
        if len(messages):
            keeper.maintain(messages)
            deadline = time.monotonic() + FIRST_START
        keeper.release()
    keeper.targets = None


def no_capture(project: Project, source: str) -> SourceError:
    """The error for a source whose changes do not arrive."""
    config = project.config
    return SourceError.at(
        f"source {source}",
        f"has changes that do not arrive in topic {config.sources[source].topic}: no capture seems to run",
        f"start one with 'viewkeeper capture {config.pasted}'",
    )
