"""A space-time diagram as SVG: a lane for each source and one for the warehouse, time runs to the right.

Messages are arrows from where they were sent to where they arrive; below the warehouse stands what it did, and the
states of its view in boxes, a wrong one marked with what it should have been. Self-contained; reads in light and dark.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from viewkeeper.simulator.narrative import Step

_LETTER = 6.7  # width of a letter of the labels
_LINE = 15  # height of a line of labels
_LANE = 78  # between two lanes
_TOP = 64
_CHARACTERS = 26  # of a line of a label
_GAP = 26  # between two moments
_BOX = 6  # around a view state

_STYLE = """
svg { --ink: #1c2430; --dim: #66717f; --paper: #ffffff; --lane: #b7c0cb; --ask: #8a5a00; --tell: #0b6e8f;
      --box: #eef3f7; --bad: #b3261e; --badbox: #fdeceb; background: var(--paper); }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e7ecf2; --dim: #9aa6b4; --paper: #14181d; --lane: #4a5562; --ask: #e3b25b; --tell: #6cc5e3;
        --box: #222a33; --bad: #ff8f86; --badbox: #3a1f1e; }
}
text { font: 11px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: var(--ink);
       paint-order: stroke; stroke: var(--paper); stroke-width: 3px; stroke-linejoin: round; }
