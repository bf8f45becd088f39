"""What a cut and a read cost after ten cuts and after ten thousand, on the warehouse layer alone."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import pyarrow as pa

from viewkeeper.warehouse.cuts import UpdateRow, WarehouseTransaction, update_table
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.warehouse import Warehouse

_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("total", pa.float64())])
_FIRST = 10
_SAMPLE = 80  # two whole periods of compaction, so that the mean carries its share
_VIEW_ROWS = 1_000
_FOLD_EVERY = 240  # once a minute at four cuts a second


def bench_cuts(root: Path, cuts: int = 10_000) -> dict[str, float]:
    """Compares a warehouse of that many small, unpaced cuts with one of ten; prints a line.

    Times are milliseconds: medians of a commit and of a read of the whole view by a process that opens it anew, and
    the mean of a commit with the compaction it makes necessary. The two take turns, so that they see the same machine.
    """
    early, late = _Series(root / "early", _FIRST), _Series(root / "late", cuts)
    for _ in range(_SAMPLE):
        early.sample()
        late.sample()
    figures = {"cuts": float(cuts)}
    for name, series in (("early", early), ("late", late)):
        figures[f"commit_{name}"] = 1e3 * median(series.commits)
        figures[f"commit_and_upkeep_{name}"] = 1e3 * (sum(series.commits) + sum(series.upkeep)) / _SAMPLE
        figures[f"read_{name}"] = 1e3 * median(series.reads)
    figures["commit_ratio"] = figures["commit_late"] / figures["commit_early"]
    figures["read_ratio"] = figures["read_late"] / figures["read_early"]
    print(_line(figures))
    return figures


class _Series:
    """A warehouse that has had some cuts, and the times of those that follow."""

    def __init__(self, root: Path, cuts: int):
        self._root = root
        self._warehouse = _loaded(root)
        self._update = 0
        self.commits: list[float] = []
        self.upkeep: list[float] = []
        self.reads: list[float] = []
        for _ in range(cuts):
            self._cut()
        self._warehouse.fold()
        self.commits, self.upkeep = [], []

    def sample(self) -> None:
        """One more cut, and one read by somebody else."""
        self._cut()
        self.reads.append(_read(self._root))

    def _cut(self) -> None:
        self._update += 1
        started = time.perf_counter()
        self._warehouse.commit(_transaction(self._update))
        committed = time.perf_counter()
        self._warehouse.compact()
        self.commits.append(committed - started)
        self.upkeep.append(time.perf_counter() - committed)
        if self._update % _FOLD_EVERY == 0:
            self._warehouse.fold()


def _line(figures: dict[str, float]) -> str:
    pairs = ", ".join(
        f"{what} {figures[f'{key}_early']:.1f} → {figures[f'{key}_late']:.1f} ms"
        for what, key in (("commit", "commit"), ("with upkeep", "commit_and_upkeep"), ("read", "read"))
    )
    ratios = f"×{figures['commit_ratio']:.2f} and ×{figures['read_ratio']:.2f}"
    return f"after 10 → after {figures['cuts']:.0f} cuts: {pairs} (commit and read {ratios})"


def _loaded(root: Path) -> Warehouse:
    warehouse = Warehouse(root)
    warehouse.open()
    ids = list(range(_VIEW_ROWS))
    rows = pa.table(
        {"id": ids, "name": [f"n{i}" for i in ids], "total": [i / 4 for i in ids], "_count": [1] * _VIEW_ROWS}
    )
    warehouse.load("bench", _SCHEMA, "SELECT", [rows], 0)
    warehouse.commit(WarehouseTransaction(0, {"s": "0"}, {"s": 0}, "complete"))
    return warehouse


def _transaction(k: int) -> WarehouseTransaction:
    """Update k moves one row of the view to another value."""
    row = (k - 1) % _VIEW_ROWS
    turn = (k - 1) // _VIEW_ROWS
    change = pa.table(
        {
            "id": [row, row],
            "name": [f"n{row}"] * 2,
            "total": [row / 4 + turn, row / 4 + turn + 1],
            "_count": [-1, 1],
            "_update": [k, k],
        }
    )
    updates = update_table([UpdateRow(k, "s", str(k), "s.updates", k, ("bench",))])
    return WarehouseTransaction(k, {"s": str(k)}, {"s": k + 1}, "complete", updates, {"bench": [change]})


def _read(root: Path) -> float:
    """The time of another process's first read: it opens everything anew."""
    started = time.perf_counter()
    rows = WarehouseReader(root).read("bench").read_all()
    assert len(rows) == _VIEW_ROWS, f"{len(rows)} rows"
    return time.perf_counter() - started
