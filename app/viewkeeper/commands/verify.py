"""``viewkeeper verify``: recomputes views at a frozen cut and compares."""

from __future__ import annotations

import argparse

from viewkeeper.commands.names import require_view
from viewkeeper.config import load_config
from viewkeeper.errors import Problem, UsageError
from viewkeeper.job.assembly import Project, assemble
from viewkeeper.job.loading import Comparison, compare, frozen
from viewkeeper.managers.sources.sqlite_log import SnapshotLost
from viewkeeper.warehouse.cuts import Cut
from viewkeeper.warehouse.reader import WarehouseReader

ATTEMPTS = 3
"""A cut may be passed by so far, while it is compared, that the sources forget it; then a newer one is taken."""


def run(args: argparse.Namespace) -> int:
    """0 if every view equals its recomputation, 1 if one does not."""
    config = load_config(args.conf)
    if args.view is not None:
        require_view(config, args.view)
    project = assemble(config)
    warehouse = WarehouseReader(config.warehouse, keep=config.keep)
    names = [args.view] if args.view is not None else list(config.views)
    cut, comparisons = _compare(project, warehouse, names)
    inexact = warehouse.inexact()
    for result in comparisons:
        _report(result, cut, inexact.get(result.view))
    return 1 if any(result.differing for result in comparisons) else 0


def _compare(project: Project, warehouse: WarehouseReader, names: list[str]) -> tuple[Cut, list[Comparison]]:
    for attempt in range(ATTEMPTS):
        cut = warehouse.newest()
        missing = [name for name in names if cut is None or name not in cut.versions]
        if cut is None or missing:
            raise UsageError.at(
                project.config.place("views", *missing[:1]),
                "is not loaded yet",
                "run 'viewkeeper init' first",
            )
        _refuse_other_definitions(project, warehouse, names)
        sources = {name: source for name, source in project.sources.items() if name in cut.positions}
        try:
            with frozen(sources, cut.positions) as snapshots:
                return cut, [compare(project.views[n], sources, snapshots, warehouse, cut) for n in names]
        except SnapshotLost:
            if attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _refuse_other_definitions(project: Project, warehouse: WarehouseReader, names: list[str]) -> None:
    """A view that was loaded with other SQL is another view: comparing the two would tell nothing."""
    config = project.config
    changed = [name for name in names if warehouse.definition(name) not in (project.views[name].sql, None)]
    if changed:
        raise UsageError(
            Problem(
                config.place("views", name, "sql"),
                "differs from the SQL that the view was loaded with",
                f"load it again with 'viewkeeper init {config.file} --reload {name}'",
            )
            for name in changed
        )


def _report(result: Comparison, cut: Cut, inexact: str | None) -> None:
    if result.differing == 0:
        print(f"{result.view}: equal to recomputation at cut {cut.cut}, update {cut.last_update} ({result.rows} rows)")
    else:
        print(f"{result.view}: {result.differing} rows differ from recomputation at cut {cut.cut}")
        for row, count in result.examples:
            print(f"  {'+' if count > 0 else '−'}{abs(count)} {row}")
        if result.differing > len(result.examples):
            print(f"  … and {result.differing - len(result.examples)} more")
        print("  (+ the view holds too many, − too few)")
    if inexact is not None:
        print(
            f"{result.view}: exactness is not promised since {inexact}; load it again with 'viewkeeper init --reload'"
        )
