"""The groups that a warehouse holds, and which of them a view is in: its newest cuts say so."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from deltalake import DeltaTable

from viewkeeper.errors import Problem, UsageError
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.streams import storage


def groups(root: Path) -> list[str]:
    """The groups on disk, by name."""
    folder = Path(root) / "cuts"
    with storage(folder):
        found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path.name for path in found if path.name[0] != "." and DeltaTable.is_deltatable(str(path))]


def group_of(root: Path, view: str) -> str | None:
    """The group whose newest cut names the view, or None."""
    return groups_of(root, [view])[view]


def groups_of(root: Path, views: Collection[str]) -> dict[str, str | None]:
    """Per view the group whose newest cut names it."""
    found: dict[str, str | None] = dict.fromkeys(views)
    for group in groups(root):
        newest = WarehouseReader(root, group).newest()
        if newest is not None:
            found |= {view: group for view in views if view in newest.versions}
    return found


def common_group(root: Path, views: Collection[str]) -> str:
    """The one group of these views; a UsageError names those that are in none, or says that they are in several.

    Of a warehouse with a single group, that one, even for views that only its earlier cuts hold.
    """
    there = groups(root)
    if len(there) == 1:
        return there[0]
    found = groups_of(root, views)
    missing = [view for view, group in found.items() if group is None]
    if missing:
        raise UsageError(
            Problem(f"views.{v}", "it is not in that cut", "load it with viewkeeper init") for v in missing
        )
    different = sorted({str(group) for group in found.values()})
    if len(different) > 1:
        raise UsageError.at(
            ", ".join(views),
            f"they are in groups {', '.join(different[:-1])} and {different[-1]}, which have no cut in common",
            "read them apart",
        )
    return different[0]
