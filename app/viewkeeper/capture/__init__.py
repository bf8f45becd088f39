"""Capture: a source's changes → its topic."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

RELATION = ""
"""No column's name: what is said of it holds for all columns of a relation."""


def captured_since(since: Mapping[str, int], columns: Iterable[str]) -> int:
    """The order position where the capture of all of these columns of a relation was active; see ``Capture.since``."""
    return max((since[name] for name in (RELATION, *columns) if name in since), default=0)


class Capture(Protocol):
    """What makes one source log the changes that views need. Implementations connect on first use."""

    name: str

    def install(self, relations: Mapping[str, Collection[str]], reload: bool = False) -> bool:
        """Makes exactly these relations captured (relation → used columns); is one captured only from now on?

        Doing it twice changes nothing. A relation whose capture was interrupted, so that changes may be missing, is
        refused here or told by ``since``, unless the caller is about to ``reload`` its views.
        """

    def installed(self) -> list[str]:
        """What the last ``install`` created or changed, a sentence each."""

    def begun(self, relations: Mapping[str, Collection[str]]) -> int:
        """The order position of the newest change before these columns' capture began: only past it all is known."""

    def captured(self) -> dict[str, list[str]]:
        """The relations that are captured now; of each the columns that ``install`` would forget if not told again."""

    def since(self) -> dict[str, dict[str, int]]:
        """Per captured relation and column the order position where its capture last became active.

        A column that is not named is captured with its relation, whose own position stands under ``RELATION``.
        """

    def pass_topic(self) -> bool:
        """Makes every later change's position larger than all in the topic; for a caller that loads every view.

        Tells whether the source surely shows, from now on, all that its topic held before.
        """

    def remove(self) -> list[str]:
        """Takes out of the source what ``install`` has put there; tells what it did, a sentence each."""

    def prune(self, position: int) -> int:
        """Lets the source forget its log up to ``position``, which a cut holds; what it could forget of it."""
