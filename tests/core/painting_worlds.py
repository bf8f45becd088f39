"""Merge processes by literal data: who is relevant to what, which runs the managers send, in which order all comes.

Holds the specification of a merge process by brute force, and Algorithm 2 line by line as it is printed.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations, product
from typing import Any, Protocol

from viewkeeper.merge.painting import Applied, Painter
from viewkeeper.merge.view_update_table import Row, Told, ViewUpdateTable

Message = tuple[str, int]
"""(REL, i) or (view, i): REL_i, or AL_i of a view."""

REL = "REL"


def drawn(table: ViewUpdateTable[Any], states: bool = False, transactions: bool = True) -> list[str]:
    """The table as the paper draws it, a line each: the views, then the updates.

    ``states`` shows entries as ``(r,3)`` instead of ``r``; ``transactions`` adds the action lists of each row.
    """
    lines = [["", *table.views, *(["WT"] if transactions else [])]]
    lines += [list(_cells(table.views, row, states, transactions)) for row in table.rows.values()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    return [line.rstrip() for line in text]


def _cells(views: Collection[str], row: Row[Any], states: bool, transactions: bool) -> Iterator[str]:
    yield f"U{row.number}"
    for view in views:
        color, state = row.entry(view)
        yield f"({color.value},{state})" if states else color.value
    if transactions:
        waiting = () if row.applied else row.told
        yield "{" + ", ".join(map(str, waiting)) + "}" if waiting else "∅"


class Merges(Protocol):
    """What every painter can do, the papers' and ours."""

    def relevant(self, number: int, views: Collection[str]) -> list[Applied[str]]: ...
    def actions(self, view: str, number: int, actions: str) -> list[Applied[str]]: ...


@dataclass(frozen=True)
class Scenario:
    """``relevant[i - 1]`` are the views of REL_i; ``ends[view]`` the updates at which its action lists end."""

    relevant: tuple[tuple[str, ...], ...]
    ends: Mapping[str, tuple[int, ...]]

    @cached_property
    def columns(self) -> dict[str, tuple[int, ...]]:
        return {
            view: tuple(i for i, views in enumerate(self.relevant, 1) if view in views) for view in sorted(self.ends)
        }

    @property
    def senders(self) -> dict[str, tuple[int, ...]]:
        return {REL: tuple(range(1, len(self.relevant) + 1)), **self.ends}

    def send(self, painter: Merges, message: Message) -> list[Applied[str]]:
        sender, number = message
        if sender == REL:
            return painter.relevant(number, self.relevant[number - 1])
        return painter.actions(sender, number, f"{sender} to {number}")

    @cached_property
    def _takes(self) -> list[tuple[frozenset[int], list[Message]]]:
        """Sets of updates that are a prefix in every column, largest first, with the action lists they end at."""
        rows = [i for i, views in enumerate(self.relevant, 1) if views]
        found = []
        for size in range(len(rows), -1, -1):
            for chosen in map(frozenset, combinations(rows, size)):
                taken = {view: [i for i in column if i in chosen] for view, column in self.columns.items()}
                if all(list(self.columns[view][: len(mine)]) == mine for view, mine in taken.items()):
                    found.append((chosen, [(view, mine[-1]) for view, mine in taken.items() if mine]))
        return found

    def prefix(self, reflected: frozenset[int], known: int) -> int:
        """How far the updates up to the last known one are reflected, in a state that all views can show."""
        return max(
            p
            for p in range(known + 1)
            if all(i in reflected for i in range(1, p + 1) if self.relevant[i - 1])
            and not any(self._spans(view, p) for view in self.ends)
        )

    def _spans(self, view: str, p: int) -> bool:
        """Does one action list of the view cover updates up to p and past it?"""
        before = [i for i in self.columns[view] if i <= p]
        return bool(before) and before[-1] not in self.ends[view]

    def allowed(self, received: Collection[Message]) -> list[frozenset[int]]:
        """The law: the sets that may be reflected after these messages, largest first."""
        return [
            chosen
            for chosen, ends in self._takes
            if all(end in received for end in ends) and all((REL, i) in received for i in chosen)
        ]


