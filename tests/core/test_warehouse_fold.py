"""Folds and consolidation: the same sums whatever the types, the sizes and the files."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from viewkeeper.algebra.bag import SignedBag, row_codes
from viewkeeper.algebra.hashing import row_hashes
from viewkeeper.errors import NegativeCount
from viewkeeper.warehouse import view_table
from viewkeeper.warehouse.pace import FoldPace
from viewkeeper.warehouse.spill import Consolidator
from viewkeeper.warehouse.view_table import ViewTable, load_of

INSTANT = datetime(2024, 1, 1, tzinfo=UTC)
DOMAINS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int64(), [None, 0, -(2**63), 2**63 - 1]),
    "f": (pa.float64(), [None, 0.0, float("inf"), 1.5]),
    "D e": (pa.decimal128(10, 2), [None, Decimal("0.00"), Decimal("-0.01")]),
    "s": (pa.string(), [None, "", "a", "ab", "b\x00", "čaj"]),
    "b": (pa.bool_(), [None, True, False]),
    "d": (pa.date32(), [None, date(1, 1, 1), date(9999, 12, 31)]),
    "t": (pa.timestamp("us", tz="UTC"), [None, INSTANT, INSTANT + timedelta(microseconds=1)]),
    "x": (pa.binary(), [None, b"", b"\x00", b"\x00\x00"]),
}
SCHEMA = pa.schema([*((name, kind) for name, (kind, _) in DOMAINS.items()), ("_count", pa.int64())])


def table_of(bag: Counter[Any]) -> pa.Table:
    listed = [(*row, count) for row, count in bag.items()]
    arrays = [pa.array([row[i] for row in listed], field.type) for i, field in enumerate(SCHEMA)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def random_row(chance: random.Random) -> tuple[Any, ...]:
    return tuple(chance.choice(values) for _, values in DOMAINS.values())


def grown(state: Counter[Any], chance: random.Random) -> Counter[Any]:
    """A random change that no count can go below zero by."""
    change = Counter({row: -chance.randint(1, count) for row, count in state.items() if chance.random() < 0.3})
    for _ in range(chance.randint(0, 30)):
        change[random_row(chance)] += chance.randint(1, 3)
    return Counter({row: count for row, count in change.items() if count})


def summed(state: Counter[Any], change: Counter[Any]) -> Counter[Any]:
    keys = state.keys() | change.keys()
    return Counter({row: n for row in keys if (n := state[row] + change[row])})


@pytest.mark.parametrize("seed", range(3))
def test_oracle_folds_of_every_type_equal_the_plain_sum(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_table, "FILE_ROWS", 12)  # several files, so that some stay as they are
    chance = random.Random(seed)
    state = Counter({random_row(chance): 1 for _ in range(40)})
    view = ViewTable(tmp_path / "v", timedelta(days=7))
    view.load(SCHEMA, "SELECT", [table_of(state)], 0)
    for update in range(1, 9):
        change = grown(state, chance)
        state = summed(state, change)
        step = view.rewrite if update % 4 == 0 else lambda tables, k: view.fold(tables[0], k)
        fold = step([table_of(change)], update)
        assert view.newest_fold(load_of(view.table)) == fold
        stored = SignedBag(DeltaTable(str(view.path), version=fold.version).to_pyarrow_table())
        assert stored.counts() == state, f"seed {seed}, update {update}"
        assert len(stored.table) == len(state)


@pytest.mark.parametrize("way", ["fold", "rewrite"])
def test_a_fold_below_zero_leaves_neither_version_nor_files(tmp_path: Path, way: str) -> None:
    chance = random.Random(7)
    state = Counter({random_row(chance): 1 for _ in range(40)})
    view = ViewTable(tmp_path / "v", timedelta(days=7))
    loaded = view.load(SCHEMA, "SELECT", [table_of(state)], 0)
    files = sorted((tmp_path / "v").glob("*.parquet"))
    change = table_of(Counter({next(iter(state)): -2}))
    with pytest.raises(NegativeCount):
        view.fold(change, 1) if way == "fold" else view.rewrite([change], 1)
    assert view.refreshed_version() == loaded.version
    assert sorted((tmp_path / "v").glob("*.parquet")) == files


def test_a_fold_rewrites_only_the_files_it_meets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_table, "FILE_ROWS", 10)
    view = ViewTable(tmp_path / "v", timedelta(days=7))
    schema = pa.schema([("id", pa.int64()), ("_count", pa.int64())])
    view.load(schema, "SELECT", [], 0)
    view.fold(pa.table({"id": list(range(100)), "_count": [1] * 100}), 1)
    before = set(view.table.file_uris())
    view.fold(pa.table({"id": [5], "_count": [1]}), 2)
    assert len(before) == 10 and len(before - set(view.table.file_uris())) == 1


def test_many_small_files_become_few(tmp_path: Path) -> None:
    view = ViewTable(tmp_path / "v", timedelta(days=7))
    schema = pa.schema([("id", pa.int64()), ("_count", pa.int64())])
    view.load(schema, "SELECT", [], 0)
    for k in range(40):
        view.fold(pa.table({"id": [k], "_count": [1]}), k)
    assert len(view.table.file_uris()) <= view_table.MANY_SMALL_FILES + 1
    assert view.table.count() == 40


@pytest.mark.parametrize("limit", [5, 40, 10_000])
def test_oracle_a_consolidator_sums_alike_on_disk_and_in_memory(limit: int) -> None:
    chance = random.Random(limit)
    expected: Counter[Any] = Counter()
    with Consolidator(SCHEMA, limit_rows=limit) as bag:
        for _ in range(30):
            part = Counter({random_row(chance): chance.choice([-1, 1, 2]) for _ in range(10)})
            expected = summed(expected, part)
            bag.add(table_of(part))
        assert bag.spilled == (limit < 300)
        tables = list(bag.results())
    counts = SignedBag(pa.concat_tables(tables)).counts()
    assert counts == expected and sum(map(len, tables)) == len(expected)


def test_a_consolidator_that_is_closed_leaves_no_files() -> None:
    def opened() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = opened()
    with Consolidator(SCHEMA, limit_rows=3) as bag:
        bag.add(table_of(Counter({random_row(random.Random(k)): 1 for k in range(50)})))
        assert bag.spilled and opened() > before
    assert opened() == before


def test_changes_that_cancel_stay_in_memory() -> None:
    schema = pa.schema([("id", pa.int64()), ("_count", pa.int64())])
    with Consolidator(schema, limit_rows=100) as bag:
        for _ in range(100):
            bag.add(pa.table({"id": [1] * 50, "_count": [1] * 50}))
        assert not bag.spilled
        assert [t.to_pylist() for t in bag.results()] == [[{"id": 1, "_count": 5_000}]]


def test_equal_rows_have_equal_hashes_wherever_they_lie() -> None:
    chance = random.Random(3)
    table = table_of(Counter({random_row(chance): 1 for _ in range(500)}))
    doubled = pa.concat_tables([table, table.slice(100), table.slice(3, 50)])
    names = list(DOMAINS)
    codes, hashes = row_codes(doubled, names), row_hashes(doubled, names)
    pairs = set(zip(codes.tolist(), hashes.tolist(), strict=True))
    assert len(pairs) == len(set(codes.tolist())) == len(set(hashes.tolist()))
    assert (hashes != row_hashes(doubled, names, salt=1)).all()


def test_auto_folds_once_a_minute_and_a_tenth_of_the_time() -> None:
    pace = FoldPace("auto")
    assert [pace.due(t) for t in (0.0, 59.0, 60.0)] == [False, False, True]
    pace.spent(1.0)
    assert [pace.due(t) for t in (119.0, 120.0)] == [False, True]
    pace.spent(30.0)
    assert [pace.due(t) for t in (180.0, 419.0, 420.0)] == [False, False, True]
    assert FoldPace("every_cut").due(0.0)
    every_ten = FoldPace(timedelta(seconds=10))
    assert [every_ten.due(t) for t in (5.0, 14.0, 15.0)] == [False, False, True]
