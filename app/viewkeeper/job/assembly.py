"""From a configuration to working parts: sources, captures, views; every problem found on the way at once."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.tiny import TinyView
from viewkeeper.algebra.types import Catalog
from viewkeeper.algebra.view import View
from viewkeeper.algorithms.refresh import Refresh
from viewkeeper.capture import Capture
from viewkeeper.capture.postgres_claims import Claimant
from viewkeeper.capture.postgres_setup import PostgresCapture
from viewkeeper.capture.sqlite_capture import SqliteCapture
from viewkeeper.config import Config, ViewConfig
from viewkeeper.config_groups import ALL
from viewkeeper.config_sources import LEAST_CONNECTIONS, PostgresConfig, SourceConfig, SqliteConfig
from viewkeeper.errors import Problem, ViewError
from viewkeeper.integrator.groups import Split, sources_of_group, split
from viewkeeper.job.looking import LOOK, Onlooker
from viewkeeper.job.named_relations import Named
from viewkeeper.job.patience import FIRST_START, patiently
from viewkeeper.job.source_identity import SourceIdentities
from viewkeeper.job.understood import Understood, used_by
from viewkeeper.managers.keeping import REFRESH, Keeping
from viewkeeper.managers.recomputed_sql import parse_recomputed
from viewkeeper.managers.sources import Source
from viewkeeper.managers.sources.postgres import PostgresSource
from viewkeeper.managers.sources.sqlite import SqliteSource
from viewkeeper.managers.sources.sqlite_projects import Who
from viewkeeper.messages import Reached
from viewkeeper.warehouse.cuts import Cut
from viewkeeper.warehouse.durability import SAFE, Disk
from viewkeeper.warehouse.groups import groups
from viewkeeper.warehouse.layout import Layout
from viewkeeper.warehouse.reader import WarehouseReader


@dataclass(frozen=True)
class Project:
    """A configuration whose sources have been looked at and whose views have been understood; or one group of it.

    ``groups`` are all groups of the configuration, each with its views, and ``sources_of`` the sources of each of
    these views. Where a source is away, it is not among ``sources``, and views that use it are not among ``views``;
    nor are those that were ``refused``: only their group cannot begin.
    """

    config: Config
    sources: Mapping[str, Source]  # those that views use
    catalog: Catalog
    views: Mapping[str, View]
    captures: Mapping[str, Capture]
    groups: Split
    sources_of: Mapping[str, frozenset[str]]
    understood: Understood
    group: str = ALL
    refused: Mapping[str, ViewError] = field(default_factory=dict)

    @property
    def keeping(self) -> dict[str, Keeping]:
        """How each view is kept."""
        return {name: keeping_of(self.config.views[name]) for name in self.views}

    def used(self, source: str) -> dict[str, list[str]]:
        """The relations of a source that views use, and the columns they use of each."""
        return used_by(self.views, source)

    def part(self, group: str) -> Project:
        """One group alone, whose views are all understood, with connections of its own: it works while others do."""
        views = {name: self.views[name] for name in self.groups[group]}
        return self.part_with(group, self.sources_for(group), self.catalog, views)

    def part_with(
        self, group: str, sources: Mapping[str, Source], catalog: Catalog, views: Mapping[str, View]
    ) -> Project:
        """One group alone, with these ``sources_for`` it and these views."""
        captures = {name: make_capture(self.config, name) for name in sources}
        for name, source in sources.items():
            source.watch(used_by(views, name))
        return replace(self, sources=sources, catalog=catalog, views=views, captures=captures, group=group)

    def sources_for(self, group: str) -> dict[str, Source]:
        """The sources that a group uses, with connections for it alone."""
        used = sources_of_group(self.groups[group], self.sources_of)
        return {name: make_source(self.config, name, self._share(name)) for name in self.config.sources if name in used}

    def _share(self, source: str) -> SourceConfig:
        """A source's section for one of the groups that use it: they share its connections."""
        section = self.config.sources[source]
        if not isinstance(section, PostgresConfig):
            return section
        users = sum(source in sources_of_group(views, self.sources_of) for views in self.groups.values())
        return section.model_copy(update={"max_connections": max(LEAST_CONNECTIONS, section.max_connections // users)})

    def group_of(self, view: str) -> str:
        """The group that a view is in."""
        return next(group for group, views in self.groups.items() if view in views)

    def understands(self, group: str) -> bool:
        """Whether every view of a group is understood, so that it can begin."""
        return all(view in self.views for view in self.groups[group])


def make_source(config: Config, name: str, section: SourceConfig | None = None) -> Source:
    """The source of that name, as its section of the configuration (or this one) has it; it connects on first use."""
    section = section or config.sources[name]
    if isinstance(section, PostgresConfig):
        return PostgresSource(name, section)
    assert isinstance(section, SqliteConfig), f"no such kind of source: {section.kind}"
    return SqliteSource(name, str(section.path), lambda: who(config, name, Layout(config.warehouse, ALL).known_id()))


def who(config: Config, source: str, project: str) -> Who:
    """How a database knows a source of this configuration; ``project`` is the name of the warehouse."""
    return Who(project, source, str(config.warehouse), config.sources[source].topic)


def make_capture(config: Config, name: str) -> Capture:
    """The capture of a source; it connects on first use."""
    section = config.sources[name]
    if isinstance(section, PostgresConfig):
        claimant = Claimant(Layout(config.warehouse, ALL), config.kafka.bootstrap)
        return PostgresCapture(name, section, config.warehouse / "captures" / f"{name}.json", claimant)
    assert isinstance(section, SqliteConfig), f"no such kind of source: {section.kind}"

    return SqliteCapture(
        name,
        str(section.path),
        section.topic,
        config.kafka.client(),
        lambda: oldest_position(config.warehouse, name),
        config.global_txn,
        lambda: known_logs(config.warehouse, name),
        lambda: who(config, name, Layout(config.warehouse, ALL).id()),
        lambda: pruned_log(config.warehouse, name),
    )


def oldest_position(warehouse: Path, source: str, disk: Disk = SAFE) -> int:
    """The order position up to which the newest cut of every group that uses a source holds all of its updates.

    Those cuts stay, also if the power fails: what they hold may be forgotten by the source.
    """
    cuts = [WarehouseReader(warehouse, group, disk=disk).lasting_cut() for group in groups(warehouse)]
    known = [cut.positions[source] for cut in cuts if cut is not None and source in cut.positions]
    return min((Reached.parse(position).last for position in known), default=0)


def known_logs(warehouse: Path, source: str) -> frozenset[str]:
    """The identities of the change logs that the newest cuts were made from, as far as they are remembered."""
    return frozenset(identity["log"] for identity in _told(warehouse, source) if "log" in identity)


def pruned_log(warehouse: Path, source: str) -> int:
    """Where a source's change log began when it was looked at last."""
    return max((int(identity["pruned"]) for identity in _told(warehouse, source) if "pruned" in identity), default=0)


def _told(warehouse: Path, source: str) -> list[Mapping[str, str]]:
    using = [group for group, cut in _newest_cuts(warehouse) if source in cut.positions]
    return [SourceIdentities.of(warehouse, group).of_source(source) for group in using]


def _newest_cuts(warehouse: Path) -> list[tuple[str, Cut]]:
    newest = [(group, WarehouseReader(warehouse, group).newest()) for group in groups(warehouse)]
    return [(group, cut) for group, cut in newest if cut is not None]


def assemble(config: Config, seconds: float = FIRST_START, stop: threading.Event | None = None) -> Project:
    """Looks at every source (for at most ``seconds``) and parses every view; raises all problems together."""
    sources = {name: make_source(config, name) for name in config.sources}
    stop, onlooker = stop or threading.Event(), Onlooker(sources.values())
    catalog = patiently(lambda: onlooker.look(stop, LOOK).complete(), seconds=seconds, stop=stop)
    return project_of(config, sources, catalog, parse_views(config, catalog), {})


def project_of(
    config: Config,
    sources: Mapping[str, Source],
    catalog: Catalog,
    views: Mapping[str, View],
    named: Mapping[str, Named],
) -> Project:
    """The project of these sources and of the views that are understood; others name just these relations."""
    sources_of = {name: view.sources for name, view in views.items()}
    sources_of |= {name: frozenset(source for source, _ in relations) for name, relations in named.items()}
    used = sources_of_group(config.views, sources_of)
    there = {name: source for name, source in sources.items() if name in used}
    for name, source in there.items():
        source.watch(used_by(views, name))
    captures = {name: make_capture(config, name) for name in there}
    understood = Understood(catalog, views, named)
    return Project(config, there, catalog, views, captures, split(config, sources_of), sources_of, understood)


def keeping_of(section: ViewConfig) -> Keeping:
    """How a section of the configuration says that its view is to be kept."""
    every = section.every
    if section.algorithm == REFRESH and every is None:
        every = Refresh.every
    return Keeping(section.algorithm, section.options, every)


def parse_views(config: Config, catalog: Catalog, names: Collection[str] | None = None) -> dict[str, View]:
    """Every view of the configuration (of these ``names``), each fit for its algorithm; or a ViewError.

    It has the problems of all of them.
    """
    views: dict[str, View] = {}
    problems: list[Problem] = []
    for name, section in config.views.items():
        if names is not None and name not in names:
            continue
        try:
            views[name] = _parsed(name, section, catalog)
        except ViewError as error:
            problems += [config.in_sql(name, problem) for problem in error.problems]
        else:
            problems += _unfit(config, views[name], catalog)
    if problems:
        raise ViewError(problems)
    return views


def _parsed(name: str, section: ViewConfig, catalog: Catalog) -> View:
    """The view that a section defines; where only a recomputation can keep it, that is the algorithm it must have."""
    try:
        return parse_view(name, section.sql, catalog)
    except ViewError as error:
        refused = error
    try:
        view = parse_recomputed(name, section.sql, catalog)
    except ViewError as error:
        raise (error if section.algorithm == REFRESH else refused) from None
    if section.algorithm == REFRESH:
        return view
    raise ViewError(replace(p, remedy=_or_refresh(p.remedy)) for p in refused.problems)


def _or_refresh(remedy: str) -> str:
    return f"{remedy}{', or ' if remedy else ''}let 'algorithm: refresh' keep it"


def _unfit(config: Config, view: View, catalog: Catalog) -> list[Problem]:
    """What the view's algorithm assumes and the view does not have."""
    keeping = keeping_of(config.views[view.name])
    place = config.place("views", view.name, "algorithm")
    found = keeping.problems(TinyView.of(view, catalog))
    return [Problem(place, f"{keeping.algorithm} cannot keep the view: {what}", remedy) for what, remedy in found]
