"""Groups (multiple-view-consistency-1997, section 6.1): which views are numbered and merged together.

Views that share a source must see its updates in one order, so left to itself a split keeps them together (Figure 3).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from viewkeeper.config import Config
from viewkeeper.config_groups import ALL, AUTO, promises_nothing
from viewkeeper.errors import ConfigError, Problem

SourcesOf = Mapping[str, Collection[str]]
"""Per view the sources that it uses."""

Split = dict[str, tuple[str, ...]]
"""Per group its views."""


def split(config: Config, sources_of: SourcesOf) -> Split:
    """The groups that a configuration asks for, each with its views in configuration order.

    Every view is in one of them; one that promises nothing is alone in its own. Raises a ConfigError if two groups
    would have one name.
    """
    alone = [view for view in config.views if _promises_nothing(config, view)]
    if config.groups == AUTO:
        found = _by_sources(config, sources_of, [view for view in config.views if view not in alone])
    else:
        found = _as_named(config, alone)
    return found | _alone(config, found, alone)


def sources_of_group(views: Collection[str], sources_of: SourcesOf) -> frozenset[str]:
    """The sources that the views of a group use."""
    return frozenset(source for view in views for source in sources_of[view])


@dataclass(frozen=True)
class Sharing:
    """Groups that have something in common although nothing makes them agree: sources, by name."""

    sources: tuple[str, ...]
    groups: tuple[str, ...]


def shared_sources(config: Config, groups: Mapping[str, Collection[str]], sources_of: SourcesOf) -> list[Sharing]:
    """The sources that views of several groups use, by the groups; views that agree with nobody are left out."""
    used = _agreeing(config, groups, sources_of)
    users = {s: tuple(g for g, sources in used.items() if s in sources) for s in config.sources}
    sharing: dict[tuple[str, ...], list[str]] = {}
    for source, group_names in users.items():
        if len(group_names) > 1:
            sharing.setdefault(group_names, []).append(source)
    return [Sharing(tuple(sources), group_names) for group_names, sources in sharing.items()]


def split_transactions(config: Config, groups: Mapping[str, Collection[str]], sources_of: SourcesOf) -> list[Sharing]:
    """The sets of sources that a transaction may span where a group uses some, and another group others."""
    used = _agreeing(config, groups, sources_of)
    found = []
    for spanned in config.global_txn:
        mine = {group: sources.intersection(spanned) for group, sources in used.items()}
        mine = {group: sources for group, sources in mine.items() if sources}
        if any(sources != frozenset().union(*mine.values()) for sources in mine.values()):
            found.append(Sharing(tuple(spanned), tuple(mine)))
    return found


def _agreeing(
    config: Config, groups: Mapping[str, Collection[str]], sources_of: SourcesOf
) -> dict[str, frozenset[str]]:
    """The sources of each group whose views promise anything."""
    agreeing = {g: views for g, views in groups.items() if not any(_promises_nothing(config, v) for v in views)}
    return {group: sources_of_group(views, sources_of) for group, views in agreeing.items()}


def _promises_nothing(config: Config, view: str) -> bool:
    return promises_nothing(config.views[view].algorithm)


def _as_named(config: Config, alone: Collection[str]) -> Split:
    """The groups that the user named, and one for the rest; a view that agrees with nobody may have been named too."""
    assert config.groups != AUTO
    found = {name: _in_order(config, section.views) for name, section in config.groups.items()}
    grouped = {view for views in found.values() for view in views}
    rest = [view for view in config.views if view not in grouped and view not in alone]
    assert not rest or ALL not in found, "the configuration was checked"
    return found | ({ALL: tuple(rest)} if rest else {})


def _by_sources(config: Config, sources_of: SourcesOf, views: Collection[str]) -> Split:
    """Views that share a source, or sources that a transaction may span, in one group, named after its first source."""
    joined_with = {source: {source} for source in config.sources}
    for together in (*config.global_txn, *(sources_of[view] for view in views)):
        joined = set[str]().union(*(joined_with[source] for source in together))
        joined_with |= dict.fromkeys(joined, joined)
    members: dict[frozenset[str], list[str]] = {}
    for view in views:
        members.setdefault(frozenset(joined_with[next(iter(sources_of[view]))]), []).append(view)
    return {_first(config, sources_of_group(group, sources_of)): tuple(group) for group in members.values()}


def _first(config: Config, sources: Collection[str]) -> str:
    return next(source for source in config.sources if source in sources)


def _alone(config: Config, taken: Collection[str], views: Collection[str]) -> Split:
    """A group for each of these views that no group holds yet, named after it."""
    named = () if config.groups == AUTO else [view for g in config.groups.values() for view in g.views]
    found: Split = {}
    problems: list[Problem] = []
    for view in views:
        if view in named:
            continue
        name = next((n for n in (view, f"{view}_alone") if n not in taken and n not in found), None)
        if name is None:
            problems.append(_no_name(config, view))
        else:
            found[name] = (view,)
    if problems:
        raise ConfigError(problems)
    return found


def _no_name(config: Config, view: str) -> Problem:
    what = f"it is a group of its own, and groups {view} and {view}_alone are there already"
    return Problem(config.place("views", view), what, f"name a group for it: groups.<name>: [{view}]")


def _in_order(config: Config, views: Collection[str]) -> tuple[str, ...]:
    return tuple(view for view in config.views if view in views)
