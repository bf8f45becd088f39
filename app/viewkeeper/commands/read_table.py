"""Rows for a terminal: a table no wider than it, or one record below the other where even that is too wide.

Texts may be shortened, as an ellipsis shows; numbers, dates and names of columns never are: half of one is another one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size

from viewkeeper.counts import some

Row = tuple[Any, ...]

GAP = 2
"""Columns of the terminal between two of a table."""

LEAST = 10
"""What is left of a text at least."""

_LABEL = "row "


def lines(names: Sequence[str], rows: Sequence[Row], width: int, numbers: Collection[str] = ()) -> list[str]:
    """The rows as they fit into the width: a table, or records; columns of ``numbers`` stand to the right."""
    cells = [[one_line(value) for value in row] for row in rows]
    widths = _widths(names, rows, cells, width)
    if widths is None:
        return _records(names, cells, width)
    return _table(names, cells, widths, [name in numbers for name in names])


def fits(names: Sequence[str], rows: Sequence[Row], width: int) -> bool:
    """Is there room for a table?"""
    return _widths(names, rows, [[one_line(value) for value in row] for row in rows], width) is not None


def more(left: int) -> str:
    """What is said of rows that are not shown."""
    return f"… {some(left, 'more row')}; --limit N shows more, --format csv all of them"


def shown(value: Any, null: str) -> str:
    """A value as text."""
    match value:
        case None:
            return null
        case bool():
            return "true" if value else "false"
    return str(value)


def one_line(value: Any) -> str:
    """A value without what would break a line or steer the terminal."""
    text = shown(value, null="NULL")
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _widths(names: Sequence[str], rows: Sequence[Row], cells: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """How wide each column may be, the widest texts shortened first; None if they do not fit."""
    heads = [cell_len(name) for name in names]
    wanted = [max([head, *(cell_len(row[i]) for row in cells)]) for i, head in enumerate(heads)]
    least = [
        max(heads[i], min(wanted[i], LEAST)) if _is_text(rows, i) else wanted[i] for i in range(len(names))
    ]  # fmt: skip
    room = width - GAP * (len(names) - 1)
    if sum(least) > room:
        return None
    while sum(wanted) > room:
        longest = max((i for i in range(len(names)) if wanted[i] > least[i]), key=lambda i: wanted[i])
        wanted[longest] -= 1
    return wanted


def _is_text(rows: Sequence[Row], column: int) -> bool:
    """May values of this column be shortened?"""
    texts = [row[column] for row in rows if isinstance(row[column], str)]
    return any(not _is_number_or_time(text) for text in texts)


def _is_number_or_time(text: str) -> bool:
    return text.replace("-", "").replace(":", "").replace(".", "").rstrip("Z").replace("T", "").isdigit()


def _table(
    names: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int], right: Sequence[bool]
) -> list[str]:
    rule = (" " * GAP).join("─" * width for width in widths)
    return [_line(names, widths, right), rule, *(_line(row, widths, right) for row in cells)]


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    fitted = (_fitted(cell, width, to) for cell, width, to in zip(cells, widths, right, strict=True))
    return (" " * GAP).join(fitted).rstrip()


def _fitted(text: str, width: int, right: bool) -> str:
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…"
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding


def _records(names: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[str]:
    """A line a value; long values go on in the next line, below themselves."""
    label = min(max(map(cell_len, names)), max(1, width // 2))
    found: list[str] = []
    for number, row in enumerate(cells, 1):
        found.append(f"── {_LABEL}{number} ".ljust(min(width, 40), "─"))
        for name, text in zip(names, row, strict=True):
            first, *rest = _folded(text, max(1, width - label - GAP))
            found.append(f"{_fitted(name, label, right=False)}{' ' * GAP}{first}".rstrip())
            found += [" " * (label + GAP) + piece for piece in rest]
    return found


def _folded(text: str, width: int) -> list[str]:
    pieces: list[str] = []
    piece = ""
    for character in text:
        if cell_len(piece + character) > width:
            pieces.append(piece)
            piece = ""
        piece += character
    return [*pieces, piece]
