"""How a view is kept: by which algorithm, with which options, and what level that promises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from viewkeeper.algebra.tiny import TinyView
from viewkeeper.algorithms.complete_n import CompleteN
from viewkeeper.algorithms.protocol import Algorithm
from viewkeeper.algorithms.registry import ALGORITHMS, SWEEP, Assumption, Entry, Scenario
from viewkeeper.consistency.levels import Level

REFRESH = "refresh"
"""Recomputed now and then, in columns as well."""

CONVERGENT = "convergent"
"""Compensates nothing, so what it leaves in the view may be wrong for ever."""

COMPLETE_N = "complete_n"
"""Shows only the states after every N-th update."""


@dataclass(frozen=True)
class Keeping:
    """A view's algorithm and its options; ``every`` tells when a refresh is due: so many updates, or so much time."""

    algorithm: str = SWEEP
    options: Mapping[str, int | bool] = field(default_factory=dict)
    every: int | timedelta | None = None

    @property
    def entry(self) -> Entry:
        """What the registry says of it."""
        return ALGORITHMS[self.algorithm]

    @property
    def level(self) -> Level:
        """The level that every history of the sources reaches.

        A transaction of a source may change many rows, so it is the promise for such transactions that counts.
        """
        return self.entry.promise.get(Scenario.LOCAL, Level.INCONSISTENT)

    @property
    def complete_n(self) -> int | None:
        """The N of an algorithm that is complete after every N-th update."""
        return self.options.get("complete_n", CompleteN.complete_n) if self.algorithm == COMPLETE_N else None

    @property
    def assumes(self) -> tuple[Assumption, ...]:
        """What must hold for a view that is kept like this."""
        # To delete by key, the conventional algorithm needs the keys that Strobe does.
        return self.entry.assumes + (ALGORITHMS["strobe"].assumes if self.options.get("keyed") else ())

    def problems(self, tiny: TinyView) -> list[tuple[str, str]]:
        """(what is wrong, what to do) for each assumption that a view breaks."""
        return [(broken, a.what_to_do(tiny)) for a in self.assumes if (broken := a.broken(tiny)) is not None]

    def make(self, tiny: TinyView) -> Algorithm:
        """A new instance of the algorithm, for a view that reflects every update so far."""
        assert self.entry.make is not None, f"{self.algorithm} has a manager of its own"
        return self.entry.make(tiny, **self.options)


def weakest(keeping: Mapping[str, Keeping]) -> Level:
    """The level of a whole group of views."""
    return min((each.level for each in keeping.values()), default=Level.COMPLETE)
