"""``viewkeeper verify``: recomputes views at a frozen cut and compares; with ``--level``, judges their whole past."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from viewkeeper.algebra.view import View
from viewkeeper.algorithms.sweep import Queue
from viewkeeper.commands.differing import differing
from viewkeeper.commands.logs import show_log
from viewkeeper.commands.names import require_view
from viewkeeper.commands.verify_levels import level_report
from viewkeeper.config import load_config
from viewkeeper.consistency.levels import Level
from viewkeeper.counts import of
from viewkeeper.errors import Problem, SnapshotLost, SourceUnreachable, UsageError
from viewkeeper.job.assembly import Project, assemble
from viewkeeper.job.compensating import beyond
from viewkeeper.job.freezing import frozen
from viewkeeper.job.judging import Judged, Judging
from viewkeeper.job.loading import Comparison, compare
from viewkeeper.job.outlived import other_sql
from viewkeeper.job.source_identity import SourceIdentities
from viewkeeper.managers.sources import Source
from viewkeeper.remedies import completed
from viewkeeper.warehouse.cuts import Cut
from viewkeeper.warehouse.reader import WarehouseReader

ATTEMPTS = 3
"""A cut may be passed by so far, while it is compared, that the sources forget it; then a newer one is taken."""


T = TypeVar("T")

log = logging.getLogger("viewkeeper")


@dataclass(frozen=True)
class _AtCut:
    """The newest cut, and the sources as they were at it, once answers are compensated by the queue."""

    cut: Cut
    sources: Mapping[str, Source]
    snapshots: Mapping[str, Any]
    queue: Queue


def run(args: argparse.Namespace) -> int:
    """0 if every view equals its recomputation (or reaches the level asked for or promised), 1 if one does not."""
    if args.since is not None and args.level is None:
        raise UsageError.at("verify", "--since is given without --level", "see: viewkeeper verify --help")
    show_log()
    config = load_config(args.conf)
    if args.view is not None:
        require_view(config, args.view)
    project = assemble(config)
    codes = [0]
    for group, views in project.groups.items():
        names = [view for view in views if args.view in (None, view)]
        if names:
            warehouse = WarehouseReader(config.warehouse, group, config.keep)
            part = project.part(group)
            compares = args.level is None
            codes.append(
                _compare(part, warehouse, names) if compares else _judge(part, warehouse, names, args.level, args.since)
            )
    return max(codes)


def _compare(project: Project, warehouse: WarehouseReader, names: list[str]) -> int:
    """Compares each view with its recomputation."""

    def work(at: _AtCut) -> tuple[Cut, list[Comparison]]:
        views = (project.views[name] for name in names)
        return at.cut, [compare(view, at.sources, at.snapshots, warehouse, at.cut, at.queue) for view in views]

    cut, comparisons = _at_newest_cut(project, warehouse, names, work)
    inexact = warehouse.inexact()
    for result in comparisons:
        _report(result, project.views[result.view], cut)
        _report_inexact(result.view, inexact.get(result.view))
    return 1 if any(result.differing for result in comparisons) else 0


def _judge(project: Project, warehouse: WarehouseReader, names: list[str], asked: str, since: int | None) -> int:
    """Judges each view, and all together; ``asked`` is a level, or empty for what each view's algorithm promises."""
    level, n = _level(asked)

    def work(at: _AtCut) -> list[Judged]:
        return Judging(project, warehouse, at.cut, at.sources, at.snapshots, at.queue, n).judge(names, since)

    judged = _at_newest_cut(project, warehouse, names, work)
    inexact = warehouse.inexact()
    for result in judged:
        for line in level_report(result, level):
            print(line)
        _report_inexact(result.name, inexact.get(result.name))
    return 0 if all(result.reaches(result.promise if level is None else level) for result in judged) else 1


def _level(asked: str) -> tuple[Level | None, int | None]:
    """The level that an argument names, and the N of complete-N."""
    name, _, number = asked.partition("-")
    if number:
        return Level.COMPLETE_N, int(number)
    return (Level[name.upper()] if name else None), None


def _at_newest_cut(project: Project, warehouse: WarehouseReader, names: list[str], work: Callable[[_AtCut], T]) -> T:
    """What the work says of the newest cut, while the sources are frozen there."""
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
            SourceIdentities.of(project.config.warehouse, project.group).require(sources)
            with frozen(sources, cut.positions, hold=True) as at:
                found = work(_AtCut(cut, at.sources, at.snapshots, beyond(project, cut, at)))
                at.confirm()
                return found
        except (SnapshotLost, SourceUnreachable) as error:
            if attempt == ATTEMPTS - 1:
                raise
            log.info("%s; trying again", error)
    raise AssertionError("unreachable")


def _refuse_other_definitions(project: Project, warehouse: WarehouseReader, names: list[str]) -> None:
    """A view that was loaded with other SQL is another view: comparing the two would tell nothing."""
    config = project.config
    changed = [name for name in names if warehouse.definition(name) not in (project.views[name].sql, None)]
    if changed:
        raise UsageError(
            Problem(
                config.place("views", name, "sql"),
                other_sql(warehouse.definition(name) or "", project.views[name].sql),
                f"load it again with 'viewkeeper init {config.pasted} --reload {name}'",
            )
            for name in changed
        )


def _report(result: Comparison, view: View, cut: Cut) -> None:
    at = f"at cut {cut.cut}, update {cut.last_update}"
    if result.differing == 0:
        print(f"{result.view}: equal to recomputation {at} ({result.rows} {of(result.rows, 'row')})")
    else:
        differ = f"{of(result.differing, 'row')} {'differs' if result.differing == 1 else 'differ'}"
        print(f"{result.view}: {result.differing} {differ} from recomputation {at}")
        for text in differing(view.schema, [(tuple(row.values()), count) for row, count in result.examples]):
            print(f"  {text}")
        if result.differing > len(result.examples):
            print(f"  … and {result.differing - len(result.examples)} more")
        print("  (+ the view holds too many, − too few)")


def _report_inexact(view: str, reason: str | None) -> None:
    if reason is not None:
        remedy = completed(f"view {view}: load it again with 'viewkeeper init --reload'").removeprefix(f"view {view}: ")
        print(f"{view}: exactness is not promised since {reason}; {remedy}")
