"""Row images of a batch's changes → columns, relation by relation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.bag import COUNT
from viewkeeper.algebra.types import Column
from viewkeeper.messages import ORDINAL
from viewkeeper.queue.inlet import Image
from viewkeeper.queue.values import WrongType

AT_ONCE = 10_000
"""So many images are kept as objects before they become columns: a batch of objects would be most of the memory."""


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
        if len(self._rows) >= AT_ONCE:
            self._flush()

    def finish(self) -> None:
        """No more will be added: ``wrong`` is complete."""
        if self._rows:
            self._flush()

    def table(self, ordinals: np.ndarray) -> pa.Table:
        """The used columns, ``_count`` and ``_ordinal``, in the order of ordinals, which are given by update."""
        table = pa.concat_tables(self._tables)
        self._tables = []
        ordinal = ordinals[table[ORDINAL].to_numpy()]
        table = table.set_column(table.column_names.index(ORDINAL), ORDINAL, pa.array(ordinal))
        if not bool(np.all(ordinal[1:] >= ordinal[:-1])):
            table = table.take(pa.array(np.argsort(ordinal, kind="stable")))
        return table.combine_chunks()

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
            self._tables.append(pa.table(columns))
        self._rows, self._counts, self._updates = [], [], []
