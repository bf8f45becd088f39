"""From a configuration to working parts: sources, captures, views; every problem found on the way at once."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.tiny import TinyView
from viewkeeper.algebra.types import Catalog
from viewkeeper.algebra.view import View
from viewkeeper.algorithms.refresh import Refresh
from viewkeeper.capture import Capture
from viewkeeper.capture.postgres_setup import PostgresCapture
from viewkeeper.capture.sqlite_capture import SqliteCapture
from viewkeeper.config import Config, ViewConfig
from viewkeeper.config_sources import PostgresConfig, SourceConfig, SqliteConfig
from viewkeeper.errors import Problem, ViewError
from viewkeeper.job.patience import FIRST_START, patiently
from viewkeeper.managers.keeping import REFRESH, Keeping
from viewkeeper.managers.sources import Source
from viewkeeper.managers.sources.postgres import PostgresSource
from viewkeeper.managers.sources.sqlite import SqliteSource
from viewkeeper.warehouse.reader import WarehouseReader


@dataclass(frozen=True)
class Project:
    """A configuration whose sources have been looked at and whose views have been understood."""

    config: Config
    sources: Mapping[str, Source]  # those that views use
    catalog: Catalog
    views: Mapping[str, View]
    captures: Mapping[str, Capture]

    @property
    def keeping(self) -> dict[str, Keeping]:
        """How each view is kept."""
        return {name: keeping_of(self.config.views[name]) for name in self.views}

    def used(self, source: str) -> dict[str, list[str]]:
        """The relations of a source that views use, and the columns they use of each."""
        return used_by(self.views, source)


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

    def newest_position() -> int:
        cut = WarehouseReader(config.warehouse).newest()
        return 0 if cut is None else int(cut.positions.get(name, 0))

    return SqliteCapture(name, str(section.path), section.topic, config.kafka.client(), newest_position)


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
    return Project(config, {name: s for name, s in sources.items() if name in used}, catalog, views, captures)


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
            views[name] = parse_view(name, section.sql, catalog)
        except ViewError as error:
            problems += [Problem(f"{config.file}: {p.place}", p.what, p.remedy) for p in error.problems]
        else:
            problems += _unfit(config, views[name], catalog)
    if problems:
        raise ViewError(problems)
    return views


def _unfit(config: Config, view: View, catalog: Catalog) -> list[Problem]:
    """What the view's algorithm assumes and the view does not have."""
    keeping = keeping_of(config.views[view.name])
    place = config.place("views", view.name, "algorithm")
    found = keeping.problems(TinyView.of(view, catalog))
    return [Problem(place, f"{keeping.algorithm} cannot keep the view: {what}", remedy) for what, remedy in found]
