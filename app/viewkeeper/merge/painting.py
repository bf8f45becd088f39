"""The Simple Painting Algorithm and the Painting Algorithm (multiple-view-consistency-1997, Algorithms 1 and 2).

A merge process hears from the integrator which views each update is relevant to (REL_i) and from the view managers
their action lists (AL_i^x), and says which action lists are to be applied together, as one warehouse transaction.
Messages come in any order in which each sender's own come in the order sent. Both algorithms are prompt: after every
message, everything is applied that can be.

The law of both: a set of updates may be applied if in every column it takes a prefix of the relevant rows that ends
where an action list ends. Such sets are closed under union, so there is a largest one, and it is reached in the
smallest steps that there are. SPA is for managers that send a list for every update; PA lets a list stand for a *run*
of updates, which then stand or fall together. Where every run is one update, PA does what SPA does.

PA is not done as printed, because as printed it is wrong:

- A ``ProcessRow`` called by another one (Lines 4 and 5) goes on to Line 6 and applies all of ``ApplyRows``: also the
  row whose own check called it and has not ended, and which may fail yet.
- A ``ProcessRow`` that fails in Line 9 leaves its rows in ``ApplyRows``, where the next one takes them for checked.
- A row called for in Line 9 takes earlier rows along that could have been applied before it, by themselves: states
  are skipped without need, and with complete managers the warehouse is not complete.

(The tests keep a history for each.) Besides, its recursion is as deep as the backlog and walks it with every message.
Here, runs tie rows into *blocks*; a block whose lists have all come is applied when no block before it is left, except
such as wait for it in turn, with which it is applied together. One that is held up notes a block that it needs and is
looked at again when that one is applied; so a message costs about as much as the views it concerns, whatever waits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Generic, NamedTuple, TypeVar

from viewkeeper.consistency.levels import Level
from viewkeeper.merge.view_update_table import A, Row, Told, ViewUpdateTable


class Applied(NamedTuple, Generic[A]):
    """One warehouse transaction: the updates it makes the warehouse reflect, and their action lists in order."""

    rows: tuple[int, ...]
    actions: tuple[Told[A], ...]

    @property
    def views(self) -> frozenset[str]:
        """VS(WT): the views that it changes."""
        return frozenset(told.view for told in self.actions)


R = TypeVar("R", bound=Row)

Watcher = Callable[[], None]
"""Called whenever the table changed: an entry was painted, rows were applied, rows were purged."""


class Painter(ABC, Generic[A, R]):
    """A merge process: messages go in, warehouse transactions come out.

    ``views`` are all views of the group. Updates are numbered without gaps from ``first`` on.
    """

    def __init__(self, views: Iterable[str], first: int = 1, watcher: Watcher | None = None) -> None:
        self.table: ViewUpdateTable[R] = ViewUpdateTable(views)
        self._owed: dict[str, deque[R]] = {view: deque() for view in self.table.views}  # white, oldest first
        self._early: dict[int, list[Told[A]]] = {}  # received before their REL
        self._next = first
        self._prefix = self._passed = self._spanned = first - 1
        self._reach: dict[int, int] = {}  # first update of a run → the furthest that such a run ends
        self._watcher = watcher

    @property
    def applied_prefix(self) -> int:
        """The largest p such that every update up to p is reflected, by action lists that all end at or before p.

        An update that concerns no view is reflected from its REL on. Where a view went from a state before p to one
        past it in one step, there is no state p to be seen, even if all updates up to p are reflected.
        """
        while self._passed + 1 < self._next and self._passed + 1 not in self.table.rows:
            self._passed += 1
            self._spanned = max(self._spanned, self._reach.pop(self._passed, 0))
            if self._spanned <= self._passed:
                self._prefix = self._passed
        return self._prefix

    def pending(self, view: str) -> int:
        """How many updates the view's manager still owes actions for."""
        return len(self._owed[view])

    def relevant(self, number: int, views: Collection[str]) -> list[Applied[A]]:
        """REL_i: these views wait for actions on account of the update; gives what can be applied now."""
        if number != self._next:
            raise ValueError(f"REL_{number} came where REL_{self._next} was due")
        if unknown := [view for view in views if view not in self._owed]:
            raise ValueError(f"REL_{number} names unknown views: {', '.join(unknown)}")
        self._next += 1
        if views:
            row = self.table.rows[number] = self._row(number, views)
            for view in row.states:
                self._owed[view].append(row)
            self._changed()
        return [applied for told in self._early.pop(number, ()) for applied in self._process(told)]

    def actions(self, view: str, number: int, actions: A) -> list[Applied[A]]:
        """AL_i^x: how the view comes to the state after the update; gives what can be applied now."""
        told = Told(view, number, actions)
        if number < self._next:
            return self._process(told)
        if view not in self._owed:
            raise ValueError(f"{told} is of an unknown view")
        self._early.setdefault(number, []).append(told)
        return []

    def _process(self, told: Told[A]) -> list[Applied[A]]:
        row = self.table.rows.get(told.number)
        if row is None or row.states.get(told.view) != 0:
            raise ValueError(f"{told} is not awaited: the update is irrelevant to the view, or was answered for")
        row.told.append(told)
        return self._paint(row, told.view)

    @abstractmethod
    def _row(self, number: int, views: Collection[str]) -> R:
        """A new row, all of it white."""

    @abstractmethod
    def _paint(self, row: R, view: str) -> list[Applied[A]]:
        """ProcessAction: an action list has come for this white entry; gives what can be applied now."""

    def _apply(self, rows: list[R]) -> Applied[A]:
        """Paints rows gray, in the order of their numbers, and purges them."""
        for row in rows:
            row.applied = True
        self._changed()
        for row in rows:
            del self.table.rows[row.number]
        self._changed()
        return Applied(tuple(row.number for row in rows), tuple(told for row in rows for told in row.told))

    def _changed(self) -> None:
        if self._watcher is not None:
            self._watcher()


