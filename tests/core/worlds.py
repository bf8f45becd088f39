"""Small worlds for tests of the pure core: relations, views, histories, and sources that answer as they like.

The oracle is recomputation, row by row in plain Python (``recompute``); nothing of the sweep is used by it.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.bag import COUNT, UPDATE
from viewkeeper.algebra.rows import evaluate_row
from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.timeline import POSITION, UNNUMBERED
from viewkeeper.algebra.types import INTEGER, TEXT, Catalog, Column, Relation, Type
from viewkeeper.algebra.view import View
from viewkeeper.algorithms.sweep import Queue, Sweep, drive
from viewkeeper.messages import Answer, Ask

Row = tuple[Any, ...]
Name = tuple[str, str]
State = dict[Name, Counter[Row]]


@dataclass(frozen=True)
class Included:
    """A position that names exactly the updates an answer contains."""

    updates: frozenset[int]

    def includes(self, positions: np.ndarray) -> np.ndarray:
        return np.isin(positions, list(self.updates))


@dataclass(frozen=True)
class Did:
    """An update of a history: what one source's transaction did, as signed rows per relation."""

    source: str
    changes: Mapping[str, Counter[Row]]


@dataclass
class World:
    """Relations with their first state, and the updates that follow; update k is ``history[k - 1]``."""

    catalog: Catalog
    initial: State
    history: list[Did] = field(default_factory=list)

    def state(self, updates: Iterable[int]) -> State:
        """The state after exactly these updates."""
        state = {name: Counter(rows) for name, rows in self.initial.items()}
        for k in updates:
            did = self.history[k - 1]
            for relation, rows in did.changes.items():
                for row, count in rows.items():
                    state[(did.source, relation)][row] += count
        return state

    def queue(self, numbered: Iterable[int], later: Iterable[int] = ()) -> Queue:
        """A queue that holds these updates; those of ``later`` have no number yet."""
        held = [(k, k) for k in numbered] + [(k, UNNUMBERED) for k in later]
        tables = {}
        for name, relation in self.catalog.items():
            rows = [
                (*row, count, number, k)
                for k, number in held
                if self.history[k - 1].source == relation.source
                for row, count in self.history[k - 1].changes.get(relation.name, Counter()).items()
                if count
            ]
            extra = [Column(name, INTEGER) for name in (COUNT, UPDATE, POSITION)]
            tables[name] = arrow([*relation.columns, *extra], rows)
        return Queue(tables)

    def answer(self, ask: Ask, included: Iterable[int], tail: Iterable[int] = ()) -> Answer:
        """The rows of a relation in the state after ``included``; ``tail`` of them are handed over besides."""
        relation = self.catalog[(ask.source, ask.relation)]
        included = frozenset(included)
        indexes = [[c.name for c in relation.columns].index(name) for name in ask.columns]
        columns = [relation.columns[i] for i in indexes]

        def bag(rows: Iterable[tuple[Row, int]]) -> pa.Table:
            kept = [(*(row[i] for i in indexes), count) for row, count in rows if count]
            return arrow([*columns, Column(COUNT, INTEGER)], kept)

        rows = self.state(included)[(ask.source, ask.relation)].items()
        late = [
            item
            for k in tail
            if self.history[k - 1].source == ask.source
            for item in self.history[k - 1].changes.get(ask.relation, Counter()).items()
        ]
        return Answer(bag(rows), Included(included - frozenset(tail)), bag(late))


def arrow(columns: Sequence[Column], rows: Sequence[Row]) -> pa.Table:
    return pa.table({c.name: pa.array([row[i] for row in rows], c.type.arrow) for i, c in enumerate(columns)})


def relation(source: str, name: str, columns: str, kind: Type = INTEGER) -> Relation:
    return Relation(source, name, tuple(Column(c, kind) for c in columns.split()))


def catalog(*relations: Relation) -> Catalog:
    return {(r.source, r.name): r for r in relations}


def recompute(view: View, state: State, relations: Catalog) -> Counter[Row]:
    """The view over a state, by trying every combination of rows."""
    result: Counter[Row] = Counter()
    names = [[c.name for c in relations[(o.source, o.relation)].columns] for o in view.occurrences]
    bags = [
        [
            (row, count)
            for row, count in state[(o.source, o.relation)].items()
            if count and _true(o.selection, _at({o.index: (names[o.index], row)}))
        ]
        for o in view.occurrences
    ]
    for combination in itertools.product(*bags):
        at = _at({i: (names[i], row) for i, (row, _) in enumerate(combination)})
        if not all(
            (left := at(e.left, e.left_column)) is not None and left == at(e.right, e.right_column) for e in view.edges
        ):
            continue
        if not all(_true(r, at) for r in view.residuals):
            continue
        row = tuple(evaluate_row(o.expr, at) for o in view.outputs)
        result[row] += int(np.prod([count for _, count in combination]))
    return Counter({row: count for row, count in result.items() if count})


def _at(rows: Mapping[int, tuple[list[str], Row]]) -> Callable[[int, str], Any]:
    return lambda occurrence, name: rows[occurrence][1][rows[occurrence][0].index(name)]


