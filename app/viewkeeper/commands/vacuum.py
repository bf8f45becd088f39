"""``viewkeeper vacuum``: says which cuts go, then deletes what only they need."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import pairwise

from viewkeeper.config import Config, load_config
from viewkeeper.errors import Problem, UsageError
from viewkeeper.warehouse.groups import groups
from viewkeeper.warehouse.layout import Layout
from viewkeeper.warehouse.removal import (
    groups_without_views,
    remove_groups,
    remove_views,
    views_in_cuts,
    views_on_disk,
)
from viewkeeper.warehouse.retention import Going, going, superseded
from viewkeeper.warehouse.view_table import Superseded
from viewkeeper.warehouse.warehouse import Warehouse


def run(args: argparse.Namespace) -> int:
    """Vacuums every group on disk; with --removed, takes out what is in no configuration and no newest cut."""
    config = load_config(args.conf)
    if not (config.warehouse / "cuts").is_dir():
        print(f"{config.warehouse}: there is nothing yet")
        return 0
    with _held(config):
        _vacuum(config, config.keep if args.keep is None else args.keep)
        if args.removed:
            _remove_views(config)
            _remove_groups(config)
    return 0


@contextmanager
def _held(config: Config) -> Iterator[None]:
    with ExitStack() as held:
        try:
            held.enter_context(Layout(config.warehouse, "all").lock())
        except UsageError as e:
            remedy = "it does this by itself every hour, or stop it first"
            raise UsageError([Problem(p.place, p.what, remedy) for p in e.problems]) from None
        yield


def _vacuum(config: Config, keep: timedelta) -> None:
    """First the list for every group, then the deletion of exactly that."""
    warehouses = [Warehouse(config.warehouse, group, config.keep) for group in groups(config.warehouse)]
    deleted: dict[str, Superseded] = {}
    for warehouse in warehouses:
        deleted |= superseded(warehouse, keep)
    for warehouse in warehouses:
        for line in _told(warehouse.layout.group, going(warehouse, keep, deleted), keep):
            print(line, flush=True)
    for warehouse in warehouses:
        warehouse.delete(deleted)


def _told(group: str, cuts: Going, keep: timedelta) -> Iterator[str]:
    older = "" if keep == timedelta(0) else f", older than {_spoken(keep)},"
    if cuts.lost:
        yield f"group {group}: {_numbers(cuts.lost)}{older} can no longer be read"
    if cuts.counted_back:
        yield (
            f"group {group}: {_numbers(cuts.counted_back)}{older} can no longer be read by VERSION AS OF, "
            "but still by viewkeeper read, which counts back from a later version"
        )
    if not cuts.lost and not cuts.counted_back:
        yield f"group {group}: no cut goes"


def _remove_views(config: Config) -> None:
    held = views_in_cuts(config.warehouse)
    for view in sorted(held.keys() - config.views.keys()):
        print(
            f"view {view}: it is not in {config.file}, but in the newest cut of group {held[view]}, so it stays; "
            f"run 'viewkeeper init {config.pasted}' first"
        )
    gone = sorted(views_on_disk(config.warehouse) - held.keys() - config.views.keys())
    for view in gone:
        print(f"view {view}: its tables are deleted; no cut can be read with it any more", flush=True)
    remove_views(config.warehouse, gone)


def _remove_groups(config: Config) -> None:
    gone = sorted(groups_without_views(config.warehouse) - _possible_groups(config))
    for group in gone:
        print(f"group {group}: its newest cut has no view; its cuts and updates are deleted", flush=True)
    remove_groups(config.warehouse, gone)


def _possible_groups(config: Config) -> set[str]:
    """Every name that a group of this configuration can have, so that none of its groups loses its numbers."""
    named = getattr(config, "groups", None)
    own = set(named) if isinstance(named, dict) else set()
    return {"all", *own, *config.sources, *config.views, *(f"{view}_alone" for view in config.views)}


def _numbers(cuts: Sequence[int]) -> str:
    """``cuts 0 to 3, 5 and 7 to 9``."""
    starts = [cuts[0], *(b for a, b in pairwise(cuts) if b != a + 1)]
    ends = [*(a for a, b in pairwise(cuts) if b != a + 1), cuts[-1]]
    runs = [f"{a}" if a == b else f"{a} to {b}" for a, b in zip(starts, ends, strict=True)]
    listed = runs[0] if len(runs) == 1 else f"{', '.join(runs[:-1])} and {runs[-1]}"
    return f"cut {listed}" if len(cuts) == 1 else f"cuts {listed}"


def _spoken(length: timedelta) -> str:
    seconds = length.total_seconds()
    units = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
    unit, size = next((u for u in units if seconds >= u[1] and seconds % u[1] == 0), units[-1])
    return f"{seconds / size:g} {unit}" + ("" if seconds == size else "s")
