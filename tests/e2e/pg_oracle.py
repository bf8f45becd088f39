"""Whether a warehouse with PostgreSQL sources is right: every number, every change, every topic, any state."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from deltalake import DeltaTable

from tests.e2e.debezium_topic import transactions
from tests.e2e.harness import Installation
from tests.e2e.oracle import Bag, Row, bag_of, joined, json_row, tables_of, whole_updates
from tests.e2e.replay import Named, Replay, RowChanges
from viewkeeper.messages import Reached
from viewkeeper.warehouse.cuts import Cut


@dataclass(frozen=True)
class Told:
    """A transaction as a topic tells it; ``order`` grows along the source's history."""

    txn: str
    order: int
    offset: int
    changes: RowChanges


@dataclass
class Expected:
    """What the views hold after the load, and what each update does to them."""

    load: dict[str, Bag]
    changes: list[dict[str, Bag]] = field(default_factory=list)  # of update 1, 2, …
    end: dict[str, Bag] = field(default_factory=dict)

    def of(self, view: str) -> dict[int, Bag]:
        return {k: changes[view] for k, changes in enumerate(self.changes, 1) if view in changes}


class PgOracle:
    """The databases as they were when this was made; ``expected`` replays the numbered updates from there.

    Make it while nobody writes, before the first load. No transaction may empty a table.
    """

    def __init__(self, world: Installation):
        self.world = world
        self._start = dict(_tables(world))
        self.loaded: set[tuple[str, str]] = set()  # source and txn of what the first load held; ``expected`` finds it

    def expected(self) -> Expected:
        """Replays everything; fails if an update was lost, numbered twice, out of order, or made up."""
        world = self.world
        told = {source: self._told(source) for source in [*world.databases, *world.tables]}
        updates = world.reader().updates(1, world.cut().last_update).to_pylist()
        assert [u["_update"] for u in updates] == list(range(1, world.cut().last_update + 1))
        replay = Replay(self._start, world.views)
        numbered = {(u["source"], u["offset"]) for u in updates}
        assert len(numbered) == len(updates), "an update was numbered twice"
        loaded = self._loaded(told, numbered)
        self.loaded = {(source, transaction.txn) for source, transaction in loaded}
        for source, transaction in loaded:
            replay.move(source, transaction.changes)
        expected = Expected(replay.contents())
        last = dict.fromkeys(told, -1)
        by_offset = {source: {t.offset: t for t in all_of_it} for source, all_of_it in told.items()}
        for update in updates:
            source = update["source"]
            transaction = by_offset[source][update["offset"]]
            assert (update["txn"], update["topic"]) == (transaction.txn, world.topics[source])
            assert transaction.order > last[source], f"update {update['_update']} is out of order"
            last[source] = transaction.order
            changes = replay.apply(source, transaction.changes)
            assert changes.keys() <= set(update["views"]), f"update {update['_update']} is relevant to {list(changes)}"
            expected.changes.append(changes)
        expected.end = replay.contents()
        return expected

    def _loaded(self, told: Mapping[str, list[Told]], numbered: set[tuple[str, int]]) -> list[tuple[str, Told]]:
        """What has no number was in the first load, or came after the newest cut: nothing is lost."""
        first, newest = self.world.reader().cuts(0, 0)[0], self.world.cut()
        loaded = []
        for source, all_of_it in told.items():
            load, end = Reached.parse(first.positions[source]), Reached.parse(newest.positions[source])
            for transaction in all_of_it:
                was_loaded = self._in_load(source, load, transaction)
                has_number = (source, transaction.offset) in numbered
                what = f"{source}: transaction {transaction.txn} at offset {transaction.offset}"
                assert not (was_loaded and has_number), f"{what} was loaded, and numbered as well"
                assert was_loaded or has_number or transaction.order > end.last, f"{what} is lost"
                if was_loaded:
                    loaded.append((source, transaction))
        return loaded

    def _in_load(self, source: str, load: Reached, transaction: Told) -> bool:
        """By the text of the load's snapshot, as PostgreSQL defines it."""
        if source in self.world.tables:
            return transaction.order <= load.last
        if transaction.order > load.until:
            return False
        xmin, xmax, running = load.snapshot.split(":")
        xid = int(transaction.txn)
        return xid < int(xmin) or (xid < int(xmax) and transaction.txn not in running.split(","))

    def _told(self, source: str) -> list[Told]:
        world = self.world
        if source in world.tables:
            return [
                Told(m["txn"], m["position"], offset, _native(m["changes"]))
                for offset, m in whole_updates(world.messages(source)).items()
            ]
        found = transactions(world.broker.messages(world.topics[source]))
        assert not any(t.emptied for t in found)
        return [Told(t.xid, t.end, t.offset, t.changes) for t in found if t.changes]

    # ---- the parts of a check

    def check(self, reads: int = 30, each: Callable[[Mapping[str, Bag]], None] = lambda changes: None) -> Expected:
        """Compares changes, states, versions and topics with the replay. ``each`` sees the load, then every change."""
        expected = self.expected()
        cuts = self.world.reader().cuts(0, self.world.cut().cut)
        self._check_cuts(cuts)
        found = {view: self._changes(view) for view in self.world.views}
        for view, changes in found.items():
            wanted = expected.of(view)
            for k in sorted(wanted.keys() | changes.keys()):
                assert changes.get(k) == wanted.get(k), f"{view}: update {k}"
            self._check_topic(view, wanted, cuts)
        self._check_reads(found, cuts, reads, each)
        self._check_versions(expected, cuts)
        for view in self.world.views:
            assert self.read(view) == expected.end[view], f"{view} as it stands"
        return expected

    def check_ends_at_sources(self) -> None:
        """The newest state of each view is that of its SQL over the databases themselves."""
        final = Replay(dict(_tables(self.world)), self.world.views).contents()
        for view in self.world.views:
            assert self.read(view) == final[view], view

    def read(self, view: str, **at: Any) -> Bag:
        return bag_of(self.world.reader().read(view, **at).read_all().to_pylist())

    def _check_cuts(self, cuts: list[Cut]) -> None:
        assert [cut.cut for cut in cuts] == list(range(len(cuts)))
        for before, after in itertools.pairwise(cuts):
            assert before.last_update <= after.last_update
            assert before.sealed <= after.sealed < after.cut
            assert all(before.offsets[s] <= after.offsets[s] for s in before.offsets)

    def _changes(self, view: str) -> dict[int, Bag]:
        found: dict[int, Bag] = {}
        for table in self.world.reader().changes(view, 1, self.world.cut().last_update):
            rows = table.to_pydict()
            ks, counts = rows.pop("_update"), rows.pop("_count")
            for k, count, row in zip(ks, counts, zip(*rows.values(), strict=True), strict=True):
                bag, key = found.setdefault(k, Counter()), json_row(row)
                assert count and key not in bag, f"{view}: update {k} holds {key} twice, or zero times"
                bag[key] = count
        return found

    def _check_reads(
        self,
        found: Mapping[str, Mapping[int, Bag]],
        cuts: list[Cut],
        reads: int,
        each: Callable[[Mapping[str, Bag]], None],
    ) -> None:
        """Rolls the stored changes forward over the stored load; ``read --update`` must say the same wherever asked."""
        last = cuts[-1].last_update
        rng = random.Random(last)
        sample = {0, last, *rng.sample(range(last + 1), min(reads, last + 1))}
        ends = {cut.last_update: cut for cut in rng.sample(cuts, min(reads, len(cuts)))}
        states = {view: self.read(view, update=0) for view in found}
        each(states)
        for k in range(last + 1):
            now = {view: changes[k] for view, changes in found.items() if k in changes}
            for view, change in now.items():
                _add(states[view], change)
            if k:
                each(now)
            for view, state in states.items():
                if k in sample:
                    assert self.read(view, update=k) == state, f"{view}: read --update {k}"
                if k in ends:
                    assert self.read(view, cut=ends[k]) == state, f"{view}: read --cut {ends[k].cut}"

    def _check_versions(self, expected: Expected, cuts: list[Cut]) -> None:
        """The tables of the views, as any reader of Delta finds them, hold the state that the newest cut says."""
        for view in self.world.views:
            state = Counter(expected.load[view])
            for change in expected.changes[: cuts[-1].folded[view]]:
                _add(state, change.get(view, {}))
            stored = DeltaTable(self.world.folder / "warehouse" / "views" / view, version=cuts[-1].versions[view])
            assert bag_of(stored.to_pyarrow_table().to_pylist()) == state, f"{view}: version {cuts[-1].versions[view]}"

    def _check_topic(self, view: str, wanted: Mapping[int, Bag], cuts: list[Cut]) -> None:
        """A read_committed reader sees each update once, in order, and after a cut's updates its seal."""
        seals: list[int] = []
        seen: dict[int, Bag] = {}
        reached = 0
        for message in joined(m for _, m in self.world.messages(f"view.{view}")):
            if "sealed" in message:
                cut = cuts[message["sealed"]]
                assert (message["last_update"], message["positions"]) == (cut.last_update, cut.positions)
                assert reached <= cut.last_update
                seals.append(cut.cut)
                reached = cut.last_update
                continue
            k = message["update"]
            assert k > max(reached, next(reversed(seen), 0)), f"{view}: topic: update {k} came late"
            seen[k] = bag_of([{**c["row"], "_count": c["count"]} for c in message["changes"]])
            assert seen[k] == wanted.get(k), f"{view}: topic: update {k}"
        assert seals == [cut.cut for cut in cuts], f"{view}: seals {seals}"
        assert seen.keys() == wanted.keys(), f"{view}: the topic lacks {sorted(wanted.keys() - seen.keys())[:9]}"


def _add(state: Bag, change: Mapping[Row, int]) -> None:
    for row, count in change.items():
        state[row] += count
        if not state[row]:
            del state[row]


def _native(changes: Iterable[Mapping[str, Any]]) -> list[tuple[str, Any, Any]]:
    return [(change["relation"], change.get("before"), change.get("after")) for change in changes]


def _tables(world: Installation) -> Iterator[tuple[Named, tuple[list[str], list[Row]]]]:
    """The tables that views may use, as they are now."""
    for source in world.tables:
        with closing(world.connect(source)) as db:
            for table in tables_of(db):
                cursor = db.execute(f"SELECT * FROM {table}")
                yield (source, table), ([c[0] for c in cursor.description], [json_row(r) for r in cursor])
    for source, database in world.databases.items():
        for (table,) in database.execute("SELECT relname FROM pg_class WHERE relreplident = 'f' ORDER BY 1"):
            with database.connect() as db:
                found = db.execute(f"SELECT * FROM {table}".encode())
                yield (source, table), ([c.name for c in found.description or ()], [json_row(r) for r in found])
