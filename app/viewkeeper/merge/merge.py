"""The merge process of a group: holds action lists until all views concerned can move together.

It is the Painting Algorithm (``painting``) over runs of updates instead of single ones, because a batch is a hundred
thousand rows of the ViewUpdateTable. A manager's action lists come in the order of updates, so a column needs no
colors: up to the last update that its manager has answered for, relevant entries are red, after it white. What a cut
may publish is the longest prefix of rows without a white entry that no action list reaches across. Where every manager
is complete that is the Simple Painting Algorithm. ``painting`` says what must come out, row by row; a test keeps both
equal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.bag import UPDATE, consolidate
from viewkeeper.consistency.levels import Level
from viewkeeper.merge.action_list import ActionList, joined

_NONE = np.empty(0, np.int64)


@dataclass
class _Column:
    """One view's column of the table: the rows that concern it, and the action lists that wait."""

    answered: int
    relevant: np.ndarray = field(default_factory=lambda: _NONE)
    lists: list[ActionList] = field(default_factory=list)

    def first_relevant(self, after: int, until: int) -> int | None:
        """The first row that concerns the view, after one number and up to another."""
        place = int(np.searchsorted(self.relevant, after, side="right"))
        found = place < len(self.relevant) and self.relevant[place] <= until
        return int(self.relevant[place]) if found else None

    def possible(self, prefix: int) -> int:
        """The longest prefix, up to this one, that the view can be brought to."""
        state = self.answered
        for actions in self.lists:
            if actions.after < prefix < actions.until:
                state = actions.last_end(prefix)
                break
        else:
            if prefix <= self.answered:
                return prefix
        first = self.first_relevant(state, prefix)
        return prefix if first is None else first - 1

    def take(self, prefix: int) -> list[ActionList]:
        """The action lists, or parts of them, up to the prefix; they wait no more."""
        whole = [actions for actions in self.lists if actions.until <= prefix]
        rest = [actions for actions in self.lists if actions.until > prefix]
        if rest and rest[0].after < prefix:
            # Nothing of what lies between the list's last end and the prefix concerns the view.
            first, rest[0] = rest[0].split(prefix)
            whole.append(first)
        self.lists = rest
        self.relevant = self.relevant[np.searchsorted(self.relevant, prefix, side="right") :]
        return whole


@dataclass(frozen=True)
class Ready:
    """What a cut may publish: per view its change, and the level at which states in between can be read."""

    changes: dict[str, Iterable[pa.Table]]
    level: Level


class Merge:
    """One group's merge process; rows up to ``applied`` are in cuts."""

    def __init__(self, views: Collection[str], applied: int):
        self.applied = applied
        self.last = applied  # the last row there is
        self._columns = {view: _Column(applied) for view in views}

    def relevant(self, numbers: range, views: Sequence[str], concerned: np.ndarray) -> None:
        """REL of these updates: per update (row) and view (column) whether it is concerned."""
        assert numbers.start == self.last + 1, "updates come in the order of their numbers"
        self.last = numbers.stop - 1
        for place, view in enumerate(views):
            column = self._columns[view]
            found = np.flatnonzero(concerned[:, place]) + numbers.start
            column.relevant = np.concatenate([column.relevant, found]) if len(column.relevant) else found

    def actions(self, actions: ActionList) -> None:
        """An action list of a manager; each follows the one before it."""
        column = self._columns[actions.view]
        assert actions.after == column.answered, f"{actions.view}: an action list is missing"
        column.answered = actions.until
        column.lists.append(actions)

    def rows(self, view: str) -> np.ndarray:
        """The numbers of the updates that concern a view and are in no cut."""
        return self._columns[view].relevant

    def answered(self, view: str) -> int:
        """The last update that a view's manager has answered for."""
        return self._columns[view].answered

    def owed(self, view: str) -> int:
        """How many updates concern a view that its manager has not answered for: its white entries."""
        column = self._columns[view]
        return len(column.relevant) - int(np.searchsorted(column.relevant, column.answered, side="right"))

    def held(self, view: str) -> int:
        """How many updates a view's manager has answered for that are in no cut: its red entries."""
        column = self._columns[view]
        return int(np.searchsorted(column.relevant, column.answered, side="right"))

    def change(self, view: str) -> Iterator[pa.RecordBatch]:
        """What waits of a view, as one change: its columns and ``_count``."""
        lists = self._columns[view].lists
        tables = [table.drop_columns([UPDATE]) for actions in lists for table in actions.tables if len(table)]
        if tables:
            yield from consolidate(pa.concat_tables(tables)).to_batches()

    def forgets(self, view: str) -> bool:
        """Whether what waits of a view can be read only once."""
        return not all(isinstance(actions.tables, list) for actions in self._columns[view].lists)

    @property
    def prefix(self) -> int:
        """The last update that a cut may hold now."""
        prefix = self.last
        while True:
            possible = min((column.possible(prefix) for column in self._columns.values()), default=prefix)
            if possible >= prefix:
                return max(prefix, self.applied)
            prefix = possible

    def take(self, prefix: int) -> Ready:
        """What leads to ``prefix``, which must be possible; it is applied then."""
        assert prefix <= self.prefix
        lists = {view: column.take(prefix) for view, column in self._columns.items()}
        self.applied = prefix
        level = min((actions.level for taken in lists.values() for actions in taken), default=Level.COMPLETE)
        # Of a view whose updates were all irrelevant there is nothing to write.
        changes = {view: joined(taken) for view, taken in lists.items() if taken}
        return Ready(changes, level)

    def restart(self, view: str | None = None) -> None:
        """Forgets what waits of a view (of all of them): its manager begins again after the last cut."""
        for column in [self._columns[view]] if view is not None else self._columns.values():
            column.answered, column.lists = self.applied, []

    def colors(self, first: int, last: int, views: Sequence[str]) -> dict[str, str]:
        """Per view the colors of its entries in these rows (w, r, b), in order; what is in a cut is gray."""
        return {view: self._letters(self._columns[view], first, last) for view in views}

    @staticmethod
    def _letters(column: _Column, first: int, last: int) -> str:
        numbers = np.arange(first, last + 1)
        concerned = np.isin(numbers, column.relevant)
        return "".join(np.where(~concerned, "b", np.where(numbers <= column.answered, "r", "w")))
