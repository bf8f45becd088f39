"""Line plots as inline SVG: no script, no asset; colours and letters are the page's own, in light and in dark.

Lines that lie on each other are drawn once and share a label; labels stand at the ends of the lines, pushed apart.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 900, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 270, 18, 48
_LETTERS = 38  # of a line of a label
_LINE = 13  # height of a line of a label
_SPACE = 3  # between two labels
COLOURS = 8
_DASHES = ("", "7 4", "2 3")
_ALIKE = 0.015  # lines this close to each other everywhere, as a share of their values, are one line


@dataclass(frozen=True)
class Line:
    """A named line: its points by rising x. ``number`` gives it the same looks in every plot."""

    name: str
    points: tuple[tuple[float, float], ...]
    number: int

    @property
    def colour(self) -> str:
        return f"c{self.number % COLOURS}"

    @property
    def dash(self) -> str:
        return _DASHES[self.number // COLOURS % len(_DASHES)]


@dataclass(frozen=True)
class Axis:
    """An axis: what it counts, and the values that are written at it; ``log`` if each step is a factor."""

    title: str
    ticks: tuple[float, ...]
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies between the first tick and the last, from 0 to 1."""
        low, high = self.ticks[0], self.ticks[-1]
        if self.log:
            low, high, value = log10(low), log10(high), log10(max(value, low))
        return (value - low) / (high - low)


def log_ticks(values: Sequence[float]) -> tuple[float, ...]:
    """1, 2, 5, 10 … around the values, at least two of them."""
    low, high = min(values), max(values)
    steps = [m * 10.0**e for e in range(floor(log10(low)) - 1, ceil(log10(high)) + 1) for m in (1, 2, 5)]
    first = max(i for i, step in enumerate(steps) if step <= low)
    last = next((i for i, step in enumerate(steps) if step >= high), len(steps) - 1)
    return tuple(steps[first : max(last, first + 1) + 1])


def merged(lines: Sequence[Line]) -> list[Line]:
    """The lines, those that lie on each other as one with all names."""
    groups: list[tuple[Line, list[str]]] = []
    for line in lines:
        same = next((names for first, names in groups if _alike(first, line)), None)
        if same is None:
            groups.append((line, [line.name]))
        else:
            same.append(line.name)
    return [Line(" = ".join(names), first.points, first.number) for first, names in groups]


def _alike(one: Line, other: Line) -> bool:
    pairs = zip(one.points, other.points, strict=False)
    same_length = len(one.points) == len(other.points)
    return same_length and all(x == u and abs(y - v) <= _ALIKE * max(y, v) for (x, y), (u, v) in pairs)


def plot(title: str, lines: Sequence[Line], x: Axis, y: Axis) -> str:
    """The plot as an SVG element."""
    return "\n".join(_Plot(title, merged(lines), x, y).parts())


class _Plot:
    def __init__(self, title: str, lines: list[Line], x: Axis, y: Axis) -> None:
        self.title, self.lines, self.x, self.y = title, lines, x, y

    def at_x(self, value: float) -> float:
        return _LEFT + self.x.share(value) * (WIDTH - _LEFT - _RIGHT)

    def at_y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - self.y.share(value) * (HEIGHT - _TOP - _BOTTOM)

    def parts(self) -> Iterator[str]:
        yield f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title)}">'
        yield f"<title>{escape(self.title)}</title>"
        yield from self._axes()
        for line in self.lines:
            yield from self._line(line)
        yield from self._labels()
        yield "</svg>"

    def _axes(self) -> Iterator[str]:
        right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
        for tick in self.y.ticks:
            y = self.at_y(tick)
            yield f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
            yield f'<text class="tick" text-anchor="end" x="{_LEFT - 8}" y="{y + 4:.1f}">{tick:g}</text>'
        for tick in self.x.ticks:
            x = self.at_x(tick)
            yield f'<line class="grid" x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 5}"/>'
            yield f'<text class="tick" text-anchor="middle" x="{x:.1f}" y="{bottom + 19}">{tick:g}</text>'
        middle = (_LEFT + right) / 2
        yield f'<text class="axis" text-anchor="middle" x="{middle}" y="{HEIGHT - 8}">{escape(self.x.title)}</text>'
        place = f'x="{-(_TOP + bottom) / 2}" y="16" transform="rotate(-90)"'
        yield f'<text class="axis" text-anchor="middle" {place}>{escape(self.y.title)}</text>'

    def _line(self, line: Line) -> Iterator[str]:
        points = " ".join(f"{self.at_x(x):.1f},{self.at_y(y):.1f}" for x, y in line.points)
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        yield f'<polyline class="line {line.colour}"{dash} points="{points}"/>'
        for x, y in line.points:
            words = f"{line.name}: {y:.2f} at {x:g}"
            place = f'cx="{self.at_x(x):.1f}" cy="{self.at_y(y):.1f}"'
            yield f'<circle class="dot {line.colour}" {place} r="2.6"><title>{escape(words)}</title></circle>'

    def _labels(self) -> Iterator[str]:
        lines = sorted(self.lines, key=lambda line: self.at_y(line.points[-1][1]))
        ends = [(self.at_x(x), self.at_y(y)) for line in lines for x, y in line.points[-1:]]
        texts = [textwrap.wrap(line.name, _LETTERS) for line in lines]
        tops = apart([y for _, y in ends], [_LINE * len(text) + _SPACE for text in texts])
        x = WIDTH - _RIGHT
        for line, (end, wanted), text, top in zip(lines, ends, texts, tops, strict=True):
            yield f'<path class="leader {line.colour}" d="M{end + 4:.1f} {wanted:.1f} L{x + 12} {top:.1f} h6"/>'
            for i, words in enumerate(text):
                y = top + 4 + _LINE * i
                yield f'<text class="label {line.colour}" x="{x + 22}" y="{y:.1f}">{escape(words)}</text>'


def apart(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Places near the wanted ones (which rise), each far enough from the next for its height, within the plot."""
    places: list[float] = []
    for i, place in enumerate(wanted):
        places.append(max(place, places[-1] + heights[i - 1] if places else _TOP))
    limit = float(HEIGHT)
    for i in range(len(places) - 1, -1, -1):
        places[i] = min(places[i], limit - heights[i])
        limit = places[i]
    return places
