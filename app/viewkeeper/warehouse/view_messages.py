"""A view's changes of one cut as messages of its topic: one per update number, in order, large ones in pieces."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import IO

import numpy as np
import orjson
import pyarrow as pa

from viewkeeper.algebra.bag import UPDATE
from viewkeeper.messages import PIECE_BYTES, SealMessage
from viewkeeper.warehouse.cuts import Cut
from viewkeeper.warehouse.rendering import rendered_changes

RENDER_ROWS = 20_000
RENDER_BYTES = 32 << 20


class Heads:
    """How the message of each number begins: its view, number, source and transaction.

    ``updates`` comes in the order of numbers, without gaps. Where several updates share one, their sources are joined
    with "+" in order of their names, and so are their transactions, in the order of their sources.
    """

    def __init__(self, view: str, updates: pa.Table):
        self._view = orjson.dumps(view)
        numbers = updates[UPDATE].to_numpy()
        self._first = int(numbers[0]) if len(numbers) else 0
        self._bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]  # of each number's updates
        self._sources = updates["source"].to_pylist()
        self._txns = updates["txn"].to_pylist()
        self._offsets = updates["offset"].to_pylist()

    def __getitem__(self, update: int) -> bytes:
        i = update - self._first
        source, txn = map(orjson.dumps, self._origin(self._bounds[i], self._bounds[i + 1]))
        return b'{"view":%b,"update":%d,"source":%b,"txn":%b' % (self._view, update, source, txn)

    def _origin(self, begin: int, end: int) -> tuple[str, str]:
        """Where the updates of one number come from."""
        if end - begin == 1:
            return self._sources[begin], self._txns[begin]
        shared = sorted(range(begin, end), key=lambda i: (self._sources[i], self._offsets[i]))
        sources = dict.fromkeys(self._sources[i] for i in shared)
        return "+".join(sources), "+".join(self._txns[i] for i in shared)


def view_messages(view: str, updates: pa.Table, tables: Iterable[pa.Table]) -> Iterator[bytes]:
    """The messages of every update that changes the view; ``tables`` come in the order of updates.

    ``updates`` holds every number in question, without gaps. Memory is bounded: what an update has too much
    of waits on disk until its number of pieces is known.
    """
    heads = Heads(view, updates)
    current: int | None = None
    with _Message() as message:
        for update, rows in _runs(tables):
            if current is not None and update != current:
                assert update > current, "changes must come in the order of updates"
                yield from message.finish(heads[current])
            current = update
            message.extend(rows)
        if current is not None:
            yield from message.finish(heads[current])


def _runs(tables: Iterable[pa.Table]) -> Iterator[tuple[int, list[bytes]]]:
    """Runs of rendered rows of one update; an update may come in several runs, one after the other."""
    for table in tables:
        at_once = max(1, min(RENDER_ROWS, RENDER_BYTES * len(table) // max(table.nbytes, 1)))
        for start in range(0, len(table), at_once):
            chunk = table.slice(start, at_once)
            rows = rendered_changes(chunk)
            numbers = chunk[UPDATE].to_numpy()
            ends = np.append(np.flatnonzero(np.diff(numbers)) + 1, len(numbers)).tolist()
            begin = 0
            for end in ends:
                yield int(numbers[begin]), rows[begin:end]
                begin = end


class _Message:
    """The rows of one update as they gather; beyond a piece they go to disk."""

    def __init__(self) -> None:
        self._rows: list[bytes] = []
        self._size = 0
        self._pieces: list[int] = []  # lengths of the pieces on disk
        self._file: IO[bytes] | None = None

    def extend(self, rows: list[bytes]) -> None:
        size = sum(map(len, rows)) + len(rows)
        if self._size + size <= PIECE_BYTES:
            self._rows += rows
            self._size += size
            return
        for row in rows:
            if self._rows and self._size + len(row) + 1 > PIECE_BYTES:
                self._put_aside()
            self._rows.append(row)
            self._size += len(row) + 1

    def finish(self, head: bytes) -> Iterator[bytes]:
        """The message, or its pieces; then this is empty again."""
        if not self._pieces:
            yield b'%b,"changes":[%b]}' % (head, b",".join(self._rows))
            self._rows, self._size = [], 0
            return
        self._put_aside()
        assert self._file is not None
        self._file.seek(0)
        parts = len(self._pieces)
        for part, length in enumerate(self._pieces, start=1):
            body = self._file.read(length)
            yield b'%b,"changes":[%b],"part":%d,"parts":%d}' % (head, body, part, parts)
        self._pieces = []
        self._file.seek(0)
        self._file.truncate()

    def _put_aside(self) -> None:
        self._file = self._file or tempfile.TemporaryFile(prefix="viewkeeper-")  # noqa: SIM115
        body = b",".join(self._rows)
        self._file.write(body)
        self._pieces.append(len(body))
        self._rows, self._size = [], 0

    def __enter__(self) -> _Message:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


def seal(view: str, cut: Cut) -> bytes:
    """The message that says the cut is complete in this topic."""
    message = SealMessage(view=view, sealed=cut.cut, last_update=cut.last_update, positions=cut.positions)
    return orjson.dumps(message.model_dump())
