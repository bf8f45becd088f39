"""A space-time diagram as SVG: a lane for each source and one for the warehouse, time runs to the right.

What is wider than a page goes on below, in a band with the same lanes; a message that is under way there leaves one
band at the right and comes into the next from the left, at the same height.

Messages are arrows from where they were sent to where they arrive; below the warehouse stands what it did, and the
states of its view in boxes, a wrong one marked with what it should have been. Self-contained; reads in light and dark.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from viewkeeper.simulator.narrative import Step

_LETTER = 6.7  # width of a letter of the labels
_LINE = 15  # height of a line of labels
_LANE = 78  # between two lanes
_PAGE = 1_600  # width of a band at most
_TOP = 72  # where the first band begins
_BAND = 28  # between two bands
_SKY = 34  # above the first lane of a band, for labels of two lines
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
.legend { fill: var(--dim); }
.tip-tell { fill: var(--tell); }
.tip-ask { fill: var(--ask); }
""".strip()

_LEGEND = (
    ("●", "", "commit"),
    ("○", "", "answer, or what else a source does"),
    ("━▶", "tip-tell", "update or answer"),
    ("╍▶", "tip-ask", "question"),
    ("◆", "", "the view, its state in the box"),
    ("✗", "bad", "wrong"),
)
"""Mark, colour, meaning."""

_TIPS = "".join(
    f'<marker id="{name}" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    f'<path class="tip-{name}" d="M0 0.5 L8 4 L0 7.5 z"/></marker>'
    for name in ("tell", "ask")
)


@dataclass(frozen=True)
class _Moment:
    """Everything that happened at one time: a column of the diagram; ``x`` is where, were there one band only."""

    steps: tuple[Step, ...]
    x: float
    width: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def end(self) -> float:
        return self.x + self.width + _GAP


def draw_svg(steps: Sequence[Step], sources: Sequence[str], title: str) -> str:
    """The whole picture as the text of an SVG file."""
    return _Picture(steps, tuple(sources), title).text()


class _Picture:
    def __init__(self, steps: Sequence[Step], sources: tuple[str, ...], title: str) -> None:
        self.title = title
        self.left = 24 + _LETTER * max(len("warehouse"), *map(len, sources)) + 16
        moments = list(_moments(steps))
        self.of_step = {step.index: moment for moment in moments for step in moment.steps}
        self.messages = [step for step in steps if step.sent is not None and step.source is not None]
        self.bands: list[_Band] = []
        top = float(_TOP)
        for group in _bands(moments, _PAGE - self.left):
            self.bands.append(_Band(sources, self.left, top, group))
            top = self.bands[-1].bottom + _BAND

    def text(self) -> str:
        legend = "   ".join(f"{mark} {meaning}" for mark, _, meaning in _LEGEND)
        widest = max(40 + 8.2 * len(self.title), 48 + _LETTER * len(legend))
        width, height = max(widest, *(band.right for band in self.bands)), self.bands[-1].bottom + 24
        frame = f'xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
        return "\n".join(
            [
                f'<svg {frame} viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
                f"<title>{escape(self.title)}</title><style>{_STYLE}</style><defs>{_TIPS}</defs>",
                f'<text class="title" x="24" y="32">{escape(self.title)}</text>',
                f'<text class="legend" x="24" y="54">{"".join(_legend())}</text>',
                *(part for band in self.bands for part in band.parts(self._through(band))),
                "</svg>\n",
            ]
        )

    def _through(self, band: _Band) -> Iterator[str]:
        """The messages of a band: those under way in it, as far as they are."""
        for step in self.messages:
            assert step.sent is not None
            yield from band.message(step, self.of_step[step.sent].middle, self.of_step[step.index].middle)


def _legend() -> Iterator[str]:
    for mark, colour, meaning in _LEGEND:
        yield f'<tspan class="{colour}" xml:space="preserve">{mark} </tspan>'
        yield f'<tspan xml:space="preserve">{meaning}   </tspan>'


def _moments(steps: Sequence[Step]) -> Iterator[_Moment]:
    x = 0.0
    for _, together in groupby(steps, key=lambda step: step.time):
        group = tuple(together)
        letters = max(len(line) for step in group for line in _lines(step))
        moment = _Moment(group, x, letters * _LETTER + 2 * _BOX)
        yield moment
        x = moment.end


def _bands(moments: Sequence[_Moment], width: float) -> Iterator[list[_Moment]]:
    """The moments, as many in a row as fit."""
    row: list[_Moment] = []
    for moment in moments:
        if row and moment.end - row[0].x > width - _GAP:
            yield row
            row = []
        row.append(moment)
    yield row


