"""Strobe (strobe-1996, section 5.2, Algorithm 1): queries are asked as insertions arrive, deletions need none.

Promises strong consistency where every transaction is one insertion or deletion. It does not understand larger ones:
each insertion and deletion is handled as an update of its own, so the view may show the middle of a transaction
(Example 4; see ``t_strobe``). Assumes that the view shows the key of every relation, and pauses between updates: the
view moves when no query is unanswered.

A relation may occur several times. V⟨U⟩ is then the union over the occurrences that U is put in the place of; rows
that two of them find are the same row, since a view with keys is a set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from viewkeeper.algebra.tiny import Bag, Part, Row, plus
from viewkeeper.algorithms.keys import Deleted, Keys
from viewkeeper.algorithms.protocol import (
    Action,
    Algorithm,
    Compensation,
    Insert,
    Install,
    Process,
    Together,
    Update,
)
from viewkeeper.algorithms.source_evaluate import Expressions


@dataclass(eq=False)
class Unanswered:
    """A query Q_i without its answer, and pending(Q_i): the deletions received since it was sent."""

    update: int
    parts: tuple[Part, ...]
    pending: list[Deleted] = field(default_factory=list)


@dataclass
class Strobe(Algorithm):
    """``unanswered`` is UQS, ``action_list`` is AL; ``received`` are the updates that AL makes the view reflect."""

    unanswered: list[Unanswered] = field(default_factory=list, init=False)
    action_list: list[Action] = field(default_factory=list, init=False)
    received: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.expressions = Expressions(self.tiny)

    @cached_property
    def keys(self) -> Keys:
        return Keys.of(self.tiny)

    def receive(self, update: Update) -> Process:
        """One insertion or deletion after the other, none waiting for another's query."""
        *others, last = [replace(update, ops=(op,)) for op in update.ops] or [update]
        if others:
            yield Together((*(self.handle(op, frozenset()) for op in others), self.handle(last, {update.number})))
        else:
            yield from self.handle(last, {update.number})

    def handle(self, update: Update, reflects: set[int] | frozenset[int]) -> Process:
        """Upon receipt of U_i; ``reflects`` is what the view reflects once it is applied."""
        self.received |= reflects
        changes = self.expressions.changes(update)
        for occurrence, rows in changes.items():
            self.delete(update.number, occurrence, deletions(rows))
        inserted = (self.expressions.view_with(at, insertions(rows)) for at, rows in changes.items())
        yield from self.insert(Unanswered(update.number, tuple(part for part in inserted if part)))
        if self.quiet and (self.received or self.action_list):
            yield self.applied()

    def delete(self, number: int, occurrence: int, rows: Bag) -> None:
        """A deletion is added to AL, and to what is pending for every query that may have seen the row before."""
        for row in rows:
            deleted = Deleted(number, occurrence, self.keys.key(occurrence, row))
            for query in self.unanswered:
                query.pending.append(deleted)
            self.action_list.append(self.keys.action(deleted))

    def insert(self, query: Unanswered) -> Process:
        """Evaluates Q_i; of its answer, what was not deleted meanwhile is added to AL.

        A key that was deleted and inserted again is taken out of the answer too, whichever row the answer saw: the
        query of its second insertion finds it again.
        """
        self.unanswered.append(query)
        answer = yield from self.expressions.evaluate(query.parts)
        self.unanswered.remove(query)
        for deleted in query.pending:
            answer = self.key_deleted(query, answer, deleted)
        if answer:
            self.action_list.append(Insert(frozenset(self.tiny.output(answer))))

    def key_deleted(self, query: Unanswered, answer: Part, deleted: Deleted) -> Part:
        """key_delete(A_i, U_j)."""
        error = self.keys.matching(answer, deleted)
        if not error:
            return answer
        self.on_compensation(Compensation(query.update, (deleted.update,), deleted.occurrence, error))
        return plus(answer, error, -1)

    @property
    def quiet(self) -> bool:
        """Whether AL leads to a consistent state: UQS = ∅."""
        return not self.unanswered

    def applied(self) -> Install:
        """Applies AL to MV as one transaction and resets it."""
        install = Install(frozenset(self.received), tuple(self.action_list))
        self.received.clear()
        self.action_list.clear()
        return install


def insertions(rows: Mapping[Row, int]) -> Bag:
    """The rows of a change that come to be."""
    return {row: 1 for row, count in rows.items() if count > 0}


def deletions(rows: Mapping[Row, int]) -> Bag:
    """The rows of a change that cease to be."""
    return {row: 1 for row, count in rows.items() if count < 0}
