"""SWEEP (sweep-1997, Figures 3 and 4), batched: every update of a batch sweeps together, each gets its own change.

The change of a view under update U_k is the telescoped sum over the occurrences i that U_k changes:

    ΔV_k = Σ_i  (occurrences left of i, as of k)  ⋈  ΔR_i  ⋈  (occurrences right of i, as of k − 1)

which covers transactions over several relations, self-joins and several relations in one source. A partial row is a
point: an update number, a signed count, and one row per occurrence visited. A hop asks for the keys of all points at
once and joins each point with the rows as of its own number (``algebra.timeline``): the paper's compensation
ΔV − ΔR_j ⋈ TempView, done by interval instead of by subtraction. Promises complete consistency; assumes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.algebra.bag import COUNT, UPDATE, consolidate, row_codes
from viewkeeper.algebra.evaluate import evaluate, holds
from viewkeeper.algebra.expressions import Expr
from viewkeeper.algebra.sizes import pieces, row_bytes, spans, taken
from viewkeeper.algebra.timeline import (
    POSITION,
    UNNUMBERED,
    Matches,
    Timeline,
    Window,
    build,
    groups_of_rows,
    key_codes,
    match,
)
from viewkeeper.algebra.view import Hop, Occurrence, View
from viewkeeper.messages import Answer, Ask, Tables, stacked

POINTS = 200_000
"""At most this many partial rows, and ``sizes.PIECE_BYTES`` of them, are carried at a time, so that memory stays
bounded however large a result is."""

_TOLD = (COUNT, UPDATE, POSITION)

Steps = Generator[Ask | pa.Table, Answer | None, None]
"""An algorithm: it yields questions and receives answers, and yields pieces of the view's change."""


@dataclass(frozen=True)
class Queue:
    """The UpdateMessageQueue: per relation the changes that an answer may contain or miss.

    A table holds the used columns of the relation, ``_count``, ``_update`` and ``_position``.
    """

    changes: Tables = field(default_factory=dict)

    def of(self, occurrence: Occurrence) -> pa.Table:
        """The changes that concern an occurrence: its columns, its selection applied."""
        return select(self.about(occurrence), occurrence.selection)

    def about(self, occurrence: Occurrence) -> pa.Table:
        """The changes of an occurrence's relation: its columns, selected or not; nothing is copied."""
        schema = pa.schema([*occurrence.schema, *((name, pa.int64()) for name in _TOLD)])
        table = self.changes.get((occurrence.source, occurrence.relation))
        return schema.empty_table() if table is None else table.select(schema.names)

    def and_older(self, changes: Tables) -> Queue:
        """With changes of earlier updates, which answers may miss."""
        return Queue(stacked(changes, self.changes)) if changes else self


@dataclass(frozen=True)
class Part:
    """Partial rows: per point its update number, signed count, bytes, and the row in each visited occurrence."""

    number: np.ndarray
    count: np.ndarray
    size: np.ndarray
    tables: Mapping[int, pa.Table]
    rows: Mapping[int, np.ndarray]

    def __len__(self) -> int:
        return len(self.number)

    def column(self, occurrence: int, name: str) -> pa.ChunkedArray:
        return taken(self.tables[occurrence][name], self.rows[occurrence])

    def take(self, points: np.ndarray) -> Part:
        rows = {occurrence: row[points] for occurrence, row in self.rows.items()}
        return Part(self.number[points], self.count[points], self.size[points], self.tables, rows)

    def where(self, conditions: tuple[Expr, ...]) -> Part:
        part = self
        for condition in conditions:
            kept = holds(condition, part.column, len(part)).to_numpy(zero_copy_only=False)
            part = part if kept.all() else part.take(np.flatnonzero(kept))
        return part

    def join(self, occurrence: int, timeline: Timeline, matches: Matches, points: int) -> Iterator[Part]:
        """Each point with the rows that it meets, a bounded number of points and bytes at a time."""
        size = row_bytes(timeline.rows)
        for met, row in matches.slices(points):
            place = timeline.place[row]
            both = self.size[met] + size[place]
            for low, high in spans(both, points):
                part = self.take(met[low:high])
                yield Part(
                    part.number,
                    part.count * timeline.count[row[low:high]],
                    both[low:high],
                    {**self.tables, occurrence: timeline.rows},
                    {**part.rows, occurrence: place[low:high]},
                )