.title { font-weight: bold; font-size: 13px; }
.name { font-weight: bold; font-size: 12px; }
.plain { stroke: none; }
.lane { stroke: var(--lane); stroke-width: 1.5; }
.main { stroke: var(--ink); stroke-width: 2; }
.tell { stroke: var(--tell); fill: none; stroke-width: 1.4; }
.ask { stroke: var(--ask); fill: none; stroke-width: 1.4; stroke-dasharray: 5 3; }
.dot { fill: var(--ink); }
.ring { fill: var(--paper); stroke: var(--ink); stroke-width: 1.5; }
.box { fill: var(--box); stroke: var(--lane); }
.badbox { fill: var(--badbox); stroke: var(--bad); stroke-width: 1.8; }
.bad { fill: var(--bad); }
.tip-tell { fill: var(--tell); }
.tip-ask { fill: var(--ask); }
""".strip()

_TIPS = "".join(
    f'<marker id="{name}" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    f'<path class="tip-{name}" d="M0 0.5 L8 4 L0 7.5 z"/></marker>'
    for name in ("tell", "ask")
)


@dataclass(frozen=True)
class _Moment:
    """Everything that happened at one time: a column of the diagram."""

    steps: tuple[Step, ...]
    x: float
    width: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


def draw_svg(steps: Sequence[Step], sources: Sequence[str], title: str) -> str:
    """The whole picture as the text of an SVG file."""
    return _Picture(steps, tuple(sources), title).text()


class _Picture:
    def __init__(self, steps: Sequence[Step], sources: tuple[str, ...], title: str) -> None:
        self.title = title
        self.left = 24 + _LETTER * max(len("warehouse"), *map(len, sources)) + 16
        self.lanes = {name: _TOP + 34 + _LANE * place for place, name in enumerate(sources)}
        self.ground = _TOP + 34 + _LANE * len(sources)
        self.moments = list(self._moments(steps))
        self.of_step = {step.index: moment for moment in self.moments for step in moment.steps}
        self.right = self.moments[-1].x + self.moments[-1].width + _GAP
        self.steps = {step.index: step for step in steps}
        self.bottom = float(self.ground)

    def _moments(self, steps: Sequence[Step]) -> Iterator[_Moment]:
        x = self.left + _GAP
        for _, together in groupby(steps, key=lambda step: step.time):
            group = tuple(together)
            letters = max(len(line) for step in group for line in _lines(step))
            width = letters * _LETTER + 2 * _BOX
            yield _Moment(group, x, width)
            x += width + _GAP

    def text(self) -> str:
        parts = [*self._messages(), *self._marks()]
        below = [part for moment in self.moments for part in self._column(moment)]
        width, height = max(self.right, 40 + 8 * len(self.title)), self.bottom + 24
        frame = f'xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        return "\n".join(
            [
                f'<svg {frame} viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
                f"<title>{escape(self.title)}</title><style>{_STYLE}</style><defs>{_TIPS}</defs>",
                f'<text class="title" x="24" y="32">{escape(self.title)}</text>',
                *self._lanes(),
                *parts,
                *below,
                "</svg>\n",
            ]
        )

    def _lanes(self) -> Iterator[str]:
        for name, y in (*self.lanes.items(), ("warehouse", self.ground)):
            kind = "main" if y == self.ground else "lane"
            yield f'<line class="{kind}" x1="{self.left:.0f}" y1="{y}" x2="{self.right - 8:.0f}" y2="{y}"/>'
            yield f'<text class="name" x="24" y="{y + 4}">{escape(name)}</text>'

    def _messages(self) -> Iterator[str]:
        for step in self.steps.values():
            if step.sent is None or step.source is None:
                continue
            kind = "ask" if step.at_source else "tell"
            lane = self.lanes[step.source]
            start, end = (self.ground, lane) if step.at_source else (lane, self.ground)
            x1, x2 = self.of_step[step.sent].middle, self.of_step[step.index].middle
            y1, y2 = (start - 3, end + 6) if start > end else (start + 3, end - 3)
            yield f'<path class="{kind}" marker-end="url(#{kind})" d="M{x1:.1f} {y1} L{x2:.1f} {y2}"/>'

    def _marks(self) -> Iterator[str]:
        for step in self.steps.values():
            moment = self.of_step[step.index]
            if not step.at_source or step.source is None:
                continue
            y = self.lanes[step.source]
            kind = "dot" if step.kind == "commit" else "ring"
            yield f'<circle class="{kind}" cx="{moment.middle:.1f}" cy="{y}" r="4.5"/>'
            lines = _lines(step)
            for i, line in enumerate(lines):
                height = y - 11 - _LINE * (len(lines) - 1 - i)
                yield f'<text text-anchor="middle" x="{moment.middle:.1f}" y="{height}">{escape(line)}</text>'

    def _column(self, moment: _Moment) -> Iterator[str]:
        """What the warehouse did at a moment, from its lane down."""
        own = [step for step in moment.steps if not step.at_source]
        if not own:
            return
        yield f'<circle class="dot" cx="{moment.middle:.1f}" cy="{self.ground}" r="3.5"/>'
        y = self.ground + 22.0
        for step in own:
            lines = _lines(step)
            if step.state is not None or step.wrong:
                yield from self._box(moment, step, y, len(lines))
                y += _BOX
            for line in lines:
                kind = "plain bad" if line in _wrong_lines(step) else "plain" if step.state is not None else ""
                x = moment.x + _BOX
                yield f'<text class="{kind}" x="{x:.1f}" y="{y + 4:.1f}">{escape(line)}</text>'
                y += _LINE
            y += 3 + (_BOX + 3 if step.state is not None or step.wrong else 0)
        self.bottom = max(self.bottom, y)

    def _box(self, moment: _Moment, step: Step, y: float, lines: int) -> Iterator[str]:
        kind, height = "badbox" if step.wrong else "box", lines * _LINE + 2 * _BOX - 2
        place = f'x="{moment.x:.1f}" y="{y - _BOX - 3:.1f}" width="{moment.width:.1f}" height="{height}"'
        yield f'<rect class="{kind}" rx="3" {place}/>'


def _lines(step: Step) -> list[str]:
    return [*textwrap.wrap(step.text, _CHARACTERS, break_long_words=True), *_wrong_lines(step)]


def _wrong_lines(step: Step) -> list[str]:
    return textwrap.wrap(f"✗ {step.wrong}", _CHARACTERS) if step.wrong else []
