"""Views that leave a group: for another one, or because the configuration has them no more."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from viewkeeper.errors import Problem, UsageError
from viewkeeper.job.assembly import Project
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


def _is_in(cut: Cut | None, view: str) -> bool:
    return cut is not None and view in cut.versions


def _leave(root: Path, group: str, cut: Cut, views: Collection[str], sources: Collection[str]) -> None:
    """A cut of the group with these views alone."""
    warehouse = Warehouse(root, group)
    warehouse.open()
    positions = {name: text for name, text in cut.positions.items() if name in sources}
    offsets = {name: cut.offsets[name] for name in positions}
    warehouse.commit(WarehouseTransaction(cut.last_update, positions, offsets, cut.level, views=views))
