"""The native message format: one JSON message per source transaction, or several pieces of one."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NamedTuple

import orjson
from pydantic import ValidationError

from viewkeeper.messages import FURTHEST, GlobalPart, UpdateMessage


class Unreadable(ValueError):
    """A message that cannot be understood, and why."""


class Piece(NamedTuple):
    """What one message says: an update, or part of one; a barrier carries no changes and no transaction."""

    txn: str | None
    position: int
    changes: list[dict[str, Any]]
    part: int = 1
    parts: int = 1
    part_of: GlobalPart | None = None


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
