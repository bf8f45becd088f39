"""A configuration over databases that may be away, or may not answer, when the job starts."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from viewkeeper.config import Config, load_config
from viewkeeper.job.assembly import Project, assemble
from viewkeeper.job.joining import begin, join
from viewkeeper.warehouse.cuts import WarehouseTransaction
from viewkeeper.warehouse.warehouse import Warehouse

TABLES = {
    "a": ["CREATE TABLE r (id INTEGER PRIMARY KEY, x INTEGER, y TEXT)", "CREATE TABLE q (id INTEGER PRIMARY KEY)"],
    "b": ["CREATE TABLE s (id INTEGER PRIMARY KEY, x INTEGER)"],
    "c": ["CREATE TABLE t (id INTEGER PRIMARY KEY, x INTEGER)"],
    "d": ["CREATE TABLE u (id INTEGER PRIMARY KEY, x INTEGER)"],
}
RS = "SELECT r.id, r.y, s.id AS s FROM a.r JOIN b.s ON s.x = r.x"
VIEWS: dict[str, Any] = {
    "r": "SELECT id, x FROM a.r",
    "rs": RS,
    "loose": {"sql": RS, "algorithm": "convergent"},
    "t": "SELECT id FROM C.T WHERE x > 1",
    "counts": {
        "sql": "WITH n AS (SELECT x, count(*) AS n FROM c.t GROUP BY x) "
        "SELECT n.n FROM n WHERE n.x IN (SELECT x FROM d.u)",
        "algorithm": "refresh",
    },
    "u": "SELECT id FROM d.u",
}


@dataclass
class Place:
    """Databases, each of which may be taken away, and a configuration of views over them."""

    folder: Path

    @classmethod
    def made(cls, folder: Path) -> Place:
        place = cls(folder)
        for source, statements in TABLES.items():
            place.write(source, *statements)
        return place

    def configure(self, views: Mapping[str, Any] = VIEWS, **settings: Any) -> Config:
        conf = {
            "kafka": {"bootstrap": "127.0.0.1:1"},
            "warehouse": "warehouse",
            "sources": {source: {"kind": "sqlite", "path": f"{source}.db"} for source in TABLES},
            "views": {name: {"sql": view} if isinstance(view, str) else view for name, view in views.items()},
            **settings,
        }
        (self.folder / "conf.yaml").write_text(json.dumps(conf))
        return load_config(self.folder / "conf.yaml")

    def write(self, source: str, *statements: str) -> None:
        with closing(sqlite3.connect(self.folder / f"{source}.db")) as db:
            for statement in statements:
                db.execute(statement)
            db.commit()

    def take_away(self, *sources: str) -> None:
        for source in sources:
            (self.folder / f"{source}.db").rename(self.folder / f"{source}.away")

    def bring_back(self, *sources: str) -> None:
        for source in sources:
            (self.folder / f"{source}.away").rename(self.folder / f"{source}.db")

    @contextmanager
    def locked(self, source: str) -> Iterator[None]:
        """Another program holds the database: whoever reads it is kept waiting for longer than a test lasts."""
        with closing(sqlite3.connect(self.folder / f"{source}.db", isolation_level=None)) as db:
            db.execute("BEGIN EXCLUSIVE")
            yield
            db.execute("ROLLBACK")

    def cut(self, group: str, views: Sequence[str], **positions: str) -> None:
        """The first cut of a group, or the next."""
        warehouse = Warehouse(self.folder / "warehouse", group)
        if warehouse.open() is None:
            schema = assemble(load_config(self.folder / "conf.yaml")).views
            for view in views:
                warehouse.load(view, schema[view].schema, schema[view].sql, [], 0)
        warehouse.commit(WarehouseTransaction(0, positions, dict.fromkeys(positions, 0), "complete", views=views))


def begun(config: Config) -> Project:
    return begin(config, threading.Event())


def joined(project: Project, group: str) -> Project:
    return join(project, group, threading.Event(), patience=0.0)
