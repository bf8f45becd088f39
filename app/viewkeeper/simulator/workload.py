"""Random workloads: a chain of relations over several sources, and transactions of one of the papers' three scenarios.

Values are few, so that rows meet, keys come back after they were deleted, and updates get in each other's way.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

from viewkeeper.algebra.tiny import Name, Row
from viewkeeper.algebra.types import INTEGER, Column, Relation
from viewkeeper.algorithms.protocol import Op
from viewkeeper.algorithms.registry import Scenario
from viewkeeper.simulator.history import Transaction, Workload


@dataclass(frozen=True)
class Shape:
    """What a workload looks like.

    ``relations`` form a chain, r1.b = r2.a, r2.b = r3.a, …; they are dealt out to ``sources`` in turn, or in runs if
    ``grouped``. With ``repeated`` the last relation of the chain is the first one again. ``keyed`` relations have a
    key k that the view shows; without, rows may be there several times.
    """

    sources: int = 3
    relations: int = 3
    updates: int = 5
    scenario: Scenario = Scenario.SINGLE
    keyed: bool = True
    grouped: bool = False
    repeated: bool = False
    rows: int = 2  # per relation, at first
    values: int = 3  # different join values
    keys: int = 4  # different keys of a relation


def random_workload(rng: random.Random, shape: Shape) -> Workload:
    """A workload in which no transaction deletes what is not there or inserts a key that is."""
    return _Writer(rng, shape).workload()


class _Writer:
    def __init__(self, rng: random.Random, shape: Shape) -> None:
        self.rng, self.shape = rng, shape
        self.relations = tuple(self._relation(i) for i in range(shape.relations))
        self.live: dict[Name, list[Row]] = {(r.source, r.name): [] for r in self.relations}

    def _relation(self, index: int) -> Relation:
        shape = self.shape
        place = index * shape.sources // shape.relations if shape.grouped else index % shape.sources
        columns = tuple(Column(name, INTEGER) for name in ("k", "a", "b"))
        return Relation(f"s{place + 1}", f"r{index + 1}", columns, ("k",) if shape.keyed else ())

    def workload(self) -> Workload:
        for relation in self.relations:
            for _ in range(self.shape.rows):
                self._insert(relation)
        initial = {name: tuple(rows) for name, rows in self.live.items()}
        transactions = tuple(self._transaction(i + 1) for i in range(self.shape.updates))
        return Workload(self.relations, chain_sql(self.relations, self.shape.repeated), initial, transactions)

    def _transaction(self, number: int) -> Transaction:
        scenario = self.shape.scenario
        names = sorted({r.source for r in self.relations})
        several = scenario is Scenario.GLOBAL and self.rng.random() < 0.6
        chosen = self.rng.sample(names, min(len(names), 2) if several else 1)
        parts = {}
        for source in chosen:
            mine = [r for r in self.relations if r.source == source]
            many = 1 if scenario is Scenario.SINGLE else self.rng.randint(1, 3)
            parts[source] = tuple(op for _ in range(many) for op in self._change(self.rng.choice(mine)))
        return Transaction(f"t{number}", parts)

    def _change(self, relation: Relation) -> tuple[Op, ...]:
        """Usually one row inserted or deleted; outside the single scenario sometimes a row modified."""
        live = self.live[(relation.source, relation.name)]
        if self.shape.scenario is not Scenario.SINGLE and live and self.rng.random() < 0.3:
            gone = self._delete(relation)
            return (gone, self._insert(relation, gone.row[0]))
        full = self.shape.keyed and len(live) >= self.shape.keys
        if live and (full or self.rng.random() < 0.5):
            return (self._delete(relation),)
        return (self._insert(relation),)

    def _delete(self, relation: Relation) -> Op:
        live = self.live[(relation.source, relation.name)]
        row = live.pop(self.rng.randrange(len(live)))
        return Op(relation.name, row, -1)

    def _insert(self, relation: Relation, key: int | None = None) -> Op:
        live = self.live[(relation.source, relation.name)]
        if key is None:
            taken = {row[0] for row in live} if self.shape.keyed else set()
            key = self.rng.choice([k for k in range(1, self.shape.keys + 1) if k not in taken])
        row = (key, self.rng.randint(1, self.shape.values), self.rng.randint(1, self.shape.values))
        live.append(row)
        return Op(relation.name, row, 1)


def chain_sql(relations: tuple[Relation, ...], repeated: bool = False) -> str:
    """SELECT of every key (and the ends of the chain) over r1.b = r2.a AND r2.b = r3.a …"""
    chain = [*relations, relations[0]] if repeated else list(relations)
    aliases = [f"t{i + 1}" for i in range(len(chain))]
    tables = ", ".join(f"{r.source}.{r.name} {alias}" for r, alias in zip(chain, aliases, strict=True))
    shown = [f"{alias}.k AS {alias}_k" for alias in aliases]
    shown += [f"{aliases[0]}.a AS first_a", f"{aliases[-1]}.b AS last_b"]
    joins = [f"{left}.b = {right}.a" for left, right in pairwise(aliases)]
    where = f" WHERE {' AND '.join(joins)}" if joins else ""
    return f"SELECT {', '.join(shown)} FROM {tables}{where}"
