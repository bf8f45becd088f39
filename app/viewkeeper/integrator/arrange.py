"""Whole transactions: which updates can be numbered now, in which order, and which of them together.

A transaction over several sources comes as one update of each. They become one row of the ViewUpdateTable, so each
waits until all are there, and whatever its source sends after it waits behind it (strobe-1996, section 5.4: what a
transaction depends on was received too, and all parts of it were). No source's own order is ever changed.

Two such transactions may wait for each other: shop delivers G1, G2 and crm G2, G1. Neither can come before the other,
so both become one row, with everything that stands between their parts. In general a row is a strongly connected
component of "must not come after"; every other update is a row of its own.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, takewhile
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from viewkeeper.messages import ORDINAL, Received, Update
from viewkeeper.warehouse.mapped import only


@dataclass(frozen=True)
class Arranged:
    """``ready`` in the order of numbering, with the row that each of its updates belongs to: 0, 1, 2, …

    Rows never go back; updates of one row become one number. ``waiting`` is the rest in delivery order, to be put in
    front of what comes next: ``waiting.and_then(new)``. What was refused, or came again, stays with ``ready``.
    """

    ready: Received
    rows: np.ndarray
    waiting: Received

    @property
    def row_count(self) -> int:
        return int(self.rows[-1]) + 1 if len(self.rows) else 0


def arrange(received: Received, sources: Collection[str]) -> Arranged:
    """Splits what was received into whole rows and what must wait for a part at one of ``sources``.

    Which updates are ready, and which of them share a row, depends on what arrived only, not on the batches it came in.
    """
    if all(update.part_of is None for update in received.updates):
        return untouched(received)
    parts = _Parts.among(received.updates, frozenset(sources))
    if not parts.transactions:
        return untouched(received)
    whole = [i for i, waits in enumerate(_waiting(received.updates, parts)) if not waits]
    rows = _ordered(received.updates, whole, _row_names(received.updates, whole, parts))
    order = [i for row in rows for i in row]
    ready = replace(taken(received, order), rejected=received.rejected, again=received.again)
    waiting = taken(received, sorted(set(range(len(received.updates))).difference(order)))
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    return Arranged(ready, np.repeat(np.arange(len(rows)), sizes), waiting)


def untouched(received: Received) -> Arranged:
    """Every update as a row of its own, in delivery order; nothing waits."""
    return Arranged(received, np.arange(len(received.updates)), Received([], {}, []))


def missing(waiting: Received, sources: Collection[str]) -> list[tuple[Update, frozenset[str]]]:
    """The updates that wait for parts of their own transaction, and the sources whose parts are not there."""
    parts = _Parts.among(waiting.updates, frozenset(sources))
    there = {wanted: frozenset(waiting.updates[i].source for i in mine) for wanted, mine in parts.transactions.items()}
    lacking = ((waiting.updates[i], wanted.sources - there[wanted]) for i, wanted in parts.wanted.items())
    return [(update, sources) for update, sources in lacking if sources]


class _Wanted(NamedTuple):
    """A transaction over several sources, as far as they are ours.

    A source may use an id again. Its k-th use belongs with the k-th uses of the others, which is the same however the
    delivery was cut into batches. So do only parts that name the same sources.
    """

    id: str
    sources: frozenset[str]
    use: int


@dataclass
class _Parts:
    """The parts of global transactions among some updates, by index."""

    transactions: dict[_Wanted, list[int]] = field(default_factory=dict)
    wanted: dict[int, _Wanted] = field(default_factory=dict)
    by_source: dict[str, list[int]] = field(default_factory=dict)  # in delivery order

    @classmethod
    def among(cls, updates: Sequence[Update], sources: frozenset[str]) -> _Parts:
        parts = cls()
        uses: dict[tuple[str, str, frozenset[str]], int] = {}
        for i, update in enumerate(updates):
            if update.part_of is None:
                continue
            spanned = (update.part_of.sources & sources) | {update.source}
            if len(spanned) == 1:
                continue
            key = (update.source, update.part_of.id, spanned)
            uses[key] = uses.get(key, -1) + 1
            wanted = _Wanted(update.part_of.id, spanned, uses[key])
            parts.transactions.setdefault(wanted, []).append(i)
            parts.wanted[i] = wanted
            parts.by_source.setdefault(update.source, []).append(i)
        return parts

    def open(self) -> Iterator[int]:
        """The parts whose transactions lack others."""
        for wanted, there in self.transactions.items():
            if len(there) < len(wanted.sources):
                yield from there


def _waiting(updates: Sequence[Update], parts: _Parts) -> Iterator[bool]:
    """Per update whether it waits: for a part, or behind something of its source that waits."""
    waits_from: dict[str, int] = {}
    left = {source: list(mine) for source, mine in parts.by_source.items()}
    stuck = list(parts.open())
    while stuck:
        part = stuck.pop()
        source = updates[part].source
        waits_from[source] = min(part, waits_from.get(source, part))
        mine = left[source]
        while mine and mine[-1] >= part:  # these wait now, and so do the other parts of their transactions
            stuck += parts.transactions[parts.wanted[mine.pop()]]
    never = len(updates)
    return (i >= waits_from.get(update.source, never) for i, update in enumerate(updates))


def _row_names(updates: Sequence[Update], ready: Sequence[int], parts: _Parts) -> dict[int, int]:
    """By index, for each ready update that is not a row of its own: a number that the updates of its row share."""
    transactions = {wanted: n for n, wanted in enumerate(parts.transactions)}
    of_part = {i: transactions[wanted] for i, wanted in parts.wanted.items()}
    ready_parts = _by_source(updates, (i for i in ready if i in of_part))
    edges: dict[int, list[int]] = {}
    for mine in ready_parts.values():
        for before, after in pairwise(mine):
            edges.setdefault(of_part[before], []).append(of_part[after])
            edges.setdefault(of_part[after], [])
        edges.setdefault(of_part[mine[0]], [])
    component = _components(edges)
    names: dict[int, int] = {}
    for mine in ready_parts.values():
        names |= {i: component[of_part[i]] for i in mine}
    return names | _between(updates, ready, names)


def _between(updates: Sequence[Update], ready: Sequence[int], names: Mapping[int, int]) -> dict[int, int]:
    """The updates of a source that stand between two of its parts of one row: they belong to that row too."""
    found: dict[int, int] = {}
    last: dict[str, tuple[int, list[int]]] = {}  # by source the row of its last part, and what came since
    for i in ready:
        source, name = updates[i].source, names.get(i)
        if name is None:
            if source in last:
                last[source][1].append(i)
            continue
        if source in last and last[source][0] == name:
            found |= dict.fromkeys(last[source][1], name)
        last[source] = (name, [])
    return found


def _components(edges: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Per node the strongly connected component it is in, named by one of its nodes (Tarjan, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    component: dict[int, int] = {}
    stack: list[int] = []
    for root in edges:
        if root in index:
            continue
        path = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        while path:
            node, following = path[-1]
            for other in following:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    path.append((other, iter(edges[other])))
                    break
                if other not in component:
                    low[node] = min(low[node], index[other])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == index[node]:
                    _close(stack, node, component)
    return component


def _close(stack: list[int], node: int, component: dict[int, int]) -> None:
    """Takes a component, complete down to ``node``, from Tarjan's stack."""
    while node not in component:
        component[stack.pop()] = node


