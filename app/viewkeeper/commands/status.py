"""``viewkeeper status``: how far the views are, what the job does and what it has asked of the sources."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from viewkeeper.commands import status_text as say
from viewkeeper.commands.status_sources import UNKNOWN
from viewkeeper.commands.status_state import GroupState, SourceState, State, ViewState, gather
from viewkeeper.commands.status_table import drawn, legend
from viewkeeper.config import load_config


def run(args: argparse.Namespace) -> int:
    state = gather(load_config(args.conf))
    if args.json:
        print(orjson.dumps(state, option=orjson.OPT_INDENT_2).decode())
    else:
        show(say.console(), state)
    return 0


def show(console: Console, state: State) -> None:
    """Prints a state: first what is wrong, then the sources, then each group with its views and its table."""
    console.print(say.job_line(state.job))
    for trouble in say.troubles(state):
        console.print(trouble)
    console.print()
    _show_sources(console, state.sources)
    for name, group in state.groups.items():
        console.print()
        _show_group(console, name, group, {view: state.views[view] for view in group.views})
    if any(group.table.rows for group in state.groups.values()):
        console.print(Text(), legend(), sep="\n")


def _show_sources(console: Console, sources: Mapping[str, SourceState]) -> None:
    numbers = ("behind", "position", "questions", "keys", "rows", "compensated")
    table = _table("source", "capture", *numbers, numbers=numbers)
    reasons: dict[str, None] = {}  # each told once, in order
    for name, source in sources.items():
        cells = [source.last_change, source.updates_behind, source.capture_running]
        reasons |= {str(cell): None for cell in cells if say.is_unknown(cell)}
        table.add_row(
            name,
            say.capture(source),
            UNKNOWN if say.is_unknown(source.updates_behind) else say.counted(source.updates_behind),
            say.position(source.position),
            *(f"{source.asked[key]:,}" for key in numbers[2:]),
        )
    console.print(table)
    for reason in reasons:
        console.print(reason, markup=False)


def _show_group(console: Console, name: str, group: GroupState, views: Mapping[str, ViewState]) -> None:
    console.print(say.group_line(name, group))
    if (waiting := say.waiting_line(group)) is not None:
        console.print(waiting)
    table = _table(
        "view", "algorithm", "promise", "behind", "folded to", "version", "waits for",
        numbers=("behind", "folded to", "version"),
    )  # fmt: skip
    for view, state in views.items():
        stored = (say.or_dash(state.folded), say.or_dash(state.version))
        waits_for = Text(state.waits_for or "")
        table.add_row(view, state.algorithm, say.promise(state), say.behind(state), *stored, waits_for)
    console.print(table, Text(), sep="\n")
    if group.table.rows and not group.running:
        console.print("as the job left it:")
    behind = {view: state.behind for view, state in views.items()}
    console.print(*drawn(group.table, console.width, behind).lines(), sep="\n")


def _table(*columns: str, numbers: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return table
