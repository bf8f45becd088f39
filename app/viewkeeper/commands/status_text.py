"""A state in words: the lines that ``status`` and ``watch`` have in common."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime

from rich.console import Console
from rich.text import Text

from viewkeeper.capture.postgres_findings import size
from viewkeeper.commands.status_sources import UNKNOWN
from viewkeeper.commands.status_state import GroupState, JobState, SourceState, State, ViewState
from viewkeeper.consistency.levels import Level
from viewkeeper.counts import some
from viewkeeper.job.picture import spoken
from viewkeeper.messages import Reached
from viewkeeper.remedies import completed

SILENT = 10.0
"""Seconds without a heartbeat after which it is worth a word."""

TROUBLE = "bold red"
WIDTH = 100
"""Columns where there is no terminal to say how many it has."""


def console() -> Console:
    """Standard output; what is no terminal has a width of its own, unless the environment says another."""
    standard = Console(highlight=False)
    given = standard.is_terminal or "COLUMNS" in os.environ
    return standard if given else Console(highlight=False, width=WIDTH)


def job_line(job: JobState) -> str:
    """Whether there is a job, and how it does."""
    if not job.running:
        return "no job is running"
    updates = some(job.updates_handled, "update")
    line = f"job {job.pid} is running since {(job.started or '')[:19]}Z, {updates} handled"
    silent = 0.0 if job.heartbeat is None else _age(datetime.fromisoformat(job.heartbeat))
    return f"{line}, not heard of for {spoken(silent)}" if silent > SILENT else line


def troubles(state: State) -> Iterator[Text]:
    """What somebody ought to look at, a line each."""
    for name, group in state.groups.items():
        if group.error is not None:
            yield Text(f"group {name} has stopped: {group.error}", style=TROUBLE)
        elif group.trouble:
            yield Text(f"group {name} waits: {group.waiting}", style=TROUBLE)
        elif state.job.running and not group.running:
            yield Text(f"group {name} {_not_running(state.job, group)}", style="bold")
    lost = [*(group.lost for group in state.groups.values()), *(view.lost for view in state.views.values())]
    for said in dict.fromkeys(filter(None, lost)):
        yield Text(completed(said), style=TROUBLE)
    for name, source in state.sources.items():
        if source.capture_running is False and source.position is not None:
            left = unsent(source)
            yield Text(f"source {name} is not being captured{left and f': {left} to send'}", style=TROUBLE)
        for what in source.kept_for:
            yield Text(completed(f"source {name}: {what}"), style="bold")
    for name, view in state.views.items():
        if not view.exact:
            yield Text(f"view {name} is not exact: {view.reason}", style=TROUBLE)
        if view.moved_from is not None:
            told = (
                f"view {name} is in group {view.moved_from} of the warehouse: load it with 'viewkeeper init --reload'"
            )
            yield Text(completed(told), style=TROUBLE)


def group_line(name: str, group: GroupState) -> Text:
    """A group's newest cut, and what is on its way to the next."""
    head = Text.assemble((f"group {name}", "bold"), ": ")
    cut = group.cut
    if cut is None:
        return head.append(completed("no cut yet: run 'viewkeeper init' or 'viewkeeper run'"))
    head.append(f"cut {cut.cut}, update {cut.last_update}, {spoken(max(0.0, _age(cut.committed_at)))} ago, ")
    head.append(f"level {cut.level} ({group.algorithm})")
    if group.table.pending:
        head.append(f", {group.table.pending:,} more to come", style="bold")
    return head


def waiting_line(group: GroupState) -> Text | None:
    """What the group waits for in the ordinary course of things."""
    said = [] if group.waiting is None or group.trouble else [group.waiting]
    if group.unnumbered:
        said.append(f"{group.unnumbered:,} arrived, without a number yet")
    return Text(f"waiting: {'; '.join(said)}") if said else None


def promise(view: ViewState) -> str:
    """What holds for a view that is read now."""
    if not view.loaded:
        return "not loaded"
    if view.lost is not None:
        return "lost"
    if not view.exact:
        return "not exact"
    return "none" if view.level == str(Level.INCONSISTENT) else f"exact, {view.level}"


def behind(view: ViewState) -> str:
    """How much a view lacks, or how much at least."""
    if not view.loaded:
        return or_dash(None)
    if view.behind is not None:
        return counted(view.behind)
    return f"≥ {view.behind_at_least:,}" if view.behind_at_least else UNKNOWN


def capture(source: SourceState) -> str:
    """Whether a source is being captured, and what was not sent yet."""
    if source.capture_running is None or isinstance(source.capture_running, str):
        return or_dash(None) if source.capture_running is None else UNKNOWN
    state, left = "running" if source.capture_running else "not running", unsent(source)
    return f"{state}, {left} to send" if left else state


def unsent(source: SourceState) -> str:
    """What a source's log holds and its topic does not; empty if that is nothing, or not known."""
    if source.uncaptured_bytes:
        return f"{size(source.uncaptured_bytes)} of log"
    return some(source.uncaptured, "change") if source.uncaptured else ""


def position(text: str | None) -> str:
    """Where a source stands: past it lies nothing that a cut holds."""
    return or_dash(text if text is None else Reached.parse(text).furthest)


def is_unknown(cell: object) -> bool:
    """Whether it is a reason in place of what was asked for."""
    return isinstance(cell, str) and cell.startswith(f"{UNKNOWN}: ")


def or_dash(cell: object) -> str:
    return "–" if cell is None else str(cell)


def counted(cell: object) -> str:
    """A count, as people read it; a number that names something stays as it is."""
    return f"{cell:,}" if isinstance(cell, int) else or_dash(cell)


def _not_running(job: JobState, group: GroupState) -> str:
    """A group whose job runs: it has not begun yet, or is done before the others."""
    begun = group.heartbeat is not None and job.started is not None and group.heartbeat >= job.started
    return "has ended" if begun else "is being opened"


def _age(moment: datetime) -> float:
    return (datetime.now(UTC) - moment).total_seconds()
