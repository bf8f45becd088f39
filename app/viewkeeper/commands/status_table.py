"""The ViewUpdateTable as the paper draws it (multiple-view-consistency-1997, Examples 2 to 5), however many views.

Rows are updates with their transactions, columns are views, entries are the letters of colors, painted so that they can
be read on a dark terminal and on a light one. Every line fits the width that it is drawn for.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from viewkeeper.commands.status_state import RowState, TableState
from viewkeeper.counts import some
from viewkeeper.merge.view_update_table import Color

STYLES = {
    Color.WHITE: "bold black on bright_white",
    Color.RED: "bold bright_white on red",
    Color.GRAY: "black on grey70",
    Color.BLACK: "grey50",
}
MEANINGS = {
    Color.WHITE: "awaited",
    Color.RED: "held back",
    Color.GRAY: "in the cut",
    Color.BLACK: "not concerned",
}
CELL = 3
"""Columns that an entry is painted over."""

_LABEL = 30  # columns that an update and its transactions may take
_SHORTEST = 8  # a name that is shorter than this says little: numbers then stand for the views
_HEADING = "update"


def legend() -> Text:
    """One line that explains the letters, on a narrow terminal, too."""
    parts: list[Text] = []
    for color, meaning in MEANINGS.items():
        gap = Text("  " if parts else "")
        parts += [gap, Text(color.value, style=STYLES[color]), Text(f" {color.name.lower()}: {meaning}")]
    return _line(*parts)


@dataclass(frozen=True)
class Drawing:
    """A table drawn for some width; ``lines`` takes from it what there is room for.

    ``counts`` tells per view how many updates it is behind. The first ``gray`` rows are in a cut, ``pending`` others
    are not, whether they are among the rows or not. ``key`` says which number stands for which view, where names do
    not fit, and ``missing`` views do not fit even so.
    """

    heading: Text
    counts: Text
    rows: Sequence[Text]
    gray: int
    pending: int
    missing: int
    key: Sequence[Text]

    def lines(self, rows: int | None = None, counts: bool = False, key: bool = True) -> list[Text]:
        """The table with at most so many rows, gray ones left out first; all there are without a number."""
        if not self.rows and not counts:
            return [Text("the ViewUpdateTable is empty")]
        most = len(self.rows) if rows is None else rows
        first = max(0, min(self.gray, len(self.rows) - most))
        shown = self.rows[first : first + most]
        left = self.pending - max(0, len(shown) - (self.gray - first))
        notes = [some(n, f"more {noun}") for n, noun in ((left, "update"), (self.missing, "view")) if n]
        return [
            self.heading,
            *([self.counts] if counts else ()),
            *shown,
            *(Text(f"… and {note}") for note in notes),
            *(self.key if key else ()),
        ]


def drawn(table: TableState, width: int, behind: Mapping[str, int | None]) -> Drawing:
    """The table in lines of at most ``width``; ``behind`` says per view how many updates it is behind."""
    columns = _Columns.of(table, width, behind)
    return Drawing(
        heading=columns.heading(),
        counts=columns.counts(behind),
        rows=[columns.row(row) for row in table.rows],
        gray=len(table.rows) - (table.pending - table.more),
        pending=table.pending,
        missing=columns.left,
        key=columns.key(),
    )


@dataclass(frozen=True)
class _Columns:
    """The columns that fit: per view its heading, and the columns it takes; ``left`` views do not fit."""

    label: int
    headings: Mapping[str, str]
    widths: Mapping[str, int]
    gap: int
    left: int
    width: int

    @classmethod
    def of(cls, table: TableState, width: int, behind: Mapping[str, int | None]) -> _Columns:
        label = max([len(_HEADING), *(len(_label(row)) for row in table.rows)])
        label = min(label, _LABEL, max(len(_HEADING), width // 3))
        room = width - label
        counts = {view: len(_count(behind[view])) if view in behind else 0 for view in table.views}
        for headings, gap in _ways(table.views, room):
            widths = {view: max(CELL, len(heading), counts[view]) for view, heading in headings.items()}
            if sum(widths.values()) + gap * len(widths) <= room:
                return cls(label, headings, widths, gap, 0, width)
        kept = _most_telling(table, behind, widths, gap, room)
        return cls(label, {view: headings[view] for view in kept}, widths, gap, len(table.views) - len(kept), width)

    def heading(self) -> Text:
        return self._line(Text(_HEADING), {view: Text(text, style="bold") for view, text in self.headings.items()})

    def counts(self, behind: Mapping[str, int | None]) -> Text:
        return self._line(Text("behind"), {view: Text(_count(behind.get(view))) for view in self.headings})

    def row(self, row: RowState) -> Text:
        label = Text(_label(row))
        label.truncate(self.label, overflow="ellipsis")
        return self._line(label, {view: _entry(row.colors.get(view)) for view in self.headings})

    def key(self) -> list[Text]:
        """Which number stands for which view, where they do."""
        numbered = {view: text for view, text in self.headings.items() if view != text and "…" not in text}
        words = [f"{text}\N{NO-BREAK SPACE}{view}" for view, text in numbered.items()]
        lines = textwrap.wrap(", ".join(words), self.width, break_on_hyphens=False)
        return [Text(line.replace("\N{NO-BREAK SPACE}", " ")) for line in lines]

    def _line(self, label: Text, cells: Mapping[str, Text]) -> Text:
        parts = [_padded(label, self.label)]
        for view, cell in cells.items():
            parts += [Text(" " * self.gap), _padded(cell, self.widths[view])]
        return _line(*parts)


def _ways(views: Sequence[str], room: int) -> list[tuple[dict[str, str], int]]:
    """Headings from the best to the shortest, each with the gap before a column: names, shortened names, V1, V2 …"""
    ways = [({view: view for view in views}, 2)]
    longest = room // max(1, len(views)) - 2
    shortened = {view: _shortened(view, longest) for view in views}
    if longest >= _SHORTEST and len(set(shortened.values())) == len(views):
        ways.append((shortened, 2))
    return [*ways, ({view: f"V{number}" for number, view in enumerate(views, 1)}, 1)]


def _shortened(name: str, longest: int) -> str:
    """A name without its middle: names of views often begin alike."""
    if len(name) <= longest or longest < _SHORTEST:
        return name
    tail = (longest - 1) // 2
    return f"{name[: longest - 1 - tail]}…{name[-tail:]}"


def _most_telling(
    table: TableState, behind: Mapping[str, int | None], widths: Mapping[str, int], gap: int, room: int
) -> list[str]:
    """The views that fit, in order: first those that the rows concern or that are behind."""
    concerned = {view for row in table.rows for view, letter in row.colors.items() if letter != Color.BLACK.value}
    telling = [view for view in table.views if behind.get(view) or view in concerned]
    kept = set()
    for view in dict.fromkeys([*telling, *table.views]):
        room -= widths[view] + gap
        if room < 0:
            break
        kept.add(view)
    return [view for view in table.views if view in kept]


def _label(row: RowState) -> str:
    first, *others = row.transactions or [""]
    said = f"{first}, {others[0]}" if len(others) == 1 else f"{first} and {len(others)} more" if others else first
    return f"U{row.update} ({said})" if said else f"U{row.update}"


def _entry(letter: str | None) -> Text:
    if letter is None:  # the view was not there when the row was written
        return Text(" ")
    return Text(f" {letter} ", style=STYLES[Color(letter)])


def _count(number: int | None) -> str:
    """A count in four columns at most."""
    if number is None:
        return "–"
    if number < 10_000:
        return str(number)
    return f"{number // 1000}k" if number < 1_000_000 else f"{number // 1_000_000}M"


def _padded(text: Text, width: int) -> Text:
    return _line(text, Text(" " * max(0, width - text.cell_len)))


def _line(*parts: Text) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")
