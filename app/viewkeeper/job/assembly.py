"""From a configuration to working parts: sources, captures, views; every problem found on the way at once."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.tiny import TinyView
from viewkeeper.algebra.types import Catalog
from viewkeeper.algebra.view import View
from viewkeeper.algorithms.refresh import Refresh
from viewkeeper.capture import Capture
from viewkeeper.capture.postgres_setup import PostgresCapture
from viewkeeper.capture.sqlite_capture import SqliteCapture
from viewkeeper.config import Config, ViewConfig
from viewkeeper.config_groups import ALL
from viewkeeper.config_sources import LEAST_CONNECTIONS, PostgresConfig, SourceConfig, SqliteConfig
from viewkeeper.errors import Problem, ViewError
from viewkeeper.integrator.groups import Split, split
from viewkeeper.job.patience import FIRST_START, patiently
from viewkeeper.managers.keeping import REFRESH, Keeping
from viewkeeper.managers.recomputed_sql import parse_recomputed
from viewkeeper.managers.sources import Source
from viewkeeper.managers.sources.postgres import PostgresSource
from viewkeeper.managers.sources.sqlite import SqliteSource
from viewkeeper.messages import Reached
from viewkeeper.warehouse.groups import groups
from viewkeeper.warehouse.reader import WarehouseReader


@dataclass(frozen=True)
class Project:
    """A configuration whose sources have been looked at and whose views have been understood; or one group of it.

    ``groups`` are all groups of the configuration, each with its views. ``captured`` says for every source which
    columns of which relations any view uses: what capture is to send does not depend on groups.
    """

    config: Config
    sources: Mapping[str, Source]  # those that views use
    catalog: Catalog
    views: Mapping[str, View]
    captures: Mapping[str, Capture]
    groups: Split
    captured: Mapping[str, Mapping[str, list[str]]]
    group: str = ALL

    @property
    def keeping(self) -> dict[str, Keeping]:
        """How each view is kept."""
        return {name: keeping_of(self.config.views[name]) for name in self.views}

    def used(self, source: str) -> dict[str, list[str]]:
        """The relations of a source that views use, and the columns they use of each."""
        return used_by(self.views, source)

    def part(self, group: str) -> Project:
        """One group alone, with connections of its own: it works while others do."""
        views = {name: self.views[name] for name in self.groups[group]}
        used = {source for view in views.values() for source in view.sources}
        sources = {name: make_source(name, self._share(name)) for name in self.sources if name in used}
        captures = {name: make_capture(self.config, name) for name in sources}
        for name, source in sources.items():
            source.watch(used_by(views, name))
        return replace(self, sources=sources, views=views, captures=captures, group=group)

    def _share(self, source: str) -> SourceConfig:
        """A source's section for one of the groups that use it: they share its connections."""
        section = self.config.sources[source]
        if not isinstance(section, PostgresConfig):
            return section
        users = sum(any(source in self.views[view].sources for view in views) for views in self.groups.values())
        return section.model_copy(update={"max_connections": max(LEAST_CONNECTIONS, section.max_connections // users)})

    def group_of(self, view: str) -> str:
        """The group that a view is in."""
        return next(group for group, views in self.groups.items() if view in views)


def used_by(views: Mapping[str, View], source: str) -> dict[str, list[str]]:
    """The relations of a source that these views use, and the columns they use of each."""
    columns: dict[str, set[str]] = {}
    for view in views.values():
        for occurrence in view.occurrences:
            if occurrence.source == source:
                columns.setdefault(occurrence.relation, set()).update(c.name for c in occurrence.columns)
    return {relation: sorted(names) for relation, names in sorted(columns.items())}


def make_source(name: str, section: SourceConfig) -> Source:
    """The source that a section of the configuration describes; it connects on first use."""
    if isinstance(section, PostgresConfig):
        return PostgresSource(name, section)
    assert isinstance(section, SqliteConfig), f"no such kind of source: {section.kind}"
    return SqliteSource(name, str(section.path))


def make_capture(config: Config, name: str) -> Capture:
    """The capture of a source; it connects on first use."""
    section = config.sources[name]
    if isinstance(section, PostgresConfig):
        return PostgresCapture(name, section, config.warehouse / "captures" / f"{name}.json")
    assert isinstance(section, SqliteConfig), f"no such kind of source: {section.kind}"

    return SqliteCapture(
        name,
        str(section.path),
        section.topic,
        config.kafka.client(),
        lambda: oldest_position(config.warehouse, name),
        config.global_txn,
    )


def oldest_position(warehouse: Path, source: str) -> int:
    """The order position up to which the newest cut of every group that uses a source holds all of its updates."""
    cuts = [WarehouseReader(warehouse, group).newest() for group in groups(warehouse)]
    known = [cut.positions[source] for cut in cuts if cut is not None and source in cut.positions]
    return min((Reached.parse(position).last for position in known), default=0)


def assemble(config: Config, seconds: float = FIRST_START, stop: threading.Event | None = None) -> Project:
    """Looks at every source (for at most ``seconds``) and parses every view; raises all problems together."""
    sources = {name: make_source(name, section) for name, section in config.sources.items()}
    catalog: Catalog = {}
    for name, source in sources.items():
        found = patiently(source.describe, seconds=seconds, stop=stop)
        catalog |= {(name, relation): described for relation, described in found.items()}
    views = parse_views(config, catalog)
    used = {source for view in views.values() for source in view.sources}
    captures = {name: make_capture(config, name) for name in sources if name in used}
    for name in used:
        sources[name].watch(used_by(views, name))
    return Project(
        config,
        {name: s for name, s in sources.items() if name in used},
        catalog,
        views,
        captures,
        split(config, {name: view.sources for name, view in views.items()}),
        {name: used_by(views, name) for name in used},
    )


def keeping_of(section: ViewConfig) -> Keeping:
    """How a section of the configuration says that its view is to be kept."""
    every = section.every
    if section.algorithm == REFRESH and every is None:
        every = Refresh.every
    return Keeping(section.algorithm, section.options, every)


def parse_views(config: Config, catalog: Catalog) -> dict[str, View]:
    """Every view of the configuration, each fit for its algorithm; or a ViewError with the problems of all of them."""
    views: dict[str, View] = {}
    problems: list[Problem] = []
    for name, section in config.views.items():
        try:
            views[name] = _parsed(name, section, catalog)
        except ViewError as error:
            problems += [Problem(f"{config.file}: {p.place}", p.what, p.remedy) for p in error.problems]
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
    raise ViewError(Problem(p.place, p.what, _or_refresh(p.remedy)) for p in refused.problems)


def _or_refresh(remedy: str) -> str:
    return f"{remedy}{', or ' if remedy else ''}let 'algorithm: refresh' keep it"


def _unfit(config: Config, view: View, catalog: Catalog) -> list[Problem]:
    """What the view's algorithm assumes and the view does not have."""
    keeping = keeping_of(config.views[view.name])
    place = config.place("views", view.name, "algorithm")
    found = keeping.problems(TinyView.of(view, catalog))
    return [Problem(place, f"{keeping.algorithm} cannot keep the view: {what}", remedy) for what, remedy in found]
