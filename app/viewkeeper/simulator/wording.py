"""Rows, bags, changes and questions in the letters of the papers: ``+r2(2,3)``, ``{(1,2)(2,3)} ⋈ r3``, ``∅``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from viewkeeper.algebra.tiny import Part, Row
from viewkeeper.algorithms.protocol import Op, Query, Term

SHOWN = 12
"""Rows of a bag that are written out; the rest are counted."""


def listed(words: Sequence[str]) -> str:
    """``a, b and c``"""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def row_text(row: Row) -> str:
    return "(" + ",".join("NULL" if value is None else str(value) for value in row) + ")"


def bag_text(bag: Mapping[Row, int] | Iterable[tuple[Row, int]], shown: int = SHOWN) -> str:
    """The rows with their counts, in an order that does not depend on how they came in."""
    return _set_text([(row_text(row), count) for row, count in _items(bag)], shown)


def part_text(part: Part, shown: int = SHOWN) -> str:
    """Partial rows: the rows visited, side by side."""
    named = [("".join(row_text(row) for row in rows if row is not None), count) for rows, count in part.items()]
    return _set_text(named, shown)


def taken_text(error: Part) -> str:
    """What was subtracted, as it looks to the answer: rows taken out of it, rows put back into it, or both."""
    out = {rows: count for rows, count in error.items() if count > 0}
    back = {rows: -count for rows, count in error.items() if count < 0}
    words = [f"{verb} {part_text(part)}" for verb, part in (("takes out", out), ("puts back", back)) if part]
    return " and ".join(words)


def _items(bag: Any) -> Iterable[tuple[Row, int]]:
    return bag.items() if isinstance(bag, Mapping) else bag


def _set_text(named: list[tuple[str, int]], shown: int) -> str:
    if not named:
        return "∅"
    words = [_counted(name, count) for name, count in sorted(named)]
    more = f" … {len(words) - shown:,} more" if len(words) > shown else ""
    return "{" + " ".join(words[:shown]) + more + "}"


def _counted(name: str, count: int) -> str:
    sign = "−" if count < 0 else ""
    return f"{sign}{abs(count):,}×{name}" if abs(count) != 1 else f"{sign}{name}"


def ops_text(ops: Iterable[Op]) -> str:
    """``+r2(2,3) −r1(1,2)``"""
    return " ".join(f"{'+' if op.count > 0 else '−'}{op.relation}{row_text(op.row)}" for op in ops)


def query_text(query: Query) -> str:
    """``{(2,3)} ⋈ r1``, terms joined by ``and``."""
    return " and ".join(map(_term_text, query.terms))


def _term_text(term: Term) -> str:
    relations = [hop.occurrence.relation for hop in term.hops]
    if set(term.part) == {(None,) * len(next(iter(term.part)))} if term.part else False:
        return " ⋈ ".join(relations)  # a recomputation starts from nothing
    return " ⋈ ".join((part_text(term.part), *relations))


def updates_text(numbers: Iterable[int]) -> str:
    """``U1, U2``, runs as ``U1…U4``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(_run_text(run) for run in runs)


def _run_text(run: list[int]) -> str:
    return ", ".join(f"U{n}" for n in run) if len(run) < 3 else f"U{run[0]}…U{run[-1]}"
