"""A source that is away when the job starts holds back only the groups that use it.

At start every source is looked at once, all at the same time. Views whose sources are there are understood, and groups
of such views begin. Each other group looks at its sources again in its own thread, and joins when they are there.

Groups are split by what views name, so the split is the one that there is when no source is away. Groups that share a
source need not wait for each other: what capture is to send stays at least what it was (``Understood``), and how far a
shared source's log may be forgotten is told by every group's newest cut, whether the group is at work or not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from viewkeeper.algebra.types import Catalog
from viewkeeper.algebra.view import View
from viewkeeper.config import Config
from viewkeeper.errors import ViewError, ViewkeeperError
from viewkeeper.job.assembly import Project, make_source, parse_views, project_of
from viewkeeper.job.looking import LOOK, Looked, Onlooker, look
from viewkeeper.job.moving import refuse_other_histories
from viewkeeper.job.named_relations import names_known_sources, relations_named
from viewkeeper.job.patience import FIRST_START, patiently
from viewkeeper.managers.sources import Source


def begin(config: Config, stop: threading.Event) -> Project:
    """The project as far as its sources are there, and its views are understood; see ``Project.refused``."""
    sources = {name: make_source(config, name) for name in config.sources}
    return as_seen(config, sources, look(sources.values(), stop, LOOK))


def as_seen(config: Config, sources: Mapping[str, Source], looked: Looked) -> Project:
    """The project as far as a look at its sources has found them there; see ``begin``."""
    named = {name: relations_named(section.sql, sources) for name, section in config.views.items()}
    waiting = {name: r for name, r in named.items() if any(source in looked.away for source, _ in r)}
    views, refused = _understood(config, looked.catalog, [name for name in named if name not in waiting])
    there = {name: source for name, source in sources.items() if name not in looked.away}
    waiting |= {name: named[name] for name in refused}
    return replace(project_of(config, there, looked.catalog, views, waiting), refused=refused)


def _understood(
    config: Config, catalog: Catalog, names: Collection[str]
) -> tuple[dict[str, View], dict[str, ViewError]]:
    """The views that can be understood, and why others cannot; raises if that leaves nothing, or no split, to go on.

    A view that names what there is not, or cannot even be read, might belong to another group.
    """
    views: dict[str, View] = {}
    refused: dict[str, ViewError] = {}
    for name in names:
        try:
            views |= parse_views(config, catalog, [name])
        except ViewError as error:
            refused[name] = error
    lost = [name for name in refused if not names_known_sources(config.views[name].sql, config.sources)]
    if refused and (lost or not views):
        raise ViewError([problem for error in refused.values() for problem in error.problems])
    return views, refused


def join(
    project: Project,
    group: str,
    stop: threading.Event,
    waiting: Callable[[ViewkeeperError | None], None] = lambda error: None,
    patience: float = FIRST_START,
) -> Project:
    """The part of a group that waited, as soon as its sources are there; raises why one is not, after ``patience``.

    ``waiting`` hears what the group waits for. The caller holds the warehouse's lock.
    """
    sources = project.sources_for(group)
    try:
        return _joined(project, group, sources, stop, waiting, patience)
    except BaseException:
        for source in sources.values():
            source.close()
        raise


def _joined(
    project: Project,
    group: str,
    sources: Mapping[str, Source],
    stop: threading.Event,
    waiting: Callable[[ViewkeeperError | None], None],
    patience: float,
) -> Project:
    onlooker = Onlooker(sources.values())
    found = patiently(lambda: onlooker.look(stop, LOOK).complete(), seconds=patience, stop=stop, waiting=waiting)
    catalog = project.understood.described(found)
    views = parse_views(project.config, catalog, project.groups[group])
    assert all(view.sources == project.sources_of[name] for name, view in views.items()), "the split would be another"
    project.understood.add(views, found)
    part = project.part_with(group, sources, catalog, views)
    patiently(lambda: refuse_other_histories(part, group), seconds=patience, stop=stop, waiting=waiting)
    return part
