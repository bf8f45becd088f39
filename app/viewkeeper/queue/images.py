"""Row images of a batch's changes → columns, relation by relation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.bag import COUNT
from viewkeeper.algebra.sizes import rows_at
from viewkeeper.algebra.types import Column
from viewkeeper.messages import ORDINAL
from viewkeeper.queue.inlet import Image
from viewkeeper.queue.values import WrongType
from viewkeeper.warehouse.mapped import SPOOL_BYTES, Spool

AT_ONCE = 10_000
BYTES_AT_ONCE = 8 << 20
"""So many images are kept as objects before they become columns: a batch of objects would be most of the memory."""

_LOOK_EVERY = 256  # images
_SIZED = (str, bytes)


class Images:
    """The images of one relation, each with its signed count and the index of the update it belongs to."""

    def __init__(self, relation: str, used: Sequence[Column], column: Callable[[Sequence[Any], Column], pa.Array]):
        self.wrong: dict[int, str] = {}  # updates that hold a value of the wrong type: the first reason
        self._relation = relation
        self._used = used
        self._column = column
        self._rows: list[Image] = []
        self._counts: list[int] = []
        self._updates: list[int] = []
        self._tables: list[pa.Table] = []
        self._bytes = 0  # of the images that were looked at
        self._look_at = _LOOK_EVERY
        self._kept = 0  # bytes of tables in memory
        self._spool: Spool | None = None

    def add(self, before: Image | None, after: Image | None, update: int) -> None:
        """The image before a change counts −1, the one after it +1."""
        if before is not None:
            self._rows.append(before)
            self._counts.append(-1)
            self._updates.append(update)
        if after is not None:
            self._rows.append(after)
            self._counts.append(1)
            self._updates.append(update)
        if len(self._rows) >= self._look_at:
            self._look()

    def finish(self) -> None:
        """No more will be added: ``wrong`` is complete."""
        if self._rows:
            self._flush()

    def table(self, ordinals: np.ndarray) -> pa.Table:
        """The used columns, ``_count`` and ``_ordinal``, in the order of ordinals, which are given by update.

        A large one is mapped from a file.
        """
        table = self._gathered()
        ordinal = ordinals[table[ORDINAL].to_numpy()]
        table = table.set_column(table.column_names.index(ORDINAL), ORDINAL, pa.array(ordinal))
        if not bool(np.all(ordinal[1:] >= ordinal[:-1])):
            table = rows_at(table, np.argsort(ordinal, kind="stable"))
        return table.combine_chunks() if table.nbytes <= SPOOL_BYTES else table

    def _gathered(self) -> pa.Table:
        tables, self._tables = self._tables, []
        if self._spool is None:
            return pa.concat_tables(tables)
        spool, self._spool = self._spool, None
        try:
            return spool.table()
        finally:
            spool.close()

    def close(self) -> None:
        """Nobody wants the table."""
        if self._spool is not None:
            self._spool.close()

    def _look(self) -> None:
        """Makes columns of the images if they are many or large."""
        new = self._rows[self._look_at - _LOOK_EVERY :]
        self._bytes += sum(len(value) for row in new for value in row if isinstance(value, _SIZED))
        self._look_at = len(self._rows) + _LOOK_EVERY
        if len(self._rows) >= AT_ONCE or self._bytes >= BYTES_AT_ONCE:
            self._flush()

    def _keep(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._kept += table.nbytes
        if self._kept > SPOOL_BYTES:
            self._spool = self._spool or Spool(table.schema)
            for each in self._tables:
                for batch in each.to_batches():
                    self._spool.write(batch)
            self._tables = []

    def _flush(self) -> None:
        columns: dict[str, pa.Array] = {}
        for column, values in zip(self._used, zip(*self._rows, strict=True), strict=True):
            try:
                columns[column.name] = self._column(values, column)
            except WrongType as error:
                for index, reason in error.reasons.items():
                    self.wrong.setdefault(self._updates[index], f"{self._relation}.{column.name}: {reason}")
        if not self.wrong:
            columns[COUNT] = pa.array(np.array(self._counts, np.int64))
            columns[ORDINAL] = pa.array(np.array(self._updates, np.int64))
            self._keep(pa.table(columns))
        self._rows, self._counts, self._updates = [], [], []
        self._bytes, self._look_at = 0, _LOOK_EVERY
