"""Debezium's message format: BEGIN, an event for each row, END.

The rule that survives kills of the connector, which sends the tail again, perhaps from the middle of a transaction:
events are gathered by transaction id and by their number in it. At END, the transaction is a repetition if its END is
not past the last one; otherwise exactly the events 1 to event_count must be there. ENDs come in commit order; row LSNs
and transaction ids do not.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from viewkeeper.algebra.types import Column
from viewkeeper.managers.sources.postgres_snapshot import PgSnapshot
from viewkeeper.managers.sources.postgres_values import Misfits, debezium_column
from viewkeeper.messages import FURTHEST, Update
from viewkeeper.queue.debezium_events import CapturedTable
from viewkeeper.queue.debezium_transaction import Mark, Transaction, brought_back
from viewkeeper.queue.inlet import Inlet, Message, Unreadable, Whole
from viewkeeper.queue.values import WrongType

BARRIER = "viewkeeper"
"""The prefix of the logical messages that carry barriers."""

_TOKENS = 1000
_RELOAD = "load the views again ('viewkeeper init --reload')"
_STATUS = b'{"status":"'
_BEGIN = b'{"status":"BEGIN","id":"'
_END = b'{"status":"END","id":"'
_MALFORMED = (AttributeError, KeyError, OverflowError, TypeError, ValueError)


class Lost(Unreadable):
    """A transaction that has begun and can never end any more: a later one has ended."""

    def __init__(self, transaction: Transaction):
        reason = (
            f"transaction {transaction.xid} has begun, but a later one ended before it: the rest of it is lost "
            f"(was the replication slot made anew?); {_RELOAD}"
        )
        super().__init__(reason, transaction.first)
        self.xid = transaction.xid


class _Marker(NamedTuple):
    """What an END says."""

    xid: str
    lsn: int
    events: int


class _State(NamedTuple):
    open: list[Mark]
    told: int
    furthest: int
    tokens: dict[str, int]


class DebeziumReader:
    """Gathers the events of transactions, drops repetitions, and knows the barriers that have passed."""

    def __init__(self, inlet: Inlet):
        self._inlet = inlet
        self._tables = {name: CapturedTable(inlet, name) for name in inlet.used}
        self._open: dict[str, Transaction] = {}
        self._told = 0  # the furthest END that was handed over since the inlet was set
        self._furthest = self._reached()  # the furthest LSN of anything that came, or was loaded
        self._tokens: dict[str, int] = {}  # the furthest LSN before each barrier's transaction

    def take(self, message: Message, wrong: str | None = None) -> Whole | None:
        value, whole = message.value, None
        try:
            if value is None:
                pass  # a tombstone
            elif not value.startswith(_STATUS):
                whole = self._other(orjson.loads(value), message, wrong)
            elif value.startswith(_END):
                whole = self._end(_marker(orjson.loads(value)), message, wrong)
            elif value.startswith(_BEGIN):
                self._begin(str(value[len(_BEGIN) : len(_BEGIN) + 40], errors="replace"), message)
            else:
                raise Unreadable("not an event of Debezium's")
        except orjson.JSONDecodeError as error:
            raise Unreadable(f"not JSON ({error})") from None
        self._inlet.offset = message.offset + 1
        return whole

    def pass_over(self, message: Message, refused: Unreadable) -> None:
        if isinstance(refused, Lost):
            self._close(refused.xid)
            return
        self._inlet.offset = message.offset + 1
        marker = _claimed(message.value)
        if marker is not None:
            self._close(marker.xid)
            self._inlet.set_aside = max(self._inlet.set_aside, marker.lsn)
            self._furthest = max(self._furthest, marker.lsn)

    def column(self, values: Sequence[Any], column: Column) -> pa.Array:
        try:
            return debezium_column(list(values), column)
        except Misfits as error:
            raise WrongType(error.reasons) from None

    def mark(self) -> _State:
        return _State([t.mark() for t in self._open.values()], self._told, self._furthest, dict(self._tokens))

    def go_back(self, mark: _State) -> None:
        self._open, self._told, self._tokens = brought_back(mark.open), mark.told, dict(mark.tokens)
        self._furthest = mark.furthest

    def forget(self) -> None:
        self._open, self._told, self._tokens, self._inlet.held = {}, 0, {}, None
        self._furthest = self._reached()

    def before_barrier(self, token: str) -> int | None:
        return self._tokens.get(token)

    def unfinished(self) -> str | None:
        begun = [transaction for transaction in self._open.values() if transaction.began]
        return f"event {len(begun[0].lsns)} of transaction {begun[0].xid}" if begun else None

    def _reached(self) -> int:
        return max(self._inlet.last, self._inlet.load.until)

    # -- transactions

    def _begin(self, id: str, message: Message) -> None:
        try:
            xid = _xid(id)
        except ValueError as error:
            raise Unreadable(f"not a BEGIN of Debezium's ({error})") from None
        (self._open.get(xid) or self._opened(xid, message)).began = True

    def _opened(self, xid: str, message: Message) -> Transaction:
        transaction = self._open[xid] = Transaction(xid, message, self._furthest)
        if self._inlet.held is None:
            self._inlet.held = message.offset
        return transaction

    def _close(self, xid: str) -> None:
        self._open.pop(xid, None)
        self._inlet.held = min((t.first.offset for t in self._open.values()), default=None)

    def _end(self, marker: _Marker, message: Message, wrong: str | None) -> Whole | None:
        inlet = self._inlet
        transaction = self._open.get(marker.xid) or Transaction(marker.xid, message)
        if transaction.is_load:
            self._close(marker.xid)
            return None
        new = self._is_new(marker)
        loaded = new and marker.lsn <= inlet.load.until and self._is_loaded(marker.xid)
        fault = transaction.fault(marker.events) or wrong
        if new:
            if len(self._open) > 1 or not transaction.began:
                self._require_no_lost(marker.xid)
            if fault and not loaded:
                raise Unreadable(f"transaction {marker.xid}: {fault}; {_RELOAD}")
            if transaction.strangers and not loaded:
                inlet.meet(transaction.strangers, marker.xid)
            # What else is open repeats old transactions, and will not be completed.
            self._open, inlet.held, inlet.last = {}, None, marker.lsn
        else:
            self._close(marker.xid)
        if marker.lsn > self._furthest:
            self._furthest = marker.lsn
        if transaction.tokens:
            self._note(transaction.tokens, transaction.before)
        if loaded or fault or not transaction.touches or marker.lsn <= self._told:
            return None
        self._told = marker.lsn
        return self._whole(transaction, marker, message, again=not new)

    def _whole(self, transaction: Transaction, marker: _Marker, message: Message, again: bool) -> Whole:
        update = Update(
            self._inlet.source,
            marker.xid,
            marker.lsn,
            self._inlet.topic,
            message.offset,
            message.timestamp,
            None,
            int(marker.xid),
            transaction.first.offset,
        )
        return Whole(update, transaction.done(), tuple(transaction.emptied or ()), again)

    def _is_new(self, marker: _Marker) -> bool:
        return marker.lsn > self._inlet.last

    def _is_loaded(self, xid: str) -> bool:
        """Whether the load's snapshot includes this transaction."""
        text = self._inlet.load.snapshot
        return bool(text) and bool(_snapshot(text).includes(np.array([int(xid)]))[0])

    def _require_no_lost(self, ending: str) -> None:
        """A transaction that is past the last one ends: no earlier one can still do so.

        Not lost are what began before this inlet's first message and what only repeats transactions that have ended,
        as a connector leaves behind that is killed while it repeats.
        """
        for transaction in self._open.values():
            if transaction.xid == ending or transaction.is_load or not transaction.began:
                continue
            follows = transaction.follows()
            old = follows is not None and follows < self._inlet.last
            if not old and not self._is_loaded(transaction.xid):
                raise Lost(transaction)

    def _note(self, tokens: Sequence[str], before: int) -> None:
        self._tokens.update({token: before for token in tokens if token not in self._tokens})
        while len(self._tokens) > _TOKENS:
            del self._tokens[next(iter(self._tokens))]

    # -- events

    def _other(self, document: Any, message: Message, wrong: str | None) -> Whole | None:
        """Any message that is not plainly a BEGIN or an END."""
        if type(document) is dict and "payload" in document and "schema" in document:
            document = document["payload"]
            if document is None:  # a tombstone
                return None
        if type(document) is not dict:
            raise Unreadable("not an event of Debezium's")
        if "op" in document:
            self._event(document, message)
        elif document.get("status") == "END":
            return self._end(_marker(document), message, wrong)
        elif document.get("status") == "BEGIN":
            self._begin(str(document.get("id")), message)
        elif document.keys() != {"ts_ms"}:  # a heartbeat
            raise Unreadable("not an event of Debezium's")
        return None

    def _event(self, document: dict[str, Any], message: Message) -> None:
        try:
            source, op, about = document["source"], document["op"], document["transaction"]
            captured = self._tables.get(source["table"]) if source["schema"] == self._inlet.schema else None
            snapshot = op == "r" or source.get("snapshot") not in (None, "false", False)
            if about is None:
                if captured is None or snapshot or op == "m":
                    return
                raise Unreadable(
                    f"{captured.name}: the event does not say which transaction it belongs to; "
                    "set 'provide.transaction.metadata=true' in the connector's configuration"
                )
            xid, order, lsn = _xid(about["id"]), about["total_order"], source["lsn"]
            if not (0 < order < FURTHEST and 0 <= lsn < FURTHEST):
                raise ValueError("out of range")
        except Unreadable:
            raise
        except _MALFORMED as error:
            raise Unreadable(f"not an event of Debezium's ({type(error).__name__}: {error})") from None
        transaction = self._open.get(xid) or self._opened(xid, message)
        if lsn > self._furthest:
            self._furthest = lsn
        if not transaction.counts(order, lsn):
            return
        if order == 1:
            transaction.sequence = source.get("sequence")
        if snapshot:
            transaction.loads += 1
        elif op == "m":
            transaction.tokens += _tokens(document.get("message"))
        elif captured is not None:
            transaction.touches = True
            self._change(transaction, captured, document, message)
        else:
            transaction.meets((str(source["schema"]), str(source["table"])), lsn)

    def _change(
        self, transaction: Transaction, table: CapturedTable, document: dict[str, Any], message: Message
    ) -> None:
        """Adds what the event did; what is wrong with it matters only if the transaction is to be used."""
        op = document["op"]
        if op == "t":
            transaction.emptied = {**(transaction.emptied or {}), table.name: len(transaction.changes)}
            return
        assert message.value is not None
        try:
            rows = document.get("before"), document.get("after")
            before, after = table.images(op, *rows, message.value, document["source"].get("name") or "")
        except Unreadable as problem:
            transaction.problem = transaction.problem or f"event {len(transaction.lsns)}: {problem}"
            return
        if before is not None or after is not None:
            transaction.changes.append((table.name, before, after), len(message.value))


