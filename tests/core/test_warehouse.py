"""The warehouse's tables: what a cut publishes is what every reader sees, at any update."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.conftest import eventually
from viewkeeper.algebra.bag import SignedBag
from viewkeeper.errors import NegativeCount, UsageError, WarehouseError
from viewkeeper.warehouse.cuts import Cut, UpdateRow, WarehouseTransaction, update_table
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.warehouse import Warehouse

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
STATE = SCHEMA.append(pa.field("_count", pa.int64()))
CHANGES = STATE.append(pa.field("_update", pa.int64()))
Rows = list[tuple[Any, ...]]


def rows(schema: pa.Schema, listed: Rows) -> pa.Table:
    arrays = [pa.array([row[i] for row in listed], field.type) for i, field in enumerate(schema)]
    return pa.Table.from_arrays(arrays, schema=schema)


def transaction(last: int, changes: Rows | None = None, first: int | None = None, **more: Any) -> WarehouseTransaction:
    """Updates ``first`` to ``last`` (just the last, unless told) and how they change the view v."""
    numbers = range(last if first is None else first, last + 1) if changes is not None else ()
    return WarehouseTransaction(
        last_update=last,
        positions={"shop": str(last)},
        offsets={"shop": last + 1},
        level="complete",
        updates=update_table(UpdateRow(k, "shop", f"t{k}", "shop.updates", k, ("v",)) for k in numbers),
        changes={"v": [rows(CHANGES, changes)]} if changes else {},
        **more,
    )


def loaded(root: Path, content: Rows | None = None) -> Warehouse:
    """An open warehouse whose cut 0 holds the view v."""
    warehouse = Warehouse(root)
    warehouse.open()
    warehouse.load("v", SCHEMA, "SELECT 1", [rows(STATE, content or [(1, "a", 2), (None, None, 1)])], 0)
    warehouse.commit(transaction(0))
    return warehouse


def content(warehouse: WarehouseReader, cut: Cut | None = None, update: int | None = None) -> Counter[Any]:
    table = warehouse.read("v", cut, update).read_all()
    assert all(count > 0 for count in table["_count"].to_pylist())
    bag = SignedBag(table)
    assert len(table) == len(bag.counts()), "each row once"
    return bag.counts()


def published(root: Path) -> Counter[Any]:
    """What a reader that knows only Delta sees in the newest version of views/v."""
    return SignedBag(DeltaTable(str(root / "views" / "v")).to_pyarrow_table()).counts()


def test_a_view_can_be_read_after_every_update_before_and_after_a_fold(tmp_path: Path) -> None:
    warehouse = loaded(tmp_path)
    warehouse.commit(transaction(1, [(1, "a", -1, 1), (2, "b", 1, 1)]))
    warehouse.commit(transaction(3, [(None, None, -1, 2), (2, "b", -1, 3), (3, None, 5, 3)], first=2))
    expected = [
        Counter({(1, "a"): 2, (None, None): 1}),
        Counter({(1, "a"): 1, (None, None): 1, (2, "b"): 1}),
        Counter({(1, "a"): 1, (2, "b"): 1}),
        Counter({(1, "a"): 1, (3, None): 5}),
    ]
    for reader in (warehouse, WarehouseReader(tmp_path)):
        assert [content(reader, update=k) for k in range(4)] == expected
    warehouse.fold()
    cut = warehouse.commit(transaction(3))
    assert cut.folded == {"v": 3} and cut.last_update == 3 and cut.cut == 3
    for reader in (warehouse, WarehouseReader(tmp_path)):
        assert [content(reader, update=k) for k in range(4)] == expected
        assert [content(reader, cut=reader.cut(n)) for n in range(4)] == [expected[k] for k in (0, 1, 3, 3)]
    assert published(tmp_path) == expected[3]


def test_a_cut_row_comes_back_as_it_was_written(tmp_path: Path) -> None:
    warehouse = loaded(tmp_path)
    warehouse.note_sealed(0)
    cut = warehouse.commit(transaction(1, [(9, "z", 1, 1)]))
    assert WarehouseReader(tmp_path).newest() == cut
    assert (cut.cut, cut.last_update, cut.sealed, cut.offsets) == (1, 1, 0, {"shop": 2})


def test_updates_and_changes_come_in_order_whatever_order_they_were_written_in(tmp_path: Path) -> None:
    warehouse = loaded(tmp_path)
    shuffled = [(k, "x", 1, k) for k in range(1, 101)]
    random.Random(1).shuffle(shuffled)
    warehouse.commit(transaction(100, shuffled, first=1))
    [table] = warehouse.changes("v", 10, 90)
    assert table["_update"].to_pylist() == list(range(10, 91))
    assert warehouse.updates(5, 7)["txn"].to_pylist() == ["t5", "t6", "t7"]


def test_rows_past_the_newest_cut_are_invisible_and_go_away(tmp_path: Path) -> None:
    warehouse = loaded(tmp_path)
    before = content(warehouse)

    def broken() -> Any:
        for _ in range(3):
            yield rows(CHANGES, [(5, "e", 1, 1)])
        raise RuntimeError("the sweep failed")

    attempt = transaction(1, [])
    attempt.changes = {"v": broken()}
    with pytest.raises(RuntimeError, match="sweep failed"):
        warehouse.commit(attempt)
    assert content(WarehouseReader(tmp_path)) == before
    warehouse.recover()
    warehouse.commit(transaction(1, [(6, "f", 1, 1)]))
    assert content(warehouse) == before + Counter({(6, "f"): 1})
    assert len(warehouse.updates(0, 9)) == 1


def test_a_negative_count_leaves_no_version_behind_and_marks_the_view(tmp_path: Path) -> None:
    warehouse = loaded(tmp_path)
    warehouse.commit(transaction(1, [(1, "a", -3, 1)]))
    version = DeltaTable(str(tmp_path / "views" / "v")).version()
    with pytest.raises(NegativeCount, match=r"views\.v.*less than zero"):
        warehouse.fold()
    assert DeltaTable(str(tmp_path / "views" / "v")).version() == version
    assert "v" in warehouse.inexact()
    warehouse.load("v", SCHEMA, "SELECT 1", [rows(STATE, [(7, "g", 1)])], 1)
    warehouse.commit(transaction(1))
    assert warehouse.inexact() == {} and content(warehouse) == Counter({(7, "g"): 1})


def test_a_reload_with_another_schema_replaces_changes_and_refuses_older_updates(tmp_path: Path) -> None:
    warehouse = loaded(tmp_path)
    warehouse.commit(transaction(1, [(2, "b", 1, 1)]))
    other = pa.schema([("total", pa.decimal128(10, 2))])
    table = pa.table({"total": pa.array([None], other.field(0).type), "_count": [4]})
    warehouse.load("v", other, "SELECT 2", [table], 1)
    assert WarehouseReader(tmp_path).definition("v") == "SELECT 1"
    warehouse.commit(transaction(1))
    assert WarehouseReader(tmp_path).definition("v") == "SELECT 2"
    assert warehouse.loaded("v") == 1
    assert content(warehouse) == Counter({(None,): 4})
    assert list(warehouse.changes("v", 0, 9)) == []
    with pytest.raises(UsageError, match="before its load"):
        warehouse.read("v", update=0)
    with pytest.raises(UsageError, match="no update 2"):
        warehouse.read("v", update=2)


def test_a_number_names_no_newer_state_than_it_did_before_all_was_loaded_again(tmp_path: Path) -> None:
    warehouse = loaded(tmp_path)
    warehouse.commit(transaction(1, [(2, "b", 1, 1)]))
    warehouse.require_own_number("v", 1)
    before = warehouse.newest()
    assert before is not None
    warehouse.load("v", SCHEMA, "SELECT 1", [rows(STATE, [(7, "g", 1)])], 1)
    moved = {source: f"{position}9" for source, position in before.positions.items()}
    warehouse.commit(replace(transaction(1), positions=moved))
    with pytest.raises(UsageError, match="all was loaded again after update 1, from sources that may have gone on"):
        warehouse.require_own_number("v", 1)
    warehouse.commit(replace(transaction(2, [(8, "h", 1, 2)]), positions=moved))
    warehouse.require_own_number("v", 2)


def test_a_number_stays_that_of_a_view_that_is_loaded_where_the_others_stand(tmp_path: Path) -> None:
    warehouse = loaded(tmp_path)
    warehouse.commit(transaction(1, [(2, "b", 1, 1)]))
    warehouse.load("w", SCHEMA, "SELECT 2", [rows(STATE, [(7, "g", 1)])], 1)
    warehouse.commit(replace(transaction(1), views=("v", "w")))
    warehouse.require_own_number("w", 1)


def test_a_load_that_no_cut_names_is_taken_back(tmp_path: Path) -> None:
    warehouse = loaded(tmp_path)
    before = content(warehouse)
    other = pa.schema([("other", pa.int64())])
    warehouse.load("v", other, "SELECT 2", [pa.table({"other": [1], "_count": [1]})], 0)
    again = Warehouse(tmp_path)
    again.open()
    assert again.definition("v") == "SELECT 1" and content(again) == before
    again.commit(transaction(1, [(2, "b", 1, 1)]))
    again.fold()
    again.commit(transaction(1))
    assert content(again) == published(tmp_path) == before + Counter({(2, "b"): 1})


def test_a_view_that_left_the_configuration_leaves_the_cut(tmp_path: Path) -> None:
    warehouse = loaded(tmp_path)
    assert warehouse.commit(transaction(0, views=["w"])).versions == {}
    assert warehouse.definition("v") is None
    with pytest.raises(UsageError, match=r"views\.v"):
        warehouse.read("v")
    assert content(warehouse, warehouse.cut(0)) == Counter({(1, "a"): 2, (None, None): 1})


def test_a_fold_of_nothing_makes_no_version(tmp_path: Path) -> None:
    warehouse = loaded(tmp_path)
    warehouse.commit(transaction(1, []))
    version = DeltaTable(str(tmp_path / "views" / "v")).version()
    warehouse.fold()
    assert DeltaTable(str(tmp_path / "views" / "v")).version() == version
    assert warehouse.commit(transaction(1)).folded == {"v": 1}


def test_compaction_and_vacuum_change_no_content(tmp_path: Path) -> None:
    warehouse = loaded(tmp_path)
    for k in range(1, 91):
        warehouse.commit(transaction(k, [(k, "x", 1, k)]))
        warehouse.compact()
    warehouse.fold()
    warehouse.commit(transaction(90))
    warehouse.vacuum(keep=timedelta(0))
    reader = WarehouseReader(tmp_path)
    for k in (0, 1, 64, 90):
        assert sum(content(reader, update=k).values()) == 3 + k
    assert sum(content(reader, cut=reader.cut(7)).values()) == 3 + 7
    for table in ("changes/v", "updates/all", "cuts/all"):
        assert len(list((tmp_path / table / "_delta_log").iterdir())) < 100
        assert len(DeltaTable(str(tmp_path / table)).file_uris()) < 70
    reopened = Warehouse(tmp_path)
    assert reopened.open() == warehouse.newest()
    assert content(reopened, update=85) == content(warehouse, update=85)


def test_a_reader_beside_the_job_always_sees_whole_cuts(tmp_path: Path) -> None:
    warehouse = loaded(tmp_path)
    done = threading.Event()
    seen: list[int] = []

    def read() -> None:
        reader = WarehouseReader(tmp_path)
        while not done.is_set():
            cut = reader.newest()
            assert cut is not None
            assert sum(content(reader, cut).values()) == 3 + cut.last_update
            seen.append(cut.cut)

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        for k in range(1, 101):
            warehouse.commit(transaction(k, [(k % 5, "x", 1, k)]))
            warehouse.compact()
            if k % 25 == 0:
                warehouse.fold()
        eventually(lambda: reading.done() or (seen and seen[-1] == 100))
        done.set()
        reading.result()
    assert seen == sorted(seen) and len(set(seen)) > 2


def test_a_broken_table_is_a_clear_error(tmp_path: Path) -> None:
    loaded(tmp_path)
    for file in (tmp_path / "cuts" / "all" / "_delta_log").iterdir():
        file.write_text("nonsense")
    with pytest.raises(WarehouseError, match=r"cuts.all: cannot be used"):
        WarehouseReader(tmp_path).newest()


def test_two_jobs_cannot_hold_one_warehouse_but_a_killed_one_frees_it(tmp_path: Path) -> None:
    program = (
        "import sys, time; from viewkeeper.warehouse.warehouse import Warehouse\n"
        "with Warehouse(sys.argv[1]).lock(): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout and holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=f"process {holder.pid}"), Warehouse(tmp_path).lock():
            pass
        holder.kill()
    with Warehouse(tmp_path).lock():
        assert (tmp_path / ".lock").read_text().strip() == str(os.getpid())


def test_the_id_of_a_warehouse_never_changes(tmp_path: Path) -> None:
    assert Warehouse(tmp_path).id() == Warehouse(tmp_path).id()
