"""What an algorithm of the papers receives, asks and emits; one vocabulary for all of them.

An algorithm is an object that receives updates. Receiving one starts a process (a generator) that may ask sources and
may change the view:

    answer = yield Query(source, terms)       send a question, go on when its answer is there
    yield Install(updates, actions)           the warehouse applies these actions as one transaction
    left, right = yield Together((a, b))      run processes at the same time, go on when all have ended

Processes of several updates run at the same time; an algorithm that wants them one after the other keeps its own
queue, as the papers do. Nothing here waits: the simulator answers with adversarial timing, the job with real databases.

The contract with whoever delivers is the papers' FIFO channel: a source's answer arrives after exactly those of its
updates that the answer contains.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from viewkeeper.algebra.tiny import Bag, Part, Row, TinyView, add
from viewkeeper.algebra.view import Hop, Occurrence


@dataclass(frozen=True)
class Op:
    """One row inserted (+1) or deleted (−1); ``source`` is where, if its update does not say so."""

    relation: str
    row: Row
    count: int
    source: str | None = None


@dataclass(frozen=True)
class Update:
    """U_k: everything one source transaction did, in its order; ``number`` is its place in delivery order.

    ``parts`` names the sources of the global transaction that it is a part of (``txn`` is then the same in all).
    ``spans`` names those of a transaction that is here as a whole, all its parts in one: its ops say where they were.
    """

    number: int
    source: str
    txn: str
    ops: tuple[Op, ...]
    parts: frozenset[str] = frozenset()
    spans: frozenset[str] = frozenset()

    @property
    def sources(self) -> frozenset[str]:
        """Where it was done."""
        return self.spans or frozenset({self.source})

    def change(self, tiny: TinyView, occurrence: Occurrence) -> Bag:
        """ΔR as an occurrence sees it."""
        bag: Bag = {}
        for op in self.ops:
            if op.relation == occurrence.relation and (op.source or self.source) == occurrence.source:
                add(bag, {op.row: op.count})
        return tiny.rows(occurrence, bag)


@dataclass(frozen=True)
class Term:
    """Partial rows that a source is to join with relations of its own, in the order of ``hops``."""

    part: Part
    hops: tuple[Hop, ...]
    each: bool = False  # whether the part after each hop is wanted, not only the one after the last


@dataclass(frozen=True)
class Query:
    """One message to one source, which evaluates all terms in one and the same state."""

    source: str
    terms: tuple[Term, ...]


Answer = tuple[tuple[Part, ...], ...]
"""Per term its part after the last hop, or after each hop."""


def evaluate(tiny: TinyView, query: Query, matching: Callable[[Hop, Row], Iterable[tuple[Row, int]]]) -> Answer:
    """ComputeJoin of a source (sweep-1997, Figure 3); ``matching`` gives the rows that a hop finds under a key."""
    return tuple(_evaluated(tiny, term, matching) for term in query.terms)


def _evaluated(
    tiny: TinyView, term: Term, matching: Callable[[Hop, Row], Iterable[tuple[Row, int]]]
) -> tuple[Part, ...]:
    part, parts = term.part, []
    for hop in term.hops:
        part = tiny.join_by(part, hop, partial(matching, hop))
        parts.append(part)
    return tuple(parts) if term.each else (part,)


@dataclass(frozen=True)
class Change:
    """Adds a signed bag to the view; ``clamped``, it takes away no more than there is."""

    bag: Bag
    clamped: bool = False


@dataclass(frozen=True)
class Insert:
    """Inserts rows, without adding duplicates: every row is in the view at most once."""

    rows: frozenset[Row]


@dataclass(frozen=True)
class KeyDelete:
    """Deletes the view's rows that hold ``key`` in the view columns ``columns``."""

    columns: tuple[int, ...]
    key: Row


@dataclass(frozen=True)
class Replace:
    """Puts a bag in the place of the whole view."""

    bag: Bag


Action = Change | Insert | KeyDelete | Replace


@dataclass(frozen=True)
class Install:
    """An action list: applied to the view as one transaction, it makes the view reflect these updates too."""

    updates: frozenset[int]
    actions: tuple[Action, ...]


@dataclass(frozen=True)
class Together:
    """Processes that run at the same time; the asker gets their results in order."""

    processes: tuple[Process, ...]


Step = Query | Install | Together
Process = Generator[Step, Any, Any]


@dataclass(frozen=True)
class Compensation:
    """What an algorithm took out of an answer (or put back) because of updates it must not, or must, contain."""

    update: int  # on whose behalf
    because: tuple[int, ...]  # the updates that interfered
    occurrence: int
    error: Part  # what was subtracted


def _nobody(compensation: Compensation) -> None:
    """Listens to no compensation."""


@dataclass
class Algorithm(ABC):
    """A view's algorithm; an instance keeps one view, and starts where the view reflects every update so far."""

    tiny: TinyView
    on_compensation: Callable[[Compensation], None] = field(default=_nobody, kw_only=True)

    @abstractmethod
    def receive(self, update: Update) -> Process:
        """The process that an update starts when it arrives; updates arrive in the order of their numbers."""

    def flush(self) -> Process:
        """The process that makes the view reflect every update received, where the algorithm would still wait."""
        yield from ()


def apply(view: Mapping[Row, int], actions: tuple[Action, ...]) -> Bag:
    """How the view changes when an action list is applied to it, in order, as one transaction."""
    state: Bag = dict(view)
    delta: Bag = {}
    for action in actions:
        change = _effect(state, action)
        add(state, change)
        add(delta, change)
    return delta


def _clamped(view: Mapping[Row, int], bag: Bag) -> Bag:
    effect = {row: max(count, -view.get(row, 0)) for row, count in bag.items()}
    return {row: count for row, count in effect.items() if count}


def _effect(view: Mapping[Row, int], action: Action) -> Bag:
    if isinstance(action, Change):
        return _clamped(view, action.bag) if action.clamped else action.bag
    if isinstance(action, Insert):
        return {row: 1 for row in action.rows if row not in view}
    if isinstance(action, KeyDelete):
        return {row: -n for row, n in view.items() if tuple(row[c] for c in action.columns) == action.key}
    delta = dict(action.bag)
    add(delta, view, -1)
    return delta
