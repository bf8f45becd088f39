"""Where in the configuration file a letter of a view's SQL stands, in whichever of YAML's styles it is written.

YAML folds lines, takes indentation away and reads escapes, but it keeps the letters that are no blanks, in their order:
the n-th of the value is the n-th of what stands in the file.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import yaml

VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
"""``${NAME}``, and ``$${`` for a plain ``${``."""

_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)+")  # anchor and tag
_BLOCK_HEADER = re.compile(r"[|>][-+0-9]*[ \t]*(?:#[^\r\n]*)?(?:\r\n|\r|\n|$)")
_ESCAPE = re.compile(r"\\(?:x(..)|u(.{4})|U(.{8})|(\r\n|.))", re.DOTALL)


def replaced(match: re.Match[str]) -> str:
    """What stands for a variable, or for what looks like one."""
    return "${" if match[1] is None else os.environ.get(match[1], match[0])


@dataclass(frozen=True)
class Written:
    """``value`` is what YAML reads; ``letters`` are the places in ``text``, the file, of those that are no blanks."""

    text: str
    value: str
    letters: tuple[int, ...]

    @classmethod
    def of(cls, text: str, node: yaml.Node | None) -> Written | None:
        """None for what is no text, or is written in a way that does not come out the same."""
        if not isinstance(node, yaml.ScalarNode):
            return None
        read = [(place, letter) for place, letter in _letters(text, node) if not letter.isspace()]
        if [letter for _, letter in read] != [letter for letter in node.value if not letter.isspace()]:
            return None
        return cls(text, node.value, tuple(place for place, _ in read))

    def place(self, line: int, column: int) -> tuple[int, int]:
        """Line and column in the file of those in the value once its variables are replaced, all counted from 1."""
        before = _before_variables(self.value, line, column)
        nth = sum(not letter.isspace() for letter in self.value[:before])
        index = self.letters[min(nth, len(self.letters) - 1)] if self.letters else 0
        breaks = [found.end() for found in re.finditer(r"\r\n|\r|\n", self.text)]
        nth_line = bisect_right(breaks, index)
        return nth_line + 1, index - (breaks[nth_line - 1] if nth_line else 0) + 1


def written_sql(text: str, node: yaml.Node | None) -> dict[str, Written]:
    """Of each view the place of its SQL; ``node`` is the file's, after it was read (merge keys are merged then)."""
    views = _entries(_entries(node).get("views"))
    found = {name: Written.of(text, _entries(view).get("sql")) for name, view in views.items()}
    return {name: written for name, written in found.items() if written is not None}


def _entries(node: yaml.Node | None) -> Mapping[str, yaml.Node]:
    return {key.value: value for key, value in node.value} if isinstance(node, yaml.MappingNode) else {}


def _letters(text: str, node: yaml.ScalarNode) -> Iterator[tuple[int, str]]:
    """Each letter of a scalar as it is written, read as its style wants it, and where it stands."""
    first, end = node.start_mark.index, node.end_mark.index
    if (properties := _PROPERTIES.match(text, first, end)) is not None:
        first = properties.end()
    if node.style in ("|", ">"):
        header = _BLOCK_HEADER.match(text, first, end)
        first = header.end() if header is not None else first
    elif node.style in ("'", '"'):
        first, end = first + 1, end - 1
    while first < end:
        width, letter = 1, text[first]
        if node.style == "'" and text.startswith("''", first):
            width = 2
        elif node.style == '"' and (escape := _ESCAPE.match(text, first, end)) is not None:
            width, letter = len(escape[0]), _escaped(escape)
        yield first, letter
        first += width


def _escaped(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    return chr(int(code, 16)) if code else yaml.SafeLoader.ESCAPE_REPLACEMENTS.get(escape[4], escape[4])


def _before_variables(value: str, line: int, column: int) -> int:
    """How far in the value a line and column of the text lie that its variables' values have made of it."""
    shown = VARIABLE.sub(replaced, value)
    offset = sum(len(each) + 1 for each in shown.split("\n")[: line - 1]) + column - 1
    moved = 0  # by so much the text is longer than the value, up to here
    for match in VARIABLE.finditer(value):
        if match.start() + moved >= offset:
            break
        put = len(replaced(match))
        if offset < match.start() + moved + put:
            return match.start()
        moved += put - len(match[0])
    return offset - moved
