"""What may be deleted, and which cuts go with it.

A cut is promised while it is the newest, and for ``keep`` after another took its place. The cut that was the
newest ``keep`` ago names, of each view, the oldest version that is still promised: all versions from that one
on stay whole, in whatever group the view was.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from viewkeeper.warehouse.cuts import Cut, now
from viewkeeper.warehouse.groups import groups
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.view_table import Load, Superseded, ViewTable, load_of

_SOME = 5_000  # cuts to look at at a time


def oldest_promised(warehouse: WarehouseReader, keep: timedelta) -> Cut | None:
    """The cut that was the newest ``keep`` ago: all since then must stay readable. None before the first load."""
    newest = warehouse.newest()
    if newest is None:
        return None
    since = now() - keep
    after = bisect_left(range(newest.cut + 1), since, key=lambda number: warehouse.cut(number).committed_at)
    return warehouse.cut(max(after - 1, 0))


def superseded(warehouse: WarehouseReader, keep: timedelta) -> dict[str, Superseded]:
    """Per view of the group what no promised cut needs, whichever group's.

    A view that came to the group later than its oldest promised cut is left alone: all of it may be promised.
    """
    newest, own = warehouse.newest(), oldest_promised(warehouse, keep)
    if newest is None or own is None:
        return {}
    root = warehouse.layout.root
    others = [oldest_promised(WarehouseReader(root, g), keep) for g in groups(root) if g != warehouse.layout.group]
    promised = [own, *(cut for cut in others if cut is not None)]
    found: dict[str, Superseded] = {}
    for view in newest.versions.keys() & own.versions.keys():
        oldest = min(cut.versions[view] for cut in promised if view in cut.versions)
        found[view] = warehouse.view_table(view).superseded(oldest)
    return found


@dataclass
class Going:
    """The cuts of a group that lose a version they name: ``counted_back`` can still be read from the view's
    changes, ``lost`` cannot."""

    counted_back: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)


def going(warehouse: WarehouseReader, keep: timedelta, deleted: Mapping[str, Superseded]) -> Going:
    """The cuts of this group that go once that much of its views, and of other groups' views, is deleted."""
    oldest, found = oldest_promised(warehouse, keep), Going()
    if oldest is None:
        return found
    after = _After(warehouse, deleted)
    for cuts in _backwards(warehouse, oldest.cut - 1):
        if not any(map(after.may_go, cuts)):
            break  # all that is older went long ago
        for cut in reversed(cuts):
            if after.goes(cut):
                (found.counted_back if after.readable(cut) else found.lost).append(cut.cut)
    return Going(found.counted_back[::-1], found.lost[::-1])


def _backwards(warehouse: WarehouseReader, last: int) -> Iterator[list[Cut]]:
    for end in range(last, -1, -_SOME):
        yield warehouse.cuts(max(end - _SOME + 1, 0), end)


class _After:
    """The group's cuts as they will be once something is deleted."""

    def __init__(self, warehouse: WarehouseReader, deleted: Mapping[str, Superseded]):
        self._warehouse, self._deleted = warehouse, deleted
        self._newest = warehouse.newest()
        self._first: dict[str, int] = {}
        self._whole: dict[tuple[str, int], tuple[bool, bool]] = {}
        self._loads: dict[tuple[str, int], Load] = {}

    def may_go(self, cut: Cut) -> bool:
        """Whether the logs still reach back to a version that it names; most older cuts went long ago."""
        return any(version >= self._first_version(view) for view, version in self._concerned(cut))

    def goes(self, cut: Cut) -> bool:
        """Whether a version that it names can be read now, and not afterwards."""
        return any(self._is_whole(view, version) == (True, False) for view, version in self._concerned(cut))

    def readable(self, cut: Cut) -> bool:
        """Whether ``WarehouseReader.read`` can still give each of its views afterwards."""
        return all(self._is_readable(view, cut) for view in cut.versions)

    def _concerned(self, cut: Cut) -> Iterable[tuple[str, int]]:
        return ((view, version) for view, version in cut.versions.items() if view in self._deleted)

    def _is_readable(self, view: str, cut: Cut) -> bool:
        current = self._current_load(view)
        if self._is_whole(view, cut.versions[view])[1]:
            load = self._load(view, cut.versions[view])
            if cut.last_update == cut.folded[view] or load == current:
                return True
            if current is None:
                return self._warehouse.holds_changes(view, load)
        return current is not None and current.after < cut.versions[view] and current.update <= cut.last_update

    def _is_whole(self, view: str, version: int) -> tuple[bool, bool]:
        """Whether the version can be read before and after."""
        key = view, version
        if key not in self._whole:
            deleted = self._deleted.get(view)
            before = version >= self._first_version(view) and self._table(view).whole(version)
            self._whole[key] = before, before and (deleted is None or self._table(view).whole(version, deleted))
        return self._whole[key]

    def _current_load(self, view: str) -> Load | None:
        if self._newest is None or view not in self._newest.versions:
            return None
        return self._load(view, self._newest.versions[view])

    def _load(self, view: str, version: int) -> Load:
        key = view, version
        if key not in self._loads:
            self._loads[key] = load_of(self._table(view).at(version))
        return self._loads[key]

    def _first_version(self, view: str) -> int:
        if view not in self._first:
            self._first[view] = self._table(view).first_version()
        return self._first[view]

    def _table(self, view: str) -> ViewTable:
        return self._warehouse.view_table(view)
