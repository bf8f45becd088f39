"""Taking views and groups out of a warehouse for good."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from viewkeeper.warehouse.groups import groups
from viewkeeper.warehouse.layout import INEXACT, UNCOMPENSATED, Layout
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.streams import storage

_OF_A_VIEW = ("changes", "views")
_OF_A_GROUP = ("cuts", "updates")
_GOING = ".removed."


def views_on_disk(root: Path) -> set[str]:
    """The views that have tables or marks."""
    return _names(root, *_OF_A_VIEW, INEXACT, UNCOMPENSATED)


def views_in_cuts(root: Path) -> dict[str, str]:
    """The views of the newest cuts, each with its group."""
    newest = {group: WarehouseReader(root, group).newest() for group in groups(root)}
    return {view: group for group, cut in newest.items() if cut is not None for view in cut.versions}


def groups_without_views(root: Path) -> set[str]:
    """The groups whose newest cut names no view, and what is left of groups that were being removed."""
    holding = set(views_in_cuts(root).values())
    return _names(root, *_OF_A_GROUP) - holding


def remove_views(root: Path, views: Collection[str]) -> None:
    """Deletes all that the warehouse has of these views; an attempt that was cut short can be made again."""
    layout = Layout(root, "all")
    for view in views:
        for kind in (INEXACT, UNCOMPENSATED):
            layout.unmark(view, kind)
    _remove(root, _OF_A_VIEW, views)


def remove_groups(root: Path, names: Collection[str]) -> None:
    """Deletes the cuts and updates of these groups, and what their streaming queries noted."""
    _remove(root, (*_OF_A_GROUP, "checkpoints"), names)
    for name in names:
        with storage(root):
            (root / "status" / f"{name}.json").unlink(missing_ok=True)


def _names(root: Path, *kinds: str) -> set[str]:
    folders = [root / kind for kind in kinds if (root / kind).is_dir()]
    with storage(root):
        return {path.name for folder in folders for path in folder.iterdir() if not path.name.startswith(".")}


def _remove(root: Path, kinds: Collection[str], names: Collection[str]) -> None:
    """Each table vanishes at once, by its new name; what an earlier attempt left under such names goes, too."""
    for folder in (root / kind for kind in kinds):
        with storage(folder):
            for name in names:
                if (folder / name).exists():
                    shutil.rmtree(folder / f"{_GOING}{name}", ignore_errors=True)
                    (folder / name).rename(folder / f"{_GOING}{name}")
            for left in folder.glob(f"{_GOING}*"):
                shutil.rmtree(left)
