"""Sources that log a commit before they show it, and a keeper over them: played in memory, adversarially.

Transactions take their ids when they begin, are logged in another order, become visible in a third; the topic repeats
itself as a killed connector does; a relation is emptied under a snapshot's feet; the keeper is killed anywhere. Queue,
integrator, freezing, drain, unsettled updates and sweep are the real ones.
"""

from __future__ import annotations

import base64
import json
import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from viewkeeper.algebra.bag import COUNT
from viewkeeper.algebra.types import Relation
from viewkeeper.algebra.view import View
from viewkeeper.errors import SourceUnreachable
from viewkeeper.job.keeper import Keeper
from viewkeeper.job.publishing import Publishing
from viewkeeper.managers.keeping import Keeping
from viewkeeper.managers.managers import Managers
from viewkeeper.managers.sources.postgres_snapshot import PgSnapshot
from viewkeeper.messages import Answer, Ask, Reached, Received
from viewkeeper.queue.consumer import MESSAGES
from viewkeeper.queue.debezium import BARRIER
from viewkeeper.queue.drain import Drain
from viewkeeper.queue.update_queue import Inlet, UpdateQueue
from viewkeeper.warehouse.cuts import Cut, WarehouseTransaction
from viewkeeper.warehouse.pace import FoldPace

from . import worlds
from .worlds import Row

EPOCH = 2**32


@dataclass
class Logged:
    """A transaction that was logged: what it did, in order; ``emptied`` relations before their changes."""

    xid: int
    end: int
    changes: dict[str, Counter[Row]]
    emptied: frozenset[str] = frozenset()
    token: str | None = None


@dataclass(frozen=True)
class Snapshot:
    seen: PgSnapshot
    until: int
    truncations: int


