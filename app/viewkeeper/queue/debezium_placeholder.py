"""What Debezium writes in place of a large value that an UPDATE did not change (unchanged TOAST).

A text that anybody may type must never be taken for it. So every connector has a placeholder of its own, made at
random, and names it in each of its messages: the last part of its name (``source.name``) is the random one. What was
sent before a restart is understood after it, whoever starts the connector, and nothing has to be remembered. Messages
of connectors without such a name have Debezium's own placeholder.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

_DEBEZIUMS = "__debezium_unavailable_value"
_OURS = "__viewkeeper_unavailable_"
_NAME = re.compile(r".*\.vk-([0-9a-f]{32})")

_NEVER_LARGE = {"int2", "int4", "int8", "float4", "float8", "bool", "date", "timestamp", "timestamptz", "uuid", "enum"}


def connector_name(topic: str) -> str:
    """A name for the connector that fills a topic; no other has the same, and nobody can guess it."""
    return f"{topic}.vk-{secrets.token_hex(16)}"


@lru_cache(maxsize=64)
def placeholder_of(connector: str) -> Placeholder:
    """The placeholder that the connector of this name writes."""
    named = _NAME.fullmatch(connector)
    return Placeholder(_OURS + named[1] if named else _DEBEZIUMS)


def can_be_large(declared: str) -> bool:
    """Whether PostgreSQL may store values of a type apart from their row: only those are ever left out."""
    return declared not in _NEVER_LARGE


@dataclass(frozen=True)
class Placeholder:
    """A text, and the forms it has in columns of other types."""

    text: str

    @property
    def is_own(self) -> bool:
        """Whether it is one that nobody types."""
        return self.text != _DEBEZIUMS

    def signs(self, declared: Collection[str]) -> tuple[bytes, ...]:
        """Texts of which a message holds one if it leaves out a value of one of these types."""
        return tuple({self._signs.get(each, self._signs[""]) for each in declared if can_be_large(each)})

    def is_(self, value: Any) -> bool:
        """Whether this stands for a value that was left out."""
        return value in self._texts if type(value) is str else type(value) is list and value in self._lists

    @cached_property
    def _bytes(self) -> str:
        return base64.b64encode(self.text.encode()).decode()

    @cached_property
    def _uuid(self) -> str:
        return str(uuid.UUID(bytes=hashlib.md5(self.text.encode()).digest(), version=3))

    @cached_property
    def _texts(self) -> frozenset[str]:
        return frozenset({self.text, self._bytes, f'{{"{self.text}":"{self.text}"}}'})

    @cached_property
    def _lists(self) -> tuple[list[Any], ...]:
        return ([self.text], [self._bytes], [self._uuid], list(self.text.encode()))

    @cached_property
    def _signs(self) -> dict[str, bytes]:
        """By declared type, any other as the first."""
        numbers = ",".join(map(str, self.text.encode())).encode()
        blob = self._bytes.encode()
        return {
            "": self.text.encode(),
            "bytea": blob,
            "_bytea": blob,
            "_uuid": self._uuid.encode(),
            **dict.fromkeys(("_int2", "_int4", "_int8"), numbers),
        }
