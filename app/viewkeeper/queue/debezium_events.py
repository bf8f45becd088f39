"""What a row event of Debezium's says of a captured table."""

from __future__ import annotations

import base64
import hashlib
import re
import uuid
from typing import Any

from viewkeeper.queue.inlet import Image, Inlet, Unreadable

Row = dict[str, Any]

_ABSENT = "__debezium_unavailable_value"
"""Stands in a row's new image for a large value that the transaction did not change (unchanged TOAST)."""

_ABSENT_BYTES = base64.b64encode(_ABSENT.encode()).decode()
_ABSENT_NUMBERS = list(_ABSENT.encode())
_ABSENT_UUID = str(uuid.UUID(bytes=hashlib.md5(_ABSENT.encode()).digest(), version=3))
_ABSENT_MAP = f'{{"{_ABSENT}":"{_ABSENT}"}}'

_ABSENT_TEXTS = frozenset({_ABSENT, _ABSENT_BYTES, _ABSENT_MAP})
_ABSENT_LISTS = ([_ABSENT], [_ABSENT_BYTES], [_ABSENT_UUID], _ABSENT_NUMBERS)

_SIGNS = {
    "": _ABSENT.encode(),
    "bytea": _ABSENT_BYTES.encode(),
    "_bytea": _ABSENT_BYTES.encode(),
    "_uuid": _ABSENT_UUID.encode(),
    "_int2": ",".join(map(str, _ABSENT_NUMBERS)).encode(),
    "_int4": ",".join(map(str, _ABSENT_NUMBERS)).encode(),
    "_int8": ",".join(map(str, _ABSENT_NUMBERS)).encode(),
}
"""By declared type (any other as the first): a message without this text leaves no value of that type out."""

_NEVER_LARGE = {"int2", "int4", "int8", "float4", "float8", "bool", "date", "timestamp", "timestamptz", "uuid", "enum"}

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")


class CapturedTable:
    """A captured table: makes the images of its rows from events."""

    def __init__(self, inlet: Inlet, name: str):
        relation = inlet.relations[name]
        self.name = name
        self._schema = inlet.schema
        self._image = inlet.image_of(name)
        self._used = frozenset(column.name for column in inlet.columns(name))
        large = {column.declared for column in inlet.columns(name)} - _NEVER_LARGE
        self._signs = tuple({_SIGNS.get(declared, _SIGNS[""]) for declared in large})
        self._all_logged = relation.logged is None
        self._known_before = relation.logged is None or self._used <= relation.logged

    def images(self, op: str, before: Any, after: Any, message: bytes) -> tuple[Image | None, Image | None]:
        """The row before and after; both None if nothing of it that is used can have changed.

        ``message`` is the text that the rows came from. Raises Unreadable if the event does not tell enough.
        """
        for sign in self._signs:
            if sign in message:
                before, after = self._completed(op, before, after)
                break
        try:
            if op == "c":
                return None, self._image(after)
            if op == "u":
                return self._updated(before, after)
            if op == "d":
                return self._before(before), None
        except KeyError as missing:
            raise Unreadable(f"{self.name}: column {missing.args[0]!r} is missing") from None
        except TypeError:
            raise Unreadable(f"{self.name}: op {op!r} without the row it is about") from None
        raise Unreadable(f"{self.name}: unknown op {op!r}")

    def _updated(self, before: Row | None, after: Row) -> tuple[Image | None, Image | None]:
        if before is None and self._known_before and not self._all_logged:
            # The log tells old values only of the replica identity's columns, and only if one of them changed (which
            # Debezium sends as a delete and an insert). Those are the only ones that are used.
            self._image(after)
            return None, None
        return self._before(before), self._image(after)

    def _before(self, before: Row | None) -> Image:
        if before is None or not self._known_before:
            table = f"{_quoted(self._schema)}.{_quoted(self.name)}"
            raise Unreadable(
                f"{self.name}: the old row is not known, because the table does not log it; run "
                f"'ALTER TABLE {table} REPLICA IDENTITY FULL' and load the views again ('viewkeeper init --reload')"
            )
        return self._image(before)

    def _completed(self, op: str, before: Row | None, after: Row | None) -> tuple[Row | None, Row | None]:
        """The rows with every used value that the event leaves out of the new row; an insert leaves out nothing."""
        if op == "u" and after is not None:
            old = before or {}
            missing = [name for name in self._used if is_absent(after.get(name))]
            after = after | {name: old.get(name, _ABSENT) for name in missing}
            unknown = [name for name in missing if is_absent(after[name])]
        else:
            unknown = [name for name in self._used if op == "d" and is_absent((before or {}).get(name))]
        if unknown:
            table = f"{_quoted(self._schema)}.{_quoted(self.name)}"
            raise Unreadable(
                f"{self.name}.{min(unknown)}: a large value that did not change was left out of the message; "
                f"run 'ALTER TABLE {table} REPLICA IDENTITY FULL' and load the views again "
                "('viewkeeper init --reload')"
            )
        return before, after


def is_absent(value: Any) -> bool:
    """Whether Debezium put this in place of a value that it does not know."""
    return value in _ABSENT_TEXTS if type(value) is str else type(value) is list and value in _ABSENT_LISTS


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'