class LateSource:
    """One source: its log, its topic, and what of the log can be seen."""

    readers = None
    late = True

    def __init__(self, rng: random.Random, name: str, relations: Mapping[str, Relation]):
        self.rng, self.name, self.relations = rng, name, relations
        self.initial = {
            r: Counter(worlds.random_row(rng, d) for _ in range(rng.randint(0, 4))) for r, d in relations.items()
        }
        # Half of the worlds stand near the end of an epoch of 32-bit ids.
        self.next_xid = EPOCH * 3 + (rng.randint(3, 60) if rng.random() < 0.5 else -rng.randint(1, 25))
        self.first_xid = self.next_xid
        self.begun: list[int] = []  # ids of transactions that will be logged later
        self.log: list[Logged] = []
        self.visible: set[int] = set()
        self.topic: list[bytes] = []
        self.truncations = 0
        self.quiet = False  # nothing happens by itself any more

    # ---- what applications do

    def act(self) -> None:
        """Something happens: a transaction begins, is logged, becomes visible; the topic repeats its tail."""
        choice = self.rng.random()
        if self.quiet:
            return
        if choice < 0.35:
            self.begun.append(self._new_xid())
        elif choice < 0.65 and self.begun:
            self._log_one(self.begun.pop(self.rng.randrange(len(self.begun))))
        elif choice < 0.9:
            late = [t for t in self.log if t.xid not in self.visible]
            if late:
                self.visible.add(self.rng.choice(late).xid)
        elif self.log and choice > 0.96:
            self._repeat()

    def _new_xid(self) -> int:
        self.next_xid += 1
        return self.next_xid - 1

    def state(self, xids: Iterable[int]) -> dict[str, Counter[Row]]:
        wanted = set(xids)
        state = {r: Counter(rows) for r, rows in self.initial.items()}
        for t in self.log:
            if t.xid in wanted:
                apply(state, t)
        return state

    def _log_one(self, xid: int) -> None:
        """Rows that others hold locks on (logged, not visible) are left alone, as locks would make it."""
        free = self.state(self.visible)
        late = [t for t in self.log if t.xid not in self.visible]
        for t in late:
            for r, rows in t.changes.items():
                free[r] -= Counter({row: -n for row, n in rows.items() if n < 0})
        busy = {r for t in late for r in (*t.changes, *t.emptied)}
        emptied = frozenset(r for r in self.relations if r not in busy and self.rng.random() < 0.05)
        changes: dict[str, Counter[Row]] = {}
        for r in self.rng.sample(sorted(self.relations), self.rng.randint(1, len(self.relations))):
            if any(r in t.emptied for t in late):
                continue
            did = changes.setdefault(r, Counter())
            for _ in range(self.rng.randint(0, 2)):
                present = [] if r in emptied else sorted((row for row, n in free[r].items() if n > 0), key=repr)
                if present and self.rng.random() < 0.5:
                    row = self.rng.choice(present)
                    did[row] -= 1
                    free[r][row] -= 1
                else:
                    did[worlds.random_row(self.rng, self.relations[r])] += 1
        changes = {r: Counter({row: n for row, n in rows.items() if n}) for r, rows in changes.items()}
        self._append(Logged(xid, self._end(), {r: rows for r, rows in changes.items() if rows}, emptied))
        if emptied:  # its lock keeps everybody out until it can be seen; then older snapshots find nothing
            self.visible.add(xid)
            self.truncations += 1

    def _end(self) -> int:
        return (self.log[-1].end if self.log else 100) + self.rng.randint(1, 9)

    def _append(self, t: Logged) -> None:
        self.log.append(t)
        self.topic += self.messages(t)

    def _repeat(self) -> None:
        """A killed connector sends the tail again, perhaps from the middle of a transaction."""
        first = self.rng.randrange(max(0, len(self.log) - 4), len(self.log))
        for i, t in enumerate(self.log[first:]):
            messages = self.messages(t)
            self.topic += messages[self.rng.randrange(len(messages)) :] if i == 0 else messages

    def messages(self, t: Logged) -> list[bytes]:
        """The transaction as Debezium sends it."""
        xid = t.xid % EPOCH
        events: list[dict[str, Any]] = []
        if t.token is not None:
            content = base64.b64encode(t.token.encode()).decode()
            events.append({"op": "m", "message": {"prefix": BARRIER, "content": content}, "table": ""})
        events += [{"op": "t", "before": None, "after": None, "table": r} for r in sorted(t.emptied)]
        for r, rows in t.changes.items():
            names = [c.name for c in self.relations[r].columns]
            for row, n in sorted(rows.items(), key=lambda item: (item[1], repr(item[0]))):
                image = dict(zip(names, row, strict=True))
                op = (
                    {"op": "c", "before": None, "after": image}
                    if n > 0
                    else {"op": "d", "before": image, "after": None}
                )
                events += [{**op, "table": r} for _ in range(abs(n))]
        texts = [{"status": "BEGIN", "id": f"{xid}:{t.end}", "event_count": None}]
        for i, event in enumerate(events, 1):
            source = {
                "schema": "public",
                "table": event.pop("table"),
                "lsn": t.end - 1,
                "snapshot": None,
                "sequence": None,
            }
            about = {"id": f"{xid}:{t.end - 1}", "total_order": i}
            texts.append({**event, "source": source, "transaction": about})
        texts.append({"status": "END", "id": f"{xid}:{t.end}", "event_count": len(events)})
        return [json.dumps(text, separators=(",", ":")).encode() for text in texts]

    # ---- the Source protocol

    def freeze(self, delivered: str | None, hold: bool = False) -> Snapshot:
        running = [x for x in range(self.first_xid, self.next_xid) if x not in self.visible]
        seen = PgSnapshot(min(running, default=self.next_xid), self.next_xid, tuple(running))
        return Snapshot(seen, self.log[-1].end if self.log else 100, self.truncations)

    def contains(self, snapshot: Snapshot) -> PgSnapshot:
        return snapshot.seen

    def barrier(self, snapshot: Snapshot) -> str:
        self._act_a_little()
        token = f"{self.name}-{len(self.log)}"
        xid = self._new_xid()
        self._append(Logged(xid, self._end(), {}, token=token))
        self.visible.add(xid)
        return token

    def _act_a_little(self) -> None:
        for _ in range(self.rng.randint(0, 2)):
            self.act()

    def confirm(self, snapshot: Snapshot) -> None:
        if snapshot.truncations != self.truncations:
            raise SourceUnreachable.at(f"source {self.name}", "was emptied meanwhile")

    def release(self, snapshot: Snapshot) -> None: ...

    def require_unbroken(self, snapshot: Snapshot, before: int) -> None:
        assert before > 0

    def position(self, snapshot: Snapshot) -> str:
        return str(Reached(0, snapshot.until, str(snapshot.seen)))

    def ask(self, ask: Ask, snapshot: Snapshot) -> Answer:
        self._act_a_little()
        xids = [x for x in range(self.first_xid, snapshot.seen.xmax) if x not in snapshot.seen.running]
        rows = self.state(xids)[ask.relation]
        if snapshot.truncations != self.truncations:
            rows = Counter()  # whoever rewrote the table took its rows from older snapshots too
        relation = self.relations[ask.relation]
        places = [[c.name for c in relation.columns].index(name) for name in ask.columns]
        kept = [(*(row[i] for i in places), n) for row, n in rows.items() if n]
        columns = [*(relation.columns[i] for i in places), worlds.Column(COUNT, worlds.INTEGER)]
        return Answer(worlds.arrow(columns, kept), snapshot.seen)


