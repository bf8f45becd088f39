"""What it costs that a cut holds ten views instead of one, on the warehouse layer alone."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

import pyarrow as pa

from viewkeeper.bench.plan import Figures
from viewkeeper.warehouse.cuts import UpdateRow, WarehouseTransaction, update_table
from viewkeeper.warehouse.warehouse import Warehouse

_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("total", pa.float64())])
_MANY = 10
_SIZES = {"small": 2, "large": 1_000}
_WARM_UP = 5


def bench_cut(root: Path, cuts: int) -> Figures:
    """Milliseconds of a commit, medians: of one view and of ten, with a change of two and of a thousand rows a view."""
    figures: Figures = {}
    for size, rows in _SIZES.items():
        one, many = (_Group(root / size / str(views), views, rows) for views in (1, _MANY))
        for _ in range(_WARM_UP + cuts):  # they take turns, so that they see the same machine
            one.cut()
            many.cut()
        for name, group in (("one", one), ("ten", many)):
            figures[f"cut_{size}_{name}"] = 1e3 * median(group.seconds[_WARM_UP:])
    return figures


class _Group:
    """A warehouse of some views that all change in every cut."""

    def __init__(self, root: Path, views: int, rows: int):
        self.seconds: list[float] = []
        self._views: Sequence[str] = [f"v{i}" for i in range(views)]
        self._rows = rows
        self._update = 0
        self._warehouse = Warehouse(root)
        self._warehouse.open()
        for view in self._views:
            self._warehouse.load(view, _SCHEMA, "SELECT", [], 0)
        self._warehouse.commit(WarehouseTransaction(0, {"s": "0"}, {"s": 0}, "complete"))

    def cut(self) -> None:
        """One more cut; what compaction it makes necessary is not counted."""
        self._update += 1
        k = self._update
        change = self._change()
        updates = update_table([UpdateRow(k, "s", str(k), "s.updates", k, tuple(self._views))])
        changes: dict[str, Iterable[pa.Table]] = {view: [change] for view in self._views}
        transaction = WarehouseTransaction(k, {"s": str(k)}, {"s": k + 1}, "complete", updates, changes)
        begin = time.perf_counter()
        self._warehouse.commit(transaction)
        self.seconds.append(time.perf_counter() - begin)
        self._warehouse.compact()

    def _change(self) -> pa.Table:
        """New rows, all of one update."""
        ids = range(self._update * self._rows, (self._update + 1) * self._rows)
        columns = {"id": list(ids), "name": [f"n{i}" for i in ids], "total": [i / 4 for i in ids]}
        return pa.table({**columns, "_count": [1] * self._rows, "_update": [self._update] * self._rows})