def _ordered(updates: Sequence[Update], ready: Sequence[int], names: Mapping[int, int]) -> list[list[int]]:
    """The rows in order: each where the last of its updates arrived, or as soon after that as its sources allow."""
    rows: dict[int, list[int]] = {}
    for i, name in names.items():
        rows.setdefault(name, []).append(i)
    line = _Line(updates, names, {name: sorted(members) for name, members in rows.items()})
    for i in ready:
        line.arrive(i)
    assert not any(line.held.values()), "a row that is whole must not stay behind"
    return line.gone


@dataclass
class _Line:
    """Plays the delivery: ``held`` are the updates of each source that have not gone yet, ``gone`` the rows that have.

    A row's updates stand together in each source, so the row can go once each of them is ``free``: it has arrived,
    and no other row's update is held in front of it.
    """

    updates: Sequence[Update]
    names: Mapping[int, int]
    rows: Mapping[int, list[int]]
    held: dict[str, deque[int]] = field(default_factory=dict)
    free: dict[int, int] = field(default_factory=dict)  # how many of a row's updates are
    gone: list[list[int]] = field(default_factory=list)

    def arrive(self, i: int) -> None:
        held = self.held.setdefault(self.updates[i].source, deque())
        name = self._name(i)
        held.append(i)
        if self._name(held[0]) == name and (row := self._freed(name, 1)):
            self._go(name, row)

    def _name(self, i: int) -> int:
        """The row that an update belongs to; one of its own has a name that no other can have."""
        return self.names.get(i, -1 - i)

    def _freed(self, name: int, count: int) -> list[int] | None:
        """Notes that so many more updates of a row are free; gives the row if that is all of them."""
        if name < 0:
            return [-1 - name]
        row = self.rows[name]
        self.free[name] = self.free.get(name, 0) + count
        return row if self.free[name] == len(row) else None

    def _go(self, name: int, row: list[int]) -> None:
        """A row goes, and then whatever was held by it, in order of arrival as far as that is possible."""
        due = [(row[-1], name, row)]
        while due:
            _, name, row = heapq.heappop(due)
            self.gone.append(row)
            for source in {self.updates[i].source: None for i in row}:
                held = self.held[source]
                while held and self._name(held[0]) == name:
                    held.popleft()
                if held and (next_row := self._freed(front := self._name(held[0]), self._run(held))):
                    heapq.heappush(due, (next_row[-1], front, next_row))

    def _run(self, held: deque[int]) -> int:
        """How many updates of one row stand at the front."""
        front = self._name(held[0])
        return sum(1 for _ in takewhile(lambda i: self._name(i) == front, held))


def _by_source(updates: Sequence[Update], indices: Iterable[int]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for i in indices:
        found.setdefault(updates[i].source, []).append(i)
    return found


def taken(received: Received, order: Sequence[int]) -> Received:
    """These of the updates, in this order, with what they did."""
    place = np.full(len(received.updates), -1, np.int64)
    place[order] = np.arange(len(order))
    changes = {name: _moved(table, place) for name, table in received.changes.items()}
    truncated = [t._replace(ordinal=int(place[t.ordinal])) for t in received.truncated if place[t.ordinal] >= 0]
    updates = [received.updates[i] for i in order]
    return Received(updates, {name: table for name, table in changes.items() if len(table)}, [], sorted(truncated))


def _moved(changes: pa.Table, place: np.ndarray) -> pa.Table:
    """The changes of updates that have a new place, told by it; all of them are not copied, however large."""
    moved = place[changes[ORDINAL].to_numpy()]
    table = changes.set_column(changes.column_names.index(ORDINAL), ORDINAL, pa.array(moved))
    return only(table, moved >= 0)
