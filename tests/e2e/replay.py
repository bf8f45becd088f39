"""What tens of thousands of updates must have done to the views, found without Viewkeeper.

The sources' transactions are replayed, as numbered, over a copy of the databases in one in-memory SQLite. What an
update does to a view: the combinations of rows that hold a row it took away, before it, are gone; those that hold a row
it added, after it, have come. The view's own SQL finds both.
"""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.e2e.oracle import Bag, Row, json_row, minus

Named = tuple[str, str]
"""A relation: its source and its table."""

RowChanges = Iterable[tuple[str, Mapping[str, Any] | None, Mapping[str, Any] | None]]
"""What a transaction did to rows: the table, the row before, the row after."""


class Copy:
    """The databases, every row under a number of its own."""

    def __init__(self, tables: Mapping[Named, tuple[list[str], Iterable[Row]]]):
        self.db = sqlite3.connect(":memory:", isolation_level=None, cached_statements=1000)
        self._numbers = itertools.count(1)
        self._columns = {name: columns for name, (columns, _) in tables.items()}
        self._where: dict[Named, dict[Row, list[int]]] = {name: {} for name in tables}
        for source in sorted({source for source, _ in tables}):
            self.db.execute(f"ATTACH ':memory:' AS {source}")
        for name, (columns, rows) in tables.items():
            self._make(name, columns)
            for row in rows:
                self.insert(name, row)

    def _make(self, name: Named, columns: list[str]) -> None:
        source, table = name
        self.db.execute(f"CREATE TABLE {source}.{table} (_n INTEGER PRIMARY KEY, {', '.join(columns)})")
        for column in columns:
            self.db.execute(f"CREATE INDEX {source}.{table}_{column} ON {table} ({column})")

    def insert(self, name: Named, row: Row) -> int:
        number = next(self._numbers)
        marks = ", ".join("?" * (len(row) + 1))
        self.db.execute(f"INSERT INTO {name[0]}.{name[1]} VALUES ({marks})", (number, *row))
        self._where[name].setdefault(row, []).append(number)
        return number

    def delete(self, name: Named, number: int) -> None:
        self.db.execute(f"DELETE FROM {name[0]}.{name[1]} WHERE _n = ?", (number,))

    def take(self, name: Named, row: Row) -> int:
        """The number of such a row, which is there no more for others to take."""
        numbers = self._where[name].get(row)
        assert numbers, f"{'.'.join(name)} has no row {row} to take away"
        number = numbers.pop()
        if not numbers:
            del self._where[name][row]
        return number

    def net(self, source: str, changes: RowChanges) -> dict[Named, Bag]:
        """What a transaction did to each table in all."""
        net: dict[Named, Bag] = {}
        for table, before, after in changes:
            rows = net.setdefault((source, table), Counter())
            for row, sign in ((before, -1), (after, 1)):
                if row is not None:
                    rows[tuple(row[column] for column in self._columns[source, table])] += sign
        return net


class ViewCopy:
    """A view over the copy: its SQL, asked for the combinations that hold one row."""

    def __init__(self, copy: Copy, sql: str):
        self._copy = copy
        self._sql = sql
        self.occurrences = [
            (alias, (source, table)) for source, table, alias in re.findall(r"(?:FROM|JOIN)\s+(\w+)\.(\w+) (\w+)", sql)
        ]
        numbers = ", ".join(f"{alias}._n" for alias, _ in self.occurrences)
        joiner = "AND" if " WHERE " in sql else "WHERE"
        asked = sql.replace("SELECT ", f"SELECT {numbers}, ", 1)
        self._asked = {alias: f"{asked} {joiner} {alias}._n = ?" for alias, _ in self.occurrences}

    def contents(self) -> Bag:
        return Counter(json_row(row) for row in self._copy.db.execute(self._sql))

    def holding(self, rows: Mapping[Named, list[int]]) -> Bag:
        """The rows of the view that are made with at least one of these."""
        found: dict[Row, Row] = {}
        n = len(self.occurrences)
        for alias, name in self.occurrences:
            for number in rows.get(name, ()):
                for row in self._copy.db.execute(self._asked[alias], (number,)):
                    found[row[:n]] = row[n:]
        return Counter(found.values())


class Replay:
    """Applies transactions to the copy and tells what each does to every view."""

    def __init__(self, tables: Mapping[Named, tuple[list[str], Iterable[Row]]], views: Mapping[str, str]):
        self.copy = Copy(tables)
        self.views = {name: ViewCopy(self.copy, sql) for name, sql in views.items()}

    def contents(self) -> dict[str, Bag]:
        return {name: view.contents() for name, view in self.views.items()}

    def apply(self, source: str, changes: RowChanges) -> dict[str, Bag]:
        """What the transaction changes in the views, those left out that it does not change."""
        net = self.copy.net(source, changes)
        gone = {name: [self.copy.take(name, row) for row in _repeated(-rows)] for name, rows in net.items()}
        before = {name: view.holding(gone) for name, view in self.views.items()}
        for name, numbers in gone.items():
            for number in numbers:
                self.copy.delete(name, number)
        come = {name: [self.copy.insert(name, row) for row in _repeated(rows)] for name, rows in net.items()}
        changed = {name: minus(view.holding(come), before[name]) for name, view in self.views.items()}
        return {name: change for name, change in changed.items() if change}

    def move(self, source: str, changes: RowChanges) -> None:
        """Applies a transaction whose effect on the views nobody asks for."""
        for name, rows in self.copy.net(source, changes).items():
            for row in _repeated(-rows):
                self.copy.delete(name, self.copy.take(name, row))
            for row in _repeated(+rows):
                self.copy.insert(name, row)


def _repeated(rows: Bag) -> Iterator[Row]:
    """Each row as often as it counts, those that count less than once left out."""
    return itertools.chain.from_iterable(itertools.repeat(row, count) for row, count in rows.items() if count > 0)
