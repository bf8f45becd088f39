"""What the views must hold, found without Viewkeeper: the updates, as numbered, replayed over a copy of the databases.

The copy lives in one in-memory SQLite whose attached databases carry the sources' names, so that a view's own SQL runs
on it unchanged. Its columns have no type: values are kept as the messages have them.
"""

from __future__ import annotations

import base64
import itertools
import random
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from deltalake import DeltaTable

from tests.e2e.harness import Installation
from viewkeeper.warehouse.cuts import Cut

Row = tuple[Any, ...]
Bag = Counter[Row]


class Oracle:
    """The databases as they were when this was made; ``check`` replays the numbered updates from there.

    Make it while nobody writes, before the first load.
    """

    def __init__(self, world: Installation):
        self.world = world
        self._start: dict[tuple[str, str], tuple[list[str], list[Row]]] = {}
        for source in world.tables:
            with closing(world.connect(source)) as db:
                for table in tables_of(db):
                    self.remember(source, table)

    def remember(self, source: str, table: str) -> None:
        """Takes the table as it is now for its first state: for one that is captured only from now on."""
        with closing(self.world.connect(source)) as db:
            cursor = db.execute(f"SELECT * FROM {table}")
            self._start[source, table] = ([c[0] for c in cursor.description], [json_row(r) for r in cursor])

    # ---- the whole check

    def check(self, views: Iterable[str] | None = None, reads: int = 12) -> int:
        """Compares everything that the warehouse and the topics say with the replay; returns the updates replayed."""
        world, reader = self.world, self.world.reader()
        cut = world.cut()
        updates = reader.updates(1, cut.last_update).to_pylist()
        assert [u["_update"] for u in updates] == list(range(1, cut.last_update + 1))
        self._check_cuts(reader.cuts(0, cut.cut))
        views = list(world.views if views is None else views)
        states = self._states(updates, views)
        for view in views:
            loaded = reader.loaded(view)
            assert loaded is not None
            expected = states[view]
            changes = self._changes(view, loaded + 1, cut.last_update)
            for k in range(loaded + 1, cut.last_update + 1):
                wanted = minus(expected[k], expected[k - 1])
                assert changes.get(k, Counter()) == wanted, f"{view}: update {k}: {updates[k - 1]}"
            self._check_reads(view, expected, loaded, cut, reads)
            self._check_versions(view, expected, loaded, reader.cuts(0, cut.cut))
            self._check_topic(view, expected, updates, loaded)
        return cut.last_update

    def final(self, view: str) -> Bag:
        """The view over the databases as they are now."""
        with closing(self._copy(now=True)) as db:
            return _evaluate(db, self.world.views[view])

    def read(self, view: str, update: int | None = None) -> Bag:
        """The view as the warehouse gives it."""
        return bag_of(self.world.reader().read(view, update=update).read_all().to_pylist())

    # ---- parts of it

    def _states(self, updates: list[dict[str, Any]], views: list[str]) -> dict[str, list[Bag]]:
        """Per view its contents after update 0, 1, …; the last state is that of the databases themselves."""
        messages = {source: whole_updates(self.world.messages(source)) for source in self._sources()}
        by_topic = {self.world.topics[source]: source for source in messages}
        with closing(self._copy()) as db:
            self._bring_to_load(db, messages)
            states = {view: [_evaluate(db, self.world.views[view])] for view in views}
            for update in updates:
                source = by_topic[update["topic"]]
                message = messages[source].pop(update["offset"])  # a number given twice fails here
                assert (update["source"], update["txn"]) == (source, message["txn"])
                _apply(db, source, message)
                for view in views:
                    states[view].append(_evaluate(db, self.world.views[view]))
                    if states[view][-1] == states[view][-2]:
                        states[view][-1] = states[view][-2]  # one object, not thousands of equal ones
                    else:
                        assert view in update["views"], f"{view}: {update} is relevant"
            self._check_end(messages)
            return states

    def _bring_to_load(self, db: sqlite3.Connection, messages: dict[str, dict[int, dict[str, Any]]]) -> None:
        """Applies what the first load already held: such updates have no number."""
        positions = self.world.reader().cuts(0, 0)[0].positions
        for source, sent in messages.items():
            for offset, message in list(sent.items()):
                if source in positions and message["position"] <= int(positions[source]):
                    _apply(db, source, sent.pop(offset))

    def _check_end(self, left: dict[str, dict[int, dict[str, Any]]]) -> None:
        """Nothing was lost: every message that is not numbered is past the newest cut."""
        positions = self.world.cut().positions
        for source, messages in left.items():
            for message in messages.values():
                assert message["position"] > int(positions[source]), f"{source}: never numbered: {message}"

    def check_ends_at_sources(self) -> None:
        """The newest state of each view is that of its SQL over the databases themselves."""
        for view in self.world.views:
            assert self.read(view) == self.final(view), view

    def _check_cuts(self, cuts: list[Cut]) -> None:
        assert [c.cut for c in cuts] == list(range(len(cuts)))
        for before, after in itertools.pairwise(cuts):
            assert before.last_update <= after.last_update
            assert before.sealed <= after.sealed < after.cut
            assert all(before.offsets[s] <= after.offsets[s] for s in before.offsets if s in after.offsets)

    def _changes(self, view: str, first: int, last: int) -> dict[int, Bag]:
        found: dict[int, Bag] = {}
        for table in self.world.reader().changes(view, first, last):
            for row in table.to_pylist():
                k = row.pop("_update")
                bag = found.setdefault(k, Counter())
                count = row.pop("_count")
                key = json_row(row.values())
                assert count and key not in bag, f"{view}: update {k} holds {key} twice, or zero times"
                bag[key] = count
        return found

    def _check_reads(self, view: str, expected: list[Bag], loaded: int, cut: Cut, reads: int) -> None:
        numbers = range(loaded, cut.last_update + 1)
        sample = {numbers[0], numbers[-1], *random.Random(view).sample(numbers, min(reads, len(numbers)))}
        for k in sorted(sample):
            assert self.read(view, k) == expected[k], f"{view}: read --update {k}"
        assert self.read(view) == expected[-1]

    def _check_versions(self, view: str, expected: list[Bag], loaded: int, cuts: list[Cut]) -> None:
        """The versions of ``views/<view>`` that cuts name hold the states that they say, for any reader of Delta."""
        named = {cut.versions[view]: cut.folded[view] for cut in cuts if cut.folded.get(view, 0) > loaded}
        sample = sorted(named)[-10:]
        for version in {*sample, cuts[-1].versions[view]}:
            folded = named.get(version, cuts[-1].folded[view])
            stored = DeltaTable(self.world.folder / "warehouse" / "views" / view, version=version)
            rows = stored.to_pyarrow_table().to_pylist()
            assert bag_of(rows) == expected[folded], f"{view}: version {version}, folded to {folded}"

    def _check_topic(self, view: str, expected: list[Bag], updates: list[dict[str, Any]], loaded: int) -> None:
        """A read_committed reader sees each update once, in order, and after a cut's updates its seal."""
        cuts = {c.cut: c for c in self.world.reader().cuts(0, self.world.cut().cut) if view in c.versions}
        seals: list[int] = []
        seen: dict[int, Bag] = {}
        for message in joined(m for _, m in self.world.messages(f"view.{view}")):
            assert message["view"] == view
            if "sealed" in message:
                cut = cuts[message["sealed"]]
                assert (message["last_update"], message["positions"]) == (cut.last_update, cut.positions)
                assert max(seen, default=0) <= cut.last_update
                missing = [
                    k
                    for k in range(loaded + 1, cut.last_update + 1)
                    if expected[k] != expected[k - 1] and k not in seen
                ]
                assert not missing, f"{view}: sealed {cut.cut} without updates {missing}"
                seals.append(cut.cut)
                continue
            k = message["update"]
            assert k > max(seen, default=0), f"{view}: update {k} after {max(seen, default=0)}"
            assert not seals or k > cuts[seals[-1]].last_update
            update = updates[k - 1]
            assert (message["source"], message["txn"]) == (update["source"], update["txn"])
            seen[k] = bag_of([{**c["row"], "_count": c["count"]} for c in message["changes"]])
            if k > loaded:
                assert seen[k] == minus(expected[k], expected[k - 1]), f"{view}: topic: update {k}"
        assert seals == sorted(cuts), f"{view}: seals {seals}"

    # ---- the copy

    def _sources(self) -> list[str]:
        return sorted(self.world.cut().positions)

    def _copy(self, now: bool = False) -> sqlite3.Connection:
        db = sqlite3.connect(":memory:", isolation_level=None)
        for source in self.world.tables:
            db.execute(f"ATTACH ':memory:' AS {source}")
        if now:
            current = Oracle(self.world)._start
        for (source, table), (columns, rows) in (current if now else self._start).items():
            db.execute(f"CREATE TABLE {source}.{table} ({', '.join(columns)})")
            db.execute(f"CREATE INDEX {source}.whole_{table} ON {table} ({', '.join(columns)})")
            db.executemany(f"INSERT INTO {source}.{table} VALUES ({', '.join('?' * len(columns))})", rows)
        return db


