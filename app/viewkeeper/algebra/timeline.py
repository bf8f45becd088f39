"""Timelines: when the rows of a relation hold, so that each partial row can take them as of its own update.

The as-of law, for any update number k:

    R as of k  =  answer  −  Σ ΔR of updates included in the answer but not wanted (number > k)
                          +  Σ ΔR of updates wanted (number ≤ k) but not included

Written as plain joins the sums are quadratic when one key changes often in a batch. A timeline turns them into
intervals: per row, the runs of update numbers in which its count stays the same. Building it costs answer + changes,
matching it costs the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.algebra.bag import COUNT, UPDATE, row_codes
from viewkeeper.algebra.hashing import row_hashes
from viewkeeper.algebra.sizes import without_text

POSITION = "_position"
"""Column of a queue's changes: the position of the update they belong to, as its source counts."""

UNNUMBERED = 2**62
"""The number of a change that no topic has delivered yet: later than every update there is."""


@dataclass(frozen=True)
class Window:
    """The states a batch may ask for: as of ``base``, ``base`` + 1, … ``base`` + ``width`` − 1."""

    base: int
    width: int

    @classmethod
    def of(cls, numbers: np.ndarray) -> Window:
        """The window that holds the state before and the state after each of these updates."""
        first, last = int(numbers.min()), int(numbers.max())
        return cls(first - 1, last - first + 2)


@dataclass(frozen=True)
class Timeline:
    """Intervals of states [since, until) in which a row holds, so often; ``key`` is the asked key it belongs to.

    ``place`` says which of ``rows`` it is: answer and changes are large, and stay where they are.
    """

    rows: pa.Table
    place: np.ndarray
    key: np.ndarray
    since: np.ndarray
    until: np.ndarray
    count: np.ndarray
    compensated: bool  # whether the answer alone would have been wrong


