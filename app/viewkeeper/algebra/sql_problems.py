"""Collecting everything that is wrong with a view's SQL, with its place in the text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches

from sqlglot import exp

from viewkeeper.errors import At, Problem, ViewError

NEWLINE = "\n"
_SHOWN = 60
_EXCERPT = 30
_LONG_LINE = 100
_FIRST_WORD = re.compile(r"\w+")


@dataclass
class SqlProblems:
    """The problems of one view's SQL, in the order they were found."""

    place: str
    text: str
    found: list[Problem] = field(default_factory=list)

    def add(self, node: exp.Expression | None, what: str, remedy: str = "") -> None:
        """Notes a problem at the place of ``node``."""
        start = self._start(node) if node is not None else None
        if start is None:
            self.found.append(Problem(self.place, what, remedy))
        else:
            before = self.text[:start]
            self.add_at(before.count(NEWLINE) + 1, len(before) - before.rfind(NEWLINE), what, remedy)

    def add_at(self, line: int, column: int, what: str, remedy: str = "") -> None:
        self.found.append(Problem(self.place, what, remedy, self._at(line, column)))

    def check(self) -> None:
        """Raises all problems together, each once, if there are any."""
        if self.found:
            raise ViewError(dict.fromkeys(self.found))

    def _at(self, line: int, column: int) -> At:
        lines = self.text.split(NEWLINE)
        written = lines[line - 1] if line <= len(lines) else ""
        words = " ".join(written[column - 1 : column - 1 + _EXCERPT].split())
        return At(line, column, words if len(written) > _LONG_LINE else "")

    def _start(self, node: exp.Expression) -> int | None:
        """Where the node begins in the text, as far as sqlglot tells; else where its first word stands alone.

        Of an expression, else what is around it: a place nearby.
        """
        starts = [n.meta["start"] for n in node.walk() if "start" in n.meta]
        if starts:
            return int(min(starts))
        word = _FIRST_WORD.match(node.sql(comments=False))
        found = list(re.finditer(rf"\b{re.escape(word[0])}\b", self.text, re.IGNORECASE)) if word else []
        if len(found) == 1:
            return found[0].start()
        around = node.parent
        return self._start(around) if isinstance(node, exp.Condition) and isinstance(around, exp.Expression) else None


def shown(node: exp.Expression) -> str:
    """The node as SQL, cut to a length that suits a message."""
    text = node.sql(comments=False)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def nearest(name: str, names: Iterable[str]) -> str:
    """A remedy that names the closest existing name, or the existing names if none is close."""
    known = sorted(set(names))
    lowered = {n.lower(): n for n in known}
    close = get_close_matches(name.lower(), lowered, n=1)
    if close:
        return f"did you mean {lowered[close[0]]}?"
    return f"there is {', '.join(known[:8])}{' …' if len(known) > 8 else ''}" if known else ""
