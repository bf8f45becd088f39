"""Bounds in bytes: cut finely or not at all, in memory or mapped from files, everything stays the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.core import worlds
from tests.scale import scaled
from viewkeeper.algebra import hashing, sizes, wide
from viewkeeper.algebra.bag import COUNT, UPDATE, SignedBag, row_codes
from viewkeeper.algebra.hashing import row_hashes
from viewkeeper.algebra.sizes import pieces, row_bytes, rows_at, spans, taken
from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.timeline import POSITION
from viewkeeper.algebra.types import INTEGER, TEXT, Column, Relation
from viewkeeper.algorithms.sweep import Queue, Sweep, drive
from viewkeeper.managers.shared_answers import Shape, SharedAnswers
from viewkeeper.messages import Answer, Ask
from viewkeeper.warehouse import log_rows, mapped, view_table
from viewkeeper.warehouse.log_table import LogTable
from viewkeeper.warehouse.mapped import SPOOL_BYTES, Ends, gather, only
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


_POOLS: list[pa.MemoryPool] = []
"""What was made in a pool must not outlive it."""


def most_held(work: Callable[[], object]) -> int:
    """The most bytes that Arrow held at a time while something was done."""
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    _POOLS.append(counted)
    pa.set_memory_pool(counted)
    try:
        work()
    finally:
        pa.set_memory_pool(usual)
    return int(counted.max_memory())


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
    for read in (lambda: log.rows().batches(UPDATE, 1, 9), lambda: view_table.stored(tmp_path, log.table)):
        rows: list[int] = []
        assert most_held(lambda: rows.extend(map(len, read()))) < 10 << 20  # noqa: B023 (of 40 MB)
        assert sum(rows) == 40_000


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


@pytest.mark.parametrize("long", [0, 30, 100])
@pytest.mark.parametrize("seed", range(scaled(10, 50)))
def test_agree_a_row_has_the_same_hash_whatever_stands_beside_it(
    seed: int, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "_LONG", long)
    names = ["text", "n", "data"]
    table = random_table(random.Random(seed), 60)
    at_once = row_hashes(table, names).tolist()
    assert [int(row_hashes(table.slice(i, 1), names)[0]) for i in range(len(table))] == at_once
    monkeypatch.setattr(hashing, "_CHUNK_BYTES", 7)
    assert row_hashes(table, names).tolist() == at_once
    distinct = {tuple(row.values()): code for row, code in zip(table.select(names).to_pylist(), at_once, strict=True)}
    assert len(set(distinct.values())) == len(distinct)


@pytest.mark.parametrize("colliding", [False, True])
@pytest.mark.parametrize("seed", range(scaled(30, 200)))
def test_agree_wide_texts_have_the_codes_that_arrows_dictionary_gives_them(
    seed: int, colliding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = random_table(random.Random(seed), 60)
    places = np.random.default_rng(seed).integers(0, len(table), 40)
    expected = [
        canonical(row_codes(table, ["n", "text", "data"])),
        canonical(row_codes(rows_at(table, places), ["text"])),
    ]
    monkeypatch.setattr(wide, "WIDE_BYTES", -1)
    monkeypatch.setattr(wide, "_WIDTH", -1)
    monkeypatch.setattr(wide, "_AT_ONCE", 100)
    if colliding:
        monkeypatch.setattr(wide, "hash", lambda value: len(value or b"") % 3, raising=False)
    found = [canonical(row_codes(table, ["n", "text", "data"])), canonical(row_codes(table, ["text"], places))]
    assert found == expected


def canonical(codes: np.ndarray) -> list[int]:
    """The codes by order of their first appearance."""
    known: dict[int, int] = {}
    return [known.setdefault(code, len(known)) for code in codes.tolist()]


@pytest.mark.parametrize("selection", ["", " WHERE d.text <> 'z'"])
def test_answers_of_wide_rows_are_compensated_by_as_wide_changes_in_little_memory(
    selection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changes of a relation are mapped from a file; a sweep takes from them what it carries, and no more."""
    monkeypatch.setattr(mapped, "SPOOL_BYTES", 1 << 20)
    monkeypatch.setattr(sizes, "PIECE_BYTES", 1 << 20)
    monkeypatch.setattr(wide, "WIDE_BYTES", 1 << 18)
    details = Relation("crm", "details", (Column("id", INTEGER), Column("text", TEXT)))
    relations = worlds.catalog(worlds.relation("shop", "orders", "id detail"), details)
    sql = f"SELECT o.id, d.text FROM shop.orders o JOIN crm.details d ON o.detail = d.id{selection}"
    sweep = Sweep(parse_view("v", sql, relations), Queue({("crm", "details"): wide_changes(2_000)}))
    starts = pa.table({"id": range(2_000), "detail": range(2_000), COUNT: [1] * 2_000, UPDATE: [3] * 2_000})
    nothing = pa.table(
        {"id": pa.array([], pa.int64()), "text": pa.array([], pa.string()), COUNT: pa.array([], pa.int64())}
    )
    answer = Answer(nothing, worlds.Included(frozenset()))
    found: list[int] = []
    most = most_held(lambda: found.extend(map(len, drive(sweep.changes_from(0, starts), lambda _: answer))))
    assert sum(found) == 2_000
    assert most < 16 << 20  # of 120 MB, a third of which is in the result


