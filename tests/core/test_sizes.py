"""Bounds in bytes: cut finely or not at all, in memory or mapped from files, everything stays the same."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.scale import scaled
from viewkeeper.algebra import hashing, sizes
from viewkeeper.algebra.bag import COUNT, UPDATE, SignedBag, row_codes
from viewkeeper.algebra.hashing import row_hashes
from viewkeeper.algebra.sizes import pieces, row_bytes, rows_at, spans, taken
from viewkeeper.warehouse import log_rows, view_table
from viewkeeper.warehouse.log_table import LogTable
from viewkeeper.warehouse.mapped import SPOOL_BYTES, gather
from viewkeeper.warehouse.spill import Consolidator

TEXTS = [None, "", "a", "ä", "x" * 50, "y" * 200]


def random_table(rng: random.Random, rows: int) -> pa.Table:
    """A table of a number, a text, some bytes and a count, in chunks of any length, empty ones among them."""
    chunks = []
    while rows >= 0:
        size = rng.randint(0, 9)
        texts = [rng.choice(TEXTS) for _ in range(size)]
        chunks.append(
            pa.table(
                {
                    "n": pa.array([rng.choice([None, 1, 2]) for _ in range(size)], pa.int64()),
                    "text": pa.array(texts, pa.string()),
                    "data": pa.array([t and t.encode() for t in texts], pa.binary()),
                    COUNT: pa.array([rng.choice([-1, 1, 2]) for _ in range(size)], pa.int64()),
                }
            )
        )
        rows -= size + 1
    return pa.concat_tables(chunks)


@pytest.mark.parametrize("seed", range(scaled(30, 200)))
def test_agree_rows_taken_chunk_by_chunk_are_arrows_own(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "_TOGETHER", 0)
    monkeypatch.setattr(sizes, "_ARRAY", 300)
    rng = random.Random(seed)
    table = random_table(rng, 60)
    places = np.array([rng.randrange(len(table)) for _ in range(rng.randint(0, 40))], np.int64)
    for each in (places, np.sort(places)):
        assert rows_at(table, each).equals(table.combine_chunks().take(pa.array(each)))
        assert taken(table["text"], each).to_pylist() == [table["text"][i].as_py() for i in each]


@pytest.mark.parametrize("seed", range(scaled(30, 200)))
def test_pieces_are_small_or_single_rows_and_together_the_table(seed: int) -> None:
    rng = random.Random(seed)
    table = random_table(rng, 60)
    rows, limit = rng.randint(1, 20), rng.choice([1, 300, 1000])
    found = list(pieces(table, rows, limit))
    assert pa.concat_tables(found).equals(table)
    for piece in found:
        assert len(piece) <= rows and (len(piece) == 1 or int(row_bytes(piece).sum()) <= max(limit, piece.nbytes))
    cut = list(spans(row_bytes(table), rows, limit))
    assert [low for low, _ in cut[1:]] == [high for _, high in cut[:-1]] and cut[-1][1] == len(table)
    assert all(high - low == 1 or int(row_bytes(table)[low:high].sum()) <= limit for low, high in cut)


def test_a_column_of_more_text_than_an_array_holds_can_be_taken_from_and_summed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with 2 GiB, whose place a smaller limit takes here."""
    monkeypatch.setattr(sizes, "_TOGETHER", 0)
    monkeypatch.setattr(sizes, "_ARRAY", 100)
    table = pa.concat_tables([pa.table({"text": [f"{i}" * 30 for i in range(9)], COUNT: [1] * 9})] * 3)
    assert sizes.together(table["text"]).type == pa.large_string()
    assert row_codes(table, ["text"]).tolist() == [*range(9)] * 3
    assert SignedBag(table).counts() == Counter({(f"{i}" * 30,): 3 for i in range(9)})
    assert len(taken(table["text"], np.arange(27)).chunks) > 3


@pytest.mark.parametrize("limit", [1, 500, 5_000])
@pytest.mark.parametrize("seed", range(scaled(10, 60)))
def test_agree_a_bag_that_goes_to_disk_for_its_bytes_is_the_same_bag(seed: int, limit: int) -> None:
    rng = random.Random(seed)
    tables = [random_table(rng, 40) for _ in range(5)]
    expected: Counter[tuple[object, ...]] = Counter()
    with Consolidator(tables[0].schema, limit_bytes=limit) as bag:
        for table in tables:
            bag.add(table)
            expected.update(SignedBag(table).counts())
        assert bag.spilled or limit == 5_000
        found = list(bag.results())
    total: Counter[tuple[object, ...]] = Counter()
    for table in found:
        counts = SignedBag(table).counts()
        assert not counts.keys() & total.keys()
        total.update(counts)
    assert total == {row: count for row, count in expected.items() if count}


