"""Where a source's topic enters: what is known of it, and what a message format must be able to do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa

from viewkeeper.algebra.types import Column, Relation
from viewkeeper.messages import Reached, Update


class Message(NamedTuple):
    """One message of a topic; the timestamp in milliseconds."""

    offset: int
    value: bytes | None
    timestamp: int


class Unreadable(ValueError):
    """A message that cannot be used, and why; ``about`` is the message at fault if it is an earlier one."""

    def __init__(self, reason: str, about: Message | None = None):
        super().__init__(reason)
        self.about = about


Image = tuple[Any, ...]
"""A row's values of the used columns, in the relation's order."""

Change = tuple[str, Image | None, Image | None]
"""What was done to one row: the relation, the row before and the row after."""


class Whole(NamedTuple):
    """An update, everything it did to captured relations, and the relations it emptied before that.

    ``again`` says that its position is not past the source's last: it is a repetition.
    """

    update: Update
    changes: Iterable[Change]
    truncated: Collection[str] = ()
    again: bool = False


class Reader(Protocol):
    """A message format: puts the messages of one inlet together to whole updates, each once."""

    def take(self, message: Message, wrong: str | None = None) -> Whole | None:
        """The update that this message completes, if it does. Raises Unreadable, and has then changed nothing.

        ``wrong`` is what was found wrong with that update's values: it must not be handed over.
        """

    def pass_over(self, message: Message, refused: Unreadable) -> None:
        """Goes on without what was refused; the message is to be taken again if the inlet still stands at it."""

    def column(self, values: Sequence[Any], column: Column) -> pa.Array:
        """The values that messages hold for a column; raises WrongType naming every one that does not fit."""

    def mark(self) -> object:
        """What ``go_back`` needs to bring back the state of this moment."""

    def go_back(self, mark: Any) -> None:
        """Everything taken since the mark was made counts as not taken."""

    def forget(self) -> None:
        """Keeps nothing of what is incomplete: the inlet was moved."""

    def before_barrier(self, token: str) -> int | None:
        """The furthest position of the source that came before this token's own transaction, or was loaded.

        None if the token has not come out.
        """

    def unfinished(self) -> str | None:
        """What came last, in words, of an update that has not come to its end."""


class Inlet:
    """What is known of one source's topic: how far it has been read."""

    def __init__(
        self,
        source: str,
        topic: str,
        relations: Mapping[str, Relation],
        used: Mapping[str, Sequence[str]],
        position: Reached,
        offset: int,
        format: Literal["native", "debezium"] = "native",
        schema: str = "public",
        fresh: Mapping[str, Collection[str]] | None = None,
    ):
        self.source = source
        self.topic = topic
        self.relations = relations  # every relation of the source
        self.used = used  # captured relations and the columns that views use of them
        # Used columns that no view has been loaded with yet: what was logged before they were added lacks them. Whoever
        # sees the column in the table sees all of that, so no answer is ever compensated for it.
        self.fresh = fresh or {}
        self.format = format
        self.schema = schema  # where the source keeps its relations, if its messages say so
        self.offset = offset  # the next message to be read
        self.last = position.last  # order position of the source's last update
        self.load = position  # what was loaded
        self.held: int | None = None  # the first message of what is incomplete
        self.stopped = False  # a message was refused and the job must stop at it
        self.set_aside = -1  # the furthest position of what was quarantined
        self.strangers: dict[tuple[str, str], tuple[int, str]] = {}  # that nobody has judged yet

    @property
    def position(self) -> Reached:
        return replace(self.load, last=self.last)

    @property
    def restart_offset(self) -> int:
        """Where a restart must read from: nothing before it is still needed."""
        return self.offset if self.held is None else self.held

    @property
    def passed(self) -> int:
        """The furthest order position that was read, what was set aside included."""
        return max(self.last, self.set_aside)

    def move_to(self, position: Reached, offset: int) -> None:
        self.last, self.load = position.last, position
        self.offset, self.held, self.stopped = offset, None, False

    def meet(self, strangers: Mapping[tuple[str, str], int], xid: str) -> None:
        """A transaction that counts has told of these tables, which are not captured under their names."""
        for table, position in strangers.items():
            self.strangers[table] = min((position, xid), self.strangers.get(table, (position, xid)))

    def columns(self, relation: str) -> list[Column]:
        """The used columns of a captured relation."""
        used = self.used[relation]
        return [column for column in self.relations[relation].columns if column.name in used]

    def image_of(self, relation: str) -> Callable[[Mapping[str, Any]], Image]:
        """Makes images of the relation's rows; the function raises KeyError where a column is missing."""
        names = [column.name for column in self.columns(relation)]
        if len(names) > 1:
            return itemgetter(*names)
        return lambda row: tuple(row[name] for name in names)

    def mark(self) -> tuple[int, int, int | None, int]:
        return self.last, self.offset, self.held, self.set_aside

    def go_back(self, mark: tuple[int, int, int | None, int]) -> None:
        self.last, self.offset, self.held, self.set_aside = mark
        self.stopped = False
