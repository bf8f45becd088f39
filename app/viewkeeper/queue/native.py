"""The native message format: one JSON message per source transaction, or several pieces of one."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
from pydantic import ValidationError

from viewkeeper.algebra.types import Column
from viewkeeper.messages import FURTHEST, GlobalPart, Update, UpdateMessage
from viewkeeper.queue.inlet import Change, Inlet, Message, Unreadable, Whole
from viewkeeper.queue.values import json_column


class Piece(NamedTuple):
    """What one message says: an update, or part of one; a barrier carries no changes and no transaction."""

    txn: str | None
    position: int
    changes: list[dict[str, Any]]
    part: int = 1
    parts: int = 1
    part_of: GlobalPart | None = None


class NativeReader:
    """Puts pieces together and drops repetitions, by position."""

    def __init__(self, inlet: Inlet):
        self._inlet = inlet
        self._image_of = {relation: inlet.image_of(relation) for relation in inlet.used}
        self._pieces: list[Piece] = []  # replaced, never changed: a mark may hold it

    def take(self, message: Message, wrong: str | None = None) -> Whole | None:
        inlet = self._inlet
        if wrong:
            raise Unreadable(wrong)
        piece = read_message(message.value, inlet.source, inlet.relations)
        if piece.txn is None or piece.position <= inlet.last:
            inlet.offset = message.offset + 1
            return None
        if piece.parts > 1 or self._pieces:
            return self._assemble(message, piece)
        return self._whole(message, piece, piece.changes)

    def pass_over(self, message: Message, refused: Unreadable) -> None:
        self._inlet.offset = message.offset + 1
        self._inlet.set_aside = max(self._inlet.set_aside, claimed_position(message.value))
        self.forget()

    def column(self, values: Sequence[Any], column: Column) -> pa.Array:
        return json_column(list(values), column.type)

    def mark(self) -> list[Piece]:
        return self._pieces

    def go_back(self, mark: list[Piece]) -> None:
        self._pieces = mark

    def forget(self) -> None:
        self._pieces, self._inlet.held = [], None

    def before_barrier(self, token: str) -> int | None:
        return None  # its sources write none

    def _assemble(self, message: Message, piece: Piece) -> Whole | None:
        earlier = [] if piece.part == 1 else self._pieces
        if len(earlier) != piece.part - 1 or (earlier and earlier[0].txn != piece.txn):
            raise Unreadable(f"part {piece.part} of transaction {piece.txn} does not follow part {piece.part - 1}")
        pieces = [*earlier, piece]
        if piece.part == piece.parts:
            return self._whole(message, piece, [change for each in pieces for change in each.changes])
        self._pieces = pieces
        self._inlet.held = message.offset if piece.part == 1 else self._inlet.held
        self._inlet.offset = message.offset + 1
        return None

    def _whole(self, message: Message, piece: Piece, changes: Sequence[dict[str, Any]]) -> Whole | None:
        """The update, unless it touches no captured relation: such a transaction gets no number by itself."""
        inlet = self._inlet
        used = [self._change(change) for change in changes if change["relation"] in inlet.used]
        begins = inlet.held
        inlet.last, inlet.offset = piece.position, message.offset + 1
        self.forget()
        # A part of a transaction over several sources is told in any case: the other parts wait for it.
        if not used and piece.part_of is None:
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
            raise Unreadable(f"{relation}: column {missing.args[0]!r} is missing") from None


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
