"""What the sources did, as the checkers see it (strobe-1996 section 4.1): a lattice of source states.

Sources are autonomous, so transactions of different sources do not conflict, and every interleaving that keeps each
source's own order is an equivalent serial schedule. A source state is therefore a vector: how many transactions of each
source it includes. A serial schedule is a path from the first vector to the last, one *step* at a time.

A global transaction is in a source state whole or not at all, so some vectors are no source states and a step may
cross several sources. Where two global transactions precede each other at different sources, no serial schedule
separates them, nor what lies between them: all of it is one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

Vector = tuple[int, ...]
"""Per source: how many of its transactions are included."""

State = Any
"""Contents of a view, or of many: anything with ``==``. Checking is faster where it has a hash as well."""

Global = frozenset[tuple[int, int]]
"""A global transaction: its parts as (index of the source, ordinal among the source's transactions, from 0)."""


@dataclass
class SourceHistory:
    """The transactions of each source, and what the view is over any of their states.

    ``view`` gives V(ss) and is asked once a vector. ``order`` is a known serial schedule, such as the order of
    delivery: the index of the source of each transaction. It is only a hint, tried before others. ``before`` are the
    transactions that came before all of these, where complete-N counts from an earlier beginning.
    """

    sources: tuple[str, ...]
    lengths: Vector
    view: Callable[[Vector], State]
    order: tuple[int, ...] = ()
    together: tuple[Global, ...] = ()
    before: int = 0

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.lengths):
            raise ValueError(f"{len(self.sources)} sources, but {len(self.lengths)} lengths")
        if self.order and tuple(self.order.count(x) for x in range(len(self.sources))) != self.lengths:
            raise ValueError(f"the order {self.order} does not hold {self.lengths} transactions")
        parts = [part for each in self.together for part in each]
        if not all(0 <= x < len(self.lengths) and 0 <= ordinal < self.lengths[x] for x, ordinal in parts):
            raise ValueError(f"a global transaction has a part that no source has: {parts}")
        self.view = cache(self.view)

    @property
    def first(self) -> Vector:
        return (0,) * len(self.lengths)

    @property
    def last(self) -> Vector:
        return self.lengths

    def steps(self, vector: Vector) -> Iterator[Vector]:
        """The source states that one more transaction, or one whole global transaction, makes of this one."""
        for x, count in enumerate(vector):
            if count == self.lengths[x]:
                continue
            if not self.together:
                yield (*vector[:x], count + 1, *vector[x + 1 :])
            elif self._is_next(vector, x):
                yield tuple(map(max, vector, self._needed(x, count)))

    @cached_property
    def schedule(self) -> tuple[Vector, ...]:
        """The source states that ``order`` goes through, a global transaction done when its last part is; or none."""
        if not self.order and any(self.lengths):
            return ()
        path, delivered = [self.first], list(self.first)
        for x in self.order:
            delivered[x] += 1
            while step := next((step for step in self.steps(path[-1]) if at_most(step, delivered)), None):
                path.append(step)
        return tuple(path)

    def described(self, vector: Vector) -> str:
        """The vector in words: ``shop 3, crm 1``."""
        return ", ".join(f"{source} {count}" for source, count in zip(self.sources, vector, strict=True))

    def _is_next(self, vector: Vector, x: int) -> bool:
        """Is the next transaction of source ``x`` one step away, and ``x`` the first source that the step crosses?

        The step is what the transaction needs beyond the vector. It is one step if all of that needs the same:
        transactions that need each other cannot be parted.
        """
        needed = self._needed(x, vector[x])
        crossed = [y for y, count in enumerate(vector) if needed[y] > count]
        return crossed[0] == x and all(self._needed(y, vector[y]) == needed for y in crossed)

    @cached_property
    def _needed(self) -> Callable[[int, int], Vector]:
        """The smallest source state that includes a transaction; transactions of one step have the same."""
        return cache(self._closure)

    def _closure(self, x: int, ordinal: int) -> Vector:
        vector = [0] * len(self.lengths)
        vector[x] = ordinal + 1
        grown = True
        while grown:
            grown = False
            for parts in self.together:
                if any(vector[y] > part for y, part in parts) and any(vector[y] <= part for y, part in parts):
                    grown = True
                    for y, part in parts:
                        vector[y] = max(vector[y], part + 1)
        return tuple(vector)


def at_most(one: Vector | list[int], other: Vector | list[int]) -> bool:
    """Does the second include every transaction that the first does?"""
    return all(a <= b for a, b in zip(one, other, strict=True))