def tables_of(db: sqlite3.Connection) -> list[str]:
    rows = db.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE '\\_viewkeeper%' ESCAPE '\\' "
        "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )
    return [name for (name,) in rows]


def whole_updates(messages: list[tuple[int, dict[str, Any]]]) -> dict[int, dict[str, Any]]:
    """By the offset of its last piece, every update of a topic."""
    whole: dict[int, dict[str, Any]] = {}
    changes: list[dict[str, Any]] = []
    for offset, message in messages:
        changes = [*changes, *message["changes"]] if message.get("part", 1) > 1 else message["changes"]
        if message.get("part", 1) == message.get("parts", 1):
            whole[offset] = {**message, "changes": changes}
    return whole


def joined(messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The messages of a view topic, pieces put together."""
    changes: list[dict[str, Any]] = []
    for message in messages:
        if "parts" in message:
            changes += message["changes"]
            if message["part"] < message["parts"]:
                continue
            message["changes"], changes = changes, []
        yield message


def _apply(db: sqlite3.Connection, source: str, message: dict[str, Any]) -> None:
    """Does what an update says; a row that it takes away must be there."""
    db.execute("BEGIN")
    for change in message["changes"]:
        table = f"{source}.{change['relation']}"
        if before := change.get("before"):
            same = " AND ".join(f"{column} IS ?" for column in before)
            found = f"SELECT rowid FROM {table} WHERE {same} LIMIT 1"
            gone = db.execute(f"DELETE FROM {table} WHERE rowid = ({found})", list(before.values()))
            assert gone.rowcount == 1, f"{table} has no row {before}, but {message['txn']} takes it away"
        if after := change.get("after"):
            names, marks = ", ".join(after), ", ".join("?" * len(after))
            db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(after.values()))
    db.execute("COMMIT")


def _evaluate(db: sqlite3.Connection, sql: str) -> Bag:
    return Counter(json_row(row) for row in db.execute(sql))


def bag_of(rows: list[dict[str, Any]]) -> Bag:
    bag: Bag = Counter()
    for row in rows:
        count = row.pop("_count")
        key = json_row(row.values())
        assert key not in bag, f"{key} stands twice"
        bag[key] = count
    return bag


def minus(one: Bag, other: Bag) -> Bag:
    difference = Counter(one)
    difference.subtract(other)
    return Counter({row: count for row, count in difference.items() if count})


def json_row(row: Iterable[Any]) -> Row:
    """Values as a message has them."""
    return tuple(map(_json_value, row))


def _json_value(value: Any) -> Any:
    match value:
        case Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
    return value
