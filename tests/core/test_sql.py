"""SQL into views: what is accepted and what it becomes."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, settings

from tests.core.test_expressions_agree import COLUMNS as RANDOM_COLUMNS
from tests.core.test_expressions_agree import expressions
from viewkeeper.algebra import construct
from viewkeeper.algebra.expressions import ColumnRef, Compare, Expr, Literal
from viewkeeper.algebra.render import render
from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.types import (
    BOOLEAN,
    DATE,
    FLOAT,
    INTEGER,
    NUMERIC,
    TEXT,
    Catalog,
    Column,
    Relation,
    Type,
    decimal,
)
from viewkeeper.algebra.view import Edge, View


def relation(source: str, name: str, /, **columns: Type) -> Relation:
    return Relation(source, name, tuple(Column(c, of) for c, of in columns.items()))


ORDERS = relation("shop", "orders", id=INTEGER, customer_id=INTEGER, total=decimal(10, 2), placed=DATE, note=TEXT)
CUSTOMERS = relation("crm", "customers", id=INTEGER, name=TEXT, score=FLOAT, active=BOOLEAN, boss=INTEGER)
ITEMS = relation("stock", "Items", order_id=INTEGER, sku=TEXT, Qty=INTEGER, id=INTEGER)
CATALOG: Catalog = {(r.source, r.name): r for r in (ORDERS, CUSTOMERS, ITEMS)}


def view(sql: str) -> View:
    """The view, once its canonical text was found to mean the same view."""
    parsed = parse_view("v", sql, CATALOG)
    again = parse_view("v", parsed.sql, CATALOG)
    assert again == parsed
    return pickle.loads(pickle.dumps(parsed))


def test_a_join_has_occurrences_edges_selections_and_outputs() -> None:
    v = view(
        "SELECT c.id, c.name, o.id AS order_id, o.total FROM shop.orders o "
        "JOIN crm.customers c ON o.customer_id = c.id WHERE o.total > 0"
    )
    orders, customers = v.occurrences
    assert (orders.source, orders.relation, orders.alias) == ("shop", "orders", "o")
    assert [c.name for c in orders.columns] == ["id", "customer_id", "total"]
    assert [c.name for c in customers.columns] == ["id", "name"]
    assert v.edges == (Edge(0, "customer_id", 1, "id"),)
    assert orders.selection == Compare(">", ColumnRef(0, "total", decimal(10, 2)), Literal(0, INTEGER))
    assert customers.selection is None and v.residuals == ()
    assert [o.name for o in v.outputs] == ["id", "name", "order_id", "total"]


def test_layout_case_and_comments_do_not_change_the_canonical_text() -> None:
    one = view("SELECT o.id, upper(note) AS n FROM shop.orders AS o WHERE o.id IN (1, 2)")
    other = view("select  O.ID,\n UPPER( o.note ) as n -- a comment\nfrom Shop.Orders o where (o.id in (1,2));")
    assert (
        one.sql == other.sql == ("SELECT o.id AS id, UPPER(o.note) AS n FROM shop.orders AS o WHERE (o.id IN (1, 2))")
    )


def test_joins_may_be_written_in_four_ways() -> None:
    texts = {
        view(f"SELECT o.note, i.sku FROM shop.orders o {join}").sql
        for join in (
            "JOIN stock.Items i ON o.id = i.id",
            "INNER JOIN stock.Items i USING (id)",
            "CROSS JOIN stock.Items i WHERE i.id = o.id",
            ", stock.items i WHERE o.id = i.id AND 1 = 1",
        )
    }
    assert len(texts) == 1


def test_a_column_of_using_is_shown_once_and_needs_no_qualifier() -> None:
    v = view("SELECT * FROM shop.orders o JOIN stock.Items i USING (id) WHERE id > 5")
    assert [o.name for o in v.outputs] == [
        *("id", "customer_id", "total", "placed", "note"),
        *("order_id", "sku", "Qty"),
    ]
    assert v.occurrences[0].selection is not None and v.occurrences[1].selection is None


def test_edges_are_closed_under_transitivity() -> None:
    v = view(
        "SELECT o.note FROM shop.orders o, crm.customers c, stock.Items i "
        "WHERE o.customer_id = c.id AND c.id = i.order_id"
    )
    assert v.edges == (
        Edge(0, "customer_id", 1, "id"),
        Edge(0, "customer_id", 2, "order_id"),
        Edge(1, "id", 2, "order_id"),
    )


def test_a_closure_within_one_occurrence_is_a_selection_of_it() -> None:
    v = view("SELECT o.note FROM shop.orders o, crm.customers c WHERE o.id = c.id AND c.id = o.customer_id")
    assert v.edges == (Edge(0, "customer_id", 1, "id"), Edge(0, "id", 1, "id"))
    same = Compare("=", ColumnRef(0, "customer_id", INTEGER), ColumnRef(0, "id", INTEGER))
    assert v.occurrences[0].selection == same


def test_a_relation_may_occur_several_times() -> None:
    v = view(
        "SELECT a.name, b.name AS boss FROM crm.customers a JOIN crm.customers b ON a.boss = b.id AND a.id <> b.id"
    )
    assert [o.alias for o in v.occurrences] == ["a", "b"]
    assert v.edges == (Edge(0, "boss", 1, "id"),)
    assert [render(r) for r in v.residuals] == ["(id <> id)"]


def test_a_join_may_be_on_several_columns() -> None:
    v = view("SELECT o.note FROM shop.orders o JOIN stock.Items i ON o.id = i.order_id AND o.customer_id = i.Qty")
    assert len(v.edges) == 2 and v.hops(0)[0].key == ("Qty", "order_id")


def test_an_equality_of_different_types_is_a_residual_beside_an_edge() -> None:
    v = view("SELECT o.note FROM shop.orders o JOIN crm.customers c ON o.customer_id = c.id AND o.total = c.score")
    assert len(v.edges) == 1 and len(v.residuals) == 1


def test_a_single_relation_is_a_view_too() -> None:
    v = view("SELECT orders.id, shop.orders.note FROM shop.orders")
    assert v.edges == () and v.occurrences[0].alias == "orders"


def test_a_view_without_columns_still_reads_one() -> None:
    assert [c.name for c in view("SELECT 1 AS one FROM shop.orders").occurrences[0].columns] == ["id"]


def test_a_condition_on_constants_is_a_residual_and_a_true_one_is_none() -> None:
    assert view("SELECT id FROM shop.orders WHERE 1 = 2").residuals == (Literal(False, BOOLEAN),)
    assert view("SELECT id FROM shop.orders WHERE TRUE AND 2 > 1").residuals == ()


def test_a_star_takes_every_column_in_order() -> None:
    v = view("SELECT i.*, o.id AS o_id FROM shop.orders o JOIN stock.Items i ON o.id = i.order_id")
    assert [o.name for o in v.outputs] == ["order_id", "sku", "Qty", "id", "o_id"]


def test_names_resolve_without_regard_to_case_and_keep_their_own() -> None:
    v = view("SELECT I.qty, I.SKU FROM STOCK.items I WHERE i.QTY > 0")
    assert [o.name for o in v.outputs] == ["Qty", "sku"]
    assert v.occurrences[0].relation == "Items"


def test_reserved_words_and_odd_names_are_quoted_in_the_canonical_text() -> None:
    odd = relation("s", "order", **{"select": INTEGER, "a-b": TEXT})
    parsed = parse_view("v", 'SELECT "select" AS x, "a-b" AS "group" FROM s."order" AS "from"', {("s", "order"): odd})
    assert parse_view("v", parsed.sql, {("s", "order"): odd}) == parsed


@pytest.mark.parametrize(
    ("sql", "of"),
    [
        ("1.50", decimal(3, 2)),
        ("0.05", decimal(2, 2)),
        ("1e3", decimal(4, 0)),
        ("1.50e-3", decimal(5, 5)),
        ("-9223372036854775808", INTEGER),
        ("- -9223372036854775808", decimal(19, 0)),
        ("9223372036854775807", INTEGER),
        ("9223372036854775808", decimal(19, 0)),
        ("DATE '2024-01-01' + 1", DATE),
        ("total + 1", decimal(11, 2)),
        ("total * total", decimal(20, 4)),
        ("total / 3", decimal(32, 24, loose=True)),
        ("CAST(total / total AS DECIMAL(12, 4))", decimal(12, 4)),
        ("coalesce(total, 0)", decimal(10, 2, loose=True)),
        ("round(id)", FLOAT),
        ("extract(year FROM TRY_CAST(note AS DATE))", decimal(4, 0)),
        ("total % 3", decimal(3, 2)),
        ("id * 1.5", decimal(21, 1)),
        ("id / 2", INTEGER),
        ("round(total, 1)", decimal(10, 1)),
        ("CASE WHEN id > 1 THEN 1 ELSE 2.5 END", decimal(2, 1, loose=True)),
        ("id::TEXT || note", TEXT),
        ("CAST(id AS SMALLINT)", INTEGER),
    ],
)
def test_every_expression_has_one_type(sql: str, of: Type) -> None:
    assert view(f"SELECT {sql} AS x FROM shop.orders").outputs[0].expr.type == of


@settings(max_examples=100, deadline=None)
@given(expressions(3))
def test_a_rendered_expression_reads_back_as_itself(expr: Expr) -> None:
    catalog = {("s", "r"): relation("s", "r", **RANDOM_COLUMNS)}
    expr = construct.cast(expr, INTEGER) if expr.type == NUMERIC else expr
    text = f"SELECT {render(expr)} AS x FROM s.r AS r"
    assert parse_view("v", text, catalog).outputs[0].expr == expr
