"""What a demo runs on: three databases of one kind, behind one interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from viewkeeper.local.demo.folder import DemoFolder
from viewkeeper.warehouse.cuts import Cut

Bag = Counter[tuple[Any, ...]]


class Rows(Protocol):
    """What a statement gave."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...


@dataclass(frozen=True)
class Committed:
    """A commit: where its source's history stood then, and when it was through."""

    position: int
    at: float


class Session(ABC):
    """One program's connection to one of the databases. Statements have ``?`` for their values."""

    replacing: ClassVar[str]
    """How this database replaces a row, in words."""

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def commit(self) -> Committed | None:
        """A cut that has reached the position it gives holds the transaction; None if that changed nothing."""

    @abstractmethod
    def rollback(self) -> None:
        """Harmless where no transaction is open."""

    @abstractmethod
    def execute(self, sql: str, values: Sequence[Any] = ()) -> Rows: ...

    @abstractmethod
    def replace(self, table: str, values: Mapping[str, Any], key: Sequence[str]) -> None:
        """Puts a row in the place of the one that has its key, if there is one."""

    @abstractmethod
    def gives_way(self, error: Exception) -> bool:
        """Whether a statement failed only because others work on the same rows."""


class World(ABC):
    """The databases of a demo; ``create`` comes first, ``close`` last."""

    title: ClassVar[str]
    """What there are three of, in words."""

    second_opinion: ClassVar[str]
    """How ``recompute`` does it, in words."""

    captured_by: ClassVar[str]
    """What logs the changes, in words."""

    outlasts: ClassVar[bool]
    """Whether the databases can still be asked when the demo has ended."""

    def __init__(self, folder: DemoFolder):
        self.folder = folder

    @abstractmethod
    def create(self) -> dict[str, int]:
        """Makes the databases and fills them; their names for people, with the number of rows in each."""

    @abstractmethod
    def close(self) -> None:
        """Ends what ``create`` has started; doing it twice is harmless."""

    @abstractmethod
    def configuration(self, bootstrap: str) -> str:
        """The text of the demo's configuration file."""

    @abstractmethod
    def session(self, source: str) -> AbstractContextManager[Session]:
        """A connection as programs have it."""

    @abstractmethod
    def is_captured(self, source: str) -> bool:
        """Whether the changes of a database go to its topic from now on."""

    @abstractmethod
    def holds_all(self, cut: Cut, transactions: Mapping[str, int]) -> bool:
        """Whether the cut holds so many transactions of each source: all there were."""

    @abstractmethod
    def recompute(self, sql: str) -> Bag:
        """A view's rows with their counts, by somebody else than Viewkeeper; the databases must be at rest."""