def apply(state: dict[str, Counter[Row]], t: Logged) -> None:
    for r in t.emptied:
        state[r] = Counter()
    for r, rows in t.changes.items():
        for row, n in rows.items():
            state[r][row] += n


class TopicDrain(Drain):
    """Reads the played topics, a few messages at a time, while the sources go on."""

    def __init__(self, rng: random.Random, sources: Mapping[str, LateSource]):
        self.rng, self.sources = rng, sources

    def to_barriers(self, queue: UpdateQueue, tokens: Mapping[str, str], stop: threading.Event) -> Iterator[Received]:
        while missing := [s for s, token in tokens.items() if not queue.passed_barrier(s, token)]:
            for source in missing:
                self.rng.choice(list(self.sources.values())).act()
                offset = queue.inlets[source].offset
                yield queue.receive(stretch(self.sources, {source: (offset, offset + self.rng.randint(1, 6))}))


def stretch(sources: Mapping[str, LateSource], wanted: Mapping[str, tuple[int, int]]) -> pa.Table:
    rows = [
        {"topic": name, "offset": i, "value": sources[name].topic[i], "timestamp": i}
        for name, (first, end) in wanted.items()
        for i in range(first, min(end, len(sources[name].topic)))
    ]
    return pa.Table.from_pylist(rows, MESSAGES)


@dataclass
class MemoryWarehouse:
    """What survives a kill: cuts, the updates in their order, and the views' changes."""

    views: dict[str, Counter[Row]] = field(default_factory=dict)
    changes: dict[str, dict[int, Counter[Row]]] = field(default_factory=dict)
    updates: list[tuple[str, int]] = field(default_factory=list)  # (source, offset of its END)
    cuts: list[Cut] = field(default_factory=list)
    parsed: dict[str, View] = field(default_factory=dict)

    def commit(self, transaction: WarehouseTransaction) -> Cut:
        for row in transaction.updates.to_pylist():
            assert row["_update"] == len(self.updates) + 1
            self.updates.append((row["source"], row["offset"]))
        for name, tables in transaction.changes.items():
            for number, bag in worlds.per_update(self.parsed[name], tables).items():
                self.changes.setdefault(name, {})[number] = bag
                self.views[name] = worlds.plus(self.views[name], bag)
        last = self.cuts[-1].cut if self.cuts else -1
        self.cuts.append(
            Cut(last + 1, transaction.last_update, transaction.positions, transaction.offsets, {}, {},
                datetime.now(UTC), transaction.level)
        )  # fmt: skip
        return self.cuts[-1]

    def stored(self, name: str) -> list[pa.RecordBatch]:
        view = self.parsed[name]
        rows = [(*row, n) for row, n in self.views[name].items()]
        columns = {f.name: pa.array([row[i] for row in rows], f.type) for i, f in enumerate(view.schema)}
        return pa.table({**columns, COUNT: pa.array([row[-1] for row in rows], pa.int64())}).to_batches()

    def compact(self) -> None: ...
    def recover(self) -> None: ...
    def note_sealed(self, cut: int) -> None: ...
    def newest(self) -> Cut:
        return self.cuts[-1]


