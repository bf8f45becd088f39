"""Questions of the papers' algorithms, answered by real databases in one and the same state: as of one update.

The as-of law (``algebra.timeline``) gives a relation as of any update, whatever the snapshots contain or miss. So every
question of an algorithm that received updates up to k is answered as of k. That is the papers' FIFO channel: an answer
contains exactly the updates that were delivered before it. A question over several relations of a source sees one
state, and several questions need only one look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from viewkeeper.algebra.sizes import taken
from viewkeeper.algebra.timeline import Window
from viewkeeper.algebra.tiny import Part, Row, TinyView, plain
from viewkeeper.algebra.view import Hop
from viewkeeper.algorithms.protocol import Answer, Query, Term
from viewkeeper.algorithms.sweep import Sweep, question
from viewkeeper.messages import Answer as SourceAnswer
from viewkeeper.messages import Ask

Place = tuple[int, tuple[str, ...]]
"""An occurrence, and the columns that it is looked up by."""


@dataclass
class FrozenState:
    """The view's relations as of update ``number``, as far as they were asked for; ``sweep`` holds the queue."""

    tiny: TinyView
    sweep: Sweep
    number: int
    ask: Callable[[Ask], SourceAnswer]
    _found: dict[Place, dict[Row, list[tuple[Row, int]]]] = field(default_factory=dict, init=False)

    def answers(self, queries: Sequence[Query]) -> list[Answer]:
        """The answer to each query; the first hops of all terms are looked up together, then the second ones, …"""
        walks = [[_Walk(term) for term in query.terms] for query in queries]
        while steps := [walk for terms in walks for walk in terms if walk.hop is not None]:
            self._look_up(steps)
            for walk in steps:
                walk.step(self.tiny, self._matching)
        return [tuple(walk.answer for walk in terms) for terms in walks]

    def _look_up(self, walks: Iterable[_Walk]) -> None:
        """Asks for the keys that these walks need next and that were not asked for yet."""
        wanted: dict[Place, tuple[Hop, set[Row]]] = {}
        for walk in walks:
            assert walk.hop is not None
            _, keys = wanted.setdefault(_place(walk.hop), (walk.hop, set()))
            keys |= self.tiny.probes(walk.part, walk.hop)
        for place, (hop, keys) in wanted.items():
            missing = keys - self._found.setdefault(place, {}).keys()
            if missing:
                self._found[place].update(self._rows(hop, missing))

    def _rows(self, hop: Hop, keys: set[Row]) -> dict[Row, list[tuple[Row, int]]]:
        """The rows under each of these keys."""
        occurrence = hop.occurrence
        ask = question(occurrence, hop.key, _key_table(hop, keys))
        state = self.sweep.as_of(ask, self.ask(ask), occurrence, Window(self.number, 1))
        found: dict[Row, list[tuple[Row, int]]] = {key: [] for key in keys}
        key_of = self.tiny.key_of(hop)
        columns = [taken(state.rows[c.name], state.place).to_pylist() for c in occurrence.columns]
        for *values, count in zip(*columns, state.count.tolist(), strict=True):
            row = plain(values)
            found[key_of(row)].append((row, count))
        return found

    def _matching(self, hop: Hop, key: Row) -> Iterable[tuple[Row, int]]:
        return self._found[_place(hop)][key]


@dataclass
class _Walk:
    """A term on its way through its hops."""

    term: Term
    done: list[Part] = field(default_factory=list)

    @property
    def part(self) -> Part:
        return self.done[-1] if self.done else self.term.part

    @property
    def hop(self) -> Hop | None:
        """The next one, if any."""
        return self.term.hops[len(self.done)] if len(self.done) < len(self.term.hops) else None

    @property
    def answer(self) -> tuple[Part, ...]:
        return tuple(self.done) if self.term.each else (self.part,)

    def step(self, tiny: TinyView, matching: Callable[[Hop, Row], Iterable[tuple[Row, int]]]) -> None:
        assert self.hop is not None
        self.done.append(tiny.join_by(self.part, self.hop, partial(matching, self.hop)))


def _place(hop: Hop) -> Place:
    return hop.occurrence.index, hop.key


def _key_table(hop: Hop, keys: set[Row]) -> pa.Table | None:
    """The keys in order, as sources like them; None, which asks for everything, if the hop has no key."""
    if not hop.key:
        return None
    types = {column.name: column.type.arrow for column in hop.occurrence.columns}
    columns = list(zip(*keys, strict=True))
    table = pa.table({n: pa.array(v, types[n]) for n, v in zip(hop.key, columns, strict=True)})
    return table.sort_by([(name, "ascending") for name in hop.key])
