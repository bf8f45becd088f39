"""What can go wrong, split by who must act.

    ViewkeeperError
    ├── UserError        exit 2   the user must change something
    │   ├── ConfigError           the configuration file
    │   ├── ViewError             a view's SQL
    │   └── UsageError            the command line, or the order of commands
    └── WorldError       exit 3   the world must change
        ├── SourceError           a source database (unreachable, altered, restored)
        ├── KafkaError            the broker or a topic
        ├── KafkaRefused          the broker does not let us in
        ├── TopicLost             a topic no longer holds what is still needed
        ├── RowTooLarge           a row is larger than a message can be
        ├── BadMessage            a message in a topic cannot be used
        ├── SparkEnded            the JVM that Spark runs in has ended
        └── WarehouseError        the warehouse's tables
            ├── WarehouseUnreachable   its disk (full, busy, not permitted)
            └── NegativeCount     a fold found a row deleted more often than it existed

Each error carries one or more problems; a problem prints as ``<place>: <what>; <remedy>``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class At:
    """A place in a text, counted from 1; in a line too long to count in, with the words that stand there."""

    line: int
    column: int
    words: str = ""

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}" + (f" (at '{self.words}')" if self.words else "")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where (of a text: at which line), what, and what to do about it."""

    place: str
    what: str
    remedy: str = ""
    at: At | None = None

    def __str__(self) -> str:
        return f"{self.place}: {self.said}" + (f"; {self.remedy}" if self.remedy else "")

    @property
    def said(self) -> str:
        """What is wrong, and where in the text."""
        return self.what if self.at is None else f"{self.at}: {self.what}"


class ViewkeeperError(Exception):
    """A failure that is reported to the user in one line per problem, without a traceback."""

    exit_code = 3

    def __init__(self, problems: Problem | Iterable[Problem]):
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple[type[Self], tuple[tuple[Problem, ...]]]:
        # Errors cross process borders whole: a Spark worker hands them to the driver.
        return type(self), (self.problems,)

    @classmethod
    def at(cls, place: str, what: str, remedy: str = "") -> Self:
        return cls(Problem(place, what, remedy))


class UserError(ViewkeeperError):
    exit_code = 2


class ConfigError(UserError):
    pass


class ViewError(UserError):
    pass


class UsageError(UserError):
    pass


class WorldError(ViewkeeperError):
    exit_code = 3


class SourceError(WorldError):
    pass


class SourceUnreachable(SourceError):
    """The source does not answer at the moment; trying again may help."""


class SnapshotLost(SourceError):
    """The source no longer knows the state that it was asked for; a newer one may do."""


class KafkaError(WorldError):
    pass


class KafkaRefused(WorldError):
    """The broker answers, but not to us (a wrong password, another TLS): waiting is no help."""


class TopicLost(WorldError):
    pass


class RowTooLarge(WorldError):
    pass


class BadMessage(WorldError):
    pass


class SparkEnded(WorldError):
    pass


class WarehouseError(WorldError):
    pass


class WarehouseUnreachable(WarehouseError):
    """The disk does not take or give what it should at the moment; trying again may help."""


class NegativeCount(WarehouseError):
    pass


def raise_together(failures: Collection[BaseException]) -> None:
    """Raises what several failed with, if any did: what nobody foresaw first, then what the user can change.

    Every known problem is told.
    """
    for error in failures:
        if not isinstance(error, ViewkeeperError):
            raise error
    known = sorted(
        (error for error in failures if isinstance(error, ViewkeeperError)), key=lambda e: isinstance(e, UserError)
    )
    if known:
        # Groups may share what has failed: it is told once.
        raise type(known[-1])(dict.fromkeys(problem for error in known for problem in error.problems))
