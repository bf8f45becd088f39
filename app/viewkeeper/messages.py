"""What the stations say to each other and to the world.

The wire formats are pydantic models; the JSON Schemas in ``schemas/`` are generated from them. Questions and
answers stay inside the job and carry Arrow tables, so they are plain dataclasses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, model_validator

from viewkeeper.algebra.expressions import Expr
from viewkeeper.errors import BadMessage

PIECE_BYTES = 500_000
"""A message that would be larger is sent in pieces."""

LARGEST_MESSAGE = 100_000_000
"""A piece holds one row at least, and a broker takes no request that is larger than this, unless it is told to."""

ENVELOPE = 2_000
"""More than what stands around a message, or around the changes in it, takes."""


FURTHEST = 2**62
"""Positions are smaller than this."""


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Change(_Wire):
    """What a transaction did to one row."""

    relation: str
    op: Literal["insert", "delete", "update"]
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _sides(self) -> Change:
        wanted = {"insert": (False, True), "delete": (True, False), "update": (True, True)}[self.op]
        if (self.before is not None, self.after is not None) != wanted:
            sides = " and ".join(side for side, there in zip(("before", "after"), wanted, strict=True) if there)
            raise ValueError(f"op {self.op} must carry {sides}")
        return self


class GlobalTransaction(_Wire):
    """The transaction over several sources that an update is a part of."""

    id: str
    sources: list[str]


class UpdateMessage(_Wire):
    """Everything one source transaction did (or a piece of it: ``part`` of ``parts``, counted from 1)."""

    source: str
    txn: str
    position: int = Field(ge=0, lt=FURTHEST)
    global_txn: GlobalTransaction | None = None
    changes: list[Change]
    part: int | None = Field(default=None, ge=1)
    parts: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _pieces(self) -> UpdateMessage:
        if (self.part is None) != (self.parts is None) or (self.part or 0) > (self.parts or 0):
            raise ValueError("part and parts go together, part at most parts")
        return self


class BarrierMessage(_Wire):
    """Written into a source's log after an answer was read: what came before it in the topic is complete."""

    source: str
    barrier: str


class RowCount(_Wire):
    row: dict[str, Any]
    count: int


class ViewUpdateMessage(_Wire):
    """How one update changed a view (or a piece of that change)."""

    view: str
    update: int
    source: str
    txn: str
    changes: list[RowCount]
    part: int | None = Field(default=None, ge=1)
    parts: int | None = Field(default=None, ge=1)


class SealMessage(_Wire):
    """The cut is complete: the view now stands at ``last_update``."""

    view: str
    sealed: int
    last_update: int
    positions: dict[str, str]


ORDINAL = "_ordinal"
"""Column of received changes: which update of the batch they belong to, counted from 0 in delivery order."""


class GlobalPart(NamedTuple):
    """The transaction over several sources that an update is a part of, and the sources that have a part."""

    id: str
    sources: frozenset[str]


class Update(NamedTuple):
    """U_k before it has its number: one source transaction, and the messages that told of it.

    ``position`` orders the updates of a source. ``tag`` decides which snapshots include it, where that is not its
    position. ``begins`` is the offset of its first message, where that is not ``offset``, its last.
    """

    source: str
    txn: str
    position: int
    topic: str
    offset: int
    timestamp: int
    part_of: GlobalPart | None = None
    tag: int | None = None
    begins: int | None = None

    @property
    def known_by(self) -> int:
        """What ``SnapshotPosition.includes`` takes."""
        return self.position if self.tag is None else self.tag

    @property
    def first_offset(self) -> int:
        return self.offset if self.begins is None else self.begins


@dataclass(frozen=True)
class Rejected:
    """A message that cannot be used: where it stands, what it holds, why it was refused."""

    source: str
    topic: str
    offset: int
    value: bytes | None
    reason: str

    def error(self) -> BadMessage:
        return BadMessage.at(
            f"topic {self.topic} partition 0 offset {self.offset}",
            self.reason,
            "set 'bad_messages: quarantine' to go on without it, or load the views again ('viewkeeper init --reload')",
        )


class Truncation(NamedTuple):
    """A relation was emptied by an update, which does not say of what; its changes are those made afterwards."""

    ordinal: int
    source: str
    relation: str


