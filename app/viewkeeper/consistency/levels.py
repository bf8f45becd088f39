"""The levels of consistency, and what a checker says about one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from viewkeeper.consistency.history import Vector


class Level(IntEnum):
    """How well a warehouse follows its sources; each level includes those below it."""

    INCONSISTENT = 0
    CONVERGENT = 1
    WEAK = 2
    STRONG = 3
    COMPLETE_N = 4
    COMPLETE = 5

    def __str__(self) -> str:
        return "complete-N" if self is Level.COMPLETE_N else self.name.lower()


@dataclass(frozen=True)
class Verdict:
    """Whether a sequence of warehouse states reaches a level, with the evidence.

    ``holds`` is None where there were too many source states to look at: undecided.
    If it holds, ``mapping`` gives each warehouse state the source state that it equals (None for convergence, which
    speaks of the last one only) and ``schedule`` the serial schedule that completeness is about.
    If not, ``first_without`` is the index of the first warehouse state that has no source state, ``missing`` the first
    source state that the warehouse skipped; ``views`` are the views that disagree there, where many are judged.
    """

    level: Level
    holds: bool | None
    reason: str
    mapping: tuple[Vector, ...] | None = None
    schedule: tuple[Vector, ...] | None = None
    first_without: int | None = None
    missing: Vector | None = None
    views: tuple[str, ...] = ()

    def at(self, level: Level) -> Verdict:
        """The same said of another level: a higher one holds, or a lower one does not."""
        if self.holds:
            return replace(self, level=level, reason=f"it is {self.level}")
        return replace(self, level=level, reason=f"it is not {self.level}: {self.reason}")


@dataclass(frozen=True)
class Judgement:
    """The verdicts on all levels, complete-N only where it was asked for."""

    verdicts: Mapping[Level, Verdict]

    @property
    def level(self) -> Level:
        """The highest level that was shown to hold."""
        return max((v.level for v in self.verdicts.values() if v.holds), default=Level.INCONSISTENT)

    @property
    def undecided(self) -> tuple[Level, ...]:
        """The levels about which nothing could be said."""
        return tuple(level for level, verdict in self.verdicts.items() if verdict.holds is None)

    def reaches(self, level: Level) -> bool:
        """Was the level shown to hold?"""
        return self.level >= level

    @property
    def obstacle(self) -> Verdict | None:
        """The verdict on the lowest level that was not shown to hold, or None if all were."""
        return next((self.verdicts[level] for level in sorted(self.verdicts) if not self.verdicts[level].holds), None)
