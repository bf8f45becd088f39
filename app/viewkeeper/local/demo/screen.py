"""What a person sees of the demo: steps as lines, then a panel that moves, then the proof.

Without a terminal, or in a small one, the panel becomes a plain line every few seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from viewkeeper.local.demo.transactions import price
from viewkeeper.local.demo.window import ShownRow
from viewkeeper.local.demo.writer import Written

WIDTH = 100
NARROWEST, LOWEST = 88, 25
ROWS, LOWEST_ROWS = 10, 4
RECENT = 5
LINE_SECONDS = 2.0

_COLOURS = {"shop": "cyan", "crm": "magenta", "stock": "yellow"}
_COLUMNS = {
    "order_id": ("order_id", -8),
    "line": ("line", -4),
    "customer": ("customer", 15),
    "city": ("city", 8),
    "product": ("product", 15),
    "quantity": ("quantity", -8),
    "cents": ("total", -8),
}
"""Of the shown view: the headings, and their widths."""

_FATES = {"new": ("+", "green"), "gone": ("−", "red strike"), "changed": ("~", "bold"), None: (" ", "")}


@dataclass(frozen=True)
class Asked:
    """What the job has asked of one source so far."""

    questions: int = 0
    keys: int = 0
    rows: int = 0
    compensated: int = 0


@dataclass(frozen=True)
class Moment:
    """Everything that is shown of one moment; each number comes from the part that counts it."""

    phase: str
    written: dict[str, int]
    rolled_back: int
    asked: dict[str, Asked]
    recent: Sequence[Written]
    view: str
    rows: Sequence[ShownRow]
    row_counts: dict[str, int]
    cut: int
    updates: int
    latency: float | None
    waiting: str | None = None

    @property
    def compensated(self) -> int:
        return sum(asked.compensated for asked in self.asked.values())


@dataclass(frozen=True)
class Opinion:
    """How many rows of a view differ from what someone else says it holds, with a few of them in words."""

    view: str
    rows: int
    by: str
    differing: int
    examples: list[str] = field(default_factory=list)


class Screen:
    """Prints to the terminal; ``show`` may be called as often as one likes."""

    def __init__(self, console: Console | None = None):
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")  # a terminal without '→' must not end the demo
        console = console or Console(highlight=False, soft_wrap=True)
        self.moves = console.is_terminal and console.width >= NARROWEST and console.height >= LOWEST
        if console.is_terminal:
            console.width = min(console.width, WIDTH)
        self.console = console
        self._begin = time.monotonic()
        self._live: Live | None = None
        self._line = 0.0

    # ---- lines

    def say(self, text: str = "") -> None:
        """A line, or several, with rich's markup."""
        self.console.print(text)

    def step(self, what: str, detail: str) -> None:
        """A line that says that something is done, and when."""
        self.say(f"[dim]{time.monotonic() - self._begin:5.1f} s[/]  [bold]{what:<11}[/] {escape(detail)}")

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Shows, in a terminal, what is being waited for."""
        if not self.moves:
            yield
            return
        with self.console.status(f"[dim]{text}[/]", spinner="dots"):
            yield

    # ---- the panel

    @contextmanager
    def panel(self) -> Iterator[None]:
        """Inside, ``show`` replaces the panel; its last state stays."""
        if not self.moves:
            yield
            return
        with Live(console=self.console, auto_refresh=False, vertical_overflow="crop") as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def show(self, moment: Moment) -> None:
        """Shows a moment: now in the panel, or as a line if the last one is some seconds old."""
        if self._live is not None:
            self._live.update(_panel(moment, self._rows()), refresh=True)
        elif not self.moves and time.monotonic() - self._line >= LINE_SECONDS:
            self._line = time.monotonic()
            self.say(_line(moment))

    def _rows(self) -> int:
        """How many rows of the view fit."""
        return max(LOWEST_ROWS, min(ROWS, self.console.height - 21))

    # ---- the proof

    def opinions(self, opinions: Sequence[Opinion]) -> None:
        """A line an opinion, and rows that differ under it."""
        names = max(len(opinion.view) for opinion in opinions)
        for opinion in opinions:
            verdict = (
                "[green]equal to[/]" if not opinion.differing else f"[bold red]{opinion.differing:,} differ from[/]"
            )
            mark = "[green]✓[/]" if not opinion.differing else "[bold red]✗[/]"
            self.say(f"  {mark} {opinion.view:<{names}} {opinion.rows:>7,} rows  {verdict} {opinion.by}")
            for example in opinion.examples:
                self.say(f"      {escape(example)}")


def _line(moment: Moment) -> str:
    latency = "" if moment.latency is None else f", {moment.latency:.2f} s behind"
    waiting = f"; waiting: {escape(moment.waiting)}" if moment.waiting else ""
    return (
        f"{moment.phase}: {sum(moment.written.values()):,} transactions written, update {moment.updates:,} in "
        f"cut {moment.cut:,}{latency}, {moment.compensated:,} answers compensated{waiting}"
    )


def _panel(moment: Moment, rows: int) -> RenderableType:
    title = Text.from_markup(f"[bold]{escape(moment.phase)}[/]")
    parts: list[RenderableType] = [
        "",
        title,
        _sources(moment),
        "",
        _recent(moment),
        "",
        _view(moment, rows),
        _numbers(moment),
    ]
    if moment.waiting:
        parts.append(Text(f"the job waits: {moment.waiting}", style="bold red", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _sources(moment: Moment) -> Table:
    """Per source: what was written to it, and what it was asked."""
    asked_for = (("questions", -9), ("keys asked", -10), ("rows answered", -13), ("answers compensated", -19))
    table = _table(("source", 6), ("transactions", -12), *asked_for)
    for source, written in moment.written.items():
        asked = moment.asked.get(source, Asked())
        numbers = (written, asked.questions, asked.keys, asked.rows)
        compensated = f"[bold]{asked.compensated:,}[/]" if asked.compensated else "0"
        table.add_row(f"[{_COLOURS[source]}]{source}[/]", *(f"{number:,}" for number in numbers), compensated)
    return table


def _recent(moment: Moment) -> RenderableType:
    """The last transactions, in words; always as many lines, so that nothing below jumps."""
    lines = [
        Text.assemble((f"  {w.source:<6}", _COLOURS[w.source]), w.words, no_wrap=True, overflow="ellipsis")
        for w in list(moment.recent)[-RECENT:]
    ]
    title = Text.from_markup(f"[bold]last transactions[/] [dim]({moment.rolled_back:,} others were rolled back)[/]")
    return Group(title, *lines, *[""] * (RECENT - len(lines)))


def _view(moment: Moment, rows: int) -> RenderableType:
    """The newest rows of the view, with what just moved in them."""
    table = _table(("", 1), *_COLUMNS.values())
    for shown in moment.rows[:rows]:
        table.add_row(*_cells(shown))
    for _ in range(rows - len(moment.rows)):
        table.add_row()
    count = moment.row_counts[moment.view]
    title = Text.from_markup(f"[bold]{moment.view}[/], {count:,} rows; the newest of one busy customer:")
    return Group(title, table)


def _table(*columns: tuple[str, int]) -> Table:
    """An empty table of fixed widths, so that nothing jumps; a negative width means numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    for name, width in columns:
        table.add_column(name, width=abs(width), justify="right" if width < 0 else "left", no_wrap=True)
    return table


def _cells(shown: ShownRow) -> list[Text]:
    mark, style = _FATES[shown.fate]
    cells = [Text(mark, style=style.split()[0] if style else "")]
    for column in _COLUMNS:
        value = shown.row[column]
        text = "" if value is None else price(value) if column == "cents" else str(value)
        moved = shown.fate == "changed" and column in shown.columns
        cells.append(Text(text, style="bold black on yellow" if moved else "" if shown.fate == "changed" else style))
    return cells


def _numbers(moment: Moment) -> Text:
    latency = "…" if moment.latency is None else f"{moment.latency:.2f} s"
    return Text.from_markup(
        f"[bold]{moment.updates:,}[/] updates in [bold]{moment.cut:,}[/] cuts   "
        f"commit → cut [bold]{latency}[/] (median)   "
        f"answers compensated [bold green]{moment.compensated:,}[/]"
    )
