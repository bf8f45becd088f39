"""The demo on three SQLite files."""

from __future__ import annotations

import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from viewkeeper.local.demo.sample import COLUMNS, INDEXES, SOURCES, Tables, configuration, sample
from viewkeeper.local.demo.world import Bag, Committed, Rows, Session, World
from viewkeeper.managers.sources.sqlite import SqliteSource
from viewkeeper.managers.sources.sqlite_log import connect, is_installed, last_id
from viewkeeper.warehouse.cuts import Cut

BUSY_SECONDS = 10.0


def sections(folder: str = ".") -> dict[str, str]:
    """The sources in the configuration; ``folder`` is the demo's, as seen from the file's."""
    return {name: f"{{kind: sqlite, path: {folder}/{name}.db}}" for name in SOURCES}


class SqliteSession(Session):
    """Programs that write to the same file do so one after the other."""

    replacing = "INSERT OR REPLACE"

    def __init__(self, db: sqlite3.Connection):
        self.db = db

    def begin(self) -> None:
        self.db.execute("BEGIN IMMEDIATE")

    def commit(self) -> Committed:
        position = last_id(self.db)
        self.db.execute("COMMIT")
        return Committed(position, time.time())

    def rollback(self) -> None:
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Rows:
        return self.db.execute(sql, values)

    def replace(self, table: str, values: Mapping[str, Any], key: Sequence[str]) -> None:
        marks = ", ".join("?" * len(values))
        self.db.execute(
            f"INSERT OR REPLACE INTO {table} ({', '.join(values)}) VALUES ({marks})", tuple(values.values())
        )

    def gives_way(self, error: Exception) -> bool:
        """Whoever holds the lock so long must be let through."""
        return isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY


class SqliteWorld(World):
    title = "databases"
    second_opinion = "the same SQL, run by SQLite over the three files"
    captured_by = "triggers and a change log"
    outlasts = True

    @property
    def databases(self) -> dict[str, Path]:
        return {name: self.folder.root / f"{name}.db" for name in SOURCES}

    def create(self, seed: int = 1) -> dict[str, int]:
        rows = sample(random.Random(seed))
        for name, path in self.databases.items():
            with closing(sqlite3.connect(path)) as db:
                if name != "stock":  # there readers and writers wait for each other, which is SQLite's default
                    db.execute("PRAGMA journal_mode = wal")
                create_tables(db, name, rows[name])
        return {path.name: sum(map(len, rows[name].values())) for name, path in self.databases.items()}

    def close(self) -> None:
        """Files need no ending."""

    def configuration(self, bootstrap: str) -> str:
        return configuration(bootstrap, sections())

    @contextmanager
    def session(self, source: str) -> Iterator[Session]:
        with closing(sqlite3.connect(self.databases[source], timeout=BUSY_SECONDS, isolation_level=None)) as db:
            db.execute("PRAGMA foreign_keys = on")
            yield SqliteSession(db)

    def is_captured(self, source: str) -> bool:
        with closing(connect(str(self.databases[source]), f"source {source}")) as db:
            return is_installed(db)

    def holds_all(self, cut: Cut, transactions: Mapping[str, int]) -> bool:
        """By the change logs: an update may be several transactions."""
        sources = {name: SqliteSource(name, str(path)) for name, path in self.databases.items()}
        return all(source.reached(cut.positions[name], source.last_change()) for name, source in sources.items())

    def recompute(self, sql: str) -> Bag:
        with closing(sqlite3.connect(":memory:", uri=True)) as db:
            for name, path in self.databases.items():
                db.execute(f"ATTACH ? AS {name}", (f"{path.absolute().as_uri()}?mode=ro",))
            return Counter(db.execute(sql))


def create_tables(db: sqlite3.Connection, source: str, tables: Tables, schema: str = "main") -> None:
    """Creates the tables of a source and fills them."""
    for table, rows in tables.items():
        db.execute(f"CREATE TABLE {schema}.{table} ({COLUMNS[source][table]})")
        if rows:
            db.executemany(f"INSERT INTO {schema}.{table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    for index, (table, columns) in INDEXES[source].items():
        db.execute(f"CREATE INDEX {schema}.{index} ON {table} ({columns})")
    db.commit()
