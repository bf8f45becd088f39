"""A history as data: relations, their first rows, the transactions of the sources, and the order of events."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import islice

from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.tiny import Bag, Name, Row, TinyView, add
from viewkeeper.algebra.types import Catalog, Relation
from viewkeeper.algorithms.protocol import Op


@dataclass(frozen=True)
class Transaction:
    """What one transaction did at each of its sources; more than one source makes it global."""

    id: str
    parts: Mapping[str, tuple[Op, ...]]


@dataclass(frozen=True)
class Workload:
    """The sources' side of a history; every source executes its transactions in the order given here."""

    relations: tuple[Relation, ...]
    sql: str
    initial: Mapping[Name, tuple[Row, ...]]
    transactions: tuple[Transaction, ...]

    @cached_property
    def catalog(self) -> Catalog:
        return {(r.source, r.name): r for r in self.relations}

    @cached_property
    def sources(self) -> tuple[str, ...]:
        return tuple(sorted({r.source for r in self.relations}, key=_natural))

    @cached_property
    def tiny(self) -> TinyView:
        return _tiny(self.relations, self.sql)

    def state(self, included: Sequence[int]) -> dict[Name, Bag]:
        """Every relation after so many transactions of each source, in the order of ``sources``."""
        state: dict[Name, Bag] = {name: {} for name in self.catalog}
        for name, rows in self.initial.items():
            for row in rows:
                add(state[name], {row: 1})
        for source, count in zip(self.sources, included, strict=True):
            for _, ops in islice(self.at(source), count):
                for op in ops:
                    add(state[(source, op.relation)], {op.row: op.count})
        return state

    def at(self, source: str) -> Iterator[tuple[Transaction, tuple[Op, ...]]]:
        """The transactions of a source, in its order, with what each did there."""
        return ((t, t.parts[source]) for t in self.transactions if source in t.parts)


def _natural(name: str) -> tuple[list[tuple[str, int]], str]:
    """Orders names as people count: s2 before s10."""
    return [(letters, int(digits or -1)) for letters, digits in re.findall("([^0-9]*)([0-9]*)", name)], name


@lru_cache(maxsize=256)
def _tiny(relations: tuple[Relation, ...], sql: str) -> TinyView:
    # Thousands of random workloads share a few views, and parsing one takes longer than simulating it.
    catalog = {(r.source, r.name): r for r in relations}
    return TinyView.of(parse_view("v", sql, catalog), catalog)


@dataclass(frozen=True)
class Commit:
    """Transaction number ``index`` of the workload commits, at all its sources; each sends its part."""

    index: int


@dataclass(frozen=True)
class Evaluate:
    """A source answers the oldest question it has, in the state it is in."""

    source: str


@dataclass(frozen=True)
class Deliver:
    """The next message of a source reaches the warehouse."""

    source: str


@dataclass(frozen=True)
class Duplicate:
    """The newest update of a source that was delivered is delivered again."""

    source: str


@dataclass(frozen=True)
class Delay:
    """Nothing of a source reaches the warehouse for that many events, or until nothing else can happen."""

    source: str
    events: int


@dataclass(frozen=True)
class Crash:
    """The view manager is killed and starts again from what the warehouse holds."""


@dataclass(frozen=True)
class Show:
    """A committed update becomes visible to snapshots (only where answers state their position)."""

    source: str
    ordinal: int


@dataclass(frozen=True)
class Return:
    """The next answer of a source reaches the warehouse (only where answers have a channel of their own)."""

    source: str


Event = Commit | Evaluate | Deliver | Duplicate | Delay | Crash | Show | Return


@dataclass(frozen=True)
class History:
    """A run: a workload, the algorithm that keeps its view, and the order of events.

    An event that is not possible when its turn comes is left out; when the events are used up, what is still to
    happen happens in a fixed order. So every list of events means something, and may be shortened.
    """

    workload: Workload
    algorithm: str
    options: Mapping[str, int | bool] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    seed: int | None = None
