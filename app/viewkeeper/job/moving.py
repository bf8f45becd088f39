"""Views that leave a group: for another one, or because the configuration has them no more."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from viewkeeper.errors import Problem, SourceError, SourceUnreachable, UsageError
from viewkeeper.integrator.groups import sources_of_group
from viewkeeper.job.assembly import Project
from viewkeeper.job.source_identity import SourceIdentities
from viewkeeper.warehouse.cuts import Cut
from viewkeeper.warehouse.groups import groups
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.warehouse import Warehouse


def settle_groups(project: Project, reload: Collection[str] = ()) -> None:
    """Lets views leave the groups that the configuration does not have them in; the caller holds the warehouse's lock.

    Updates have other numbers in another group, so a view that moves must be loaded there: a UsageError names those
    that are not in ``reload``.
    """
    root = project.config.warehouse
    newest = _newest(root)
    problems = list(_moved(project, newest, reload))
    if problems:
        raise UsageError(problems)
    for group in project.groups:
        refuse_other_histories(project, group, newest, reload)
    for group, cut in newest.items():
        staying = [view for view in cut.versions if view in project.groups.get(group, ())]
        if len(staying) < len(cut.versions):
            warehouse = Warehouse(root, group)
            warehouse.open()
            warehouse.leave(cut.versions.keys() - set(staying), sources_of_group(staying, project.sources_of))


def _newest(root: Path) -> dict[str, Cut]:
    """The newest cut of every group that has one."""
    return {group: cut for group in groups(root) if (cut := WarehouseReader(root, group).newest()) is not None}


def _moved(project: Project, newest: dict[str, Cut], reload: Collection[str]) -> Iterator[Problem]:
    """The views that are in another group than the configuration says, and are not to be loaded again."""
    config = project.config
    moved = {
        view: group
        for group, cut in newest.items()
        for view in cut.versions
        if view in project.config.views and project.group_of(view) != group
        and view not in reload and not _is_in(newest.get(project.group_of(view)), view)
    }  # fmt: skip
    names = " ".join([*reload, *moved])
    for view, group in moved.items():
        what = f"moves from group {group} to group {project.group_of(view)}, where updates have other numbers"
        remedy = f"load it there with 'viewkeeper init {config.pasted} --reload {names}'"
        yield Problem(config.place("views", view), what, remedy)


def refuse_other_histories(
    project: Project, starting: str, newest: Mapping[str, Cut] | None = None, reload: Collection[str] = ()
) -> None:
    """A group that starts afresh takes a source as it is now; another that uses it must be able to go on with that.

    Raises UsageError where the source is not what the other group's newest cut was made from: once the first is
    loaded, nothing would show it. Sources that are away are not looked at; the group cannot start without them.
    """
    config = project.config
    newest = _newest(config.warehouse) if newest is None else newest
    afresh = _afresh(project, starting, newest, reload)
    for group, cut in newest.items():
        going_on = [view for view in project.groups.get(group, ()) if view in cut.versions and view not in reload]
        shared = afresh & sources_of_group(going_on, project.sources_of)
        for name in sorted(shared & cut.positions.keys() & project.sources.keys()):
            try:
                _require_history(project, group, name, cut.positions[name])
            except SourceUnreachable:
                raise
            except SourceError as error:
                names = " ".join(dict.fromkeys([*reload, *going_on]))
                remedy = f"load all of these together: 'viewkeeper init {config.pasted} --reload {names}'"
                raise UsageError(Problem(p.place, f"group {group}: {p.what}", remedy) for p in error.problems) from None


def _require_history(project: Project, group: str, name: str, position: str) -> None:
    """Raises SourceError unless a group can go on with a source from the position of its newest cut.

    The group may be at work: once it has made another cut, the log no longer needs to reach back to the one before.
    """
    root, source = project.config.warehouse, project.sources[name]
    while True:
        try:
            SourceIdentities.of(root, group).require({name: source})
            return source.require(position)
        except SourceUnreachable:
            raise
        except SourceError:
            cut = WarehouseReader(root, group).newest()
            if cut is None or cut.positions.get(name, position) == position:
                raise
            position = cut.positions[name]


def _afresh(project: Project, group: str, newest: Mapping[str, Cut], reload: Collection[str]) -> frozenset[str]:
    """The sources of a group if none of its views goes on from a cut."""
    views = project.groups[group]
    known = newest[group].versions if group in newest else {}
    going_on = [view for view in views if view in known and view not in reload]
    return frozenset() if going_on else sources_of_group(views, project.sources_of)


def _is_in(cut: Cut | None, view: str) -> bool:
    return cut is not None and view in cut.versions
