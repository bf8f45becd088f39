"""What a topic holds past some offset, counted without the parts that make updates of it: for people who look.

Barriers, markers, heartbeats and tombstones are messages, too, and no updates; a topic that holds nothing else past a
cut has nothing that the cut lacks. What cannot be read counts: something is there that no cut holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson

from viewkeeper.managers.sources.postgres_snapshot import PgSnapshot
from viewkeeper.messages import FURTHEST, Reached


class Told(NamedTuple):
    """An update of a topic: its last message, its position, the relations it touches (None: that is not known)."""

    offset: int
    position: int
    messages: int
    touched: frozenset[str] | None
    xid: int | None = None

    def concerns(self, relations: Collection[str]) -> bool:
        return self.touched is None or not self.touched.isdisjoint(relations)


@dataclass(frozen=True)
class Outstanding:
    """The updates of a topic from some offset on; ``rest`` counts messages that were too many to be looked at."""

    updates: Sequence[Told]
    rest: int = 0

    def past(self, offset: int, reached: Reached) -> list[Told]:
        """The updates from an offset on that a source which stands there has not told yet."""
        return [told for told in self.updates if told.offset >= offset and not _is_in(told, reached)]

    @property
    def last(self) -> int:
        """The position of the furthest update; 0 if there is none."""
        return max((told.position for told in self.updates if told.position < FURTHEST), default=0)


def told(format: Literal["native", "debezium"], messages: Iterable[tuple[int, bytes | None]]) -> list[Told]:
    """The updates that messages (offset, value) of a topic tell, in their order."""
    return list(_native(messages) if format == "native" else _debezium(messages))


def _is_in(told: Told, reached: Reached) -> bool:
    if told.position <= reached.last:
        return True
    if told.xid is None or told.position > reached.until or not reached.snapshot:
        return False
    return bool(PgSnapshot.parse(reached.snapshot).includes(np.array([told.xid]))[0])


def _parsed(value: bytes | None) -> Any:
    try:
        return orjson.loads(value or b"null")
    except orjson.JSONDecodeError:
        return {}


def _native(messages: Iterable[tuple[int, bytes | None]]) -> Iterator[Told]:
    parts, touched = 0, frozenset[str]()
    for offset, value in messages:
        content = _parsed(value)
        if isinstance(content, dict) and "barrier" in content:
            continue
        try:
            touched |= {change["relation"].casefold() for change in content["changes"]}
            position, unfinished = int(content["position"]), (content.get("part") or 1) < (content.get("parts") or 1)
        except (AttributeError, KeyError, TypeError, ValueError):
            yield Told(offset, FURTHEST, 1, None)
            continue
        parts += 1
        if not unfinished:
            yield Told(offset, position, parts, touched if content.get("global_txn") is None else None)
            parts, touched = 0, frozenset()


@dataclass
class _Open:
    """A transaction of Debezium's that has begun."""

    offset: int
    events: int = 0
    touched: frozenset[str] = frozenset()


def _debezium(messages: Iterable[tuple[int, bytes | None]]) -> Iterator[Told]:
    begun: dict[str, _Open] = {}
    for offset, value in messages:
        if (content := _parsed(value)) is None:
            continue  # a tombstone
        try:
            content = content.get("payload") or content
            if "op" in content:
                _event(begun, offset, content)
            elif content.get("status") == "END":
                xid, _, lsn = content["id"].partition(":")
                if (ended := begun.pop(xid, None)) is not None and ended.touched:
                    yield Told(offset, int(lsn), ended.events, ended.touched, int(xid))
            elif content.get("status") != "BEGIN" and content.keys() != {"ts_ms"}:
                yield Told(offset, FURTHEST, 1, None)
        except (AttributeError, KeyError, TypeError, ValueError):
            yield Told(offset, FURTHEST, 1, None)
    # Committed in its source, and here in part: the rest of it is on its way.
    yield from (Told(each.offset, FURTHEST, each.events, each.touched) for each in begun.values() if each.touched)


def _event(begun: dict[str, _Open], offset: int, content: dict[str, Any]) -> None:
    source, about = content["source"], content["transaction"]
    if about is None or content["op"] in ("m", "r"):
        return
    transaction = begun.setdefault(about["id"].partition(":")[0], _Open(offset))
    transaction.offset = offset
    transaction.events += 1
    transaction.touched |= {source["table"].casefold()}