def wide_changes(rows: int) -> pa.Table:
    """Rows of 20 kB, mapped from a file: update 1 inserts them, update 2 does again and deletes one of the two."""
    rng = random.Random(1)

    def batches() -> Iterator[pa.RecordBatch]:
        for low in range(0, rows, 100):
            texts = [rng.randbytes(10_000).hex() for _ in range(100)]
            for count, update in ((1, 1), (-1, 2), (1, 2)):
                told = {COUNT: [count] * 100, UPDATE: [update] * 100, POSITION: [update] * 100}
                yield pa.record_batch({"id": list(range(low, low + 100)), "text": texts, **told})

    return gather(batches(), next(batches()).schema)


def test_answers_that_views_share_stay_in_files_when_rows_of_them_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "SPOOL_BYTES", 1 << 20)
    monkeypatch.setattr(sizes, "PIECE_BYTES", 1 << 20)
    rows = wide_changes(1_000).select(["id", "text", COUNT])
    ask = Ask("crm", "details", ("id", "text"), ("id",), pa.table({"id": range(999)}), None)
    tail = rows.slice(0, 10)
    whole = Answer(rows, worlds.Included(frozenset()), tail)
    shape = Shape(("id", "text"), None)
    shared = SharedAnswers({("crm", "details", ("id",)): shape}, lambda _: whole)
    found: list[pa.Table] = []
    assert most_held(lambda: found.append(shared.ask(ask).rows)) < 8 << 20  # of 60 MB
    expected = SignedBag(rows.slice(10).filter(pc.less(rows.slice(10)["id"], 999)))
    assert SignedBag(found[0]).counts() == expected.counts()


@pytest.mark.parametrize("seed", range(scaled(20, 100)))
def test_agree_tables_that_grow_hold_the_same_rows_with_their_ends_in_memory_or_in_files(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "SPOOL_BYTES", 2_000)
    rng = random.Random(seed)
    ends, tables, expected = Ends(), {}, {}
    for _ in range(30):
        more = {name: random_table(rng, rng.choice([0, 5, 60])) for name in rng.sample("abc", 2)}
        expected |= {
            name: pa.concat_tables([*([expected[name]] if name in expected else []), more[name]]) for name in more
        }
        tables |= {name: pa.concat_tables([*([tables[name]] if name in tables else []), more[name]]) for name in more}
        tables = ends.grown(tables, more)
        if rng.random() < 0.3:
            kept = {name: np.array([rng.random() < 0.7 for _ in range(len(t))], bool) for name, t in tables.items()}
            before, tables = tables, {name: only(table, kept[name]) for name, table in tables.items()}
            ends.kept(tables, before)
            expected = {name: table.filter(pa.array(kept[name])) for name, table in expected.items()}
        assert {name: table.to_pylist() for name, table in tables.items()} == {
            name: table.to_pylist() for name, table in expected.items()
        }


def test_what_arrives_in_many_small_updates_of_wide_rows_goes_to_files() -> None:
    """A backlog: each piece of it is small, all of them together are not."""

    def backlog() -> None:
        ends, tables = Ends(), {}
        for _ in range(20):
            more = {"orders": pa.table({"text": [b"%d" % i * 10_000 for i in range(1_000)]})}
            tables = {"orders": pa.concat_tables([*tables.values(), more["orders"]])}
            tables = ends.grown(tables, more)
        assert tables["orders"].nbytes > 500_000_000 and len(tables["orders"]) == 20_000
        assert pa.default_memory_pool().bytes_allocated() < 3 * SPOOL_BYTES

    assert most_held(backlog) < 6 * SPOOL_BYTES
