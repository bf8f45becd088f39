"""What a row event of Debezium's says of a captured table."""

from __future__ import annotations

import re
from typing import Any

from viewkeeper.queue.debezium_placeholder import can_be_large, placeholder_of
from viewkeeper.queue.inlet import Image, Inlet, Unreadable

Row = dict[str, Any]

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")


class CapturedTable:
    """A captured table: makes the images of its rows from events."""

    def __init__(self, inlet: Inlet, name: str):
        relation = inlet.relations[name]
        self.name = name
        self._schema = inlet.schema
        self._image = inlet.image_of(name)
        self._used = frozenset(column.name for column in inlet.columns(name))
        self._large = {column.name: column.declared for column in inlet.columns(name) if can_be_large(column.declared)}
        self._all_logged = relation.logged is None
        self._known_before = relation.logged is None or self._used <= relation.logged
        # Never NULL in a row, and NULL in one of which only the key was logged.
        self._witness = min(relation.required - {*relation.key}, default="")
        self._key = frozenset(relation.key)
        self._fresh = dict.fromkeys(inlet.fresh.get(name, ()))
        self._connector = ""
        self._placeholder = placeholder_of("")
        self._signs = self._placeholder.signs(self._large.values())

    def images(
        self, op: str, before: Any, after: Any, message: bytes, connector: str = ""
    ) -> tuple[Image | None, Image | None]:
        """The row before and after; both None if nothing of it that is used can have changed.

        ``message`` is the text that the rows came from, ``connector`` the name of who wrote it. Raises Unreadable if
        the event does not tell enough.
        """
        if connector != self._connector:
            self._connector, self._placeholder = connector, placeholder_of(connector)
            self._signs = self._placeholder.signs(self._large.values())
        if self._fresh:
            before, after = (self._fresh | row if type(row) is dict else row for row in (before, after))
        for sign in self._signs:
            if sign in message:
                after = self._completed(op, before, after)
                break
        try:
            if op == "c":
                return None, self._image(after)
            if op == "u":
                return self._updated(before, after)
            if op == "d":
                return self._before(None if self._is_hollow(before) else before), None
        except KeyError as missing:
            raise Unreadable(f"{self.name}: column {missing.args[0]!r} is missing") from None
        except TypeError:
            raise Unreadable(f"{self.name}: op {op!r} without the row it is about") from None
        raise Unreadable(f"{self.name}: unknown op {op!r}")

    def _updated(self, before: Row | None, after: Row) -> tuple[Image | None, Image | None]:
        if self._is_unconcerned("u", before):
            # The log tells old values only of the replica identity's columns, and only if one of them changed (which
            # Debezium sends as a delete and an insert). Those are the only ones that are used.
            self._image(after)
            return None, None
        return self._before(before), self._image(after)

    def _is_unconcerned(self, op: str, before: Row | None) -> bool:
        return op == "u" and before is None and self._known_before and not self._all_logged

    def _is_hollow(self, before: Row | None) -> bool:
        """Whether only the key of a deleted row was logged: the REPLICA IDENTITY was another one for a while."""
        if before is None or not self._witness or not self._all_logged or before.get(self._witness, "") is not None:
            return False
        return all(value is None for name, value in before.items() if name not in self._key)

    def _before(self, before: Row | None) -> Image:
        if before is None or not self._known_before:
            table = f"{_quoted(self._schema)}.{_quoted(self.name)}"
            raise Unreadable(
                f"{self.name}: the old row is not known, because the table does not log it; run "
                f"'ALTER TABLE {table} REPLICA IDENTITY FULL' and load the views again ('viewkeeper init --reload')"
            )
        return self._image(before)

    def _completed(self, op: str, before: Row | None, after: Any) -> Any:
        """The new row with every used large value that the event leaves out.

        An UPDATE leaves out what it did not change, and so may the insertion that Debezium makes of one that changed
        the key. Old rows leave out nothing, and Debezium completes the new one from them: so beside a whole old row,
        as in an insertion, its own placeholder, which anybody may type, is a text.
        """
        whole = type(before) is dict and self._all_logged
        if type(after) is not dict or not (self._placeholder.is_own or (op == "u" and not whole)):
            return after
        missing = [name for name in self._large if self._placeholder.is_(after.get(name))]
        if not missing or self._is_unconcerned(op, before):
            return after
        old = before if before is not None and whole else {}
        if unknown := [name for name in missing if name not in old]:
            table = f"{_quoted(self._schema)}.{_quoted(self.name)}"
            raise Unreadable(
                f"{self.name}.{min(unknown)}: a large value that did not change was left out of the message; "
                f"run 'ALTER TABLE {table} REPLICA IDENTITY FULL' and load the views again "
                "('viewkeeper init --reload')"
            )
        return after | {name: old[name] for name in missing}


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'