class _SimpleRow(Row[A]):
    """``missing`` counts the entries that are not ready: white, or with unapplied ones above them."""

    __slots__ = ("missing",)

    def __init__(self, number: int, views: Collection[str]) -> None:
        super().__init__(number, views)
        self.missing = len(self.states)


class SimplePainting(Painter[A, _SimpleRow[A]]):
    """Algorithm 1, for managers that are all complete: every update gets a warehouse transaction of its own."""

    def __init__(self, views: Iterable[str], first: int = 1, watcher: Watcher | None = None) -> None:
        super().__init__(views, first, watcher)
        self._columns: dict[str, deque[_SimpleRow[A]]] = {view: deque() for view in self.table.views}  # not applied

    def _row(self, number: int, views: Collection[str]) -> _SimpleRow[A]:
        row: _SimpleRow[A] = _SimpleRow(number, views)
        for view in row.states:
            self._columns[view].append(row)
        return row

    def _paint(self, row: _SimpleRow[A], view: str) -> list[Applied[A]]:
        if self._owed[view].popleft() is not row:
            raise ValueError(f"{view} sent no actions for an update before {row.number}: it is not complete")
        row.states[view] = row.number
        self._changed()
        if self._columns[view][0] is not row:
            return []
        row.missing -= 1
        return [] if row.missing else self._process_rows(row)

    def _process_rows(self, row: _SimpleRow[A]) -> list[Applied[A]]:
        """Lines 3–6: applies a row, and the later ones that become ready by it."""
        ready, applied = deque([row]), []
        while ready:
            row = ready.popleft()
            applied.append(self._apply([row]))
            for view in row.states:
                column = self._columns[view]
                column.popleft()
                if column and column[0].states[view]:
                    below = column[0]
                    below.missing -= 1
                    if not below.missing:
                        ready.append(below)
        return applied


class _PaintedRow(Row[A]):
    """``above`` is, for each relevant view, the row before this one in its column, if that is not applied."""

    __slots__ = ("_block", "above")

    def __init__(self, number: int, views: Collection[str]) -> None:
        super().__init__(number, views)
        self.above: list[_PaintedRow[A]] = []
        self._block: _Block[A] = _Block(self)

    @property
    def block(self) -> _Block[A]:
        self._block = self._block.whole
        return self._block


class _Block(Generic[A]):
    """Rows that are tied together by runs: none of them can be applied without the others.

    It is *complete* when none of its entries is white; no row joins it after that. ``above`` are then the rows before
    it that may be unapplied. ``needs`` is one block that a complete one was found to be held up by; ``beyond`` is one
    that lies further on that way: a shortcut.
    """

    __slots__ = ("_into", "above", "applied", "beyond", "needs", "rows", "waiting", "white")

    def __init__(self, row: _PaintedRow[A]) -> None:
        self.rows = [row]
        self.white = len(row.states)
        self.above: list[_PaintedRow[A]] = []
        self.waiting: list[_Block[A]] = []  # those that noted that they need this one; some need another by now
        self.needs: _Block[A] | None = None
        self.beyond: _Block[A] | None = None
        self.applied = False
        self._into: _Block[A] | None = None

    @property
    def whole(self) -> _Block[A]:
        """The block that this one has become a part of, or itself."""
        block = self
        while block._into is not None:
            block = block._into
        return block

    def tied(self, other: _Block[A]) -> _Block[A]:
        """Both as one; neither is complete."""
        if other is self:
            return self
        large, small = (self, other) if len(self.rows) >= len(other.rows) else (other, self)
        large.rows += small.rows
        large.white += small.white
        large.waiting += small.waiting
        small._into, small.rows, small.waiting = large, [], []
        return large

    def completed(self) -> None:
        self.above = [above for row in self.rows for above in row.above if not above.applied]

    def hold(self, needed: _Block[A]) -> None:
        """Notes that this block cannot be applied before ``needed``, of which the same was not noted of this one."""
        self.needs, self.beyond = needed, None
        needed.waiting.append(self)

    @property
    def held_by(self) -> _Block[A] | None:
        """A block that this one is known to need and that is not applied."""
        for known in (self.beyond, self.needs):
            if known is not None and not (block := known.whole).applied:
                return block
        return None

    @property
    def origin(self) -> _Block[A]:
        """The block at the end of the way of those that hold each other up: itself, if nothing is known to hold it."""
        block, way = self, []
        while (further := block.held_by) is not None:
            way.append(block)
            block = further
        for passed in way:
            passed.beyond = block
        return block

    def purge(self) -> None:
        """Lets go of everything, so that no applied block keeps another one in memory."""
        for row in self.rows:
            row.above = []
        self.applied = True
        self.rows, self.above, self.waiting, self.needs, self.beyond = [], [], [], None, None


