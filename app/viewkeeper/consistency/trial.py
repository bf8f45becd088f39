"""What the checkers work on: warehouse states and source states, equal ones made the same number.

An update that does not change the view leaves an equal state, whether or not the warehouse writes it again. So the
levels are defined up to stutter: a state that repeats the one before it counts once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from viewkeeper.consistency.history import SourceHistory, State, Vector

LIMIT = 200_000
"""Source states that one search looks at before it gives up."""


class TooMany(Exception):
    """A search gave up."""


@dataclass
class Budget:
    """How many source states a search may still look at."""

    left: int

    def spend(self) -> None:
        """Looks at one more, or raises TooMany."""
        if self.left <= 0:
            raise TooMany
        self.left -= 1


@dataclass
class _Numbers:
    """Gives equal states equal numbers, by hash where they have one."""

    _hashed: dict[State, int] = field(default_factory=dict)
    _others: list[tuple[State, int]] = field(default_factory=list)
    _next: int = 0

    def of(self, state: State) -> int:
        try:
            known = self._hashed.get(state)
        except TypeError:
            known = next((number for other, number in self._others if other == state), None)
            if known is None:
                known = self._new()
                self._others.append((state, known))
            return known
        if known is None:
            known = self._hashed[state] = self._new()
        return known

    def _new(self) -> int:
        self._next += 1
        return self._next


class Trial:
    """A sequence of warehouse states, to be judged against a history of the sources.

    ``runs`` are the warehouse states without repetitions, as numbers; ``begins`` says at which index each run begins.
    All states must be of one kind: either all have a hash or none has.
    """

    def __init__(self, states: Sequence[State], history: SourceHistory, limit: int = LIMIT):
        if not states:
            raise ValueError("a warehouse has at least its first state")
        self.history = history
        self.limit = limit
        self.size = len(states)
        self._numbers = _Numbers()
        self._seen: dict[Vector, int] = {}
        self.runs: list[int] = []
        self.begins: list[int] = []
        for index, state in enumerate(states):
            number = self._numbers.of(state)
            if not self.runs or number != self.runs[-1]:
                self.runs.append(number)
                self.begins.append(index)

    def budget(self) -> Budget:
        return Budget(self.limit)

    def at(self, vector: Vector) -> int:
        """The number of the view's state over a source state."""
        number = self._seen.get(vector)
        if number is None:
            number = self._seen[vector] = self._numbers.of(self.history.view(vector))
        return number

    def lengths(self) -> Iterator[int]:
        """How many warehouse states each run has."""
        ends = [*self.begins[1:], self.size]
        return (end - begin for begin, end in zip(self.begins, ends, strict=True))

    def spread(self, vectors: Sequence[Sequence[Vector]]) -> tuple[Vector, ...]:
        """A mapping, from the source states that each run stands for, in their order, at least one.

        The repetitions in a run take them one after the other; the very last state takes the last source state.
        """
        mapping = [
            run[min(i, len(run) - 1)] for run, size in zip(vectors, self.lengths(), strict=True) for i in range(size)
        ]
        return (*mapping[:-1], self.history.last)