VIEWS = ("V1", "V2", "V3", "V4")


def random_scenario(rng: random.Random, complete: bool = False, updates: int = 6) -> Scenario:
    """Up to so many updates and four views; runs of any length, unless all managers are complete."""
    views = VIEWS[: rng.randint(1, 4)]
    dense = rng.choice((0.3, 0.6, 0.9))
    rows = tuple(tuple(v for v in views if rng.random() < dense) for _ in range(rng.randint(1, updates)))
    lazy = 0.0 if complete else rng.choice((0.2, 0.6))
    ends = {}
    for view in views:
        column = [i for i, row in enumerate(rows, 1) if view in row]
        ends[view] = tuple(i for i in column if i == column[-1] or rng.random() >= lazy)
    return Scenario(rows, ends)


def random_order(rng: random.Random, scenario: Scenario) -> list[Message]:
    """Every sender's messages in order; each sender has its own pace."""
    left = {sender: list(numbers) for sender, numbers in scenario.senders.items() if numbers}
    pace = {sender: rng.choice((0.1, 1.0, 5.0)) for sender in left}
    order = []
    while left:
        sender = rng.choices(list(left), [pace[s] for s in left])[0]
        order.append((sender, left[sender].pop(0)))
        if not left[sender]:
            del left[sender]
    return order


def every_order(left: Mapping[str, tuple[int, ...]]) -> Iterator[list[Message]]:
    """All interleavings of the senders."""
    if not any(left.values()):
        yield []
    for sender, numbers in left.items():
        if numbers:
            for rest in every_order({**left, sender: numbers[1:]}):
                yield [(sender, numbers[0]), *rest]


def every_scenario(updates: int, views: tuple[str, ...]) -> Iterator[Scenario]:
    """All ways in which so many updates concern these views, and all runs."""
    subsets = [
        tuple(v for v, taken in zip(views, bits, strict=True) if taken) for bits in product((0, 1), repeat=len(views))
    ]
    for rows in product(subsets[1:], repeat=updates):
        columns = {view: [i for i, row in enumerate(rows, 1) if view in row] for view in views}
        for chosen in product(*(_ends(columns[view]) for view in views)):
            yield Scenario(rows, dict(zip(views, chosen, strict=True)))


def _ends(column: list[int]) -> list[tuple[int, ...]]:
    if not column:
        return [()]
    inner = column[:-1]
    return [(*kept, column[-1]) for size in range(len(inner) + 1) for kept in combinations(inner, size)]


def run(painter: Merges, scenario: Scenario, order: Iterable[Message]) -> list[tuple[int, ...]]:
    """The rows of every transaction, in order."""
    return [applied.rows for message in order for applied in scenario.send(painter, message)]


def problem(painter: Merges, scenario: Scenario, order: Iterable[Message]) -> str | None:
    """Holds a merge process against the law after every message; gives the first thing that is wrong.

    Every transaction must lead to an allowed set (correct), with no allowed one in between (in the smallest steps),
    and bring exactly its action lists; what is reflected after a message must be the largest allowed set (prompt).
    """
    received: set[Message] = set()
    reflected: frozenset[int] = frozenset()
    for message in order:
        received.add(message)
        allowed = scenario.allowed(received)
        for applied in scenario.send(painter, message):
            before, reflected = reflected, reflected | frozenset(applied.rows)
            if reflected not in allowed or reflected == before:
                return f"after {message}: {applied.rows} leads to {sorted(reflected)}, which is not allowed"
            if any(before < between < reflected for between in allowed):
                return f"after {message}: {applied.rows} could be applied in smaller steps"
            told = sorted((view, i) for view, ends in scenario.ends.items() for i in ends if i in applied.rows)
            if sorted((t.view, t.number) for t in applied.actions) != told:
                return f"after {message}: {applied.rows} has other action lists than {told}"
            if any(a.number > b.number for a, b in combinations(applied.actions, 2) if a.view == b.view):
                return f"after {message}: {applied.actions} are not in order"
        if reflected != allowed[0]:
            return f"after {message}: {sorted(allowed[0] - reflected)} could be applied and is not"
        known = sum(sender == REL for sender, _ in received)
        if isinstance(painter, Painter) and painter.applied_prefix != scenario.prefix(reflected, known):
            return f"after {message}: prefix {painter.applied_prefix}, not {scenario.prefix(reflected, known)}"
    return None


