"""From log rows to update messages: JSON, cut into pieces that Kafka takes, whatever the update's size.

Which rows are one update, where transactions were marked as parts of ones over several sources: the rows of a read are
whole transactions, but nothing shows where one ends and the next begins, except that a mark is its transaction's first
row. So a mark that follows another ends that one's update and begins its own. The first mark names the update that it
is read in, with what was read before it: transactions that need not have waited, and then do, as those after it must
in any case; but had this mark come late in its transaction, that is still whole. Only a late one behind another mark of
the same read would tear its transaction, which is why BEGIN must come directly before it (``part_marks``).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

import orjson

from viewkeeper.algebra.types import Type
from viewkeeper.managers.sources.sqlite_log import ROWID, Captured, Layout
from viewkeeper.managers.sources.sqlite_values import Misfit, json_value, natural_json
from viewkeeper.messages import ENVELOPE, PIECE_BYTES, GlobalPart

_IN_MEMORY = 16 * PIECE_BYTES


@dataclass(frozen=True)
class UpdatePieces:
    """One update, encoded: the pieces' changes lie in a file (in memory while they are few)."""

    source: str
    position: int
    file: IO[bytes]
    sizes: tuple[int, ...]
    part_of: GlobalPart | None = None

    def messages(self) -> Iterator[bytes]:
        """The update's messages, in order."""
        self.file.seek(0)
        parts = len(self.sizes)
        head = {
            "source": self.source,
            "txn": str(self.position),
            "position": self.position,
            "global_txn": self.part_of and {"id": self.part_of.id, "sources": sorted(self.part_of.sources)},
        }
        start = orjson.dumps(head)[:-1]
        for part, size in enumerate(self.sizes, 1):
            end = b"]}" if parts == 1 else b'],"part":%d,"parts":%d}' % (part, parts)
            yield b'%b,"changes":[%b%b' % (start, self.file.read(size), end)


def encode_updates(
    source: str, rows: Iterable[tuple[Any, ...]], tables: Mapping[str, Captured], width: int
) -> Iterator[UpdatePieces]:
    """Log rows (id, relation, op, ``width`` values before, as many after) as updates; what parts them: see above."""
    encoder = _Encoder(tables, width)
    spool = _Spool(source)
    for row in rows:
        ends = row[2] == "boundary" or (row[2] == "part" and spool.part_of is not None)
        if ends and (update := spool.take()):
            yield update
        if row[2] == "part":
            spool.mark(row[0], GlobalPart(row[3], frozenset(row[3 + width].split(","))))
        elif row[2] != "boundary":
            spool.add(row[0], encoder.change(row))
    if update := spool.take():
        yield update


class _Spool:
    """Collects encoded changes until the update is complete."""

    def __init__(self, source: str):
        self.source = source
        self._reset()

    def _reset(self) -> None:
        self.part_of: GlobalPart | None = None
        self._position = 0
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115, closed with the update
        self._sizes: list[int] = []
        self._changes: list[bytes] = []
        self._bytes = 0

    def add(self, position: int, change: bytes) -> None:
        if self._changes and self._bytes + len(change) + ENVELOPE + len(self.source) * 2 > PIECE_BYTES:
            self._flush()
        self._position = position
        self._changes.append(change)
        self._bytes += len(change) + 1

    def mark(self, position: int, part_of: GlobalPart) -> None:
        """The update is a part of this transaction."""
        self._position = position
        self.part_of = part_of

    def take(self) -> UpdatePieces | None:
        """The update collected so far, if there is one; then a new one begins.

        A part is told even if it changed nothing that is captured: the other parts wait for it.
        """
        self._flush()
        if self.part_of is not None and not self._sizes:
            self._sizes.append(0)
        update = UpdatePieces(self.source, self._position, self._file, tuple(self._sizes), self.part_of)
        self._reset()
        return update if update.sizes else None

    def _flush(self) -> None:
        if self._changes:
            self._sizes.append(self._file.write(b",".join(self._changes)))
            self._changes, self._bytes = [], 0


_Field = tuple[str, int, Callable[[Any], Any]]


class _Encoder:
    """Log rows → JSON of one change."""

    def __init__(self, tables: Mapping[str, Captured], width: int):
        self.tables = tables
        self.width = width
        self._fields: dict[tuple[str, int], list[_Field]] = {}

    def change(self, row: tuple[Any, ...]) -> bytes:
        id, relation, op = row[:3]
        captured = self.tables[relation]
        layout = captured.layout_at(id)
        fields = self._fields.get((relation, layout.since))
        if fields is None:
            fields = self._fields[relation, layout.since] = _fields(layout)
        change: dict[str, Any] = {"relation": relation, "op": op}
        if op != "insert":
            change["before"] = {name: convert(row[3 + i]) for name, i, convert in fields}
        if op != "delete":
            change["after"] = {name: convert(row[3 + self.width + i]) for name, i, convert in fields}
        return orjson.dumps(change)


def _fields(layout: Layout) -> list[_Field]:
    """Every logged column by its declared type, whoever's views use it."""
    return [(name, i, _converter(layout.type(i))) for name, i in layout.places.items() if name != ROWID]


def _converter(type: Type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        try:
            return json_value(value, type)
        except Misfit:
            # Capture must not stop for ever: the reader refuses it, at a place that can be named and set aside. As
            # an object, because its own JSON might be a valid value of the column's type, only another one.
            return {"misfit": natural_json(value)}

    return convert
