"""Complete Strobe (strobe-1996, section 6, Algorithm 3): the view moves with every update, without any pause.

Promises complete consistency: C-Strobe for single insertions and deletions, C-TStrobe (which the paper only names)
for transactions at one source. Assumes that the view shows the key of every relation.

Updates are handled in order of arrival. A deletion needs no question. An insertion U_i asks V⟨U_i⟩, which should be
evaluated in the state T that the sources had just after U_i; but answers may reflect later updates, all of which are
in the holding queue by then (channels are FIFO). What the queue says first about a row decides whether T has it:

    first deleted      the row is in T, an answer may lack it: Q⟨U_p⟩ is asked, with the row in the relation's place
    first inserted     the row is not in T, an answer may have it: taken out at last

Why that is exact: a combination of rows of T that an answer lacks has a row that was deleted; of all its deleted rows
take the one deleted first. It is asked for with that row substituted, and whatever this second answer lacks was
deleted later than that row. So rows need to be substituted in the order of their deletions only, and with each
substitution a relation less is left to ask.

Three points where Algorithm 3 as printed is vague, and what is right:

- It spares an inserted tuple from removal if an earlier deletion concerns the same tuple. Earlier must mean after U_i:
  a tuple deleted before U_i is not in T. Same must mean equal in all columns: a modified row has the old key.
- key_delete* compares key and other attributes. A view need not show the others, so rows are told apart in
  combinations, before projection.
- Queries are grouped by occurrence, as the paper suggests. For an insertion into one of n occurrences that makes at
  most 1 + (n−1) + (n−1)(n−2) + … + (n−1)!/1! queries (each of one message per source that it visits), the last term
  being the number of those with one relation left; the paper's (n−1)! counts this last term alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from viewkeeper.algebra.tiny import Combination, Part, Row, TinyView, add, plus
from viewkeeper.algebra.view import Hop
from viewkeeper.algorithms.keys import Deleted, Keys
from viewkeeper.algorithms.protocol import (
    Action,
    Algorithm,
    Compensation,
    Insert,
    Install,
    Process,
    Together,
    Update,
)
from viewkeeper.algorithms.source_evaluate import Expressions
from viewkeeper.algorithms.strobe import deletions, insertions


@dataclass(frozen=True)
class Held:
    """An update, or one operation of it, in the holding queue; once it is done the view reflects ``reflects`` too."""

    place: int
    update: Update
    changes: dict[int, dict[Row, int]]
    reflects: frozenset[int]


@dataclass(frozen=True)
class Event:
    """A row of an occurrence is inserted or deleted by what stands at ``place`` of the holding queue."""

    place: int
    update: int
    deletes: bool


@dataclass
class Deletions:
    """Rows of one occurrence, found by what hops look them up by; an index is made when a hop first asks for it."""

    tiny: TinyView
    rows: dict[Row, int] = field(default_factory=dict, init=False)
    _indexes: dict[tuple[str, ...], tuple[Callable[[Row], Row], dict[Row, dict[Row, int]]]] = field(
        default_factory=dict, init=False
    )

    def add(self, row: Row) -> None:
        self.rows[row] = 1
        for key_of, index in self._indexes.values():
            index.setdefault(key_of(row), {})[row] = 1

    def discard(self, row: Row) -> None:
        if self.rows.pop(row, None) is None:
            return
        for key_of, index in self._indexes.values():
            under = index[key := key_of(row)]
            del under[row]
            if not under:
                del index[key]

    def matching(self, hop: Hop, key: Row) -> Iterable[tuple[Row, int]]:
        """The rows that a hop to the occurrence finds under a key, each once."""
        if hop.key not in self._indexes:
            key_of, index = self._indexes[hop.key] = self.tiny.key_of(hop), {}
            for row in self.rows:
                index.setdefault(key_of(row), {})[row] = 1
        _, index = self._indexes[hop.key]
        return index.get(key, {}).items()


@dataclass
class RowEvents:
    """What the holding queue says about the rows of one occurrence.

    ``first`` holds the first event of each row that the queue mentions, ``deleted`` the rows whose first event is a
    deletion, and ``later`` the other events of a row, in order.
    """

    deleted: Deletions
    first: dict[Row, Event] = field(default_factory=dict, init=False)
    later: dict[Row, deque[Event]] = field(default_factory=dict, init=False)

    def append(self, row: Row, event: Event) -> None:
        if row in self.first:
            self.later.setdefault(row, deque()).append(event)
        else:
            self._begin(row, event)

    def popleft(self, row: Row) -> None:
        """The first event of the row leaves the queue."""
        del self.first[row]
        self.deleted.discard(row)
        if later := self.later.get(row):
            self._begin(row, later.popleft())
            if not later:
                del self.later[row]

    def _begin(self, row: Row, event: Event) -> None:
        self.first[row] = event
        if event.deletes:
            self.deleted.add(row)


@dataclass
class HoldingQueue:
    """Everything received after the update that is being handled; it grows and shrinks by the rows that change.

    A long transaction is as many places in the queue: what it says of a row must not take a walk through it.
    """

    tiny: TinyView
    _held: deque[Held] = field(default_factory=deque, init=False)
    _events: dict[int, RowEvents] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._events = {o.index: RowEvents(Deletions(self.tiny)) for o in self.tiny.view.occurrences}

    def __iter__(self) -> Iterator[Held]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def __getitem__(self, occurrence: int) -> RowEvents:
        return self._events[occurrence]

    def append(self, held: Held) -> None:
        self._held.append(held)
        for at, rows in held.changes.items():
            for row, count in rows.items():
                self._events[at].append(row, Event(held.place, held.update.number, count < 0))

    def popleft(self) -> Held:
        held = self._held.popleft()
        for at, rows in held.changes.items():
            for row in rows:
                self._events[at].popleft(row)
        return held


@dataclass
class CompleteStrobe(Algorithm):
    """``held`` is the holding queue."""

    held: HoldingQueue = field(init=False)
    busy: bool = field(default=False, init=False)
    places: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.expressions = Expressions(self.tiny)
        self.held = HoldingQueue(self.tiny)

    @cached_property
    def keys(self) -> Keys:
        return Keys.of(self.tiny)

    def receive(self, update: Update) -> Process:
        """Places the update in the holding queue, and empties the queue, if that is not being done already."""
        *others, last = self.units(update)
        for unit in others:
            self.hold(unit, frozenset())
        self.hold(last, frozenset({update.number}))
        if self.busy:
            return
        self.busy = True
        while self.held:
            yield from self.handle(self.held.popleft())
        self.busy = False

    def units(self, update: Update) -> list[Update]:
        """What is handled at a time: one insertion or deletion."""
        return [replace(update, ops=(op,)) for op in update.ops] or [update]

    def hold(self, unit: Update, reflects: frozenset[int]) -> None:
        self.places += 1
        self.held.append(Held(self.places, unit, self.expressions.changes(unit), reflects))

    def handle(self, held: Held) -> Process:
        """Processes U_i: its deletions by key, its insertions by queries that are compensated until UQS = ∅."""
        inserted = (self.expressions.view_with(at, insertions(rows)) for at, rows in held.changes.items())
        delta = yield from self.compensated(held.update.number, [part for part in inserted if part], ())
        rows = frozenset(self.tiny.output(self.without_later(held.update.number, delta)))
        actions = (*self.deletes(held), *((Insert(rows),) if rows else ()))
        if actions or held.reflects:
            yield Install(held.reflects, actions)

    def deletes(self, held: Held) -> Iterator[Action]:
        """key_delete(MV, U_i)."""
        for at, rows in held.changes.items():
            for row in deletions(rows):
                yield self.keys.action(Deleted(held.update.number, at, self.keys.key(at, row)))

    def compensated(self, number: int, parts: list[Part], path: tuple[int, ...]) -> Process:
        """A_{i,j,k} and the answers to all queries that compensate it; ``path`` was substituted on the way to it."""
        answer = yield from self.expressions.evaluate(parts)
        delta = dict.fromkeys(answer, 1)  # "without adding duplicate tuples"
        missing = list(self.missing(parts, path))
        if missing:
            results = yield Together(tuple(self.compensated(number, some, (*path, at)) for at, some in missing))
            for (at, some), result in zip(missing, results, strict=True):
                self.put_back(number, at, some, {c: 1 for c in result if c not in delta})
                delta |= result
        return delta

    def missing(self, parts: list[Part], path: tuple[int, ...]) -> Iterator[tuple[int, list[Part]]]:
        """Q_{i,p,new} for all deletions U_p received by now, grouped by the occurrence that they are substituted in."""
        for occurrence in self.tiny.view.occurrences:
            at = occurrence.index
            gone = self.held[at].deleted
            asking = [part for part in parts if gone.rows and at in self.expressions.open(part)]
            substituted = (self.expressions.substitute_by(part, at, gone.matching) for part in asking)
            if some := [part for p in substituted if (part := self.in_order(p, (*path, at)))]:
                yield at, some

    def in_order(self, part: Part, path: tuple[int, ...]) -> Part:
        """The combinations whose last substituted row was deleted after the one substituted before it."""
        if len(path) < 2:
            return part
        before, last = ((at, self.first_events(at)) for at in path[-2:])
        return {c: n for c, n in part.items() if _deleted(c, *before) < _deleted(c, *last)}

    def first_events(self, occurrence: int) -> Mapping[Row, Event]:
        """What the holding queue says first about each row of an occurrence that it mentions."""
        return self.held[occurrence].first

    def without_later(self, number: int, delta: Part) -> Part:
        """key_delete*(Delta, U_k) for the insertions that were received after U_i, if they are of rows that T lacks."""
        for occurrence in self.tiny.view.occurrences if delta else ():
            at = occurrence.index
            firsts = self.first_events(at)
            error = {c: n for c, n in delta.items() if (first := firsts.get(_row(c, at))) and not first.deletes}
            if error:
                because = {firsts[_row(c, at)].update for c in error}
                self.on_compensation(Compensation(number, tuple(sorted(because)), at, error))
                delta = plus(delta, error, -1)
        return delta

    def put_back(self, number: int, at: int, parts: Iterable[Part], found: Part) -> None:
        """Tells what a compensating query found that its answer had missed."""
        if not found:
            return
        firsts = self.first_events(at)
        because = {firsts[_row(c, at)].update for part in parts for c in part}
        error: Part = {}
        add(error, found, -1)
        self.on_compensation(Compensation(number, tuple(sorted(because)), at, error))


@dataclass
class CompleteTransactionStrobe(CompleteStrobe):
    """C-TStrobe: a transaction's deletions and the union of the queries of its insertions move the view at once."""

    def units(self, update: Update) -> list[Update]:
        return [update]


def _row(combination: Combination, at: int) -> Row:
    """The row of an occurrence that is substituted or was answered."""
    row = combination[at]
    assert row is not None
    return row


def _deleted(combination: Combination, at: int, firsts: Mapping[Row, Event]) -> tuple[int, int]:
    """When the row at a substituted occurrence was deleted; occurrences tell rows of one transaction apart."""
    return firsts[_row(combination, at)].place, at
