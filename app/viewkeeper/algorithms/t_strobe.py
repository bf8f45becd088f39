"""Transaction-Strobe (strobe-1996, section 5.3, Algorithm 2): a transaction is handled as one unit.

Promises strong consistency for transactions at one source; with global ones the view may show half of one, and is
weakly consistent. Assumes what Strobe does.

The paper removes from a transaction's list what was inserted and then deleted. The sum of the transaction per
occurrence is that and a little more: a row deleted and inserted again as it was has not changed, and asks nothing.
Deletions come before insertions in it, so a modified row is deleted by its key before its new form is inserted.
"""

from __future__ import annotations

from dataclasses import dataclass

from viewkeeper.algorithms.protocol import Process, Update
from viewkeeper.algorithms.strobe import Strobe


@dataclass
class TransactionStrobe(Strobe):
    """Strobe over update lists UL(T): all deletions, then one query for the union of all insertions."""

    def receive(self, update: Update) -> Process:
        """Upon receipt of UL(T_i)."""
        yield from self.handle(update, {update.number})
