"""A group's keeper over played sources: views of every kind, transactions over several sources, outages, kills.

Sources log what they do and show it at once, as SQLite does: every answer hands over what no topic has delivered. Parts
of a transaction over several sources are logged at different moments and in any order; messages come late, in pieces
and again; a source is away for a while, in the midst of a round too; a commit fails before or after it is through; the
keeper is killed anywhere. Queue, integrator, managers, merge process and keeper are the real ones.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from viewkeeper.algebra.bag import COUNT, UPDATE
from viewkeeper.algebra.types import Relation
from viewkeeper.errors import SourceUnreachable, WarehouseUnreachable
from viewkeeper.job.keeper import Keeper
from viewkeeper.job.publishing import Publishing
from viewkeeper.managers.keeping import Keeping
from viewkeeper.managers.managers import Managers
from viewkeeper.managers.sources.sqlite_log import LogPosition
from viewkeeper.messages import Answer, Ask, Reached
from viewkeeper.queue.consumer import MESSAGES
from viewkeeper.queue.drain import Drain
from viewkeeper.queue.update_queue import Inlet, UpdateQueue
from viewkeeper.warehouse.cuts import Cut, WarehouseTransaction

from . import worlds
from .late_worlds import MemoryWarehouse, NoTopics, never
from .worlds import Row

MOST = 12
"""Transactions of a source: joins of so few different values grow fast."""

KINDS = (
    Keeping(),
    Keeping(),
    Keeping("sweep_sequential"),
    Keeping("nested_sweep"),
    Keeping("complete_n", {"complete_n": 2}),
    Keeping("complete_n", {"complete_n": 3}),
    Keeping("refresh", every=1),
    Keeping("refresh", every=4),
    Keeping("refresh", every=timedelta(0)),
)


@dataclass
class Logged:
    """What a source did in one transaction, as a part of what; ``offset`` is that of its last message, once sent."""

    position: int
    changes: dict[str, Counter[Row]]
    part_of: tuple[str, tuple[str, ...]] | None = None
    offset: int | None = None


class PlayedSource:
    """One source: its tables, its log, its topic."""

    late = False
    readers = None

    def __init__(self, rng: random.Random, name: str, relations: Mapping[str, Relation]):
        self.rng, self.name, self.relations = rng, name, relations
        self.initial = {
            r: Counter(worlds.random_row(rng, d) for _ in range(rng.randint(0, 4))) for r, d in relations.items()
        }
        self.log: list[Logged] = []
        self.topic: list[bytes] = []
        self.sent = 0
        self.troubles = 0.0  # how often it is away

    def state(self, logged: list[Logged]) -> dict[str, Counter[Row]]:
        state = {r: Counter(rows) for r, rows in self.initial.items()}
        for each in logged:
            for r, rows in each.changes.items():
                for row, n in rows.items():
                    state[r][row] += n
        return {r: +rows for r, rows in state.items()}

    # ---- what it does

    def act(self, part_of: tuple[str, tuple[str, ...]] | None = None) -> None:
        now = self.state(self.log)
        changes: dict[str, Counter[Row]] = {}
        for r in self.rng.sample(sorted(self.relations), self.rng.randint(1, len(self.relations))):
            did: Counter[Row] = Counter()
            for _ in range(self.rng.randint(1, 2)):
                there = sorted((row for row, n in (now[r] + did).items() if n > 0), key=repr)
                if there and self.rng.random() < 0.5:
                    did[self.rng.choice(there)] -= 1
                if self.rng.random() < 0.8:
                    did[worlds.random_row(self.rng, self.relations[r])] += 1
            if any(did.values()):
                changes[r] = did
        if changes or part_of:
            last = self.log[-1].position if self.log else 0
            self.log.append(Logged(last + self.rng.randint(1, 3), changes, part_of))

    def send(self) -> None:
        """The next message, or one that was sent before."""
        if self.sent and self.rng.random() < 0.1:
            self._message(self.log[self.rng.randrange(self.sent)])
        elif self.sent < len(self.log):
            self.log[self.sent].offset = self._message(self.log[self.sent])
            self.sent += 1

    def _message(self, logged: Logged) -> int:
        ops = [
            self._op(r, row, n) for r, rows in logged.changes.items() for row, n in rows.items() for _ in range(abs(n))
        ]
        told = None if logged.part_of is None else {"id": logged.part_of[0], "sources": list(logged.part_of[1])}
        message = {"source": self.name, "txn": f"t{logged.position}", "position": logged.position, "global_txn": told}
        pieces = [ops[:1], ops[1:]] if len(ops) > 1 and self.rng.random() < 0.2 else [ops]
        for i, piece in enumerate(pieces, 1):
            numbered = {"part": i, "parts": len(pieces)} if len(pieces) > 1 else {}
            self.topic.append(json.dumps({**message, "changes": piece, **numbered}).encode())
        return len(self.topic) - 1

    def _op(self, relation: str, row: Row, n: int) -> dict[str, Any]:
        image = {c.name: value for c, value in zip(self.relations[relation].columns, row, strict=True)}
        side = {"op": "insert", "after": image} if n > 0 else {"op": "delete", "before": image}
        return {"relation": relation, **side}

    # ---- what it is asked

    def _trouble(self) -> None:
        if self.rng.random() < self.troubles:
            raise SourceUnreachable.at(f"source {self.name}", "is away")

    def freeze(self, delivered: str | None, hold: bool = False) -> int:
        self._trouble()
        return int(delivered or 0)

    def ask(self, ask: Ask, snapshot: int) -> Answer:
        self._trouble()
        if self.rng.random() < 0.1 and self.troubles and len(self.log) < MOST:
            self.act()
        relation = self.relations[ask.relation]
        places = [[c.name for c in relation.columns].index(name) for name in ask.columns]

        def bag(rows: list[tuple[Row, int]]) -> pa.Table:
            columns = [*(relation.columns[i] for i in places), worlds.Column(COUNT, worlds.INTEGER)]
            return worlds.arrow(columns, [(*(row[i] for i in places), n) for row, n in rows if n])

        late = [item for e in self.log if e.position > snapshot for item in e.changes.get(ask.relation, {}).items()]
        rows = list(self.state(self.log)[ask.relation].items())
        position = self.log[-1].position if self.log else 0
        return Answer(bag(rows), LogPosition(position), bag(late))

    def barrier(self, snapshot: int) -> None: ...
    def contains(self, snapshot: int) -> None: ...
    def confirm(self, snapshot: int) -> None:
        self._trouble()

    def release(self, snapshot: int) -> None: ...
    def reached(self, position: str, target: str) -> bool:
        return int(position) >= int(target)


@dataclass
class Warehouse(MemoryWarehouse):
    """May fail at a commit: before it, or after it was through."""

    numbers: list[int] = field(default_factory=list)
    rng: random.Random = field(default_factory=random.Random)
    troubles: float = 0.0

    def commit(self, transaction: WarehouseTransaction) -> Cut:
        if self.rng.random() < self.troubles:
            raise WarehouseUnreachable.at("warehouse", "its disk is full")
        numbers = transaction.updates[UPDATE].to_pylist()
        before = self.cuts[-1].last_update
        assert sorted(set(numbers)) == list(range(before + 1, transaction.last_update + 1)), "numbers without gaps"
        self.numbers += numbers
        rows = zip(transaction.updates["source"].to_pylist(), transaction.updates["offset"].to_pylist(), strict=True)
        self.updates += rows
        for name, tables in transaction.changes.items():
            for number, bag in worlds.per_update(self.parsed[name], tables).items():
                assert number > before, "states of earlier cuts stay as they were"
                self.changes.setdefault(name, {})[number] = bag
                self.views[name] = worlds.plus(self.views[name], bag)
        cut = Cut(
            self.cuts[-1].cut + 1, transaction.last_update, transaction.positions, transaction.offsets, {}, {},
            datetime.now(UTC), transaction.level,
        )  # fmt: skip
        self.cuts.append(cut)
        if self.rng.random() < self.troubles:
            raise WarehouseUnreachable.at("warehouse", "its disk is full")
        return cut


class Topics(NoTopics):
    def catch_up(self, *_: object) -> None: ...


class Play:
    """Sources, a warehouse, and a keeper that may be killed and started again."""

    def __init__(self, seed: int, troubles: float = 0.1):
        self.rng = rng = random.Random(seed)
        world = worlds.random_world(rng, 0)
        self.catalog = world.catalog
        names = sorted({source for source, _ in self.catalog})
        self.sources = {
            name: PlayedSource(rng, name, {r: d for (s, r), d in self.catalog.items() if s == name}) for name in names
        }
        self.warehouse = Warehouse(rng=rng)
        self.keeping = {}
        for i in range(rng.randint(1, 4)):
            view = replace(worlds.random_view(rng, world), name=f"v{i}")
            self.warehouse.parsed[f"v{i}"] = view
            self.keeping[f"v{i}"] = rng.choice(KINDS)
            self.warehouse.views[f"v{i}"] = worlds.recompute(view, self.state({}), self.catalog)
        start = dict.fromkeys(names, "0")
        self.warehouse.cuts.append(Cut(0, 0, start, dict.fromkeys(names, 0), {}, {}, datetime.now(UTC), "complete"))
        self._open: list[tuple[str, tuple[str, ...], list[str]]] = []  # global transactions: who has no part yet
        self._globals = 0
        self.trouble(troubles)

    def trouble(self, often: float) -> None:
        self.warehouse.troubles = often
        for source in self.sources.values():
            source.troubles = often

    def act(self) -> None:
        """Something happens at a source, or a message is sent."""
        if self.rng.random() < 0.5:
            self.rng.choice(list(self.sources.values())).send()
        elif all(len(source.log) >= MOST for source in self.sources.values()):
            return
        elif len(self.sources) > 1 and self.rng.random() < 0.2:
            self._globals += 1
            spanned = tuple(sorted(self.rng.sample(sorted(self.sources), self.rng.randint(2, len(self.sources)))))
            self._open.append((f"g{self._globals}", spanned, list(spanned)))
        elif self._open and self.rng.random() < 0.6:
            self._part(self.rng.randrange(len(self._open)))
        else:
            self.rng.choice(list(self.sources.values())).act()

    def _part(self, which: int) -> None:
        id, spanned, left = self._open[which]
        self.sources[left.pop(self.rng.randrange(len(left)))].act((id, spanned))
        if not left:
            self._open.pop(which)

    def end(self) -> None:
        """Every transaction gets its parts, every message is sent."""
        while self._open:
            self._part(0)
        for source in self.sources.values():
            while source.sent < len(source.log):
                source.send()

    def state(self, done: Mapping[str, list[Logged]]) -> dict[tuple[str, str], Counter[Row]]:
        return {(name, r): rows for name, s in self.sources.items() for r, rows in s.state(done.get(name, [])).items()}

    def keeper(self) -> Keeper:
        cut = self.warehouse.newest()
        inlets = [
            Inlet(
                name, name, s.relations, {r: [c.name for c in d.columns] for r, d in s.relations.items()},
                Reached.parse(cut.positions[name]), cut.offsets[name],
            )
            for name, s in self.sources.items()
        ]  # fmt: skip
        views: Any = self.warehouse.parsed
        sources: Any = self.sources
        managers: Any = Managers(views, self.keeping, self.catalog, sources, self.warehouse.stored, run=3)
        publishing: Any = Publishing(views, self.warehouse, Topics(), never())  # type: ignore[arg-type]
        drain: Any = Drain({})
        return Keeper(views, sources, UpdateQueue(inlets), publishing, managers, drain, cut, lambda rejected: None)

    def batch(self, keeper: Keeper) -> None:
        """Some of the messages that the keeper has not seen, and some that it has."""
        rows = []
        for name, source in self.sources.items():
            offset = keeper.queue.inlets[name].offset
            some = range(self.rng.randint(0, offset), self.rng.randint(offset, len(source.topic)))
            rows += [{"topic": name, "offset": i, "value": source.topic[i], "timestamp": i} for i in some]
        keeper.maintain(pa.Table.from_pylist(rows, MESSAGES))

    def done(self, number: int) -> dict[str, list[Logged]]:
        """Per source what is numbered up to a number, in that order."""
        by_offset = {(name, e.offset): e for name, s in self.sources.items() for e in s.log}
        found: dict[str, list[Logged]] = {name: [] for name in self.sources}
        for of, (source, offset) in zip(self.warehouse.numbers, self.warehouse.updates, strict=True):
            if of <= number:
                found[source].append(by_offset[source, offset])
        return found