@dataclass(frozen=True)
class Received:
    """The updates of a batch in delivery order, their changes per relation, and what was refused.

    ``again`` are updates that are in a cut already, and that a snapshot may all the same not include yet.
    """

    updates: Sequence[Update]
    changes: Tables  # used columns, _count, _ordinal
    rejected: Sequence[Rejected]
    truncated: Sequence[Truncation] = ()
    again: Received | None = None

    def and_then(self, later: Received) -> Received:
        """Both together, the later one's updates after these."""
        behind = len(self.updates)
        again = later.again if self.again is None else self.again
        if self.again is not None and later.again is not None:
            again = self.again.and_then(later.again)
        return Received(
            [*self.updates, *later.updates],
            stacked(self.changes, {name: _moved(table, behind) for name, table in later.changes.items()}),
            [*self.rejected, *later.rejected],
            [*self.truncated, *(t._replace(ordinal=t.ordinal + behind) for t in later.truncated)],
            again,
        )


Strangers = Mapping[tuple[str, str], tuple[int, str]]
"""Tables that messages tell of and that nobody captures under that name, by schema and name: where the first change of
each stands in its source's log, and the transaction that made it."""

Tables = Mapping[tuple[str, str], pa.Table]
"""By source and relation."""


def _moved(changes: pa.Table, by: int) -> pa.Table:
    place = changes.column_names.index(ORDINAL)
    return changes.set_column(place, ORDINAL, pc.add(changes[ORDINAL], by))


def stacked(one: Tables, other: Tables) -> dict[tuple[str, str], pa.Table]:
    """The tables of both; those of the same relation one after the other."""
    both = {name: [tables[name] for tables in (one, other) if name in tables] for name in {*one, *other}}
    return {
        name: pa.concat_tables([each.select(tables[0].column_names) for each in tables])
        for name, tables in both.items()
    }


@dataclass(frozen=True)
class Reached:
    """How far a source's updates have come: the order position of the last one.

    Up to ``until``, what the load's ``snapshot`` (as the source writes it) includes was loaded and gets no number.
    The text of it is what cuts hold.
    """

    last: int
    until: int = 0
    snapshot: str = ""

    @classmethod
    def parse(cls, text: str) -> Reached:
        last, _, rest = text.partition(" ")
        until, _, snapshot = rest.partition(" ")
        return cls(int(last), int(until or 0), snapshot)

    @property
    def furthest(self) -> int:
        """Past it lies nothing that is loaded or numbered."""
        return max(self.last, self.until)

    def __str__(self) -> str:
        return str(self.last) if self.last >= self.until else f"{self.last} {self.until} {self.snapshot}"


class SnapshotPosition(Protocol):
    """Where an answer was read."""

    def includes(self, positions: np.ndarray) -> np.ndarray:
        """Per update position of the same source: does the answer contain that update?"""


@dataclass(frozen=True)
class Ask:
    """A question: the rows of ``relation`` whose ``key`` columns equal one of ``keys``; all rows if keys is None.

    ``selection`` (its column references all mean this relation) may be used by the source to send less: the asker
    applies it again. Likewise rows whose key was not asked are dropped by the asker, so an answer may hold too much
    but never too little.
    """

    source: str
    relation: str
    columns: tuple[str, ...]
    key: tuple[str, ...] = ()
    keys: pa.Table | None = None
    selection: Expr | None = None


@dataclass(frozen=True)
class Answer:
    """Rows that match a question (the asked columns and ``_count``), with the position they were read at.

    ``tail`` are changes of the relation that the answer contains and that no topic has delivered yet, as a signed
    bag of the same columns: a source that can read its own log hands them over instead of being waited for.
    """

    rows: pa.Table
    position: SnapshotPosition
    tail: pa.Table | None = None


def json_schemas() -> dict[str, dict[str, Any]]:
    """The JSON Schema of every message, by file name."""
    models: dict[str, type[BaseModel]] = {
        "update": UpdateMessage,
        "barrier": BarrierMessage,
        "view-update": ViewUpdateMessage,
        "seal": SealMessage,
    }
    return {f"{name}.schema.json": model.model_json_schema() for name, model in models.items()}
