"""A growing list that keeps only its end in memory."""

from __future__ import annotations

import pickle
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Generic, NamedTuple, TypeVar, cast

from viewkeeper.warehouse.streams import storage

IN_MEMORY = 50_000
BYTES_IN_MEMORY = 32_000_000
"""What is kept in memory, in items and in the bytes they came from; the rest is on disk."""

_AT_ONCE = 5_000

T = TypeVar("T")


class _Chunk(NamedTuple):
    place: int
    items: int


class SpooledList(Generic[T]):
    """Items in the order they were appended. Its file has no name: it goes with the last reference to the list."""

    __slots__ = ("__weakref__", "_bytes", "_chunks", "_end", "_file")

    def __init__(self) -> None:
        self._end: list[T] = []
        self._bytes = 0
        self._chunks: list[_Chunk] = []
        self._file: IO[bytes] | None = None

    def __len__(self) -> int:
        return sum(chunk.items for chunk in self._chunks) + len(self._end)

    def __iter__(self) -> Iterator[T]:
        for chunk in self._chunks:
            yield from self._read(chunk)
        yield from self._end

    def append(self, item: T, size: int) -> None:
        """Adds an item that was made of so many bytes."""
        self._end.append(item)
        self._bytes += size
        if len(self._end) >= IN_MEMORY or self._bytes >= BYTES_IN_MEMORY:
            self._spill()

    def cut(self, length: int) -> None:
        """Drops the items from ``length`` on."""
        surplus = len(self) - length
        while surplus > len(self._end):
            surplus -= len(self._end)
            self._end, self._bytes = self._read(self._chunks.pop()), 0
        if surplus:
            del self._end[-surplus:]

    def _spill(self) -> None:
        with storage(Path(tempfile.gettempdir())):
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="viewkeeper-transaction-")  # noqa: SIM115 (it outlives this call)
                weakref.finalize(self, self._file.close)
            place = self._file.seek(0, 2)
            for first in range(0, len(self._end), _AT_ONCE):
                items = self._end[first : first + _AT_ONCE]
                pickle.dump(items, self._file, pickle.HIGHEST_PROTOCOL)
                self._chunks.append(_Chunk(place, len(items)))
                place = self._file.tell()
        self._end, self._bytes = [], 0

    def _read(self, chunk: _Chunk) -> list[T]:
        assert self._file is not None
        with storage(Path(tempfile.gettempdir())):
            self._file.seek(chunk.place)
            return cast(list[T], pickle.load(self._file))