class NoTopics:
    def require_alone(self) -> None: ...

    def publish(self, *_: object) -> None: ...


def never() -> FoldPace:
    class Never(FoldPace):
        def due(self, now: float) -> bool:
            return False

    return Never("auto")


class Play:
    """Sources, a warehouse, and a keeper that may be killed and started again."""

    def __init__(self, seed: int):
        self.rng = rng = random.Random(seed)
        world = worlds.random_world(rng, 0)
        self.catalog = {name: typed(relation) for name, relation in world.catalog.items()}
        names = sorted({source for source, _ in self.catalog})
        self.sources = {
            name: LateSource(rng, name, {r: d for (s, r), d in self.catalog.items() if s == name}) for name in names
        }
        self.warehouse = MemoryWarehouse()
        world = replace(world, catalog=self.catalog)
        for i in range(2):
            view = worlds.random_view(rng, world)
            self.warehouse.parsed[f"v{i}"] = replace(view, name=f"v{i}")
        for _ in range(rng.randint(0, 12)):
            self.act()
        self.load()

    def act(self) -> None:
        self.rng.choice(list(self.sources.values())).act()

    def load(self) -> None:
        """Update 0 is what one freeze of all sources includes."""
        at = {name: source.freeze(None) for name, source in self.sources.items()}
        offsets = {
            name: self.rng.randint(0, len(source.topic)) if not at[name].seen.running else 0
            for name, source in self.sources.items()
        }
        self.loaded = {
            name: frozenset(x for x in range(source.first_xid, at[name].seen.xmax) if x not in at[name].seen.running)
            for name, source in self.sources.items()
        }
        for name, view in self.warehouse.parsed.items():
            self.warehouse.views[name] = worlds.recompute(view, self.state([]), self.catalog)
        positions = {name: source.position(at[name]) for name, source in self.sources.items()}
        self.warehouse.cuts.append(Cut(0, 0, positions, offsets, {}, {}, datetime.now(UTC), "complete"))

    def state(self, numbered: Iterable[tuple[str, int]]) -> dict[tuple[str, str], Counter[Row]]:
        """The relations after the load and then these updates, in that order."""
        state = {name: source.state(self.loaded[name]) for name, source in self.sources.items()}
        for name, end in numbered:
            t = next(t for t in self.sources[name].log if t.end == end)
            apply(state[name], t)
        return {(name, r): rows for name, relations in state.items() for r, rows in relations.items()}

    def keeper(self) -> Keeper:
        cut = self.warehouse.newest()
        used = {
            name: {r: [c.name for c in d.columns] for r, d in s.relations.items()} for name, s in self.sources.items()
        }
        inlets = [
            Inlet(
                name, name, s.relations, used[name], Reached.parse(cut.positions[name]), cut.offsets[name], "debezium"
            )
            for name, s in self.sources.items()
        ]
        views = self.warehouse.parsed
        return Keeper(
            views=views,
            sources=self.sources,  # type: ignore[arg-type]
            queue=UpdateQueue(inlets),
            publishing=Publishing(views, self.warehouse, NoTopics(), never()),  # type: ignore[arg-type]
            managers=Managers(
                views,
                {name: Keeping() for name in views},
                self.catalog,
                self.sources,
                self.warehouse.stored,  # type: ignore[arg-type]
            ),
            drain=TopicDrain(self.rng, self.sources),
            cut=cut,
            set_aside=lambda rejected: None,
        )

    def batch(self, keeper: Keeper) -> None:
        inlets = keeper.queue.inlets
        wanted = {
            name: (self.rng.randint(0, inlets[name].offset), self.rng.randint(inlets[name].offset, len(s.topic)))
            for name, s in self.sources.items()
        }
        keeper.maintain(stretch(self.sources, wanted))


def typed(relation: Relation) -> Relation:
    """The relation as PostgreSQL would describe it."""
    declared = {worlds.INTEGER: "int8", worlds.TEXT: "text"}
    return replace(relation, columns=tuple(replace(c, declared=declared[c.type]) for c in relation.columns))
