"""``viewkeeper status``: how far the views are, what the job does and what it has asked of the sources."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

import orjson
from rich.console import Console
from rich.text import Text

from viewkeeper.commands import status_columns
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
        console.print(trouble, soft_wrap=True)  # it may hold a command to paste
    console.print()
    _show_sources(console, state.sources)
    for name, group in state.groups.items():
        console.print()
        _show_group(console, name, group, {view: state.views[view] for view in group.views})
    if any(group.table.rows for group in state.groups.values()):
        console.print(Text(), legend(), sep="\n", soft_wrap=True)


def _show_sources(console: Console, sources: Mapping[str, SourceState]) -> None:
    numbers = ("behind", "position", "questions", "keys", "rows", "compensated")
    rows = []
    reasons: dict[str, None] = {}  # each told once, in order
    for name, source in sources.items():
        cells = [source.last_change, source.updates_behind, source.capture_running]
        reasons |= {str(cell): None for cell in cells if say.is_unknown(cell)}
        behind = UNKNOWN if say.is_unknown(source.updates_behind) else say.counted(source.updates_behind)
        asked = (f"{source.asked[key]:,}" for key in numbers[2:])
        rows.append((name, say.capture(source), behind, say.position(source.position), *asked))
    _show_table(console, ("source", "capture", *numbers), rows, numbers)
    for reason in reasons:
        console.print(reason, markup=False, soft_wrap=True)


def _show_group(console: Console, name: str, group: GroupState, views: Mapping[str, ViewState]) -> None:
    console.print(say.group_line(name, group), soft_wrap=True)
    if (waiting := say.waiting_line(group)) is not None:
        console.print(waiting, soft_wrap=True)
    numbers = ("behind", "folded to", "version")
    rows = []
    for view, state in views.items():
        stored = (say.or_dash(state.folded), say.or_dash(state.version))
        rows.append((view, state.algorithm, say.promise(state), say.behind(state), *stored, state.waits_for or ""))
    _show_table(console, ("view", "algorithm", "promise", *numbers, "waits for"), rows, numbers)
    console.print()
    if group.table.rows and not group.running:
        console.print("as the job left it:")
    behind = {view: state.behind for view, state in views.items()}
    console.print(*drawn(group.table, console.width, behind).lines(), sep="\n")


def _show_table(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str]
) -> None:
    heading, below = status_columns.drawn(columns, rows, numbers, console.width)
    console.print(Text("\n".join(heading), style="bold"), soft_wrap=True)
    for line in below:
        console.print(Text(line), soft_wrap=True)
