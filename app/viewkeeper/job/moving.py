"""Views that leave a group: for another one, or because the configuration has them no more."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from viewkeeper.errors import Problem, SourceError, SourceUnreachable, UsageError
from viewkeeper.job.assembly import Project
from viewkeeper.job.source_identity import SourceIdentities
from viewkeeper.warehouse.cuts import Cut, WarehouseTransaction
from viewkeeper.warehouse.groups import groups
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.warehouse import Warehouse


def settle_groups(project: Project, reload: Collection[str] = ()) -> None:
    """Lets views leave the groups that the configuration does not have them in; the caller holds the warehouse's lock.

    Updates have other numbers in another group, so a view that moves must be loaded there: a UsageError names those
    that are not in ``reload``.
    """
    root = project.config.warehouse
    newest = {group: cut for group in groups(root) if (cut := WarehouseReader(root, group).newest()) is not None}
    problems = list(_moved(project, newest, reload))
    if problems:
        raise UsageError(problems)
    _refuse_other_histories(project, newest, reload)
    for group, cut in newest.items():
        staying = [view for view in cut.versions if view in project.groups.get(group, ())]
        if len(staying) < len(cut.versions):
            _leave(root, group, cut, staying, {s for view in staying for s in project.views[view].sources})


def _moved(project: Project, newest: dict[str, Cut], reload: Collection[str]) -> Iterator[Problem]:
    """The views that are in another group than the configuration says, and are not to be loaded again."""
    config = project.config
    moved = {
        view: group
        for group, cut in newest.items()
        for view in cut.versions
        if view in project.views and project.group_of(view) != group
        and view not in reload and not _is_in(newest.get(project.group_of(view)), view)
    }  # fmt: skip
    names = " ".join([*reload, *moved])
    for view, group in moved.items():
        what = f"moves from group {group} to group {project.group_of(view)}, where updates have other numbers"
        remedy = f"load it there with 'viewkeeper init {config.file} --reload {names}'"
        yield Problem(config.place("views", view), what, remedy)


def _refuse_other_histories(project: Project, newest: Mapping[str, Cut], reload: Collection[str]) -> None:
    """A group that starts afresh takes a source as it is now; another that uses it must be able to go on with that.

    Raises UsageError where the source is not what the other group's newest cut was made from.
    """
    config = project.config
    afresh = {
        source
        for group, views in project.groups.items()
        if group not in newest or set(views) <= {*reload, *(set(views) - newest[group].versions.keys())}
        for view in views
        for source in project.views[view].sources
    }
    for group, cut in newest.items():
        going_on = [view for view in project.groups.get(group, ()) if view in cut.versions and view not in reload]
        shared = afresh & {source for view in going_on for source in project.views[view].sources}
        for name in sorted(shared & cut.positions.keys()):
            try:
                SourceIdentities.of(config.warehouse, group).require({name: project.sources[name]})
                project.sources[name].require(cut.positions[name])
            except SourceUnreachable:
                raise
            except SourceError as error:
                names = " ".join(dict.fromkeys([*reload, *going_on]))
                remedy = f"load all of these together: 'viewkeeper init {config.file} --reload {names}'"
                raise UsageError(Problem(p.place, f"group {group}: {p.what}", remedy) for p in error.problems) from None


def _is_in(cut: Cut | None, view: str) -> bool:
    return cut is not None and view in cut.versions


def _leave(root: Path, group: str, cut: Cut, views: Collection[str], sources: Collection[str]) -> None:
    """A cut of the group with these views alone."""
    warehouse = Warehouse(root, group)
    warehouse.open()
    positions = {name: text for name, text in cut.positions.items() if name in sources}
    offsets = {name: cut.offsets[name] for name in positions}
    warehouse.commit(WarehouseTransaction(cut.last_update, positions, offsets, cut.level, views=views))
