"""Sources: the way back, from questions to positioned answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from viewkeeper.algebra.types import Relation
from viewkeeper.messages import Answer, Ask, SnapshotPosition, Strangers


class Source(Protocol):
    """One autonomous database. Implementations pickle (Spark's workers ask too) and connect on first use."""

    name: str
    readers: int | None  # at most so many processes may ask at the same time; None for any number
    late: bool  # whether it may log an update before a snapshot shows it

    def describe(self, relations: Iterable[str] | None = None) -> dict[str, Relation]:
        """The relations as they are declared now: all, or just the named ones that exist."""

    def watch(self, relations: Mapping[str, Collection[str]]) -> None:
        """From now on these relations, and these columns of them, must stay as they are: a snapshot checks it."""

    def identity(self) -> dict[str, str]:
        """What tells this database, in this history of it, from another; it is stored beside the warehouse."""

    def require_identity(self, known: Mapping[str, str]) -> None:
        """Raises SourceError if this is not the database, or not the history, that was known."""

    def freeze(self, delivered: str | None, hold: bool = False) -> Any:
        """A snapshot that every later ``ask`` refers to, here and in other processes; it pickles.

        ``delivered`` is the position up to which the caller has every update. None asks for a fresh start: the
        snapshot then carries a position that no later update straddles. ``hold`` keeps what the source must
        remember for this snapshot until ``release``, for callers that are not the job.
        """

    def contains(self, snapshot: Any) -> SnapshotPosition | None:
        """What the snapshot contains; None where that is, by the source's nature, every update delivered so far."""

    def shows_all(self, snapshot: Any) -> bool:
        """Whether it surely contains every update that the source's log held when it was taken."""

    def barrier(self, snapshot: Any) -> str | None:
        """Writes a token into the source's log, after everything the snapshot contains; None where none is needed.

        Once it has come out of the topic, every update that an answer can contain was received.
        """

    def require_unbroken(self, snapshot: Any, before: int) -> None:
        """Raises SourceError if updates before the barrier are lost; the topic stood at ``before`` ahead of it."""

    def require_named(self, strangers: Strangers, relations: Collection[str]) -> None:
        """Raises SourceError where a stranger may have been one of these relations, under another name for a while."""

    def confirm(self, snapshot: Any) -> None:
        """Called after the last answer: raises SourceUnreachable if the answers are void and must be asked anew."""

    def require(self, position: str) -> None:
        """Raises SourceError unless every change after ``position``, and none before it, can still be told apart."""

    def forgive(self, relations: Collection[str]) -> None:
        """From now on, rows of exactly these relations that do not fit their types are left out of the job's answers.

        For relations of whose views none promises exactness any more; a snapshot that is held forgives nothing.
        """

    def position(self, snapshot: Any) -> str:
        """The position that a load from this snapshot stands at."""

    def ask(self, ask: Ask, snapshot: Any) -> Answer:
        """Answers in one short read; the answer states its own position."""

    def release(self, snapshot: Any) -> None:
        """Ends what this process holds for the snapshot; doing it twice is harmless."""

    def close(self) -> None:
        """Closes what this process has open; a later use opens it again."""

    def last_change(self) -> str:
        """The position of the newest committed change, as far as the source can tell; changes nothing."""

    def mark(self) -> str:
        """A position that the source's topic will reach, and past which lies nothing that is committed by now."""

    def reached(self, position: str, target: str) -> bool:
        """Whether a source that stands at ``position`` has delivered everything up to ``target``."""
