"""What a topic of Debezium's says, read without Viewkeeper: whole transactions in commit order, each once."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson
from confluent_kafka import Message

Row = dict[str, Any]


class RowChange(NamedTuple):
    """What was done to a row; where there is neither before nor after, all rows of the table are gone."""

    table: str
    before: Row | None
    after: Row | None


@dataclass(frozen=True)
class Transaction:
    """``end`` is the LSN of its END, ``offset`` that of the message; ``emptied`` are tables that it truncated."""

    xid: str
    end: int
    offset: int
    changes: list[RowChange] = field(default_factory=list)
    emptied: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)


def transactions(messages: Iterable[Message]) -> list[Transaction]:
    """The topic's transactions; one that has no END yet is left out."""
    gathered: dict[str, dict[int, Row]] = {}
    found: list[Transaction] = []
    for message in messages:
        content = orjson.loads(message.value()) if message.value() else {}
        if content.get("status") == "END":
            xid, _, end = content["id"].partition(":")
            events = gathered.pop(xid, {})
            if not found or int(end) > found[-1].end:
                assert sorted(events) == list(range(1, content["event_count"] + 1)), f"transaction {xid} is not whole"
                found.append(_transaction(xid, int(end), message.offset(), [events[n] for n in sorted(events)]))
        elif "op" in content and content["transaction"]:
            xid = content["transaction"]["id"].partition(":")[0]
            gathered.setdefault(xid, {})[content["transaction"]["total_order"]] = content
    return found


def _transaction(xid: str, end: int, offset: int, events: list[Row]) -> Transaction:
    made = Transaction(xid, end, offset)
    for event in events:
        table = event["source"]["table"]
        if event["op"] == "m":
            made.tokens.append(base64.b64decode(event["message"]["content"]).decode(errors="replace"))
        elif event["op"] == "t":
            made.emptied.append(table)
            made.changes.append(RowChange(table, None, None))
        else:
            made.changes.append(RowChange(table, event.get("before"), event.get("after")))
    return made