_snapshot = lru_cache(maxsize=8)(PgSnapshot.parse)


def _xid(id: str) -> str:
    """The transaction that an id names; its other half is the LSN of the message that names it."""
    xid = id.partition(":")[0]
    if not (xid.isdecimal() and len(xid) <= 10):
        raise ValueError(f"no transaction id: {id!r}")
    return xid


def _marker(document: dict[str, Any]) -> _Marker:
    """Reads an END."""
    try:
        id = document["id"]
        marker = _Marker(_xid(id), int(id.partition(":")[2]), document["event_count"])
        if not (0 <= marker.lsn < FURTHEST and type(marker.events) is int):
            raise ValueError("out of range")
    except _MALFORMED as error:
        raise Unreadable(f"not an END of Debezium's ({type(error).__name__}: {error})") from None
    return marker


def _claimed(value: bytes | None) -> _Marker | None:
    """The END that a message claims to be, however wrong the rest of it is."""
    try:
        document = orjson.loads(value or b"")
        document = document.get("payload") or document
        return _marker(document) if document.get("status") == "END" else None
    except (AttributeError, Unreadable, orjson.JSONDecodeError):
        return None


def _tokens(message: Any) -> tuple[str, ...]:
    """The barrier that a logical message carries, if it does."""
    try:
        if message["prefix"] == BARRIER:
            return (base64.b64decode(message["content"], validate=True).decode(),)
    except (KeyError, TypeError, ValueError, binascii.Error):
        pass
    return ()