@dataclass
class Sweep:
    """Sweeps one view over a queue; ``on_compensated`` hears of each source whose answer alone would be wrong."""

    view: View
    queue: Queue
    points: int = POINTS
    on_compensated: Callable[[str], None] = lambda source: None
    on_progress: Callable[[float], None] = lambda share: None  # hears which share of ``whole`` is done

    def starts(self, occurrence: int) -> pa.Table:
        """ΔR_i: what the numbered updates change in an occurrence, as the view can see it."""
        return self._start(self.queue.of(self.view.occurrences[occurrence]))

    def starts_of(self, occurrence: int, changes: pa.Table) -> pa.Table:
        """The same of some of the queue's changes."""
        return self._start(seen(changes, self.view.occurrences[occurrence]))

    @staticmethod
    def _start(changes: pa.Table) -> pa.Table:
        numbered = pc.less(changes[UPDATE], UNNUMBERED)
        return consolidate(changes.filter(numbered).drop_columns([POSITION]))

    def changes(self, updates: range) -> Steps:
        """The view's change under each of these updates."""
        for occurrence in range(len(self.view.occurrences)):
            yield from self.changes_from(occurrence, self.between(self.starts(occurrence), updates))

    @staticmethod
    def between(starts: pa.Table, updates: range) -> pa.Table:
        number = starts[UPDATE]
        inside = pc.and_(pc.greater_equal(number, updates.start), pc.less(number, updates.stop))
        return starts.filter(inside)

    def changes_from(self, occurrence: int, starts: pa.Table) -> Steps:
        """The terms of the telescoped sum that start at one occurrence, for these rows of ΔR_i."""
        for some in pieces(starts, self.points):
            some = some.combine_chunks()
            part = Part(
                some[UPDATE].to_numpy(),
                some[COUNT].to_numpy(),
                row_bytes(some),
                {occurrence: some},
                {occurrence: np.arange(len(some))},
            )
            part = part.where(self.view.decided_at_start(occurrence))
            yield from self._visit(part, self.view.hops(occurrence))

    def whole(self, number: int, start: int = 0) -> Steps:
        """The view as of an update in full: the same sweep, started from every row of one occurrence."""
        first = self.view.occurrences[start]
        answer = yield question(first)
        assert answer is not None
        window = Window(number, 1)
        changes, included = self._known(first, answer)
        answer_key, change_key = groups_of_rows(answer.rows, changes)
        change_key = np.where(selected(changes, first.selection), change_key, -1)
        timeline = build(answer.rows, answer_key, changes, change_key, included, window)
        if timeline.compensated:
            self.on_compensated(first.source)
        hops = tuple(replace(hop, inclusive=True) for hop in self.view.hops(start))
        size = row_bytes(timeline.rows)[timeline.place]
        for low, high in spans(size, self.points):
            place = timeline.place[low:high]
            part = Part(
                np.full(len(place), number),
                timeline.count[low:high],
                size[low:high],
                {start: timeline.rows},
                {start: place},
            )
            part = part.where(tuple(filter(None, (first.selection, *self.view.decided_at_start(start)))))
            yield from self._visit(part, hops)
            self.on_progress(high / len(size))

    def _visit(self, part: Part, hops: tuple[Hop, ...]) -> Steps:
        if len(part) == 0:
            return
        if not hops:
            yield self._output(part)
            return
        hop, *rest = hops
        part, codes, keys = _keys(part, hop)
        if len(part) == 0:
            return
        ask = question(hop.occurrence, hop.key, keys)
        answer = yield ask
        assert answer is not None

        window = Window.of(part.number)
        timeline = self.as_of(ask, answer, hop.occurrence, window)
        wanted = part.number - window.base - (0 if hop.inclusive else 1)
        matches = match(timeline, codes, wanted, window)
        for joined in part.join(hop.occurrence.index, timeline, matches, self.points):
            yield from self._visit(joined.where(hop.residuals), tuple(rest))

    def as_of(self, ask: Ask, answer: Answer, occurrence: Occurrence, window: Window) -> Timeline:
        """The asked rows through all states of the window: the answer, compensated by the queue."""
        changes, included = self._known(occurrence, answer)
        asked = (_asked(ask, rows, occurrence.selection) for rows in (answer.rows, changes))
        timeline = build(answer.rows, next(asked), changes, next(asked), included, window)
        if timeline.compensated:
            self.on_compensated(occurrence.source)
        return timeline

    def _known(self, occurrence: Occurrence, answer: Answer) -> tuple[pa.Table, np.ndarray]:
        """Every change that the answer may contain or miss, selected or not, and which of them it contains."""
        changes = self.queue.about(occurrence)
        included = answer.position.includes(changes[POSITION].to_numpy())
        if answer.tail is not None and len(answer.tail):
            size = len(answer.tail)
            late = answer.tail.append_column(UPDATE, pa.array(np.full(size, UNNUMBERED)))
            late = late.append_column(POSITION, pa.array(np.zeros(size, np.int64)))
            changes = pa.concat_tables([changes, late.select(changes.column_names)])
            included = np.concatenate([included, np.ones(size, bool)])
        return changes, included

    def _output(self, part: Part) -> pa.Table:
        columns = {output.name: evaluate(output.expr, part.column, len(part)) for output in self.view.outputs}
        return consolidate(pa.table({**columns, COUNT: pa.array(part.count), UPDATE: pa.array(part.number)}))


