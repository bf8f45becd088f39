"""The native message format: one JSON message per source transaction, or several pieces of one."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
from pydantic import ValidationError

from viewkeeper.algebra.types import Column
from viewkeeper.messages import FURTHEST, GlobalPart, Update, UpdateMessage
from viewkeeper.queue.inlet import Change, Inlet, Message, Unreadable, Whole
from viewkeeper.queue.spool import SpooledList
from viewkeeper.queue.values import json_column


class Piece(NamedTuple):
    """What one message says: an update, or part of one; a barrier carries no changes and no transaction."""

    txn: str | None
    position: int
    changes: list[dict[str, Any]]
    part: int = 1
    parts: int = 1
    part_of: GlobalPart | None = None


@dataclass(slots=True)
class _Open:
    """An update of which some parts have come, from the first on without a gap."""

    piece: Piece  # the last part
    first: Message  # the first part
    changes: SpooledList[Change] = field(default_factory=SpooledList)

    def __str__(self) -> str:
        return f"part {self.piece.part} of {self.piece.parts} of transaction {self.piece.txn}"

    def is_of(self, piece: Piece) -> bool:
        """Whether the piece is a part of the same update."""
        return (piece.txn, piece.position, piece.part_of) == (self.piece.txn, self.piece.position, self.piece.part_of)


class Torn(Unreadable):
    """An update whose other parts can never come any more: another update has come."""

    def __init__(self, torn: _Open, follower: Piece):
        reason = (
            f"{torn} came last, and then {_named(follower)} instead of part {torn.piece.part + 1}: "
            "the rest of that update is lost"
        )
        super().__init__(reason, torn.first)


class NativeReader:
    """Puts pieces together and drops repetitions, by position.

    A sender that was killed between parts sends the update again, from part 1 on, perhaps in other pieces; any other
    sequence than 1, 2, … n of one update has lost something, and is refused.
    """

    def __init__(self, inlet: Inlet):
        self._inlet = inlet
        self._image_of = {relation: inlet.image_of(relation) for relation in inlet.used}
        self._open: _Open | None = None

    def take(self, message: Message, wrong: str | None = None) -> Whole | None:
        inlet = self._inlet
        if wrong:
            raise Unreadable(wrong)
        piece = read_message(message.value, inlet.source, inlet.relations)
        if piece.txn is None or piece.position <= inlet.last:
            inlet.offset = message.offset + 1
            return None
        if piece.parts > 1 or self._open is not None:
            return self._assemble(message, piece)
        return self._whole(message, piece, self._changes(piece))

    def pass_over(self, message: Message, refused: Unreadable) -> None:
        self.forget()
        if isinstance(refused, Torn):
            return
        self._inlet.offset = message.offset + 1
        self._inlet.set_aside = max(self._inlet.set_aside, claimed_position(message.value))

    def column(self, values: Sequence[Any], column: Column) -> pa.Array:
        return json_column(list(values), column.type)

    def mark(self) -> _Mark:
        return (None, 0) if self._open is None else (replace(self._open), len(self._open.changes))

    def go_back(self, mark: _Mark) -> None:
        kept, length = mark
        self._open = None if kept is None else replace(kept)  # the mark may be needed again
        if kept is not None:
            kept.changes.cut(length)

    def forget(self) -> None:
        self._open, self._inlet.held = None, None

    def before_barrier(self, token: str) -> int | None:
        return None  # its sources write none

    def unfinished(self) -> str | None:
        return None if self._open is None else str(self._open)

    def _assemble(self, message: Message, piece: Piece) -> Whole | None:
        held = self._open
        if held is not None and not held.is_of(piece):
            raise Torn(held, piece)
        changes = self._changes(piece)
        if piece.part == 1:
            held = _Open(piece, message)
        elif held is None or piece.part != held.piece.part + 1:
            came = "" if held is None else f"; {held} came last"
            raise Unreadable(f"{_named(piece)} does not follow part {piece.part - 1}{came}")
        elif piece.parts != held.piece.parts:
            raise Unreadable(f"{_named(piece)} does not follow {held}: the number of parts has changed")
        for change in changes:
            held.changes.append(change, len(message.value or b"") // len(changes))
        held.piece = piece
        self._open, self._inlet.held = held, held.first.offset
        if piece.part == piece.parts:
            return self._whole(message, piece, held.changes)
        self._inlet.offset = message.offset + 1
        return None

    def _changes(self, piece: Piece) -> list[Change]:
        """What a piece did to captured relations."""
        return [self._change(change) for change in piece.changes if change["relation"] in self._inlet.used]

    def _whole(self, message: Message, piece: Piece, used: Sequence[Change] | SpooledList[Change]) -> Whole | None:
        """The update, unless it touches no captured relation: such a transaction gets no number by itself."""
        inlet = self._inlet
        begins = inlet.held
        inlet.last, inlet.offset = piece.position, message.offset + 1
        self.forget()
        # A part of a transaction over several sources is told in any case: the other parts wait for it.
        if not len(used) and piece.part_of is None:
            return None
        assert piece.txn is not None
        return Whole(
            Update(
                inlet.source,
                piece.txn,
                piece.position,
                inlet.topic,
                message.offset,
                message.timestamp,
                piece.part_of,
                begins=begins,
            ),
            used,
        )

    def _change(self, change: dict[str, Any]) -> Change:
        relation, before, after = change["relation"], change.get("before"), change.get("after")
        image = self._image_of[relation]
        try:
            return relation, None if before is None else image(before), None if after is None else image(after)
        except KeyError as missing:
            fresh = self._inlet.fresh.get(relation, ())
            if missing.args[0] not in fresh:
                raise Unreadable(f"{relation}: column {missing.args[0]!r} is missing") from None
        blank = dict.fromkeys(fresh)  # logged before a view used them
        sides = {side: blank | row for side, row in (("before", before), ("after", after)) if row is not None}
        return self._change({"relation": relation, **sides})


_Mark = tuple[_Open | None, int]


def _named(piece: Piece) -> str:
    return f"transaction {piece.txn}" if piece.parts == 1 else f"part {piece.part} of transaction {piece.txn}"


_SIDES = {"insert": ("after",), "delete": ("before",), "update": ("before", "after")}


def read_message(value: bytes | None, source: str, relations: Container[str]) -> Piece:
    """Reads one message of the source's topic; raises Unreadable with the reason.

    The common case is checked by hand (a backlog is a hundred thousand messages); what looks odd is given to the
    pydantic model, which knows every rule and words the reason.
    """
    if value is None:
        raise Unreadable("the message is empty")
    try:
        message = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise Unreadable(f"not JSON ({error})") from None
    if type(message) is dict and "barrier" in message:
        return Piece(None, 0, [])
    if not _looks_right(message):
        try:
            UpdateMessage.model_validate(message)
        except ValidationError as error:
            raise Unreadable(_reason(error)) from None
    if message["source"] != source:
        raise Unreadable(f"source {message['source']!r} in the topic of {source!r}")
    for change in message["changes"]:
        if change["relation"] not in relations:
            raise Unreadable(f"unknown relation {change['relation']!r}")
    return Piece(
        message["txn"],
        message["position"],
        message["changes"],
        message.get("part") or 1,
        message.get("parts") or 1,
        _part_of(message.get("global_txn")),
    )


def _part_of(transaction: dict[str, Any] | None) -> GlobalPart | None:
    return None if transaction is None else GlobalPart(transaction["id"], frozenset(transaction["sources"]))


def claimed_position(value: bytes | None) -> int:
    """The position that a message claims, however wrong the rest of it is; −1 if it claims none."""
    try:
        position = orjson.loads(value or b"")["position"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return -1
    return position if type(position) is int and 0 <= position < FURTHEST else -1


def _looks_right(message: Any) -> bool:
    """Whether a message is certainly valid: a whole update with the fields it must have and no others."""
    try:
        if message.get("global_txn") is not None or len(message) != 4 + ("global_txn" in message):
            return False
        for change in message["changes"]:
            sides = _SIDES[change["op"]]
            if type(change["relation"]) is not str or len(change) != 2 + len(sides):
                return False
            for side in sides:
                if type(change[side]) is not dict:
                    return False
        return (
            type(message["changes"]) is list
            and type(message["source"]) is str
            and type(message["txn"]) is str
            and type(message["position"]) is int
            and 0 <= message["position"] < FURTHEST
        )
    except (AttributeError, KeyError, TypeError):
        return False


def _reason(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(step) for step in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])
