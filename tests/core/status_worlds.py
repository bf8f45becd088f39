"""Small installations for `status` and `watch`: real databases and cuts, and status files as a job writes them."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import yaml

from viewkeeper.config import Config, load_config
from viewkeeper.job.status import StatusFile
from viewkeeper.warehouse.cuts import WarehouseTransaction
from viewkeeper.warehouse.warehouse import Warehouse

DOWN = "127.0.0.1:1"
"""Where no broker is."""

ROW = pa.table({"x": ["row"], "_count": [1]})


@dataclass
class Place:
    """A folder with a configuration, its databases and its warehouse; nothing runs."""

    folder: Path

    def configure(self, views: Mapping[str, Any], sources: Sequence[str] = ("crm", "shop"), **settings: Any) -> Config:
        """``views`` are sections, or the one relation that a view is made of."""
        for source in sources:
            with closing(sqlite3.connect(self.folder / f"{source}.db")) as db:
                db.execute("CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, x TEXT)")
        tree = {
            "kafka": {"bootstrap": DOWN},
            "warehouse": "warehouse",
            "sources": {source: {"kind": "sqlite", "path": f"{source}.db"} for source in sources},
            "views": {
                name: {"sql": f"SELECT t.x FROM {v} t"} if isinstance(v, str) else v for name, v in views.items()
            },
            **settings,
        }
        (self.folder / "conf.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
        return load_config(self.folder / "conf.yaml")

    def cut(self, group: str, views: Sequence[str], update: int, **positions: int) -> None:
        """The group's next cut; views that it did not have are loaded."""
        warehouse = Warehouse(self.folder / "warehouse", group)
        newest = warehouse.open()
        for view in views:
            if newest is None or view not in newest.versions:
                warehouse.load(view, ROW.drop_columns("_count").schema, "SELECT x", [ROW], update)
        warehouse.commit(
            WarehouseTransaction(
                update, {s: str(p) for s, p in positions.items()}, dict(positions), "complete", views=views
            )
        )

    def status(self, group: str, views: Mapping[str, Mapping[str, Any]], **told: Any) -> None:
        """The status file of a group, written by this process unless told otherwise."""
        file = StatusFile.of(self.folder / "warehouse", group).path
        file.parent.mkdir(parents=True, exist_ok=True)
        now = datetime.now(UTC)
        state = {
            "pid": os.getpid(), "started": now, "heartbeat": now, "waiting": None, "trouble": False, "error": None,
            "level": "complete", "views": views, "read": {}, "arrived": {}, "unnumbered": 0,
            "cut": 0, "last_update": 0, "updates_handled": 0,
            "batches": 0, "asked": {}, "seconds": {}, "table": table(list(views), []), **told,
        }  # fmt: skip
        file.write_bytes(orjson.dumps(state))


def waiting(owed: int = 0, held: int = 0, waits_for: str | None = None) -> dict[str, Any]:
    """What a status file says of one view."""
    return {"behind": owed + held, "owed": owed, "held": held, "waits_for": waits_for}


def table(
    views: Sequence[str], rows: Sequence[str], first: int = 1, more: int = 0, source: str = "shop"
) -> dict[str, Any]:
    """A ViewUpdateTable; a row is a letter a view, gray ones first."""
    drawn = [
        {"update": k, "transactions": [f"{source}.{k + 800}"], "colors": dict(zip(views, row, strict=True))}
        for k, row in enumerate(rows, first)
    ]
    waits = sum("g" not in row for row in rows)
    return {"algorithm": "PA", "views": list(views), "rows": drawn, "pending": waits + more, "more": more}
