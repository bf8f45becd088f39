"""The last rows of the ViewUpdateTable that went into a cut, for people to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from viewkeeper.integrator.pending import Pending

SHOWN = 4
"""Rows that are remembered."""


class TableRow(NamedTuple):
    """An update that is in a cut: its transactions, and per view gray or black."""

    number: int
    transactions: Sequence[str]
    colors: Mapping[str, str]


def last_rows(pending: Pending, prefix: int) -> list[TableRow]:
    """The last of these updates up to a number, which a cut is to hold."""
    batches = [batch for batch in pending.batches if batch.numbers.start <= prefix]
    if not batches:
        return []
    batch = batches[-1]
    last = min(batch.last, prefix)
    first = max(batch.numbers.start, last - SHOWN + 1)
    transactions = batch.transactions(first, last)
    rows = []
    for number in range(first, last + 1):
        concerned = batch.concerned[number - batch.numbers.start].tolist()
        colors = {view: "g" if is_ else "b" for view, is_ in zip(batch.views, concerned, strict=True)}
        rows.append(TableRow(number, transactions[number], colors))
    return rows