def _true(predicate: Any, at: Callable[[int, str], Any]) -> bool:
    return predicate is None or evaluate_row(predicate, at) is True


def per_update(view: View, tables: Iterable[pa.Table]) -> dict[int, Counter[Row]]:
    """The pieces of a view's change as one counter per update."""
    changes: dict[int, Counter[Row]] = {}
    names = [o.name for o in view.outputs]
    for table in tables:
        columns = [table[name].to_pylist() for name in (*names, COUNT, UPDATE)]
        for *row, count, update in zip(*columns, strict=True):
            changes.setdefault(update, Counter())[tuple(row)] += count
    return {k: Counter({r: n for r, n in bag.items() if n}) for k, bag in changes.items()}


def plus(one: Counter[Row], other: Counter[Row]) -> Counter[Row]:
    total = Counter(one)
    total.update(other)
    return Counter({row: count for row, count in total.items() if count})


# Random worlds ---------------------------------------------------------------------------------------------------


def random_world(rng: random.Random, updates: int) -> World:
    """One to three sources with up to four relations, and a valid history: no row is deleted that is not there."""
    relations = []
    for number in range(rng.randint(1, 4)):
        kinds = [rng.choice((INTEGER, INTEGER, TEXT)) for _ in range(rng.randint(1, 3))]
        columns = tuple(Column(f"c{i}", kind) for i, kind in enumerate((INTEGER, *kinds)))
        relations.append(Relation(f"s{rng.randint(0, 2)}", f"r{number}", columns))
    world = World(catalog(*relations), {(r.source, r.name): Counter() for r in relations})
    for r in relations:
        for _ in range(rng.randint(0, 6)):
            world.initial[(r.source, r.name)][random_row(rng, r)] += 1
    for k in range(1, updates + 1):
        world.history.append(_random_update(rng, world, world.state(range(1, k))))
    return world


def random_row(rng: random.Random, of: Relation) -> Row:
    values: dict[Type, list[Any]] = {INTEGER: [None, 0, 1, 2, 2**60], TEXT: [None, "", "a", "ä"]}
    return tuple(rng.choice(values[column.type]) for column in of.columns)


def _random_update(rng: random.Random, world: World, state: State) -> Did:
    source = rng.choice(sorted({s for s, _ in world.catalog}))
    changes: dict[str, Counter[Row]] = {}
    mine = [r for r in world.catalog.values() if r.source == source]
    for r in rng.sample(mine, rng.randint(1, len(mine))):
        did: Counter[Row] = Counter()
        live = Counter(state[(r.source, r.name)])
        for _ in range(rng.randint(1, 3)):
            present = sorted((row for row, count in live.items() if count > 0), key=repr)
            if present and rng.random() < 0.5:
                row = rng.choice(present)
                did[row] -= 1
                live[row] -= 1
            if not present or rng.random() < 0.7:
                row = random_row(rng, r)
                did[row] += 1
                live[row] += 1
        changes[r.name] = did
    return Did(source, changes)


def random_view(rng: random.Random, world: World) -> View:
    """A connected join over one to four occurrences, with selections and residual conditions."""
    chosen = [rng.choice(list(world.catalog.values())) for _ in range(rng.randint(1, 4))]
    aliases = [f"t{i}" for i in range(len(chosen))]
    conditions = []
    for i in range(1, len(chosen)):
        j = rng.randrange(i)
        conditions += [_equality(rng, chosen, i, j) for _ in range(rng.choice((1, 1, 2)))]
    if len(chosen) > 2 and rng.random() < 0.4:
        i, j = rng.sample(range(len(chosen)), 2)
        conditions.append(_equality(rng, chosen, i, j))
    if rng.random() < 0.5:
        conditions.append(f"t{rng.randrange(len(chosen))}.c0 >= {rng.randint(0, 2)}")
    if rng.random() < 0.3:
        i, j = rng.randrange(len(chosen)), rng.randrange(len(chosen))
        conditions.append(f"(t{i}.c0 + t{j}.c0 < 4 OR t{i}.c0 IS NULL)")
    outputs = [
        f"{alias}.{c.name} AS {alias}_{c.name}"
        for alias, r in zip(aliases, chosen, strict=True)
        for c in r.columns
        if rng.random() < 0.6
    ] or ["t0.c0 AS only"]
    tables = ", ".join(f"{r.source}.{r.name} {a}" for a, r in zip(aliases, chosen, strict=True))
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return parse_view("v", f"SELECT {', '.join(outputs)} FROM {tables}{where}", world.catalog)


def _equality(rng: random.Random, chosen: Sequence[Relation], i: int, j: int) -> str:
    kind = rng.choice(chosen[i].columns).type
    others = [c for c in chosen[j].columns if c.type == kind]
    if not others:
        return f"t{i}.c0 = t{j}.c0"
    mine = rng.choice([c for c in chosen[i].columns if c.type == kind])
    return f"t{i}.{mine.name} = t{j}.{rng.choice(others).name}"


def sweep_all(
    view: View, queue: Queue, updates: range, ask: Callable[[Ask], Answer], points: int = 200_000
) -> dict[int, Counter[Row]]:
    """The change of a view under each of these updates."""
    return per_update(view, drive(Sweep(view, queue, points).changes(updates), ask))
