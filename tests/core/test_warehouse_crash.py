"""A process killed after any step of a commit leaves, after ``open``, the same result as no kill."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from viewkeeper.algebra.bag import SignedBag
from viewkeeper.warehouse.cuts import UpdateRow, WarehouseTransaction, update_table
from viewkeeper.warehouse.fault import CRASH_AFTER
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.warehouse import Warehouse

VIEWS = {"v": "a", "w": "b"}
LAST = 6


def job(root: Path) -> None:
    """A job in small: goes on from the newest cut, two updates a cut, folds after each, reloads w at update 4."""
    warehouse = Warehouse(root)
    with warehouse.lock():
        newest = warehouse.open()
        if newest is None:
            for view in VIEWS:
                load(warehouse, view, 0, 1)
            newest = warehouse.commit(at(0))
        while newest.last_update < LAST:
            if newest.last_update == 4 and warehouse.definition("w") == "SELECT 1":
                load(warehouse, "w", 4, 2)
                newest = warehouse.commit(at(4))
            newest = warehouse.commit(batch(newest.last_update))
            warehouse.fold()
        if newest.folded != dict.fromkeys(VIEWS, LAST):
            warehouse.fold()
            warehouse.commit(at(LAST))


def load(warehouse: Warehouse, view: str, update: int, definition: int) -> None:
    """After k updates a view holds its row k + 1 times; its second definition has one column more."""
    columns = {VIEWS[view]: ["x"], **({"more": [True]} if definition == 2 else {})}
    table = pa.table({**columns, "_count": [update + 1]})
    schema = table.drop_columns("_count").schema
    warehouse.load(view, schema, f"SELECT {definition}", [table], update)


def at(update: int) -> WarehouseTransaction:
    return WarehouseTransaction(update, {"s": str(update)}, {"s": update}, "complete", views=list(VIEWS))


def batch(done: int) -> WarehouseTransaction:
    transaction, numbers = at(done + 2), [done + 1, done + 2]
    transaction.updates = update_table(UpdateRow(k, "s", str(k), "t", k, ("v", "w")) for k in numbers)
    for view, column in VIEWS.items():
        columns: dict[str, Any] = {column: ["x", "x"]}
        if view == "w" and done >= 4:
            columns["more"] = [True, True]
        table = pa.table({**columns, "_count": [1, 1], "_update": numbers})
        transaction.changes[view] = [table]
    return transaction


def run(root: Path, crash_after: str) -> int | None:
    """Runs the job in a process that dies after the step, and returns its exit code."""
    process = PROCESSES.Process(target=crashing_job, args=(root, crash_after))
    process.start()
    process.join(60)
    return process.exitcode


def crashing_job(root: Path, crash_after: str) -> None:
    os.environ[CRASH_AFTER] = crash_after
    job(root)


# Processes are forked from one that has imported everything but run nothing: a crash then costs no start-up.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["viewkeeper.warehouse.warehouse"])

STEPS = ["load", "load:3", "changes", "changes:4", "updates:2", "cut", "cut:4", "clear:4", "fold", "fold:4"]


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_after_any_step_changes_nothing(tmp_path: Path, step: str) -> None:
    assert run(tmp_path, step) == -signal.SIGKILL
    job(tmp_path)
    reader = WarehouseReader(tmp_path)
    newest = reader.newest()
    assert newest is not None and newest.last_update == LAST and newest.folded == {"v": LAST, "w": LAST}
    for view, first in (("v", 0), ("w", 4)):
        assert [total(reader, view, k) for k in range(first, LAST + 1)] == list(range(first + 1, LAST + 2))
        table = DeltaTable(str(tmp_path / "views" / view), version=newest.versions[view]).to_pyarrow_table()
        assert sum(SignedBag(table).counts().values()) == LAST + 1
        rows = pa.concat_tables(reader.changes(view, 0, 99))
        assert rows["_update"].to_pylist() == list(range(first + 1, LAST + 1))
    assert reader.updates(0, 99)["_update"].to_pylist() == list(range(1, LAST + 1))
    assert reader.definition("w") == "SELECT 2"
    assert [cut.cut for cut in reader.cuts(0, 99)] == list(range(newest.cut + 1))


def total(reader: WarehouseReader, view: str, update: int) -> int:
    counts: Counter[Any] = SignedBag(reader.read(view, update=update).read_all()).counts()
    assert len(counts) == 1
    return sum(counts.values())
