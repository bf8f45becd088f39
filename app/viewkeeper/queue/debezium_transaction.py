"""A transaction whose END has not come yet."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import orjson

from viewkeeper.queue.inlet import Change, Message
from viewkeeper.queue.spool import SpooledList


@dataclass(slots=True)
class Transaction:
    """The events of one transaction so far, from its first one on without a gap, each once."""

    xid: str
    first: Message  # its first message
    before: int = 0  # the furthest LSN that came before it
    began: bool = False  # its beginning was seen: what is known of it starts with its first event
    loads: int = 0  # events of the connector's own snapshots
    touches: bool = False  # it did something to a captured table
    furthest: int = 0  # the highest number of an event that came too early
    problem: str | None = None  # why it cannot be used
    sequence: str | None = None  # of its first event: the END before it and the event itself
    lsns: array[int] = field(default_factory=lambda: array("q"))  # by event
    changes: SpooledList[Change] = field(default_factory=SpooledList)
    emptied: Mapping[str, int] | None = None  # by table, how many changes were made before its TRUNCATE
    tokens: tuple[str, ...] = ()  # of barriers
    strangers: dict[tuple[str, str], int] | None = None  # by table that is not captured, its first change

    @property
    def is_load(self) -> bool:
        """Whether it is nothing but a snapshot that the connector took."""
        return self.loads > 0 and self.loads == len(self.lsns)

    def counts(self, order: int, lsn: int) -> bool:
        """Whether the event with this number is the next one; notes what it says if it is not."""
        if order == len(self.lsns) + 1:
            self.lsns.append(lsn)
            if order == 1:
                self.began = True
            return True
        if order > len(self.lsns):
            self.furthest = max(self.furthest, order)
        elif order < 1 or self.lsns[order - 1] != lsn:
            # A connector that starts again inside a transaction may pass over events that share an LSN (a COPY, a
            # changed key) and number the rest anew.
            self.problem = self.problem or f"event {order} came twice, and not as the same event: some may be missing"
        return False

    def meets(self, table: tuple[str, str], lsn: int) -> None:
        """It did something to a table that is not captured under this name."""
        if self.strangers is None:
            self.strangers = {}
        self.strangers.setdefault(table, lsn)

    def fault(self, events: int) -> str | None:
        """Why this is not the whole transaction, if its END counts so many events."""
        if len(self.lsns) == events and self.furthest <= events:
            return self.problem
        return f"it holds {len(self.lsns)} of its {events} events: the others never came, or came out of order"

    def done(self) -> Iterable[Change]:
        """Its changes, without those that a TRUNCATE undid."""
        return self._after_truncates(self.emptied) if self.emptied else self.changes

    def _after_truncates(self, emptied: Mapping[str, int]) -> Iterator[Change]:
        for number, change in enumerate(self.changes):
            if number >= emptied.get(change[0], 0):
                yield change

    def follows(self) -> int | None:
        """The END before this transaction, if the events tell."""
        try:
            before, _ = orjson.loads(self.sequence or "")
            return int(before)
        except (TypeError, ValueError):
            return None

    def mark(self) -> Mark:
        kept = replace(self, lsns=self.lsns[:])
        return kept, len(self.changes)


Mark = tuple[Transaction, int]


def brought_back(marks: Collection[Mark]) -> dict[str, Transaction]:
    """The transactions as they were when the marks were made."""
    for transaction, length in marks:
        transaction.changes.cut(length)
    # The marks may be needed again.
    return {transaction.xid: transaction.mark()[0] for transaction, _ in marks}
