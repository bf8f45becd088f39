"""Every algorithm by the name that a view's ``algorithm:`` setting gives it: what it promises and what it assumes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from viewkeeper.algebra.tiny import TinyView
from viewkeeper.algorithms.c_strobe import CompleteStrobe, CompleteTransactionStrobe
from viewkeeper.algorithms.complete_n import CompleteN
from viewkeeper.algorithms.convergent import Convergent
from viewkeeper.algorithms.eca import Eca, several_sources
from viewkeeper.algorithms.g_strobe import GlobalStrobe
from viewkeeper.algorithms.keys import blurred, exclude_null, hidden, nullable, show_hidden, undeclared
from viewkeeper.algorithms.nested_sweep import NestedSweep
from viewkeeper.algorithms.protocol import Algorithm
from viewkeeper.algorithms.refresh import Refresh
from viewkeeper.algorithms.strobe import Strobe
from viewkeeper.algorithms.sweep_sequential import SequentialSweep
from viewkeeper.algorithms.sweep_sites import SiteSweep
from viewkeeper.algorithms.t_strobe import TransactionStrobe
from viewkeeper.consistency.levels import Level

Options = Mapping[str, int | bool]

SWEEP = "sweep"
"""The default algorithm: columnar, a batch at a time."""


class Scenario(StrEnum):
    """What a transaction may span (strobe-1996, section 3.1)."""

    SINGLE = "single"
    LOCAL = "local"
    GLOBAL = "global"


@dataclass(frozen=True)
class Assumption:
    """Something that must hold for a view before an algorithm may keep it."""

    says: str
    broken: Callable[[TinyView], str | None]  # what is wrong with a view, in words
    remedy: str | Callable[[TinyView], str]

    def what_to_do(self, tiny: TinyView) -> str:
        return self.remedy if isinstance(self.remedy, str) else self.remedy(tiny)


@dataclass(frozen=True)
class Entry:
    """An algorithm. ``promise`` is its level per scenario, where it promises anything."""

    name: str
    make: Callable[..., Algorithm] | None  # None: it does not handle one update at a time, and has drivers of its own
    paper: str
    promise: Mapping[Scenario, Level]
    options: Mapping[str, type] = field(default_factory=dict)
    assumes: tuple[Assumption, ...] = ()

    def problems(self, tiny: TinyView) -> list[tuple[str, str]]:
        """(what is wrong, what to do) for each assumption that a view breaks."""
        return [(broken, a.what_to_do(tiny)) for a in self.assumes if (broken := a.broken(tiny)) is not None]


_STRONG = {Scenario.SINGLE: Level.STRONG, Scenario.LOCAL: Level.STRONG, Scenario.GLOBAL: Level.WEAK}
_COMPLETE = {Scenario.SINGLE: Level.COMPLETE, Scenario.LOCAL: Level.COMPLETE, Scenario.GLOBAL: Level.WEAK}

_KEYS = (
    Assumption(
        "every relation has a primary key",
        undeclared,
        "declare one, or choose an algorithm that needs no keys, such as sweep",
    ),
    Assumption(
        "values of a key that the source tells apart are different values to a view",
        blurred,
        "choose an algorithm that needs no keys, such as sweep",
    ),
    Assumption("no row of the view has NULL in a key", nullable, exclude_null),
    Assumption("the view shows the key of every relation", hidden, show_hidden),
)
_ONE_SOURCE = Assumption(
    "all relations are in one source", several_sources, "choose an algorithm for several sources, such as sweep"
)

ALGORITHMS: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(SWEEP, None, "sweep-1997, Figures 3 and 4, batched and as of positions", _COMPLETE),
        Entry(
            "sweep_sequential",
            SequentialSweep,
            "sweep-1997, Figures 3 and 4",
            _COMPLETE,
            {"parallel": bool, "pipeline": int},
        ),
        Entry("nested_sweep", NestedSweep, "sweep-1997, Figure 6", _STRONG, {"bound": int}),
        Entry("sweep_sites", SiteSweep, "revisit-2001", _COMPLETE, {"pipeline": int}),
        Entry("refresh", Refresh, "multiple-view-consistency-1997, section 6.3", _STRONG, {"every": int}),
        Entry("convergent", Convergent, "strobe-1996, Example 1 (conventional)", {}, {"keyed": bool}),
        Entry(
            "complete_n",
            CompleteN,
            "multiple-view-consistency-1997, section 6.3",
            {Scenario.SINGLE: Level.COMPLETE_N, Scenario.LOCAL: Level.COMPLETE_N, Scenario.GLOBAL: Level.WEAK},
            {"complete_n": int, "pipeline": int},
        ),
        Entry(
            "strobe",
            Strobe,
            "strobe-1996, Algorithm 1",
            {Scenario.SINGLE: Level.STRONG, Scenario.LOCAL: Level.CONVERGENT, Scenario.GLOBAL: Level.CONVERGENT},
            assumes=_KEYS,
        ),
        Entry(
            "t_strobe",
            TransactionStrobe,
            "strobe-1996, Algorithm 2",
            _STRONG,
            assumes=_KEYS,
        ),
        Entry(
            "g_strobe",
            GlobalStrobe,
            "strobe-1996, section 5.4",
            {**_STRONG, Scenario.GLOBAL: Level.STRONG},
            assumes=_KEYS,
        ),
        Entry(
            "c_strobe",
            CompleteStrobe,
            "strobe-1996, Algorithm 3",
            {Scenario.SINGLE: Level.COMPLETE, Scenario.LOCAL: Level.CONVERGENT, Scenario.GLOBAL: Level.CONVERGENT},
            assumes=_KEYS,
        ),
        Entry(
            "c_t_strobe",
            CompleteTransactionStrobe,
            "strobe-1996, section 6 (C-TStrobe)",
            _COMPLETE,
            assumes=_KEYS,
        ),
        Entry("eca", Eca, "sweep-1997, section 3 (ECA)", _STRONG, assumes=(_ONE_SOURCE,)),
    )
}
