"""A database whose transactions can be marked, with a capture that tells into memory."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from viewkeeper.capture.sqlite_capture import SqliteCapture
from viewkeeper.capture.update_topic import UpdateTopic
from viewkeeper.managers.sources import sqlite_log as log
from viewkeeper.messages import PIECE_BYTES, UpdateMessage
from viewkeeper.queue.native import read_message

SPANS = [["shop", "crm"], ["hr", "shop"]]
T = {"t": ["id", "a"]}


class Told(UpdateTopic):
    """A topic in memory."""

    def __init__(self) -> None:
        super().__init__("shop", "shop.updates", {})
        self.messages: list[UpdateMessage] = []

    def open(self) -> None: ...

    def send(self, messages: Iterable[bytes]) -> None:
        for message in messages:
            read_message(message, "shop", {"t", "other"})  # as the job does
            self.messages.append(UpdateMessage.model_validate_json(message))
            assert len(message) <= PIECE_BYTES

    def last_position(self) -> int | None:
        return self.messages[-1].position if self.messages else None

    def was_emptied(self) -> bool:
        return False


@dataclass(frozen=True)
class Update:
    """What one update told: the transaction that it is a part of, and the ids of the rows of ``t`` it changed."""

    part_of: str | None
    rows: list[int]


class Shop:
    """A database with a capture that looks when it is told to."""

    def __init__(self, path: Path, encoding: str = "UTF-8"):
        self.path = str(path)
        self.db = self.connect()
        self.db.execute(f"PRAGMA encoding = '{encoding}'")
        self.db.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
        self.db.execute("CREATE TABLE other (id INTEGER PRIMARY KEY)")
        self.told = Told()
        self.install()
        self.restart()

    def connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, isolation_level=None)
        db.execute("PRAGMA synchronous = OFF")  # nothing here crashes the machine
        return db

    def capture(self, spans: list[list[str]] = SPANS) -> SqliteCapture:
        made = SqliteCapture("shop", self.path, "shop.updates", {}, spans=spans)
        made.topic = self.told
        return made

    def install(self, spans: list[list[str]] = SPANS) -> list[str]:
        capture = self.capture(spans)
        capture.install(T)
        return capture.installed()

    def close(self) -> None:
        self._looks.close()
        self.db.close()

    def restart(self) -> None:
        self._looks = self.capture()._follow(threading.Event())

    def look(self) -> list[Update]:
        """The updates that capture tells now."""
        before = len(self.told.messages)
        next(self._looks)
        return [
            Update(
                m.global_txn.id if m.global_txn else None,
                [(c.after or c.before or {})["id"] for c in m.changes],
            )
            for m in self.told.messages[before:]
        ]

    def mark(self, id: object, sources: object = "shop,crm") -> None:
        self.db.execute(f"INSERT INTO {log.GLOBAL_TXN} (id, sources) VALUES (?, ?)", (id, sources))

    def write(self, *ids: int) -> None:
        for id in ids:
            self.db.execute("INSERT INTO t VALUES (?, NULL)", (id,))

    def part(self, id: str, *ids: int) -> None:
        self.db.execute("BEGIN IMMEDIATE")
        self.mark(id)
        self.write(*ids)
        self.db.execute("COMMIT")
