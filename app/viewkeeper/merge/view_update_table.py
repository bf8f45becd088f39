"""The ViewUpdateTable (multiple-view-consistency-1997, sections 4.1 and 5.1): what the merge process waits for.

A row is an update, a column a view. A row is there from its REL until it was applied, so the table is as long as the
backlog. An entry's color follows from three things that a row keeps: the views it is relevant to, the state that each
of them goes to by an action list received, and whether the row was applied.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

A = TypeVar("A")
"""The actions of one action list: whatever the warehouse takes."""


class Color(Enum):
    """What is known of an update and a view; the value is the paper's letter."""

    WHITE = "w"  # the action list is awaited
    RED = "r"  # it was received, and waits for others
    GRAY = "g"  # it was just applied
    BLACK = "b"  # the update is irrelevant to the view


class Entry(NamedTuple):
    """``VUT[i, x]``: ``state`` is the number of the action list that was received for it, 0 before that."""

    color: Color
    state: int


class Told(NamedTuple, Generic[A]):
    """AL_number^view: brings the view to the state after that update."""

    view: str
    number: int
    actions: A

    def __str__(self) -> str:
        return f"AL_{self.number}^{self.view}"


class Row(Generic[A]):
    """An update with its relevant views. ``told`` is the paper's WT_i: the action lists that end at this update."""

    __slots__ = ("applied", "number", "states", "told")

    def __init__(self, number: int, views: Iterable[str]) -> None:
        self.number = number
        self.states: dict[str, int] = dict.fromkeys(views, 0)
        self.told: list[Told[A]] = []
        self.applied = False

    def entry(self, view: str) -> Entry:
        """The row's entry in a column."""
        state = self.states.get(view)
        if state is None:
            return Entry(Color.BLACK, 0)
        if self.applied:
            return Entry(Color.GRAY, state)
        return Entry(Color.RED if state else Color.WHITE, state)


R = TypeVar("R", bound=Row)


class ViewUpdateTable(Generic[R]):
    """The rows that are not applied yet, by number, in order."""

    def __init__(self, views: Iterable[str]) -> None:
        self.views = tuple(views)
        self.rows: dict[int, R] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: tuple[int, str]) -> Entry:
        number, view = place
        return self.rows[number].entry(view)
