"""What a source says cannot be kept is refused by name, with its reason, when a view uses it."""

from __future__ import annotations

import pytest

from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.types import INTEGER, UNKNOWN, Catalog, Column, Relation
from viewkeeper.errors import ViewError

CATALOG: Catalog = {
    ("shop", "orders"): Relation(
        "shop",
        "orders",
        (Column("id", INTEGER, "int4"), Column("span", UNKNOWN, "interval", "is of type interval; leave it out")),
        key=("id",),
    ),
    ("shop", "parted"): Relation("shop", "parted", (Column("id", INTEGER, "int4"),), refused="is partitioned; name it"),
}


def test_a_relation_that_cannot_be_kept_is_refused_with_its_reason_and_remedy() -> None:
    with pytest.raises(ViewError, match=r"views\.v\.sql: line 1, column 18: shop\.parted is partitioned; name it"):
        parse_view("v", "SELECT p.id FROM shop.parted p", CATALOG)


def test_a_column_that_cannot_be_kept_is_refused_with_its_reason_and_remedy() -> None:
    with pytest.raises(ViewError, match=r"column o\.span is of type interval; leave it out"):
        parse_view("v", "SELECT o.id, o.span FROM shop.orders o", CATALOG)


def test_what_is_not_used_is_not_refused() -> None:
    assert parse_view("v", "SELECT o.id FROM shop.orders o", CATALOG).name == "v"
