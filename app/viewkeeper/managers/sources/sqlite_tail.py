"""The changes past a delivered position, read from the log and decoded once, however many questions they go with.

Every answer needs the whole tail of its relation, but a log only grows: SQLite gives a new row of the log an id past
all that are there (AUTOINCREMENT, even when the sequence was tampered with), an id that was rolled back was never seen
by a reader, and pruning stops before the delivered position of any snapshot that can still be asked. So what was read
up to some row of the log stays the tail up to that row as long as the row is there, and only later rows are missing.
A log whose last read row is gone is another log: its tail is read anew.

Assumes that the caller reads tail and rows in one transaction, and forgets all tails when the schema changes.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.bag import COUNT
from viewkeeper.algebra.types import Type
from viewkeeper.managers.sources import sqlite_log as log
from viewkeeper.managers.sources.sqlite_images import OnMisfit, Row, row_batches
from viewkeeper.managers.sources.sqlite_values import Misfit
from viewkeeper.warehouse.mapped import SPOOL_ROWS, gather, is_small

Chunks = Generator[list[tuple[Any, ...]], None, None]

_FIRST_ROWS, _FETCH_ROWS, _FETCH_BYTES = 500, 20_000, 8 << 20  # that are objects at the same time
_KEPT_BYTES = 256 << 20
_KEPT_TAILS = 100


class Span(NamedTuple):
    """Where the log has the columns in its rows past ``since`` and up to ``until``: places move with the layout."""

    places: tuple[int, ...]
    since: int = 0
    until: int = log.LAST


@dataclass(frozen=True)
class TailOf:
    """Everything that a tail depends on besides the log's rows: where it starts, what is read, and as which types."""

    since: int
    relation: str
    types: tuple[tuple[str, Type], ...]
    spans: tuple[Span, ...]

    @cached_property
    def schema(self) -> pa.Schema:
        return pa.schema([*((name, type.arrow) for name, type in self.types), (COUNT, pa.int64())])


@dataclass
class Tail:
    """The changes of a relation with a log id past ``of.since`` and up to ``until``, as far as they fit their types."""

    of: TailOf
    until: int
    came: Counter[Row] = field(default_factory=Counter)  # the misfit rows among the images after a change
    _parts: list[pa.Table] = field(default_factory=list)
    _misfit_bytes: int = 0

    @property
    def table(self) -> pa.Table:
        """A signed bag of the relation's columns and ``_count``."""
        return pa.concat_tables(self._parts) if self._parts else self.of.schema.empty_table()

    @property
    def bytes(self) -> int:
        return self._misfit_bytes + sum(part.nbytes for part in self._parts)

    def continues(self, db: sqlite3.Connection) -> bool:
        """Is the log still the one that was read? The row at ``since`` may be pruned, but then nothing was read."""
        return self.goes_on_from(db, self.until)

    def goes_on_from(self, db: sqlite3.Connection, id: int) -> bool:
        """Is all that the log has got since it ended with that row behind it?"""
        query = f"SELECT 1 FROM {log.LOG} WHERE id = ?"
        return id == self.of.since or db.execute(query, (id,)).fetchone() is not None

    def read_on(self, db: sqlite3.Connection) -> None:
        """Adds the rows that the log has got since; if it raises, the tail must not be used any more."""
        newest = db.execute(f"SELECT max(id) FROM {log.LOG}").fetchone()[0]
        if newest is None or newest <= self.until:
            return
        for span in self.of.spans:
            if span.until > self.until:
                self._add(self._read(db, span, "b", "delete", -1, _nobody))
                self._add(self._read(db, span, "a", "insert", 1, self._misfit_came))
        # Not the position, which may lie past the last row: only a row that is there keeps smaller ids from coming.
        self.until = newest

    def _read(
        self, db: sqlite3.Connection, span: Span, side: str, op: str, count: int, on_misfit: OnMisfit
    ) -> pa.Table:
        columns = ", ".join(f"{side}{place}" for place in span.places) or "NULL"
        query = f"SELECT {columns} FROM {log.LOG} WHERE id > ? AND id <= ? AND relation = ? AND op IN (?, 'update')"
        since = max(self.until, span.since)
        rows = chunks(db.execute(query, (since, span.until, self.of.relation, op)))
        return counted(gathered(rows, dict(self.of.types), on_misfit), count)

    def _misfit_came(self, row: Row, column: str, misfit: Misfit) -> None:
        self.came[row] += 1
        self._misfit_bytes += sum(map(sys.getsizeof, (row, *row)))

    def _add(self, part: pa.Table) -> None:
        """Keeps parts few: one is at least twice the next, unless either was large enough to go into a file."""
        if not len(part):
            return
        while self._parts and len(self._parts[-1]) < 2 * len(part) and _in_memory(self._parts[-1], part):
            both = pa.concat_tables([self._parts.pop(), part]).combine_chunks()
            part = gather(both.to_batches(), self.of.schema, SPOOL_ROWS)
        self._parts.append(part)


@dataclass
class Tails:
    """The tails that a connection has read, the one used last at the end; past ``most`` bytes they are not kept."""

    most: int = _KEPT_BYTES
    _kept: dict[TailOf, Tail] = field(default_factory=dict, init=False)

    def read(self, db: sqlite3.Connection, of: TailOf) -> Tail:
        """The tail as it is in the read transaction that the caller has begun."""
        tail = self._kept.pop(of, None)
        if tail is None or not tail.continues(db):
            tail = Tail(of, of.since)
        tail.read_on(db)
        self._keep(tail)
        return tail

    def forget(self) -> None:
        self._kept.clear()

    def _keep(self, tail: Tail) -> None:
        if tail.bytes > self.most:
            return
        self._kept[tail.of] = tail
        while len(self._kept) > _KEPT_TAILS or sum(kept.bytes for kept in self._kept.values()) > self.most:
            del self._kept[next(iter(self._kept))]


def gathered(rows: Chunks, types: dict[str, Type], on_misfit: OnMisfit) -> pa.Table:
    """The rows that fit, as one table."""
    schema = pa.schema([(name, type.arrow) for name, type in types.items()])
    with contextlib.closing(rows):
        return gather(row_batches(rows, types, on_misfit), schema, SPOOL_ROWS)


def counted(rows: pa.Table, count: int = 1) -> pa.Table:
    return rows.append_column(COUNT, pa.array(np.full(len(rows), count, np.int64)))


def chunks(cursor: sqlite3.Cursor, most: int | None = None) -> Chunks:
    """The rows of a query. A query that is not read to its end keeps writers out, until this is closed."""
    with contextlib.closing(cursor):
        step = _FIRST_ROWS
        while rows := cursor.fetchmany(step):
            size = sum(len(value) for row in rows for value in row if isinstance(value, str | bytes))
            step = max(1, min(most or _FETCH_ROWS, _FETCH_BYTES * len(rows) // max(size, 1)))
            yield rows


def _in_memory(*tables: pa.Table) -> bool:
    return all(is_small(table) for table in tables)


def _nobody(row: Row, column: str, misfit: Misfit) -> None:
    """A misfit image before a change: the answer does not hold that one."""
