"""Which transactions of a workload may commit next: every source keeps its own order, and no other is prescribed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from viewkeeper.simulator.history import Commit, Transaction, Workload


class Uncommitted:
    """The transactions that are still to commit."""

    def __init__(self, workload: Workload) -> None:
        self._transactions = workload.transactions
        self._waiting: dict[str, deque[int]] = {name: deque() for name in workload.sources}
        for index, transaction in enumerate(workload.transactions):
            for name in transaction.parts:
                self._waiting[name].append(index)

    def at(self, source: str) -> int:
        """How many a source has left."""
        return len(self._waiting[source])

    def commits(self) -> Iterator[Commit]:
        """Those that may commit now: each is the next one at all its sources."""
        heads = {name: waiting[0] for name, waiting in self._waiting.items() if waiting}
        for index in dict.fromkeys(heads.values()):
            if all(heads[name] == index for name in self._transactions[index].parts):
                yield Commit(index)

    def take(self, index: int) -> Transaction:
        """One that may commit now, which does."""
        transaction = self._transactions[index]
        for name in transaction.parts:
            self._waiting[name].popleft()
        return transaction

    def clear(self) -> None:
        """None is to commit any more."""
        for waiting in self._waiting.values():
            waiting.clear()
