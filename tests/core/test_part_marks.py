"""Marked transactions over several sources in a SQLite database: what capture tells of them."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from tests.core.marked_shop import Shop, Update
from tests.scale import scaled
from viewkeeper.managers.sources import sqlite_log as log
from viewkeeper.managers.sources.sqlite import SqliteSource


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with closing(Shop(tmp_path / "shop.db")) as made:
        yield made


def test_a_marked_transaction_is_told_as_a_part_and_the_next_one_is_not(shop: Shop) -> None:
    shop.part("g1", 1, 2)
    assert shop.look() == [Update("g1", [1, 2])]
    assert shop.told.messages[0].global_txn is not None
    assert shop.told.messages[0].global_txn.sources == ["crm", "shop"]
    shop.write(3)
    assert shop.look() == [Update(None, [3])]


def test_every_mark_of_a_read_but_the_first_begins_an_update(shop: Shop) -> None:
    shop.write(1)
    shop.part("g1", 2)
    shop.write(3)
    shop.part("g2", 4)
    shop.part("g3", 5)
    shop.write(6)
    assert shop.look() == [Update("g1", [1, 2, 3]), Update("g2", [4]), Update("g3", [5, 6])]
    positions = [message.position for message in shop.told.messages]
    assert all(one < other for one, other in pairwise(positions))


def test_a_late_mark_names_the_whole_transaction(shop: Shop) -> None:
    shop.db.execute("BEGIN")
    shop.write(1)
    shop.mark("g1")
    shop.write(2)
    shop.db.execute("COMMIT")
    assert shop.look() == [Update("g1", [1, 2])]


def test_what_comes_before_a_late_mark_counts_to_the_mark_that_was_read_before_it(shop: Shop) -> None:
    """Nothing in the log tells this from a transaction of its own between the two, which is as likely."""
    shop.part("g1", 1)
    shop.db.execute("BEGIN")
    shop.write(2)
    shop.mark("g2")
    shop.write(3)
    shop.db.execute("COMMIT")
    assert shop.look() == [Update("g1", [1, 2]), Update("g2", [3])]


def test_begin_directly_before_the_mark_keeps_it_from_being_late(shop: Shop) -> None:
    """The only thing in SQLite that knows of a transaction under way, so it is the rule."""
    shop.db.execute("BEGIN")
    shop.write(1)
    with pytest.raises(sqlite3.OperationalError, match="within a transaction"):
        shop.db.execute("BEGIN IMMEDIATE")


def test_a_boundary_keeps_what_came_before_it_out_of_the_part(shop: Shop) -> None:
    shop.write(1)
    SqliteSource("shop", shop.path).freeze(None)
    shop.part("g1", 2)
    SqliteSource("shop", shop.path).freeze(None)
    shop.write(3)
    assert shop.look() == [Update(None, [1]), Update("g1", [2]), Update(None, [3])]


def test_a_part_that_changes_nothing_captured_is_told(shop: Shop) -> None:
    """The other parts wait for it."""
    shop.db.execute("BEGIN")
    shop.mark("g1")
    shop.db.execute("INSERT INTO other VALUES (1)")
    shop.db.execute("COMMIT")
    shop.mark("g2")
    shop.write(1)
    assert shop.look() == [Update("g1", []), Update("g2", [1])]


def test_a_mark_that_is_the_newest_row_is_the_last_change(shop: Shop) -> None:
    """Whoever waits for a source's last change waits for the part to be told."""
    source = SqliteSource("shop", shop.path)
    shop.write(1)
    shop.part("g1")
    assert shop.look() == [Update("g1", [1])]
    assert source.last_change() == str(shop.told.messages[-1].position)
    source.freeze(None)
    assert source.last_change() == str(shop.told.messages[-1].position)
    assert shop.capture().begun({"t": ["id"]}) < shop.told.messages[-1].position


def test_what_was_rolled_back_marks_nothing(shop: Shop) -> None:
    shop.db.execute("BEGIN")
    shop.mark("g1")
    shop.write(1)
    shop.db.execute("ROLLBACK")
    shop.write(2)
    assert shop.look() == [Update(None, [2])]
    shop.part("g1", 3)  # so its id is free
    assert shop.look() == [Update("g1", [3])]