def test_what_is_gathered_past_a_number_of_bytes_is_mapped_from_a_file() -> None:
    batch = pa.record_batch({"text": ["x" * 100_000] * 20})
    before = pa.total_allocated_bytes()
    table = gather((batch for _ in range(40)), batch.schema)
    assert table.nbytes > 2 * SPOOL_BYTES and len(table) == 800
    assert pa.total_allocated_bytes() - before < SPOOL_BYTES / 4


def test_wide_rows_are_hashed_in_little_memory() -> None:
    table = pa.table({"text": ["x" * 100_000] * 400})
    before, high = pa.total_allocated_bytes(), len(row_hashes(table, ["text"]))
    assert (before, high) == (pa.total_allocated_bytes(), 400)
    assert len(set(row_hashes(table, ["text"]).tolist())) == 1


def test_files_of_a_view_are_bounded_in_bytes_and_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_table, "FILE_BYTES", 10_000)
    monkeypatch.setattr(view_table, "FILE_ROWS", 50)
    wide = pa.table({"text": ["x" * 1_000] * 35})
    narrow = pa.table({"text": ["y"] * 130})
    files = list(view_table._file_sized([wide, narrow], wide.schema))
    assert sum(map(len, files)) == 165
    assert all(len(file) <= 50 and file.nbytes <= 10_000 for file in files) and len(files) <= 8


def log_of_wide_rows(folder: Path, rng: random.Random, rows: int) -> LogTable:
    """A table in two files, each one row group: a few updates, and a text that does not shrink."""
    log = LogTable(folder, (UPDATE,))
    for _ in range(2):
        numbers = pa.array(sorted(rng.randint(1, 9) for _ in range(rows)), pa.int64())
        texts = pa.array([None if i % 50 == 7 else rng.randbytes(500).hex() for i in range(rows)], pa.string())
        table = pa.table({"text": texts, COUNT: pa.array([1] * rows, pa.int64()), UPDATE: numbers})
        log.create(table.schema)
        log.append(table)
    return log


def test_files_of_wide_rows_are_read_a_little_at_a_time_however_large_their_row_groups_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_rows, "BATCH_BYTES", 1 << 20)
    log = log_of_wide_rows(tmp_path, random.Random(1), 20_000)
    usual = pa.default_memory_pool()
    for read in (lambda: log.rows().batches(UPDATE, 1, 9), lambda: view_table.stored(tmp_path, log.table)):
        counted = pa.proxy_memory_pool(usual)
        pa.set_memory_pool(counted)
        try:
            assert sum(len(batch) for batch in read()) == 40_000
        finally:
            pa.set_memory_pool(usual)
        assert counted.max_memory() < 10 << 20  # of 40 MB


@pytest.mark.parametrize("seed", range(scaled(5, 30)))
def test_agree_wide_rows_read_sparingly_are_those_of_arrows_dataset(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    log = log_of_wide_rows(tmp_path, rng, 60)
    first, last = rng.randint(0, 5), rng.randint(4, 10)
    for columns in (None, ["text", COUNT], [UPDATE], [COUNT, UPDATE, "text"]):
        found = []
        for size in (16 << 20, 1):
            monkeypatch.setattr(log_rows, "BATCH_BYTES", size)
            found.append(pa.Table.from_batches(log.rows().batches(UPDATE, first, last, columns)))
        usual, sparing = found
        assert sparing.schema == usual.schema
        assert Counter(map(str, sparing.to_pylist())) == Counter(map(str, usual.to_pylist()))


@pytest.mark.parametrize("seed", range(scaled(10, 50)))
def test_agree_a_long_text_hashed_in_stretches_has_the_hash_it_has_at_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = random_table(random.Random(seed), 60)
    at_once = row_hashes(table, ["text", "n", "data"])
    monkeypatch.setattr(hashing, "_LONG", 0)
    monkeypatch.setattr(hashing, "_CHUNK_BYTES", 7)
    assert row_hashes(table, ["text", "n", "data"]).tolist() == at_once.tolist()
