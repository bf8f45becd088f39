"""Which marks of transactions over several sources a SQLite database takes, and since when."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.core.marked_shop import SPANS, Shop, Update
from viewkeeper.capture.part_marks import OBJECTS
from viewkeeper.managers.sources import sqlite_log as log


@pytest.fixture(params=["UTF-8", "UTF-16"])
def shop(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    with closing(Shop(tmp_path / "shop.db", request.param)) as made:
        yield made


def test_a_mark_is_taken_whatever_encoding_the_database_has(shop: Shop) -> None:
    ids = ["g1", " !~", "x" * 200]
    for row, id in enumerate(ids):
        shop.part(id, row)
    shop.db.execute("INSERT INTO t VALUES (7, 'ä€𝄞')")
    assert shop.look() == [Update("g1", [0]), Update(" !~", [1]), Update("x" * 200, [2, 7])]
    assert (shop.told.messages[-1].changes[-1].after or {})["a"] == "ä€𝄞"


# ---- what is refused


@pytest.mark.parametrize(
    ("id", "sources", "why"),
    [
        (None, "shop,crm", "an id is"),
        ("", "shop,crm", "an id is"),
        (7, "shop,crm", "an id is"),
        (b"g1", "shop,crm", "an id is"),
        ("ü", "shop,crm", "an id is"),
        ("a\0b", "shop,crm", "an id is"),
        ("a\nb", "shop,crm", "an id is"),
        ("x" * 201, "shop,crm", "an id is"),
        ("g1", None, "sources must be shop and at least one other of crm, shop or of hr, shop"),
        ("g1", "", "sources must be"),
        ("g1", "shop", "sources must be"),
        ("g1", "crm", "sources must be"),
        ("g1", "shop,cmr", "sources must be"),
        ("g1", "shop,crm,hr", "sources must be"),
        ("g1", "shop;crm", "sources must be"),
        ("g1", "shop,crm,", "sources must be"),
        ("g1", "shop,SHOP", "sources must be"),
        ("g1", "shop,shop", "sources must be"),
        ("g1", b"shop,crm", "sources must be"),
        ("used", "shop,crm", "this id was used before"),
    ],
)
def test_nonsense_is_refused_to_the_writer(shop: Shop, id: object, sources: object, why: str) -> None:
    shop.part("used")
    shop.db.execute("BEGIN")
    for clause in ("", "OR IGNORE", "OR REPLACE", "OR FAIL"):
        statement = f"INSERT {clause} INTO {log.GLOBAL_TXN} VALUES ('fine', 'shop,crm'), (?, ?)"
        with pytest.raises(sqlite3.IntegrityError, match=f"viewkeeper: {why}"):
            shop.db.execute(statement, (id, sources))
    shop.write(1)
    shop.db.execute("COMMIT")  # the transaction is the writer's to end
    assert shop.look() == [Update("used", [1])]


@pytest.mark.parametrize("sources", ["crm,shop", "shop, crm", "shop,hr", " hr , shop "])
def test_sources_are_named_in_any_order_and_with_blanks(shop: Shop, sources: str) -> None:
    shop.mark("orders", sources)  # an id may be the name of anything
    assert shop.look() == [Update("orders", [])]
    told = shop.told.messages[0].global_txn
    assert told is not None and set(told.sources) == {name.strip() for name in sources.split(",")}


def test_text_that_is_no_text_is_no_id(shop: Shop) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="an id is"):
        shop.db.execute(f"INSERT INTO {log.GLOBAL_TXN} VALUES (CAST(x'ff41' AS TEXT), 'shop,crm')")


def test_marks_are_not_altered_or_deleted(shop: Shop) -> None:
    shop.part("g1")
    for statement in (f"DELETE FROM {log.GLOBAL_TXN}", f"UPDATE {log.GLOBAL_TXN} SET id = 'g2'"):
        with pytest.raises(sqlite3.OperationalError, match="because it is a view"):
            shop.db.execute(statement)


# ---- installing


def objects(shop: Shop) -> set[str]:
    return {
        name
        for (name,) in shop.db.execute("SELECT name FROM sqlite_schema WHERE name LIKE '~_viewkeeper~_%' ESCAPE '~'")
    }


def test_installing_twice_changes_nothing(shop: Shop) -> None:
    before = shop.db.execute("PRAGMA schema_version").fetchone()
    assert shop.install() == []
    assert shop.install(SPANS[::-1]) == []
    assert shop.db.execute("PRAGMA schema_version").fetchone() == before


def test_a_change_log_from_before_takes_marks_once_they_are_declared(shop: Shop) -> None:
    shop.install([])
    assert not objects(shop) & OBJECTS.keys()
    shop.write(1)
    with pytest.raises(sqlite3.OperationalError, match="no such table: _viewkeeper_global_txn"):
        shop.mark("g1")
    assert shop.install() == ["_viewkeeper_global_txn, which takes marks of transactions over several sources"]
    shop.part("g1", 2)
    assert shop.look() == [Update("g1", [1, 2])]


def test_other_sources_are_taken_once_they_are_declared_and_earlier_marks_stay(shop: Shop) -> None:
    shop.part("g1", 1)
    shop.install([["shop", "bank"]])
    with pytest.raises(sqlite3.IntegrityError, match="sources must be"):
        shop.mark("g2", "shop,crm")
    shop.mark("g2", "shop,bank")
    assert shop.look() == [Update("g1", [1]), Update("g2", [])]


def test_marks_that_are_declared_no_longer_are_told_if_they_were_made_before(shop: Shop) -> None:
    shop.part("g1", 1)
    assert shop.install([["crm", "hr"]]) == []
    assert not objects(shop) & OBJECTS.keys()
    assert shop.look() == [Update("g1", [1])]


def test_removing_leaves_nothing(shop: Shop) -> None:
    shop.part("g1", 1)
    shop.capture().remove()
    assert objects(shop) == set()
    shop.install()
    shop.part("g1", 2)
    assert objects(shop) >= OBJECTS.keys()


def test_a_table_can_be_altered_while_marks_are_taken(shop: Shop) -> None:
    shop.db.execute("ALTER TABLE other RENAME TO another")
    shop.db.execute("ALTER TABLE t ADD COLUMN b")
    shop.look()
    shop.db.execute("BEGIN")
    shop.mark("g1")
    shop.db.execute("INSERT INTO t VALUES (1, 2, 3)")
    shop.db.execute("COMMIT")
    assert shop.look() == [Update("g1", [1])]