@dataclass
class Printed:
    """Algorithm 2 line by line. ``nested`` and ``stale`` are two things that the printed text does:

    nested    a ProcessRow that was called in Line 4 or 5 goes on to Line 6, as any other
    stale     ApplyRows keeps what a ProcessRow added that failed in Line 9

    ``without`` names lines that are left out.
    """

    nested: bool = True
    stale: bool = True
    without: frozenset[int] = frozenset()
    vut: dict[int, dict[str, tuple[str, int]]] = field(default_factory=dict)  # only relevant entries: color, state
    wt: dict[int, list[Told[Any]]] = field(default_factory=dict)
    apply_rows: list[int] = field(default_factory=list)
    applied: list[Applied[Any]] = field(default_factory=list)

    def relevant(self, number: int, views: Collection[str]) -> list[Applied[Any]]:
        self.vut[number] = dict.fromkeys(views, ("white", 0))
        for told in list(self.wt.get(number, ())):
            self.process_action(told)
        return self._taken()

    def actions(self, view: str, number: int, actions: Any) -> list[Applied[Any]]:
        told = Told(view, number, actions)
        self.wt.setdefault(number, []).append(told)
        if number in self.vut:
            self.process_action(told)
        return self._taken()

    @property
    def applied_prefix(self) -> int:
        """The paper knows no cuts."""
        return 0

    def process_action(self, told: Told[Any]) -> None:
        for number, row in self.vut.items():
            if number <= told.number and row.get(told.view) == ("white", 0):
                row[told.view] = ("red", told.number)
        self.apply_rows = []
        self.process_row(told.number)

    def process_row(self, i: int, called: bool = False) -> bool:
        if i in self.apply_rows:  # Line 1
            return True
        if any(color == "white" for color, _ in self.vut[i].values()):  # Line 2
            return False
        self.apply_rows.append(i)  # Line 3
        if 4 not in self.without and not all(self.process_row(j, True) for j in self._earlier(i)):  # Line 4
            return False
        if 5 not in self.without and not all(self.process_row(j, True) for j in self._states(i)):  # Line 5
            return False
        if self.nested or not called:
            self.lines_6_to_10()
        return True

    def _earlier(self, i: int) -> Iterator[int]:
        for x in list(self.vut[i]):
            for j in [j for j in self.vut if j < i]:
                if i in self.vut and j in self.vut and self.vut[j].get(x, ("black", 0))[0] == "red":
                    yield j

    def _states(self, i: int) -> Iterator[int]:
        for x in list(self.vut.get(i, ())):
            if i in self.vut and (state := self.vut[i][x][1]) > i and state in self.vut:
                yield state

    def lines_6_to_10(self) -> None:
        rows = sorted(self.apply_rows)
        gray = [(j, x) for j in rows for x in self.vut[j]]  # Line 6
        told = tuple(told for j in rows for told in self.wt.pop(j, ()))
        self.applied += [Applied(tuple(rows), told)] if rows else []  # Line 7
        self.apply_rows = []  # Line 8
        for j in rows:  # Line 10, here because gray entries play no further part
            del self.vut[j]
        for j, x in gray if 9 not in self.without else ():  # Line 9
            next_red = [k for k in self.vut if k > j and self.vut[k].get(x, ("black", 0))[0] == "red"]
            if not self.stale:
                self.apply_rows = []
            if next_red:
                self.process_row(min(next_red))

    def _taken(self) -> list[Applied[Any]]:
        taken, self.applied = self.applied, []
        return taken