@dataclass(frozen=True)
class Matches:
    """Pairs of point and row: interval ``i`` meets the points ``order[low[i]:high[i]]``."""

    order: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @property
    def total(self) -> int:
        return int((self.high - self.low).sum())

    def slices(self, limit: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(point index, row index) of the pairs, at most ``limit`` at a time."""
        size = self.high - self.low
        end = np.cumsum(size)
        start = end - size
        total = int(end[-1]) if len(end) else 0
        for a in range(0, total, limit):
            b = min(a + limit, total)
            first, last = np.searchsorted(end, [a, b - 1], side="right")
            some = np.arange(first, last + 1)
            pieces = np.minimum(end[some], b) - np.maximum(start[some], a)
            row = np.repeat(some, pieces)
            yield self.order[self.low[row] + np.arange(a, b) - start[row]], row


def key_codes(keys: pa.Table, rows: pa.Table, names: Sequence[str]) -> np.ndarray:
    """Per row the index of its key among ``keys`` (columns in the order of ``names``), or −1."""
    if len(names) == 1:
        found = pc.index_in(rows[names[0]], value_set=keys.column(0).combine_chunks(), skip_nulls=True)
        return pc.fill_null(found, -1).to_numpy().astype(np.int64)
    asked = pa.table([rows[name] for name in names], names=keys.column_names)
    codes = row_codes(pa.concat_tables([keys, asked]), keys.column_names)
    known, mine = codes[: len(keys)], codes[len(keys) :]
    order = np.argsort(known)
    at = np.minimum(np.searchsorted(known[order], mine), len(keys) - 1)
    return np.where(known[order][at] == mine, order[at], -1)


def groups_of_rows(answer: pa.Table, changes: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Keys for an answer to a question without any: a change and the rows that it may change have the same one.

    So what no change touches can stay as it was answered.
    """
    names = [name for name in answer.column_names if name != COUNT]
    if len(changes) == 0:
        return np.zeros(len(answer), np.int64), np.zeros(0, np.int64)
    known, change_key = np.unique(_quick_hashes(changes, names), return_inverse=True)
    hashes = _quick_hashes(answer, names)
    near = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    return np.where(known[near] == hashes, near, len(known)), change_key


def _quick_hashes(table: pa.Table, names: Sequence[str]) -> np.ndarray:
    """A hash per row that does not look into texts, of which it takes the lengths alone."""
    columns = {name: without_text(table[name]) for name in names}
    return row_hashes(pa.table(columns), names) if columns else np.zeros(len(table), np.uint64)


def build(
    answer: pa.Table, answer_key: np.ndarray, changes: pa.Table, change_key: np.ndarray,
    included: np.ndarray, window: Window,
) -> Timeline:  # fmt: skip
    """The timeline of the asked rows.

    ``answer`` holds the rows and ``_count``; ``changes`` the queue's changes of the relation (the same columns,
    ``_count``, ``_update``), ``included`` tells which of them the answer contains. Keys of −1 were not asked.
    """
    names = [name for name in answer.column_names if name != COUNT]
    kept = names or [COUNT]  # without any column, tables forget how many rows they have
    number = changes[UPDATE].to_numpy()
    # An update that is both included and older than the window holds in every state: it changes nothing here.
    relevant = np.flatnonzero((change_key >= 0) & ~(included & (number <= window.base)))
    asked = np.flatnonzero(answer_key >= 0)
    if len(relevant) == 0:
        return Timeline(
            answer.select(kept),
            asked,
            answer_key[asked],
            np.zeros(len(asked), np.int64),
            np.full(len(asked), window.width, np.int64),
            answer[COUNT].to_numpy()[asked],
            compensated=False,
        )

    touched = np.zeros(int(max(answer_key.max(initial=-1), change_key.max(initial=-1))) + 1, bool)
    touched[change_key[relevant]] = True
    is_touched = touched[answer_key[asked]]
    steady, moving = asked[~is_touched], asked[is_touched]

    # Events of the touched keys: (row, state from which it counts, signed count).
    late = relevant[included[relevant]]
    lasting = relevant[number[relevant] - window.base < window.width]
    place = np.concatenate([moving, len(answer) + late, len(answer) + lasting])
    rows = pa.concat_tables([answer.select(kept), changes.select(kept)])
    change_count = changes[COUNT].to_numpy()
    state = np.concatenate([np.zeros(len(moving) + len(late), np.int64), np.maximum(number[lasting] - window.base, 0)])
    count = np.concatenate([answer[COUNT].to_numpy()[moving], -change_count[late], change_count[lasting]])
    key = np.concatenate([answer_key[moving], change_key[late], change_key[lasting]])

    row, since, until, total = _intervals(row_codes(rows, names, place), state, count, window.width)
    every = len(steady)
    return Timeline(
        rows,
        np.concatenate([steady, place[row]]),
        np.concatenate([answer_key[steady], key[row]]),
        np.concatenate([np.zeros(every, np.int64), since]),
        np.concatenate([np.full(every, window.width, np.int64), until]),
        np.concatenate([answer[COUNT].to_numpy()[steady], total]),
        compensated=True,
    )


def _intervals(
    code: np.ndarray, state: np.ndarray, count: np.ndarray, width: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Events (row code, state, signed count) → (index of one event of the row, since, until, running count ≠ 0)."""
    order = np.lexsort((state, code))
    code, state = code[order], state[order]
    running = np.cumsum(count[order])
    new_row = np.ones(len(code), bool)
    new_row[1:] = code[1:] != code[:-1]
    # The running count restarts with each row.
    row_start = np.flatnonzero(new_row)
    before = np.where(row_start > 0, running[row_start - 1], 0)
    running = running - np.repeat(before, np.diff(np.append(row_start, len(code))))
    until = np.full(len(code), width, np.int64)
    until[:-1] = np.where(new_row[1:], width, state[1:])
    keep = (running != 0) & (until > state)
    return order[keep], state[keep], until[keep], running[keep]


def match(timeline: Timeline, point_key: np.ndarray, point_state: np.ndarray, window: Window) -> Matches:
    """Which rows each point (asked key, wanted state) meets."""
    assert window.width < 2**31, "a batch numbers fewer than 2^31 updates"
    x = point_key * window.width + point_state
    order = np.argsort(x, kind="stable")
    x = x[order]
    at = timeline.key * window.width
    return Matches(
        order,
        np.searchsorted(x, at + timeline.since, side="left"),
        np.searchsorted(x, at + timeline.until, side="left"),
    )