def drive(steps: Steps, ask: Callable[[Ask], Answer]) -> Iterator[pa.Table]:
    """Runs an algorithm against something that answers at once; gives the pieces of the change as they come."""
    reply: Answer | None = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration:
            return
        reply = None
        if isinstance(step, Ask):
            reply = ask(step)
        else:
            yield step


def seen(changes: pa.Table, occurrence: Occurrence) -> pa.Table:
    """The changes of a relation that concern an occurrence: its columns, its selection applied."""
    return select(changes.select([*occurrence.schema.names, *_TOLD]), occurrence.selection)


def select(rows: pa.Table, selection: Expr | None) -> pa.Table:
    """The rows for which a condition on their relation holds."""
    if selection is None or len(rows) == 0:
        return rows
    return rows.filter(pa.array(selected(rows, selection)))


def selected(rows: pa.Table, selection: Expr | None) -> np.ndarray:
    """Per row whether the condition holds, found for some rows at a time."""
    if selection is None or len(rows) == 0:
        return np.ones(len(rows), bool)
    return np.concatenate([_holds(selection, some) for some in pieces(rows, POINTS)])


def _holds(selection: Expr, rows: pa.Table) -> np.ndarray:
    return holds(selection, lambda _, name: rows[name], len(rows)).to_numpy(zero_copy_only=False)


def question(occurrence: Occurrence, key: tuple[str, ...] = (), keys: pa.Table | None = None) -> Ask:
    """What a view asks of an occurrence: the rows that hold one of the keys, or all of them."""
    columns = tuple(c.name for c in occurrence.columns)
    return Ask(occurrence.source, occurrence.relation, columns, key, keys, occurrence.selection)


def _asked(ask: Ask, rows: pa.Table, selection: Expr | None) -> np.ndarray:
    """Per row the index of its key among the asked ones, or −1, also where it is not selected; 0 if all was asked for.

    What was not asked stays where it is: a relation's changes may be far more than memory holds.
    """
    keys = np.zeros(len(rows), np.int64) if ask.keys is None else key_codes(ask.keys, rows, ask.key)
    return keys if selection is None else np.where(selected(rows, selection), keys, -1)


def _keys(part: Part, hop: Hop) -> tuple[Part, np.ndarray, pa.Table]:
    """The points that have a key (NULL joins nothing), the index of each one's key, and the distinct keys, sorted."""
    names = [str(i) for i in range(len(hop.key))]
    probes = pa.table([part.column(*probe) for probe in hop.probe], names=names)
    valid = np.logical_and.reduce([pc.is_valid(column).to_numpy() for column in probes.columns])
    if not valid.all():
        part, probes = part.take(np.flatnonzero(valid)), probes.filter(pa.array(valid))
    _, first, codes = np.unique(row_codes(probes, names), return_index=True, return_inverse=True)
    distinct = probes.take(pa.array(first))
    order = pc.sort_indices(distinct, sort_keys=[(name, "ascending") for name in names]).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return part, rank[codes], distinct.take(pa.array(order)).rename_columns(list(hop.key))
