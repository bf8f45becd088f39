"""Tables that fit a terminal without breaking what is copied from them: names and numbers stay whole."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest

from rich.cells import cell_len

GAP = 2
"""Blanks between two columns."""

Row = Sequence[str]


def drawn(
    columns: Row, rows: Sequence[Row], numbers: Collection[str], width: int
) -> tuple[Sequence[str], Sequence[str]]:
    """The lines of the heading, and those of the rows, whose first cells are names; ``numbers`` stand to the right.

    Where there is no room, a last column that says nothing is left out; then texts go on in the next line, at a blank;
    and at last names have a line of their own, as long as they are, and the other cells stand below.
    """
    if sum(_widest(columns, rows)) + GAP * (len(columns) - 1) > width and not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    whole = {columns[0], *numbers}
    widths = _widths(columns, rows, whole, width)
    if widths is not None:
        heading, *below = [list(_line(row, columns, widths, numbers)) for row in (columns, *rows)]
    else:
        cells = [row[1:] for row in rows]
        widths = _widths(columns[1:], cells, whole, width - GAP) or _least(columns[1:], cells, whole)
        heading, *below = [
            [row[0], *(" " * GAP + line for line in _line(row[1:], columns[1:], widths, numbers))]
            for row in (columns, *rows)
        ]
    return heading, [line for lines in below for line in lines]


def _widths(columns: Row, rows: Sequence[Row], whole: Collection[str], width: int) -> list[int] | None:
    """How wide each column is, the widest texts made narrower first; None if there is no room."""
    wanted, least = _widest(columns, rows), _least(columns, rows, whole)
    room = width - GAP * (len(columns) - 1)
    if sum(least) > room:
        return None
    while sum(wanted) > room:
        longest = max((i for i in range(len(columns)) if wanted[i] > least[i]), key=lambda i: wanted[i])
        wanted[longest] -= 1
    return wanted


def _widest(columns: Row, rows: Sequence[Row]) -> list[int]:
    return [max(map(cell_len, cells)) for cells in zip(columns, *rows, strict=True)]


def _least(columns: Row, rows: Sequence[Row], whole: Collection[str]) -> list[int]:
    """What each column cannot do without: its longest word, or all of what stays whole."""
    return [
        max(cell_len(word) for cell in cells for word in ([cell] if column in whole else cell.split() or [""]))
        for column, *cells in ((column, column, *cells) for column, *cells in zip(columns, *rows, strict=True))
    ]


def _line(row: Row, columns: Row, widths: Sequence[int], numbers: Collection[str]) -> Iterator[str]:
    folded = [_folded(cell, width) for cell, width in zip(row, widths, strict=True)]
    for pieces in zip_longest(*folded, fillvalue=""):
        cells = zip(pieces, columns, widths, strict=True)
        yield (" " * GAP).join(_padded(piece, width, column in numbers) for piece, column, width in cells).rstrip()


def _folded(text: str, width: int) -> list[str]:
    """The text in lines, broken at blanks only."""
    if cell_len(text) <= width:
        return [text]
    found = [""]
    for word in text.split():
        longer = f"{found[-1]} {word}".strip()
        found[-1:] = [longer] if cell_len(longer) <= width or not found[-1] else [found[-1], word]
    return found


def _padded(text: str, width: int, right: bool) -> str:
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding
