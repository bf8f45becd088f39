"""An answer read in pieces: many short read transactions, so that nobody who writes has to wait for a whole table.

Law: after each piece, what was read so far is the *region* read so far, as of that piece's transaction. A region is
all rows up to some identity (rowid, or primary key of a table WITHOUT ROWID), or all rows of some of the asked keys.
The log has the identity with every image of a row, so a piece first brings the region forward to its own transaction,
by the images that the log has got since the last one and that lie in the region, then adds rows past the region. In
the end the region is everything asked for, as of the last transaction, whose position the answer states.

It holds as long as identities mean the same: VACUUM may renumber rowids, and who alters a table may do anything. Both
change the schema's version, and the reading starts over. Rows that do not fit their types are told from those that
were there before by counting (``sqlite_images``), which needs one transaction: such an answer is not read in pieces.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.bag import COUNT
from viewkeeper.algebra.timeline import key_codes
from viewkeeper.managers.sources import sqlite_log as log
from viewkeeper.managers.sources.sqlite_images import OnMisfit, row_batches
from viewkeeper.managers.sources.sqlite_questions import Question, Statement
from viewkeeper.managers.sources.sqlite_schema import Table, quoted
from viewkeeper.managers.sources.sqlite_tail import Chunks, Tail, chunks
from viewkeeper.messages import Answer
from viewkeeper.warehouse.mapped import SPOOL_ROWS, gather

SECONDS = 0.1
"""How long a piece goes on reading: a small share of what writers are used to wait (5 s in most programs)."""

_FIRST_KEYS = 1_000
_STEPS = 20_000  # of SQLite's machine, between two looks at the clock
_AT_ONCE = 5_000  # rows between two looks at the clock
_HELD = 64 << 20  # bytes of a piece
_FEWEST, _MOST = 500, 1_000_000  # rows that a piece may pass over


class Disturbed(Exception):
    """What was read so far cannot be brought forward: start over."""


class Indivisible(Exception):
    """It can only be read in one transaction."""


class Unkeyed(Exception):
    """SQLite cannot look up these keys: ask for all rows."""


class TooLong(Exception):
    """The reading took longer than it may."""


@contextlib.contextmanager
def at_most(db: sqlite3.Connection, seconds: float) -> Iterator[None]:
    """Raises TooLong if reading inside takes longer, however few rows are found."""
    deadline = time.monotonic() + seconds
    db.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
    try:
        yield
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_INTERRUPT:
            raise
        raise TooLong from None
    finally:
        db.set_progress_handler(None, 0)


@dataclass(frozen=True)
class Look:
    """What a read transaction begins with: the question to the table as it is, where the log stands, and its tail."""

    question: Question
    places: Mapping[str, int]  # where the log has columns
    schema: int
    position: int
    mark: int  # the log's newest row: later ones come behind it, whatever was done to the sequence
    tail: Tail


class Region(Protocol):
    """The part of the asked rows that was read so far; empty at first."""

    def read_on(self, db: sqlite3.Connection) -> Chunks:
        """The rows of the next piece; the region then contains them."""

    @property
    def is_whole(self) -> bool: ...

    def images(self, side: str) -> Statement:
        """A condition that all images of the region meet; ``side`` says which values of a log row (b or a)."""

    def contains(self, images: pa.RecordBatch) -> np.ndarray:
        """Which of the images that met the condition lie in the region."""


class Pieces:
    """Reads an answer in pieces; ``now`` is how the last transaction began."""

    def __init__(
        self, db: sqlite3.Connection, look: Callable[[], Look], region: Callable[[Look], Region], forgiven: bool = False
    ):  # fmt: skip
        self.db = db
        self.look = look
        self.begin = region
        self.on_misfit: OnMisfit = _forgiven if forgiven else _indivisible
        self.now: Look | None = None

    def answer(self) -> Answer:
        """All that was asked for, as of the last transaction."""
        with contextlib.closing(self._batches()) as batches:
            first = next(batches)
            rows = gather(batches, first.schema, SPOOL_ROWS)
        assert self.now is not None
        return Answer(rows, log.LogPosition(self.now.position), self.now.tail.table)

    def _batches(self) -> Generator[pa.RecordBatch]:
        """A signed bag, in which rows that went meanwhile are taken back; the first batch is there to show its type.

        They are handed over between the transactions: what becomes of them, a full disk say, must hold up nobody.
        """
        region: Region | None = None
        while region is None or not region.is_whole:
            held: list[pa.RecordBatch] = []
            with log.reading(self.db):
                last, self.now = self.now, self.look()
                begins = region is None
                region = region or self.begin(self.now)
                moved = self._typed(_nothing(), 1) if begins else self._brought_forward(region, last, self.now)
                for batch in itertools.chain(moved, self._typed(region.read_on(self.db), 1)):
                    held.append(batch)
                    if sum(batch.nbytes for batch in held) > _HELD:
                        yield from held
                        held = []
            yield from held

    def _brought_forward(self, region: Region, last: Look | None, now: Look) -> Iterator[pa.RecordBatch]:
        assert last is not None
        if now.schema != last.schema or now.position < last.position or not now.tail.goes_on_from(self.db, last.mark):
            raise Disturbed
        question = now.question
        for side, op, count in (("b", "delete", -1), ("a", "insert", 1)):
            columns = ", ".join(f"{side}{now.places[name]}" for name in question.ask.columns) or "NULL"
            inside, parameters = region.images(side)
            new = f"FROM {log.LOG} WHERE id > ? AND relation = ? AND op IN (?, 'update')"
            bound = (last.mark, question.ask.relation, op, *parameters)
            found = self.db.execute(f"SELECT {columns} {new} AND {inside}", bound)
            for batch in self._typed(chunks(found), count):
                yield batch.filter(pa.array(region.contains(batch)))

    def _typed(self, rows: Chunks, count: int) -> Iterator[pa.RecordBatch]:
        assert self.now is not None
        types = self.now.question.types
        names = [*types, COUNT]
        with contextlib.closing(rows):
            for batch in row_batches(rows, types, self.on_misfit):
                counts = pa.array(np.full(len(batch), count, np.int64))
                yield pa.RecordBatch.from_arrays([*batch.columns, counts], names)


# ---- regions


@dataclass(frozen=True)
class Identity:
    """What tells the rows of a table apart, and orders them: the rowid, or the key of a table WITHOUT ROWID."""

    names: tuple[str, ...]
    collations: tuple[str, ...]
    places: tuple[int, ...]  # in the log

    @classmethod
    def of(cls, table: Table, places: Mapping[str, int]) -> Identity:
        """Raises Indivisible where rows cannot be read in its order, or the log does not have it."""
        if table.without_rowid:
            key = next(index for index in table.indexes if index.primary)
            names = tuple(table.columns[i].name for i in key.positions if i is not None)
            collations, logged = key.collations, names
        else:
            assert table.rowid_name is not None, "other tables are not captured"
            names, collations = (table.rowid_name,), ("BINARY",)
            logged = names if table.rowid_column is not None else (log.ROWID,)
        if not table.is_divisible or not places.keys() >= set(logged):
            raise Indivisible
        return cls(names, collations, tuple(places[name] for name in logged))

    @property
    def order(self) -> str:
        pairs = zip(self.names, self.collations, strict=True)
        return ", ".join(f"_t.{quoted(name)} COLLATE {quoted(collation)}" for name, collation in pairs)

    @property
    def values(self) -> str:
        """Each as its class and its bytes: a text that is none must come back as it was."""
        columns = [f"_t.{quoted(name)}" for name in self.names]
        bytes = "CASE typeof({0}) WHEN 'text' THEN CAST({0} AS BLOB) ELSE {0} END"
        return ", ".join(f"typeof({column}), {bytes.format(column)}" for column in columns)

    def of_row(self, operator: str, bound: tuple[Any, ...]) -> Statement:
        return self._compared([f"_t.{quoted(name)}" for name in self.names], operator, bound)

    def of_image(self, side: str, operator: str, bound: tuple[Any, ...]) -> Statement:
        return self._compared([f"{side}{place}" for place in self.places], operator, bound)

    def _compared(self, columns: list[str], operator: str, bound: tuple[Any, ...]) -> Statement:
        pairs = zip(bound[::2], self.collations, strict=True)
        # The sign takes the affinity away: what stands there is compared as it is.
        given = ", ".join(f"{'+CAST(? AS TEXT)' if c == 'text' else '?'} COLLATE {quoted(own)}" for c, own in pairs)
        return f"({', '.join(columns)}) {operator} ({given})", list(bound[1::2])


class UpToIdentity:
    """All rows up to an identity."""

    def __init__(self, look: Look):
        self.question = look.question
        self.identity = Identity.of(look.question.table, look.places)
        self._up_to: tuple[Any, ...] | None = None
        self._whole = False
        self._passes = _FEWEST * 10

    @property
    def is_whole(self) -> bool:
        return self._whole

    def read_on(self, db: sqlite3.Connection) -> Chunks:
        kept, parameters = self.question.selection(indexed=False)
        beyond, bound = ("1", []) if self._up_to is None else self.identity.of_row(">", self._up_to)
        # Where each row is found, the clock tells when to stop; else a piece must have an end though it finds nothing.
        until = self._end(db, beyond, bound) if kept != "1" else None
        within, most = ("1", []) if until is None else self.identity.of_row("<=", until)
        query = (
            f"SELECT {self.question.columns}, {self.identity.values} {self.question.of_table} "
            f"WHERE {beyond} AND {within} AND {kept} ORDER BY {self.identity.order}"
        )
        begin, width = time.monotonic(), -2 * len(self.identity.names)
        found = chunks(db.execute(query, [*bound, *most, *parameters]), _AT_ONCE)
        with contextlib.closing(found):
            for rows in found:
                yield [row[:width] for row in rows]
                if time.monotonic() - begin > SECONDS:
                    self._up_to = rows[-1][width:]
                    self._passes = max(_FEWEST, self._passes // 2)
                    return
        self._up_to, self._whole = until, until is None
        if time.monotonic() - begin < SECONDS / 4:
            self._passes = min(_MOST, self._passes * 2)

    def _end(self, db: sqlite3.Connection, beyond: str, bound: list[Any]) -> tuple[Any, ...] | None:
        query = (
            f"SELECT {self.identity.values} {self.question.of_table} WHERE {beyond} "
            f"ORDER BY {self.identity.order} LIMIT 1 OFFSET ?"
        )
        found: tuple[Any, ...] | None = db.execute(query, [*bound, self._passes]).fetchone()
        return found

    def images(self, side: str) -> Statement:
        assert self._up_to is not None, "a piece was read"
        return self.identity.of_image(side, "<=", self._up_to)

    def contains(self, images: pa.RecordBatch) -> np.ndarray:
        return np.ones(len(images), bool)


class OfKeys:
    """All rows of the first of the asked keys."""

    def __init__(self, look: Look):
        if not look.question.has_keys:
            raise Unkeyed
        if not set(look.question.ask.key) <= set(look.question.ask.columns):
            raise Indivisible
        self.question = look.question
        self._done = 0
        self._step = _FIRST_KEYS

    @property
    def is_whole(self) -> bool:
        return self._done >= len(self.question.keys)

    def read_on(self, db: sqlite3.Connection) -> Chunks:
        begin = time.monotonic()
        while not self.is_whole:
            step, since = min(self._step, self.question.most_keys), time.monotonic()
            yield from chunks(self._looked_up(db, step))
            self._done += step
            now = time.monotonic()
            self._step = step * 2 if now - since < SECONDS / 4 else max(1, step // 2)
            if now - begin > SECONDS:
                return

    def _looked_up(self, db: sqlite3.Connection, step: int) -> sqlite3.Cursor:
        try:
            return db.execute(*self.question.keyed(self._done, step))
        except sqlite3.OperationalError as error:
            if "no such collation sequence" not in str(error):  # one that only its own programs know
                raise
            raise Unkeyed from None

    def images(self, side: str) -> Statement:
        return "1", []

    def contains(self, images: pa.RecordBatch) -> np.ndarray:
        done = self.question.keys.slice(0, self._done)
        return key_codes(done, pa.Table.from_batches([images]), self.question.ask.key) >= 0


def _nothing() -> Chunks:
    yield []


def _forgiven(row: object, column: object, misfit: object) -> None:
    """The views that use the relation promise no exactness: it is left out."""


def _indivisible(row: object, column: object, misfit: object) -> None:
    raise Indivisible
