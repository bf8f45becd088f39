"""Global-Strobe (strobe-1996, section 5.4): T-Strobe that never shows a part of a global transaction.

Promises strong consistency with transactions over several sources. Assumes what Strobe does, and that every part
arrives and names the sources of the others. The view moves when three conditions hold:

1. UQS = ∅;
2. what a received transaction depends on is received too. Transactions depend on each other only at a common source,
   where the one that came first also arrives first, and condition 3 holds for it as well: nothing to check here;
3. of every transaction that was received in part, all parts were received.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from viewkeeper.algorithms.protocol import Process, Update
from viewkeeper.algorithms.t_strobe import TransactionStrobe


@dataclass
class GlobalStrobe(TransactionStrobe):
    """``missing`` are the sources whose part of a global transaction has not arrived, by transaction."""

    missing: dict[str, set[str]] = field(default_factory=dict, init=False)

    def receive(self, update: Update) -> Process:
        if update.parts:
            missing = self.missing.setdefault(update.txn, set(update.parts))
            missing.discard(update.source)
            if not missing:
                del self.missing[update.txn]
        yield from super().receive(update)

    @property
    def quiet(self) -> bool:
        return super().quiet and not self.missing
