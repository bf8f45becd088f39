"""``viewkeeper watch``: the groups and their ViewUpdateTables as they move, until Ctrl-C.

A frame reads the status files and the newest cuts only. The sources and their topics are looked at now and then by a
thread of its own, so that a broker that is away holds nothing up.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rich.console import Group
from rich.live import Live
from rich.text import Text

from viewkeeper import signals
from viewkeeper.commands import status_text as say
from viewkeeper.commands.status_sources import UNKNOWN, Looked, look_at_sources
from viewkeeper.commands.status_state import GroupState, Observer, SourceState, State
from viewkeeper.commands.status_table import Drawing, drawn, legend
from viewkeeper.config import Config, load_config
from viewkeeper.counts import some
from viewkeeper.errors import ViewkeeperError
from viewkeeper.job.picture import ROWS

SOURCES_EVERY = 5.0
"""Seconds between two looks at the sources and their topics."""

_FEW_ROWS = 4  # rows of a table that are worth more than the names of its columns
_STEP = 0.05  # seconds after which Ctrl-C is noticed
_TROUBLES = 6  # lines of trouble
_WAITS = 3  # lines of a group that tell what its views wait for


def run(args: argparse.Namespace) -> int:
    config = load_config(args.conf)
    observer = Observer(config)
    console = say.console()
    if not console.is_terminal or console.is_dumb_terminal:
        state = observer.look(look_at_sources(config, observer.starts()))
        console.print(*frame(state, console.width), sep="\n", soft_wrap=True)
        return 0
    sources = _Sources(config)
    told = signals.received
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while not told:
            lines = _look(observer, sources.found, console.width, console.height)
            live.update(Group(*lines), refresh=True)
            _pause(args.every.total_seconds(), told)
    return 0


def frame(state: State, width: int, height: int | None = None) -> list[Text]:
    """A state in lines of at most ``width``, at most ``height`` of them: what does not fit is counted."""
    troubles = list(say.troubles(state))
    if len(troubles) > _TROUBLES:
        troubles[_TROUBLES - 1 :] = [Text(f"… and {len(troubles) - _TROUBLES + 1} more", style=say.TROUBLE)]
    head = [Text(say.job_line(state.job), style="bold"), *troubles, _sources_line(state.sources), Text()]
    foot = [Text(), legend()]
    room = None if height is None else height - len(head) - len(foot)
    return [_fitting(line, width) for line in (*head, *_groups(state, width, room), *foot)]


def _groups(state: State, width: int, room: int | None) -> list[Text]:
    """The groups with as many rows of their tables as there is room for; without room for any, a line each."""
    parts = [_Part.of(state, name, width) for name in state.groups]
    ways = [(rows, True) for rows in range(ROWS, _FEW_ROWS - 1, -1)] + [(rows, False) for rows in range(ROWS, -1, -1)]
    for rows, key in ways:
        lines = [line for part in parts for line in (*part.lines(rows, key), Text())][:-1]
        if room is None or len(lines) <= room:
            return lines
    lines = [part.head for part in parts]
    if room is None or len(lines) <= room:
        return lines
    kept = max(0, room - 1)
    return [*lines[:kept], Text(f"… and {some(len(lines) - kept, 'more group')}")]


@dataclass(frozen=True)
class _Part:
    """What is shown of one group."""

    head: Text
    table: Drawing
    waits: Sequence[Text]

    @classmethod
    def of(cls, state: State, name: str, width: int) -> _Part:
        group = state.groups[name]
        table = drawn(group.table, width, {view: state.views[view].behind for view in group.views})
        waiting = say.waiting_line(group)
        return cls(say.group_line(name, group), table, list(_waits(state, group)) if waiting is None else [waiting])

    def lines(self, rows: int, key: bool) -> list[Text]:
        return [self.head, *self.table.lines(rows, counts=True, key=key), *self.waits]


def _waits(state: State, group: GroupState) -> Iterator[Text]:
    """What the views of a group wait for, those with the same reason together."""
    reasons: dict[str, list[str]] = {}
    for view in group.views:
        if (reason := state.views[view].waits_for) is not None:
            reasons.setdefault(reason, []).append(view)
    for reason, views in list(reasons.items())[:_WAITS]:
        yield Text(f"{', '.join(views)} wait{'s' if len(views) == 1 else ''} for {reason}")


def _sources_line(sources: Mapping[str, SourceState]) -> Text:
    """How many updates of each source's topic are in no cut yet."""
    parts = [f"{name} {_behind(source)}" for name, source in sources.items()]
    reasons = [str(s.updates_behind) for s in sources.values() if say.is_unknown(s.updates_behind)]
    why = f" ({reasons[0].removeprefix(f'{UNKNOWN}: ')})" if reasons else ""
    return Text(f"updates behind: {', '.join(parts)}{why}")


def _behind(source: SourceState) -> str:
    behind = source.updates_behind
    if behind is None:
        return "…"
    return UNKNOWN if say.is_unknown(behind) else f"{behind:,}"


def _look(observer: Observer, sources: Mapping[str, Looked], width: int, height: int) -> Sequence[Text]:
    try:
        return frame(observer.look(sources), width, height)
    except ViewkeeperError as error:  # it may be only for a moment
        return [_fitting(Text(str(error), style=say.TROUBLE), width)]


def _fitting(line: Text, width: int) -> Text:
    line.no_wrap, line.overflow = True, "ellipsis"
    line.truncate(width, overflow="ellipsis")
    return line


class _Sources:
    """What sources and topics held when they were looked at last; nothing before they were."""

    def __init__(self, config: Config):
        self.found: Mapping[str, Looked] = {}
        self._config = config
        threading.Thread(target=self._look, name="sources", daemon=True).start()

    def _look(self) -> None:
        observer = Observer(self._config)
        while True:
            with suppress(ViewkeeperError):  # a warehouse that cannot be read is told by the frame
                self.found = look_at_sources(self._config, observer.starts())
            time.sleep(SOURCES_EVERY)


def _pause(seconds: float, told: Sequence[int]) -> None:
    """Waits, unless it is told to end."""
    end = time.monotonic() + seconds
    while not told and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _STEP))
