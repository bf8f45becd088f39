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
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from deltalake import DeltaTable

from tests.e2e.harness import Installation
from viewkeeper.config_groups import ALL
from viewkeeper.warehouse.cuts import Cut

Row = tuple[Any, ...]
Bag = Counter[Row]
Update = dict[str, Any]
Sent = dict[str, dict[int, dict[str, Any]]]
"""Per source its updates, by offset."""

COMPLETE = {"sweep", "sweep_sequential", "sweep_sites", "c_t_strobe"}
"""The algorithms that show the state after every single update."""


class Oracle:
    """The databases as they were when this was made; ``check`` replays the updates that a group has numbered.

    Make it while nobody writes, before the first load. ``views`` are those of the group, if not all there are. A view
    that came from another group says in ``topic_begins`` from which offset on its topic speaks of this one.
    """

    def __init__(self, world: Installation, group: str = ALL, views: Collection[str] | None = None):
        self.world = world
        self.group = group
        self.views = views
        self.topic_begins: dict[str, int] = {}
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
        """Compares everything that the warehouse and the topics say with the replay; returns the updates replayed.

        At every cut each view is the one replayed state; one that is kept completely, after every single update.
        """
        reader, cut = self.world.reader(self.group), self.world.cut(self.group)
        updates = by_number(reader.updates(1, cut.last_update).to_pylist())
        assert list(updates) == list(range(1, cut.last_update + 1))
        cuts = reader.cuts(0, cut.cut)
        self._check_cuts(cuts)
        names = list(self._names if views is None else views)
        loaded = {view: self._loaded(view) for view in names}
        states = self._states(updates, loaded, cuts)
        for view in names:
            expected, points = states[view], self._points(view, loaded[view], cuts)
            changes = self._changes(view, loaded[view] + 1, cut.last_update)
            self._check_changes(view, expected, changes, points, updates)
            self._check_reads(view, expected, points, reads)
            self._check_read_cuts(view, expected, loaded[view], cuts, reads)
            self._check_versions(view, expected, loaded[view], cuts)
            self._check_topic(view, changes, updates, loaded[view])
        return cut.last_update

    def final(self, view: str) -> Bag:
        """The view over the databases as they are now."""
        with closing(self._copy(now=True)) as db:
            return _evaluate(db, self.world.views[view])

    def read(self, view: str, update: int | None = None, cut: Cut | None = None) -> Bag:
        """The view as the warehouse gives it."""
        return bag_of(self.world.reader(self.group).read(view, cut, update).read_all().to_pylist())

    # ---- parts of it

    @property
    def _names(self) -> Collection[str]:
        return self.world.views if self.views is None else self.views

    def _loaded(self, view: str) -> int:
        loaded = self.world.reader(self.group).loaded(view)
        assert loaded is not None, f"{view} is not in group {self.group}"
        return loaded

    def _points(self, view: str, loaded: int, cuts: Sequence[Cut]) -> list[int]:
        """The updates after which the view must be as the sources were: at cuts, and where its algorithm says so."""
        kept = self.world.kept_by.get(view, {})
        step = 1 if kept.get("algorithm", "sweep") in COMPLETE else kept.get("complete_n")
        last = cuts[-1].last_update
        promised = range(loaded, last + 1) if step == 1 else range(step, last + 1, step) if step else ()
        return sorted(k for k in {*promised, *(c.last_update for c in cuts)} if k >= loaded)

    def _states(
        self, updates: dict[int, list[Update]], loaded: dict[str, int], cuts: Sequence[Cut]
    ) -> dict[str, list[Bag]]:
        """Per view its contents after update 0, 1, …; the last state is that of the databases themselves."""
        first = {source: (c.last_update, c.positions[source]) for c in reversed(cuts) for source in c.positions}
        messages = {source: whole_updates(self.world.messages(source)) for source in sorted(first)}
        with closing(self._copy()) as db:
            _bring_to_load(db, messages, first, 0)
            states = {view: [_evaluate(db, self.world.views[view])] for view in loaded}
            for k, numbered in updates.items():
                for update in numbered:
                    self._replay(db, update, messages)
                _bring_to_load(db, messages, first, k)
                for view in loaded:
                    states[view].append(_evaluate(db, self.world.views[view]))
                    if states[view][-1] == states[view][-2]:
                        states[view][-1] = states[view][-2]  # one object, not thousands of equal ones
                    elif k > loaded[view]:
                        assert all(view in update["views"] for update in numbered), f"{view}: {numbered} is relevant"
            self._check_end(messages)
            return states

    def _replay(self, db: sqlite3.Connection, update: Update, messages: Sent) -> None:
        (source,) = [source for source in messages if self.world.topics[source] == update["topic"]]
        message = messages[source].pop(update["offset"])  # a number given twice fails here
        assert (update["source"], update["txn"]) == (source, message["txn"])
        _apply(db, source, message)

    def _check_end(self, left: Sent) -> None:
        """Nothing was lost: every message that is not numbered is past the newest cut."""
        positions = self.world.cut(self.group).positions
        for source in left.keys() & positions.keys():
            for message in left[source].values():
                assert message["position"] > int(positions[source]), f"{source}: never numbered: {message}"

    def check_ends_at_sources(self) -> None:
        """The newest state of each view is that of its SQL over the databases themselves."""
        for view in self._names:
            assert self.read(view) == self.final(view), view

    def _check_cuts(self, cuts: list[Cut]) -> None:
        assert [c.cut for c in cuts] == list(range(len(cuts)))
        for before, after in itertools.pairwise(cuts):
            assert before.last_update <= after.last_update
            assert before.sealed <= after.sealed < after.cut
            assert all(before.offsets[s] <= after.offsets[s] for s in before.offsets if s in after.offsets)

    def _changes(self, view: str, first: int, last: int) -> dict[int, Bag]:
        found: dict[int, Bag] = {}
        for table in self.world.reader(self.group).changes(view, first, last):
            for row in table.to_pylist():
                k = row.pop("_update")
                bag = found.setdefault(k, Counter())
                count = row.pop("_count")
                key = json_row(row.values())
                assert count and key not in bag, f"{view}: update {k} holds {key} twice, or zero times"
                bag[key] = count
        return found

    def _check_changes(
        self, view: str, expected: list[Bag], changes: dict[int, Bag], points: list[int], updates: dict[int, Any]
    ) -> None:
        """What is stored between two points leads from one to the other."""
        for before, after in itertools.pairwise(points):
            between: Bag = Counter()
            for k in range(before + 1, after + 1):
                between.update(changes.get(k, ()))
            stored, wanted = nonzero(between), minus(expected[after], expected[before])
            assert stored == wanted, f"{view}: updates {before + 1} to {after}: {updates.get(after)}"

    def _check_reads(self, view: str, expected: list[Bag], points: list[int], reads: int) -> None:
        sample = {points[0], points[-1], *random.Random(view).sample(points, min(reads, len(points)))}
        for k in sorted(sample):
            assert self.read(view, k) == expected[k], f"{view}: read --update {k}"
        assert self.read(view) == expected[-1]

    def _check_read_cuts(self, view: str, expected: list[Bag], loaded: int, cuts: list[Cut], reads: int) -> None:
        """The same cuts for every view: what a reader of several views gets is one state."""
        later = [cut for cut in cuts if view in cut.versions and cut.last_update > loaded]
        chosen = random.Random(self.group).sample(range(len(cuts)), min(reads, len(cuts)))
        for cut in [cut for cut in later if cut.cut in chosen]:
            assert self.read(view, cut=cut) == expected[cut.last_update], f"{view}: read --cut {cut.cut}"

    def _check_versions(self, view: str, expected: list[Bag], loaded: int, cuts: list[Cut]) -> None:
        """The versions of ``views/<view>`` that cuts name hold the states that they say, for any reader of Delta."""
        named = {cut.versions[view]: cut.folded[view] for cut in cuts if cut.folded.get(view, 0) > loaded}
        sample = sorted(named)[-10:]
        for version in {*sample, cuts[-1].versions[view]}:
            folded = named.get(version, cuts[-1].folded[view])
            stored = DeltaTable(self.world.folder / "warehouse" / "views" / view, version=version)
            rows = stored.to_pyarrow_table().to_pylist()
            assert bag_of(rows) == expected[folded], f"{view}: version {version}, folded to {folded}"

    def _check_topic(self, view: str, changes: dict[int, Bag], updates: dict[int, list[Update]], loaded: int) -> None:
        """A read_committed reader sees each update once, in order, and after a cut's updates its seal."""
        newest = self.world.cut(self.group).cut
        cuts = {c.cut: c for c in self.world.reader(self.group).cuts(0, newest) if view in c.versions}
        seals: list[int] = []
        seen: dict[int, Bag] = {}
        begins = self.topic_begins.get(view, 0)
        for message in joined(m for offset, m in self.world.messages(f"view.{view}") if offset >= begins):
            assert message["view"] == view
            if "sealed" in message:
                cut = cuts[message["sealed"]]
                assert (message["last_update"], message["positions"]) == (cut.last_update, cut.positions)
                assert max(seen, default=0) <= cut.last_update
                missing = [k for k in changes if k <= cut.last_update and k not in seen]
                assert not missing, f"{view}: sealed {cut.cut} without updates {missing}"
                seals.append(cut.cut)
                continue
            k = message["update"]
            assert k > max(seen, default=0), f"{view}: update {k} after {max(seen, default=0)}"
            assert not seals or k > cuts[seals[-1]].last_update
            assert (message["source"], message["txn"]) == origin(updates[k]), f"{view}: topic: update {k}"
            seen[k] = bag_of([{**c["row"], "_count": c["count"]} for c in message["changes"]])
            if k > loaded:
                assert seen[k] == changes.get(k), f"{view}: topic: update {k}"
        assert seals == sorted(cuts), f"{view}: seals {seals}"

    # ---- the copy

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


def _bring_to_load(db: sqlite3.Connection, messages: Sent, first: dict[str, tuple[int, str]], k: int) -> None:
    """Applies what the first cut of a source already held, if it is the one after update k: it has no number."""
    for source, (number, position) in first.items():
        for offset, message in list(messages[source].items()):
            if number == k and message["position"] <= int(position):
                _apply(db, source, messages[source].pop(offset))


def by_number(updates: list[Update]) -> dict[int, list[Update]]:
    """The rows of ``updates``; those that share a number are one step."""
    numbered: dict[int, list[Update]] = {}
    for update in updates:
        numbered.setdefault(update["_update"], []).append(update)
    return numbered


def origin(numbered: list[Update]) -> tuple[str, str]:
    """The source and the transaction that a message of a view topic names."""
    ordered = sorted(numbered, key=lambda update: (update["source"], update["offset"]))
    return "+".join(dict.fromkeys(u["source"] for u in ordered)), "+".join(u["txn"] for u in ordered)


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
    return nonzero(difference)


def nonzero(bag: Bag) -> Bag:
    return Counter({row: count for row, count in bag.items() if count})


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
