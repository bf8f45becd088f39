"""Answers that the managers of a batch share: what two views want to know is asked once.

Questions are alike when they look a relation up by the same columns. Then one table of keys and rows serves all views:
a key that any of them has asked for is not asked for again. The rows hold every column that one of the views uses, and
meet no selection but one that all of the views make; a view drops what it has not asked for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.algebra.bag import COUNT, consolidate
from viewkeeper.algebra.expressions import Expr
from viewkeeper.algebra.sizes import rows_at
from viewkeeper.algebra.timeline import groups_of_rows, key_codes
from viewkeeper.algebra.view import View
from viewkeeper.messages import Answer, Ask, SnapshotPosition
from viewkeeper.warehouse.mapped import only

MOST = 1_000_000
MOST_BYTES = 64 << 20
"""Rows of one relation that are kept at a time; past that it is forgotten, and asked for again."""

Place = tuple[str, str, tuple[str, ...]]
"""Source, relation, and the columns that it is looked up by."""


@dataclass(frozen=True)
class Shape:
    """What is asked of a relation so that all views can use the answer."""

    columns: tuple[str, ...]
    selection: Expr | None


def shapes(views: Iterable[View]) -> dict[Place, Shape]:
    """The look-ups that more than one of these views makes."""
    users: dict[Place, set[str]] = {}
    columns: dict[Place, set[str]] = {}
    selections: dict[Place, list[Expr | None]] = {}
    for view in views:
        hops = [hop for start in range(len(view.occurrences)) for hop in view.hops(start)]
        for hop in hops:
            o = hop.occurrence
            place = (o.source, o.relation, hop.key)
            users.setdefault(place, set()).add(view.name)
            columns.setdefault(place, set()).update(c.name for c in o.columns)
            selections.setdefault(place, []).append(o.selection)
    return {
        place: Shape(tuple(sorted(columns[place])), _common(selections[place]))
        for place, names in users.items()
        if len(names) > 1
    }


def _common(selections: list[Expr | None]) -> Expr | None:
    first, *others = selections
    return first if all(first == other for other in others) else None


@dataclass
class _Known:
    """What is known of one look-up: the keys that were asked for, and the rows that hold them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    keys: pa.Table | None = None
    rows: pa.Table | None = None
    position: SnapshotPosition | None = None

    def missing(self, ask: Ask) -> pa.Table:
        assert ask.keys is not None
        if self.keys is None:
            return ask.keys
        return ask.keys.filter(pa.array(key_codes(self.keys, ask.keys, ask.key) < 0))

    def add(self, ask: Ask, answer: Answer) -> None:
        keys, rows = ask.keys, _delivered(ask, answer)
        if self.rows is None or self.keys is None:
            self.keys, self.rows = keys, rows
        else:
            self.keys, self.rows = pa.concat_tables([self.keys, keys]), pa.concat_tables([self.rows, rows])
        self.position = answer.position


def _delivered(ask: Ask, answer: Answer) -> pa.Table:
    """The answer's rows without what no topic has delivered yet: answers read one after the other then agree."""
    held = _asked(ask, answer.rows)
    if answer.tail is None or len(tail := _asked(ask, answer.tail)) == 0:
        return held
    taken = tail.set_column(tail.column_names.index(COUNT), COUNT, pc.negate(tail[COUNT])).select(held.column_names)
    # What the tail cannot have touched stays where it is.
    group, touched = groups_of_rows(held, taken)
    near = np.isin(group, touched)
    both = pa.concat_tables([rows_at(held, np.flatnonzero(near)), taken])
    return pa.concat_tables([only(held, ~near), consolidate(both)])


class SharedAnswers:
    """Asks for several views at the same time; ``ask`` is called by any thread.

    ``answer`` gives a source's own answer. All of one source's come from one snapshot, or hand over as their tail
    what they contain beyond it.
    """

    def __init__(self, shapes: Mapping[Place, Shape], answer: Callable[[Ask], Answer]):
        self._shapes = shapes
        self._answer = answer
        self._lock = threading.Lock()
        self._places: dict[Place, _Known] = {}

    def ask(self, ask: Ask) -> Answer:
        """The answer to a view's question; it may hold more rows than were asked for."""
        shape = None if ask.keys is None else self._shapes.get((ask.source, ask.relation, ask.key))
        if shape is None:
            return self._answer(ask)
        with self._lock:
            known = self._places.setdefault((ask.source, ask.relation, ask.key), _Known())
        with known.lock:
            if known.rows is not None and (len(known.rows) > MOST or known.rows.nbytes > MOST_BYTES):
                known.keys = known.rows = None
            missing = known.missing(ask)
            if len(missing):
                asked = replace(ask, columns=shape.columns, keys=missing, selection=shape.selection)
                known.add(asked, self._answer(asked))
            keys, rows, position = known.keys, known.rows, known.position
        assert keys is not None and rows is not None and position is not None and ask.keys is not None
        if len(keys) > len(ask.keys):
            rows = _asked(ask, rows)
        return Answer(rows.select([*ask.columns, COUNT]), position)


def _asked(ask: Ask, rows: pa.Table) -> pa.Table:
    """The rows that hold one of the asked keys."""
    assert ask.keys is not None
    return only(rows, key_codes(ask.keys, rows, ask.key) >= 0)
