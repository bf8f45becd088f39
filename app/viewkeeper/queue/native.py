"""The native message format: one JSON message per source transaction, or several pieces of one."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import ValidationError

from viewkeeper.messages import UpdateMessage


class Unreadable(ValueError):
    """A message that cannot be understood, and why."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one message says: an update, or part of one; a barrier carries no changes and no transaction."""

    txn: str | None
    position: int
    changes: list[dict[str, Any]]
    part: int = 1
    parts: int = 1


_OPS = {("insert", False, True), ("delete", True, False), ("update", True, True)}
_KNOWN = {"source", "txn", "position", "global_txn", "changes", "part", "parts"}


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
    )


def _looks_right(message: Any) -> bool:
    try:
        return (
            message.keys() <= _KNOWN
            and type(message["source"]) is str
            and type(message["txn"]) is str
            and type(message["position"]) is int
            and message.get("global_txn") is None
            and "part" not in message
            and "parts" not in message
            and all(
                type(c["relation"]) is str
                and (c["op"], type(c.get("before")) is dict, type(c.get("after")) is dict) in _OPS
                and len(c) == (4 if c["op"] == "update" else 3)
                for c in message["changes"]
            )
        )
    except (AttributeError, KeyError, TypeError):
        return False


def _reason(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(step) for step in first["loc"])
    return f"{place}: {first['msg']}" if place else str(first["msg"])
