"""A space-time diagram in text: a lane for each source and one for the warehouse, time runs down.

x
│  y
│  │  warehouse
│  │  ┃  view = ∅
│  ●  ┃  t1: +r2(2,3)
│  ├─▶┃  U1 = +r2(2,3)
│◀─┼──┨  Q1 to x: {(2,3)} ⋈ r1
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from viewkeeper.simulator.narrative import Step

WIDTH = 100
"""Columns of a screen."""

_MARKS = {"commit": "●", "evaluate": "○", "show": "◐", "install": "◆", "begin": "◆", "crash": "↯", "compensate": "±"}
_FROM_SOURCE = frozenset({"update", "answer", "duplicate", "barrier"})


_MEANINGS = {
    "commit": "● commits",
    "show": "◐ becomes visible",
    "update": "├▶ arrives",
    "send": "◀┨ asks",
    "evaluate": "○ answers",
    "compensate": "± corrects an answer",
    "begin": "◆ the view",
    "crash": "↯ crash",
}


@dataclass(frozen=True)
class Line:
    """A line of the diagram; ``tone`` is the kind of step it tells, or ``wrong``."""

    lanes: str
    text: str
    tone: str

    def __str__(self) -> str:
        return f"{self.lanes}  {self.text}".rstrip()


def draw(steps: Sequence[Step], sources: Sequence[str], width: int = WIDTH) -> Iterator[Line]:
    """The diagram, line by line."""
    yield from _Drawing(tuple(sources), width).lines(steps)


def legend(steps: Sequence[Step]) -> str:
    """What the marks mean that the diagram of these steps has."""
    kinds = {step.kind for step in steps}
    words = [meaning for kind, meaning in _MEANINGS.items() if kind in kinds]
    return "   ".join([*words, "✗ wrong"] if any(step.wrong for step in steps) else words)


class _Drawing:
    def __init__(self, sources: tuple[str, ...], width: int) -> None:
        gap = 3 if len(sources) <= 9 else 2
        self.at = {name: gap * place for place, name in enumerate(sources)}
        self.end = gap * len(sources)
        self.room = max(width - self.end - 3, 30)

    def lines(self, steps: Sequence[Step]) -> Iterator[Line]:
        yield from self._names()
        for step in steps:
            lanes = self._lanes(step)
            tone = "wrong" if step.wrong else step.kind
            for text in textwrap.wrap(step.text, self.room) or [""]:
                yield Line(lanes, text, tone)
                lanes = self._empty()
            for text in textwrap.wrap(f"✗ {step.wrong}", self.room) if step.wrong else ():
                yield Line(lanes, text, tone)

    def _names(self) -> Iterator[Line]:
        """Every name on a line of its own, at its lane: names may be as long as they like."""
        before = ""
        for name, place in self.at.items():
            yield Line(before.ljust(place) + name, "", "name")
            before = before.ljust(place) + "│"
        yield Line(before.ljust(self.end) + "warehouse", "", "name")

    def _empty(self) -> str:
        return "".join(self._bare())

    def _bare(self) -> list[str]:
        cells = [" "] * (self.end + 1)
        for place in self.at.values():
            cells[place] = "│"
        cells[self.end] = "┃"
        return cells

    def _lanes(self, step: Step) -> str:
        cells = self._bare()
        if step.kind == "freeze":
            for place in self.at.values():
                self._line(cells, place)
            for place in self.at.values():
                cells[place + 1] = "◀"
            cells[self.end] = "┨"
        elif step.kind == "send" and step.source is not None:
            place = self.at[step.source]
            self._line(cells, place)
            cells[place + 1], cells[self.end] = "◀", "┨"
        elif step.kind in _FROM_SOURCE and step.source is not None:
            place = self.at[step.source]
            self._line(cells, place)
            cells[place], cells[self.end - 1] = "├", "▶"
        elif step.at_source and step.source is not None:
            cells[self.at[step.source]] = _MARKS[step.kind]
        else:
            cells[self.end] = "✗" if step.wrong else _MARKS.get(step.kind, "┃")
        return "".join(cells)

    def _line(self, cells: list[str], place: int) -> None:
        """A message between a source's lane and the warehouse's, across the lanes between."""
        for x in range(place + 1, self.end):
            cells[x] = "┼" if x in self.at.values() else "─"
