"""SWEEP as printed (sweep-1997, Figures 3 and 4): updates one after the other, each compensated on its way.

Promises complete consistency; assumes only FIFO channels. Section 5.3's two improvements are options:

    parallel     left and right at once: the branches that the join graph falls into without the updated occurrence
    pipeline     so many updates are swept at the same time; their changes are installed in order of arrival

The papers take an update for concurrent if it waits in the queue when the answer comes. Numbers say the same and
also serve a pipeline: an answer contains every update of its source received by now, so what is wrong in it for
update k are the changes of those received with a number past k, whoever sweeps them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from viewkeeper.algebra.tiny import Bag, Part, add, plus
from viewkeeper.algebra.view import Edge, Hop, View
from viewkeeper.algorithms.message_queue import MessageQueue, Unwanted
from viewkeeper.algorithms.protocol import (
    Algorithm,
    Change,
    Compensation,
    Install,
    Process,
    Query,
    Term,
    Together,
    Update,
)


@dataclass
class SequentialSweep(Algorithm):
    """``received`` is the UpdateMessageQueue: every update that the view does not reflect yet."""

    parallel: bool = False
    pipeline: int = 1
    received: MessageQueue = field(init=False)
    waiting: deque[Update] = field(default_factory=deque, init=False)
    finished: dict[int, Bag] = field(default_factory=dict, init=False)
    active: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.received = MessageQueue(self.tiny)

    def receive(self, update: Update) -> Process:
        """LogUpdates; and UpdateView, if it is not at work already."""
        self.received.append(update)
        self.waiting.append(update)
        if self.active >= self.pipeline:
            return
        self.active += 1
        while self.waiting:
            current = self.waiting.popleft()
            self.finished[current.number] = yield from self.view_change(current)
            yield from self.install()
        self.active -= 1

    def install(self) -> Process:
        """Installs the changes that are finished, in order of arrival."""
        while self.received and (first := self.received.first.number) in self.finished:
            yield Install(frozenset({first}), (Change(self.finished.pop(first)),))
            self.received.remove(first)

    def view_change(self, update: Update) -> Process:
        """ViewChange: the telescoped sum over the occurrences that the update changes (see ``sweep``)."""
        total: Bag = {}
        for occurrence in self.tiny.view.occurrences:
            rows = update.change(self.tiny, occurrence)
            if rows:
                part = yield from self.sweep_from(update, occurrence.index, rows)
                add(total, self.tiny.output(part))
        return total

    def sweep_from(self, update: Update, start: int, rows: Bag) -> Process:
        """One term of the sum: ΔR_i joined with everything else."""
        part = self.tiny.start(start, rows)
        if not self.parallel:
            return (yield from self.sweep_along(update, part, self.tiny.view.hops(start)))
        sides, open_residuals = branches(self.tiny.view, start)
        # Counts multiply when the sides are put together, so only one of them carries the change's own.
        ones = [part, *(dict.fromkeys(part, 1) for _ in sides[1:])]
        if not sides:
            return part
        results = yield Together(
            tuple(self.sweep_along(update, one, hops) for one, hops in zip(ones, sides, strict=True))
        )
        whole = results[0]
        for side in results[1:]:
            whole = joined_at(start, whole, side)
        return self.tiny.where(whole, open_residuals)

    def sweep_along(self, update: Update, part: Part, hops: tuple[Hop, ...]) -> Process:
        """The for-loops of Figure 4: each answer is compensated before the next hop."""
        for hop in hops:
            if not part:
                break
            ((answer,),) = yield Query(hop.occurrence.source, (Term(part, (hop,)),))
            part = self.compensated(update, part, hop, answer)
        return part

    def compensated(self, update: Update, part: Part, hop: Hop, answer: Part) -> Part:
        """answer − ΔR_j ⋈ TempView, for the changes that the state wanted here must not contain."""
        return self.corrected(update, part, hop, answer, self.unwanted(update, hop))

    def corrected(self, update: Update, part: Part, hop: Hop, answer: Part, unwanted: Unwanted) -> Part:
        """The answer without what unwanted updates changed in it; on whose behalf is told to who listens."""
        error, because = self.received.error(part, hop, unwanted)
        if not error:
            return answer
        self.on_compensation(Compensation(update.number, because, hop.occurrence.index, error))
        return plus(answer, error, -1)

    @staticmethod
    def unwanted(update: Update, hop: Hop) -> Unwanted:
        """Left of the start an occurrence is wanted as of the update, right of it as of just before."""
        last = update.number if hop.inclusive else update.number - 1
        return lambda number: number > last


def joined_at(start: int, left: Part, right: Part) -> Part:
    """ΔV_left ⋈ ΔV_right: partial rows that agree on the row they started from."""
    by_start: dict[object, list[tuple[tuple[object, ...], int]]] = {}
    for combination, count in right.items():
        by_start.setdefault(combination[start], []).append((combination, count))
    joined: Part = {}
    for combination, count in left.items():
        for other, times in by_start.get(combination[start], ()):
            whole = tuple(mine if mine is not None else theirs for mine, theirs in zip(combination, other, strict=True))
            add(joined, {whole: count * times})
    return joined


def branches(view: View, start: int) -> tuple[list[tuple[Hop, ...]], tuple]:
    """The hops from ``start`` split into sides that need nothing of each other, and the conditions across sides."""
    edges = [e for e in view.edges if not _implied(view, start, e)]
    sides = list(_components(view, start, edges))
    lone = replace(view, edges=tuple(edges))
    split = [lone.hops(start, side | {start}) for side in sides]
    decided = {r for hops in split for hop in hops for r in hop.residuals} | set(view.decided_at_start(start))
    return split, tuple(r for r in view.residuals if r not in decided)


def _implied(view: View, start: int, edge: Edge) -> bool:
    """Whether an equality follows from two equalities with the start: then it ties no sides together."""
    if start in (edge.left, edge.right):
        return False
    ends = {(edge.left, edge.left_column), (edge.right, edge.right_column)}
    ties: dict[str, set[tuple[int, str]]] = {}
    for e in view.edges:
        if e.left == start:
            ties.setdefault(e.left_column, set()).add((e.right, e.right_column))
        if e.right == start:
            ties.setdefault(e.right_column, set()).add((e.left, e.left_column))
    return any(ends <= tied for tied in ties.values())


def _components(view: View, start: int, edges: list[Edge]) -> Iterator[frozenset[int]]:
    """What the join graph falls into when the start is taken out."""
    left = set(range(len(view.occurrences))) - {start}
    while left:
        side = {min(left)}
        while more := {
            b for e in edges for a, b in ((e.left, e.right), (e.right, e.left)) if a in side and b in left - side
        }:
            side |= more
        left -= side
        yield frozenset(side)
