"""A process killed after any step of a commit leaves, after ``open``, the same result as no kill."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.scale import THOROUGH
from viewkeeper.algebra.bag import SignedBag
from viewkeeper.warehouse.cuts import UpdateRow, WarehouseTransaction, update_table
from viewkeeper.warehouse.fault import CRASH_AFTER
from viewkeeper.warehouse.groups import group_of, groups
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


def run(root: Path, crash_after: str, work: Callable[[Path], None] = job) -> int | None:
    """Runs the job in a process that dies after the step, and returns its exit code."""
    process = PROCESSES.Process(target=crashing_job, args=(root, crash_after, work))
    process.start()
    process.join(60)
    return process.exitcode


def crashing_job(root: Path, crash_after: str, work: Callable[[Path], None]) -> None:
    os.environ[CRASH_AFTER] = crash_after
    work(root)


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


# ---- a view that moves from one group to another -----------------------------------------------------------

A_LAST, B_AT, B_LAST = 7, 3, 5
"""Group a ends at update 7 and holds m until then; group b takes m over at its update 3 and ends at 5."""


def moving_job(root: Path) -> None:
    """Group a keeps m and n, group b keeps o; then m moves to b, whose numbers are smaller; resumes anywhere."""
    a, b = Warehouse(root, "a"), Warehouse(root, "b")
    with a.lock():
        newest = {"a": a.open(), "b": b.open()}
        grow(a, ["m", "n"], A_LAST if group_of(root, "m") != "b" else 0)
        grow(b, ["o"], B_AT)
        if newest["b"] is None or group_of(root, "m") != "b":
            if group_of(root, "m") == "a":
                a.leave(["m"])
            load_row(b, "m", 100)
            b.commit(WarehouseTransaction(B_AT, {"s": "3"}, {"s": 3}, "complete", views=["o", "m"]))
        grow(b, ["o", "m"], B_LAST)
        b.fold()
        b.commit(WarehouseTransaction(B_LAST, {"s": "5"}, {"s": 5}, "complete"))


def grow(warehouse: Warehouse, views: list[str], last: int) -> None:
    """One update a cut, each adding a row to each view, with a fold in the middle; loads the views first."""
    newest = warehouse.newest()
    if newest is None:
        for view in views:
            load_row(warehouse, view, 1)
        newest = warehouse.commit(WarehouseTransaction(0, {"s": "0"}, {"s": 0}, "complete"))
    for k in range(newest.last_update + 1, last + 1):
        transaction = WarehouseTransaction(k, {"s": str(k)}, {"s": k}, "complete")
        transaction.updates = update_table([UpdateRow(k, "s", str(k), "t", k, tuple(views))])
        transaction.changes = {view: [pa.table({"x": ["x"], "_count": [1], "_update": [k]})] for view in views}
        warehouse.commit(transaction)
        if k == 2:
            warehouse.fold()


def load_row(warehouse: Warehouse, view: str, times: int) -> None:
    newest = warehouse.newest()
    table = pa.table({"x": ["x"], "_count": [times]})
    schema = table.drop_columns("_count").schema
    warehouse.load(view, schema, "SELECT", [table], 0 if newest is None else newest.last_update)


# Cuts 1 to 8 are group a's, 9 to 12 group b's, 13 the one that m leaves by, 14 the one that it comes by.
MOVING_STEPS = ["load:4", "cut:13", "clear:13", "cut:14", "clear:14", "changes:19", "fold:4"]
OTHER_STEPS = ["load:3", "changes:14", "changes:17", "cut:12", "changes:18", "updates:11", "cut:15", "cut:16", "fold:5"]


@pytest.mark.parametrize("step", [*MOVING_STEPS, *(OTHER_STEPS if THOROUGH else ())])
def test_a_kill_while_a_view_moves_between_groups_changes_nothing(tmp_path: Path, step: str) -> None:
    assert run(tmp_path, step, moving_job) == -signal.SIGKILL
    for group in groups(tmp_path):  # whoever reads now sees whole cuts, and nothing of another group
        reader = WarehouseReader(tmp_path, group)
        newest = reader.newest()
        for view in newest.versions if newest is not None else ():
            base = 100 - B_AT if (view, group) == ("m", "b") else 1
            assert newest is not None and total(reader, view, newest.last_update) == base + newest.last_update
    moving_job(tmp_path)
    a, b = WarehouseReader(tmp_path, "a"), WarehouseReader(tmp_path, "b")
    assert (group_of(tmp_path, "m"), group_of(tmp_path, "n"), group_of(tmp_path, "o")) == ("b", "a", "b")
    assert [total(a, "n", k) for k in range(A_LAST + 1)] == list(range(1, A_LAST + 2))
    assert [total(b, "o", k) for k in range(B_LAST + 1)] == list(range(1, B_LAST + 2))
    assert [total(b, "m", k) for k in range(B_AT, B_LAST + 1)] == [100, 101, 102]
    assert pa.concat_tables(b.changes("m", 0, 99))["_update"].to_pylist() == [4, 5]
    newest = b.newest()
    assert newest is not None and newest.folded == {"m": B_LAST, "o": B_LAST}
    for view, expected in (("m", 102), ("o", B_LAST + 1)):
        table = DeltaTable(str(tmp_path / "views" / view), version=newest.versions[view]).to_pyarrow_table()
        assert sum(table["_count"].to_pylist()) == expected
