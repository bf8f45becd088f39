"""Transactions as Debezium writes them, for tests: recorded, or made up."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from viewkeeper.algebra.types import INTEGER, TEXT, TIMESTAMP, Column, Relation, decimal
from viewkeeper.messages import ORDINAL, Reached, Received
from viewkeeper.queue.consumer import MESSAGES
from viewkeeper.queue.update_queue import Inlet

RECORDINGS = Path(__file__).parent / "debezium"

ACC = Relation(
    "shop",
    "acc",
    (
        Column("id", INTEGER, "int4"),
        Column("owner", TEXT, "text"),
        Column("bal", decimal(10, 2), "numeric"),
        Column("note", TEXT, "text"),
        Column("ts", TIMESTAMP, "timestamptz"),
    ),
    ("id",),
)
FUL = Relation("shop", "ful", (Column("id", INTEGER, "int4"), Column("a", TEXT, "text"), Column("b", TEXT, "text")))
ORD = Relation("shop", "ord", tuple(Column(name, INTEGER, "int4") for name in ("oid", "line", "qty")), ("oid", "line"))
RELATIONS = {"acc": ACC, "ful": FUL, "ord": ORD}

Row = dict[str, Any]


def recorded(name: str, *numbers: int) -> list[bytes]:
    """The values of these lines of a recording (all if none is named), by the number each begins with."""
    lines = (RECORDINGS / name).read_text().splitlines()
    values = {int(line.split(" ", 1)[0]): line.split(" V= ", 1)[1].split(" H= ", 1)[0].encode() for line in lines}
    return [values[number] for number in numbers or values]


START = Reached(0)


def inlet(position: Reached = START, offset: int = 0, **used: Sequence[str]) -> Inlet:
    wanted = used or {"ful": ("id", "a", "b"), "ord": ("oid", "line", "qty")}
    return Inlet("shop", "shop.updates", RELATIONS, wanted, position, offset, format="debezium")


def messages(*values: bytes | None, first: int = 0) -> pa.Table:
    rows = [
        {"topic": "shop.updates", "offset": first + i, "value": value, "timestamp": 1000 + first + i}
        for i, value in enumerate(values)
    ]
    return pa.Table.from_pylist(rows, MESSAGES)


@dataclass(frozen=True)
class Event:
    """What a transaction did, as one event; ``content`` is a logical message's."""

    op: str
    table: str = ""
    before: Row | None = None
    after: Row | None = None
    lsn: int = 0
    schema: str = "public"
    content: str = ""
    prefix: str = "viewkeeper"


@dataclass(frozen=True)
class Committed:
    """A transaction of the source."""

    xid: int
    end: int
    events: Sequence[Event]
    follows: int | None = None  # the END before it
    connector: str = "shop"

    def messages(self) -> list[bytes]:
        """BEGIN, the events, END."""
        return [self.begin(), *map(self.event, range(1, len(self.events) + 1)), self.ending()]

    def begin(self) -> bytes:
        first = self.events[0].lsn if self.events else self.end
        return compact({"status": "BEGIN", "id": f"{self.xid}:{first}", "event_count": None, "ts_ms": 1})

    def ending(self, events: int | None = None) -> bytes:
        count = len(self.events) if events is None else events
        return compact({"status": "END", "id": f"{self.xid}:{self.end}", "event_count": count, "ts_ms": 1})

    def event(self, number: int) -> bytes:
        event = self.events[number - 1]
        source = {
            "name": self.connector,
            "snapshot": None,
            "sequence": json.dumps([None if self.follows is None else str(self.follows), str(event.lsn)]),
            "schema": event.schema,
            "table": event.table,
            "txId": self.xid,
            "lsn": event.lsn,
        }
        about = {"id": f"{self.xid}:{event.lsn}", "total_order": number, "data_collection_order": number}
        if event.op == "m":
            content = base64.b64encode(event.content.encode()).decode()
            message = {"prefix": event.prefix, "content": content}
            return compact({"op": "m", "source": source, "transaction": about, "message": message})
        return compact(
            {"before": event.before, "after": event.after, "source": source, "transaction": about, "op": event.op}
        )

    def did(self, captured: Sequence[str]) -> Did | None:
        """What a view can see of it; None if it touches no captured table."""
        did = Did(self.end, self.xid)
        touched = False
        for event in self.events:
            if event.table not in captured or event.schema != "public":
                continue
            touched = True
            if event.op == "t":
                did.truncated.add(event.table)
                did.changes.pop(event.table, None)
                continue
            for row, count in ((event.before, -1), (event.after, 1)):
                if row is not None:
                    did.changes.setdefault(event.table, []).append((tuple(row.values()), count))
        return did if touched else None


@dataclass
class Did:
    """An update as it must come out: its END, its xid, the tables it emptied and then changed, row by row."""

    end: int
    xid: int
    truncated: set[str] = field(default_factory=set)
    changes: dict[str, list[tuple[tuple[Any, ...], int]]] = field(default_factory=dict)


def compact(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def wrapped(value: bytes | None) -> bytes:
    """As a converter with schemas.enable writes it."""
    return compact({"schema": {"type": "struct"}, "payload": None if value is None else json.loads(value)})


def came_out(received: Received) -> list[Did]:
    """What the queue handed over, update by update."""
    came = [Did(update.position, update.tag or 0) for update in received.updates]
    for each in received.truncated:
        came[each.ordinal].truncated.add(each.relation)
    for (_, relation), table in received.changes.items():
        columns = [name for name in table.column_names if not name.startswith("_")]
        rows = zip(*(table[name].to_pylist() for name in columns), strict=True)
        ordinals, counts = table[ORDINAL].to_pylist(), table["_count"].to_pylist()
        assert ordinals == sorted(ordinals)
        for row, count, ordinal in zip(rows, counts, ordinals, strict=True):
            came[ordinal].changes.setdefault(relation, []).append((row, count))
    return came


def rows(received: Received, relation: str) -> Counter[tuple[Any, ...]]:
    """The signed rows of one relation, all updates together."""
    total: Counter[tuple[Any, ...]] = Counter()
    for did in came_out(received):
        for row, count in did.changes.get(relation, []):
            total[row] += count
    return total