class _Band:
    """A stretch of time with all lanes: from ``start`` to ``end``, drawn from ``top`` to ``bottom``."""

    def __init__(self, sources: Sequence[str], left: float, top: float, moments: Sequence[_Moment]) -> None:
        self.left, self.moments = left, moments
        uppermost = (
            step for moment in moments for step in moment.steps if step.at_source and step.source == sources[0]
        )
        tallest = max((len(_lines(step)) for step in uppermost), default=0)
        first = top + _SKY + _LINE * max(0, tallest - 2)
        self.lanes = {name: first + _LANE * place for place, name in enumerate(sources)}
        self.ground = first + _LANE * len(sources)
        self.start, self.end = moments[0].x, moments[-1].end
        self.right = self.at(self.end)
        self.below = [part for moment in moments for part in self._column(moment)]
        self.bottom = max(self.ground + 22.0, *map(self._depth, moments))

    def at(self, x: float) -> float:
        """Where a moment of the whole time is drawn."""
        return self.left + _GAP + x - self.start

    def parts(self, messages: Iterable[str]) -> Iterator[str]:
        yield from self._names()
        yield from messages
        yield from self._marks()
        yield from self.below

    def _names(self) -> Iterator[str]:
        for name, y in (*self.lanes.items(), ("warehouse", self.ground)):
            kind = "main" if y == self.ground else "lane"
            yield f'<line class="{kind}" x1="{self.left:.0f}" y1="{y:g}" x2="{self.right - 8:.0f}" y2="{y:g}"/>'
            yield f'<text class="name" x="24" y="{y + 4:g}">{escape(name)}</text>'

    def message(self, step: Step, sent: float, arrives: float) -> Iterator[str]:
        """The part of a message's way that lies in this band."""
        assert step.source is not None
        low, high = max(sent, self.start - _GAP), min(arrives, self.end - 8)
        if low > high or sent >= self.end or arrives < self.start:
            return
        lane = self.lanes[step.source]
        start, end = (self.ground, lane) if step.at_source else (lane, self.ground)
        y1, y2 = (start - 3, end + 6) if start > end else (start + 3, end - 3)

        def height(x: float) -> float:
            return y1 + (y2 - y1) * (x - sent) / (arrives - sent) if arrives > sent else y1

        kind = "ask" if step.at_source else "tell"
        tip = f' marker-end="url(#{kind})"' if arrives == high else ""
        way = f"M{self.at(low):.1f} {height(low):.1f} L{self.at(high):.1f} {height(high) if high > sent else y2:.1f}"
        yield f'<path class="{kind}"{tip} d="{way}"/>'

    def _marks(self) -> Iterator[str]:
        for moment in self.moments:
            for step in moment.steps:
                if step.at_source and step.source is not None:
                    yield from self._mark(step, self.at(moment.middle), self.lanes[step.source])

    def _mark(self, step: Step, x: float, y: float) -> Iterator[str]:
        kind = "dot" if step.kind == "commit" else "ring"
        yield f'<circle class="{kind}" cx="{x:.1f}" cy="{y:g}" r="4.5"/>'
        lines = _lines(step)
        for i, line in enumerate(lines):
            height = y - 11 - _LINE * (len(lines) - 1 - i)
            yield f'<text text-anchor="middle" x="{x:.1f}" y="{height:g}">{escape(line)}</text>'

    def _column(self, moment: _Moment) -> Iterator[str]:
        """What the warehouse did at a moment, from its lane down."""
        own = _own(moment)
        if not own:
            return
        yield self._what_it_did(own, self.at(moment.middle))
        x, y = self.at(moment.x), self.ground + 22.0
        for step in own:
            lines = _lines(step)
            inset = _BOX if _boxed(step) else 0
            if _boxed(step):
                yield _box(step, x, y, moment.width)
            for i, line in enumerate(lines):
                kind = "plain bad" if line in _wrong_lines(step) else "plain" if step.state is not None else ""
                place = f'x="{x + _BOX:.1f}" y="{y + inset + _LINE * i + 4:.1f}"'
                yield f'<text class="{kind}" {place}>{escape(line)}</text>'
            y += _height(step)

    def _what_it_did(self, own: Sequence[Step], x: float) -> str:
        """A dot on the warehouse's lane; a diamond where the view got a state."""
        if not any(step.state is not None for step in own):
            return f'<circle class="dot" cx="{x:.1f}" cy="{self.ground:g}" r="3.5"/>'
        kind = "bad" if any(step.wrong for step in own) else "dot"
        return f'<path class="{kind}" d="M{x - 6:.1f} {self.ground:g} l6 -6 l6 6 l-6 6 z"/>'

    def _depth(self, moment: _Moment) -> float:
        return self.ground + 22.0 + sum(map(_height, _own(moment)))


def _own(moment: _Moment) -> list[Step]:
    """What happened at the warehouse."""
    return [step for step in moment.steps if not step.at_source]


def _boxed(step: Step) -> bool:
    return step.state is not None or bool(step.wrong)


def _height(step: Step) -> float:
    """How much room a step takes below the warehouse's lane."""
    return _LINE * len(_lines(step)) + 3 + (2 * _BOX + 3 if _boxed(step) else 0)


def _box(step: Step, x: float, y: float, width: float) -> str:
    kind, height = "badbox" if step.wrong else "box", len(_lines(step)) * _LINE + 2 * _BOX - 2
    place = f'x="{x:.1f}" y="{y - _BOX - 3:.1f}" width="{width:.1f}" height="{height}"'
    return f'<rect class="{kind}" rx="3" {place}/>'


def _lines(step: Step) -> list[str]:
    return [*textwrap.wrap(step.text, _CHARACTERS, break_long_words=True), *_wrong_lines(step)]


def _wrong_lines(step: Step) -> list[str]:
    return textwrap.wrap(f"✗ {step.wrong}", _CHARACTERS) if step.wrong else []