class Painting(Painter[A, _PaintedRow[A]]):
    """Algorithm 2, for managers that are strongly consistent: an action list may stand for a run of updates."""

    def __init__(self, views: Iterable[str], first: int = 1, watcher: Watcher | None = None) -> None:
        super().__init__(views, first, watcher)
        self._lowest: dict[str, _PaintedRow[A]] = {}  # the last row of each column

    def _row(self, number: int, views: Collection[str]) -> _PaintedRow[A]:
        row: _PaintedRow[A] = _PaintedRow(number, views)
        for view in row.states:
            above = self._lowest.get(view)
            if above is not None and not above.applied:
                row.above.append(above)
            self._lowest[view] = row
        return row

    def _paint(self, row: _PaintedRow[A], view: str) -> list[Applied[A]]:
        owed, block = self._owed[view], row.block
        if owed[0] is not row:
            first = owed[0].number
            self._reach[first] = max(row.number, self._reach.get(first, 0))
        while True:
            each = owed.popleft()
            each.states[view] = row.number
            each.block.white -= 1
            block = block.tied(each.block)
            if each is row:
                break
        self._changed()
        if block.white:
            return []
        block.completed()
        return self._process_blocks(block)

    def _process_blocks(self, block: _Block[A]) -> list[Applied[A]]:
        """Applies a block that has just become complete, if that is possible, and the later ones that waited."""
        untried, applied = deque([block]), []
        while untried:
            block = untried.popleft()
            if block.applied or block.held_by is not None:
                continue  # tried already, on account of another block
            together = _ready(block)
            if together:
                waiting = [each for member in together for each in member.waiting]
                applied.append(self._apply(sorted((r for b in together for r in b.rows), key=lambda row: row.number)))
                for member in together:
                    member.purge()
                untried += waiting
        return applied


def _ready(block: _Block[A]) -> list[_Block[A]]:
    """The blocks that can be applied now, this complete one and those it needs; or none, and then it is held."""
    circular = []
    while block.above:
        row = block.above[-1]
        if row.applied or row.block is block:
            block.above.pop()
        elif row.block.origin is block:
            circular.append(block.above.pop())
        else:
            block.above = circular + block.above
            block.hold(row.block)
            return []
    block.above = circular
    return _circle(block) if circular else [block]


def _circle(block: _Block[A]) -> list[_Block[A]]:
    """The same for a block of which is only known that whatever holds it up waits for it in turn.

    Everything that it needs is looked at: if all of that waits for this block, all of it is applied together.
    """
    needed_by: dict[_Block[A], _Block[A] | None] = {block: None}
    untried = [block]
    while untried:
        each = untried.pop()
        for row in each.above:
            other = row.block
            if row.applied or other in needed_by:
                continue
            needed_by[other] = each
            if other.origin is not block:
                _hold_along(other, needed_by)
                return []
            untried.append(other)
    return list(needed_by)


def _hold_along(needed: _Block[A], needed_by: dict[_Block[A], _Block[A] | None]) -> None:
    """Turns the way around: from the block that started the search to one that does not wait for it."""
    while (holding := needed_by[needed]) is not None:
        holding.hold(needed)
        needed = holding


AnyPainter = SimplePainting[A] | Painting[A]


def painter_for(level: Level, views: Iterable[str], first: int = 1, watcher: Watcher | None = None) -> AnyPainter[A]:
    """The painter for managers of which the weakest promises this level (section 6.3)."""
    if level is Level.COMPLETE:
        return SimplePainting(views, first, watcher)
    return Painting(views, first, watcher)