def test_a_savepoint_rolls_back_its_marks_only(shop: Shop) -> None:
    shop.db.execute("BEGIN")
    shop.mark("g1")
    shop.write(1)
    for id in ("g1", "g2"):
        shop.db.execute("SAVEPOINT s")
        if id == "g2":
            shop.mark(id)
        shop.write(2)
        shop.db.execute("ROLLBACK TO s")
        shop.db.execute("RELEASE s")
    shop.write(3)
    shop.db.execute("COMMIT")
    assert shop.look() == [Update("g1", [1, 3])]


def test_all_pieces_of_a_large_part_name_it(shop: Shop) -> None:
    longest = "x" * 200
    shop.db.execute("BEGIN")
    shop.mark(longest)
    shop.db.executemany("INSERT INTO t VALUES (?, ?)", [(i, "y" * 100_000) for i in range(20)])
    shop.db.execute("COMMIT")
    updates = shop.look()
    assert len(updates) > 3 and {update.part_of for update in updates} == {longest}
    assert [message.part for message in shop.told.messages] == list(range(1, len(updates) + 1))


def test_a_capture_that_starts_anew_goes_on_inside_a_read_of_several_parts(shop: Shop) -> None:
    shop.part("g1", 1)
    shop.part("g2", 2)
    shop.part("g3")
    shop.look()
    for kept in (2, 1, 0):
        del shop.told.messages[kept:]
        shop.restart()
        assert shop.look() == [Update("g1", [1]), Update("g2", [2]), Update("g3", [])][kept:]


def test_a_pruned_log_goes_on_with_the_next_part(shop: Shop) -> None:
    shop.part("g1", 1)
    shop.part("g2", 2)
    shop.look()
    first, second = (message.position for message in shop.told.messages)
    assert shop.capture().prune(first) == first
    assert shop.db.execute(f"SELECT id FROM {log.GLOBAL_TXN}").fetchall() == [("g2",)]
    shop.restart()
    assert shop.look() == []
    assert shop.capture().prune(second) == second
    shop.part("g3", 3)
    assert shop.look() == [Update("g3", [3])]


# ---- at random


@pytest.mark.parametrize("seed", range(scaled(8, 200)))
def test_random_transactions_and_reads_tear_nothing_and_name_every_part(tmp_path: Path, seed: int) -> None:
    """Transactions and reads at any time: together the updates are the transactions, each mark names its own."""
    print(f"replay: pytest {__file__} -k 'name_every_part and {seed}'")
    rng = random.Random(seed)
    shop = Shop(tmp_path / "shop.db")
    shop.db.execute(f"PRAGMA journal_mode = {rng.choice(['WAL', 'DELETE'])}")
    done: list[Update] = []
    told: list[Update] = []
    for step in range(60):
        match rng.randrange(8):
            case 0:
                told += shop.look()
            case 1:
                shop.restart()
            case 2:
                SqliteSource("shop", shop.path).freeze(None)
            case _:
                done += random_transaction(shop, rng, step, told)
    told += shop.look()
    check(done, told)
    shop.close()


def random_transaction(shop: Shop, rng: random.Random, step: int, told: list[Update]) -> list[Update]:
    """Writes one, marked or not, and gives what it did, if that must be told; capture may look in between."""
    part_of = f"g{step}" if rng.random() < 0.5 else None
    rows: list[int] = []
    shop.db.execute("BEGIN")
    if part_of:
        shop.mark(part_of)
    for i in range(rng.randrange(4)):
        row = 100 * step + i
        shop.db.execute("SAVEPOINT s")
        shop.write(row)
        if rng.random() < 0.3:
            shop.db.execute("ROLLBACK TO s")
        else:
            rows.append(row)
        shop.db.execute("RELEASE s")
        if rng.random() < 0.1:
            told += shop.look()
    if rng.random() < 0.2:
        shop.db.execute("ROLLBACK")
        return []
    shop.db.execute("COMMIT")
    return [Update(part_of, rows)] if part_of or rows else []


def check(done: list[Update], told: list[Update]) -> None:
    """Each update is a run of whole transactions, at most one of them marked, and named by it."""
    left = list(done)
    for update in told:
        marks: list[str] = []
        rows: list[int] = []
        while left and (rows != update.rows or (update.part_of and not marks)):
            transaction = left.pop(0)
            rows += transaction.rows
            marks += [transaction.part_of] if transaction.part_of else []
        assert rows == update.rows, "a transaction is torn, or in another order"
        assert marks == ([update.part_of] if update.part_of else []), "it is named by its own mark"
    assert not left, "not all of it was told"
