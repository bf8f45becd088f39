"""Numbers of any number of digits: columns that PostgreSQL declares as bare numeric, in views."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

import pytest

from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.types import INTEGER, NUMERIC, Catalog, Column, Relation, decimal
from viewkeeper.algebra.view import Edge
from viewkeeper.errors import ViewError
from viewkeeper.managers.recomputed_sql import parse_recomputed

from . import worlds
from .worlds import Did, World

LEFT = Relation("shop", "orders", (Column("id", INTEGER), Column("code", NUMERIC), Column("total", NUMERIC)))
RIGHT = Relation("crm", "rates", (Column("code", NUMERIC), Column("factor", NUMERIC)))
CATALOG: Catalog = {("shop", "orders"): LEFT, ("crm", "rates"): RIGHT}
LONG = "1234567890123456789012345678901234567890123456789.5"
"""More digits than any table holds."""

SQL = """SELECT o.id, CAST(o.total * r.factor AS DECIMAL(20, 4)) AS worth
         FROM shop.orders o JOIN crm.rates r USING (code)
         WHERE o.total > 1.5 OR r.factor IN (2, 3.0)"""


def test_oracle_a_view_joins_and_computes_with_numbers_of_any_number_of_digits() -> None:
    """A value that does not fit its cast is NULL: the view goes on, and every other row is exact."""
    world = World(
        CATALOG,
        {
            ("shop", "orders"): Counter({(1, LONG, "2"): 1, (2, "0.1", "1.50000001"): 1, (3, "7", LONG): 1}),
            ("crm", "rates"): Counter({(LONG, "0.00005"): 1, ("0.1", "2"): 1}),
        },
        [
            Did("crm", {"rates": Counter({("7", "1"): 1})}),
            Did("shop", {"orders": Counter({(1, LONG, "2"): -1, (1, LONG, "1.4"): 1})}),
            Did("crm", {"rates": Counter({(LONG, "0.00005"): -1, (LONG, "3"): 1})}),
        ],
    )
    view = parse_view("v", SQL, CATALOG)
    assert view.edges == (Edge(0, "code", 1, "code"),)
    changes = worlds.sweep_all(view, world.queue([1, 2, 3]), range(1, 4), lambda ask: world.answer(ask, [1, 2, 3]))
    state = worlds.recompute(view, world.initial, CATALOG)
    states = [state := worlds.plus(state, changes.get(k, Counter())) for k in (1, 2, 3)]
    first, second = (1, Decimal("0.0001")), (2, Decimal("3.0000"))
    assert states == [{first: 1, second: 1, (3, None): 1}, {second: 1, (3, None): 1},
                      {(1, Decimal("4.2000")): 1, second: 1, (3, None): 1}]  # fmt: skip
    for k in (1, 2, 3):
        assert states[k - 1] == worlds.recompute(view, world.state(range(1, k + 1)), CATALOG)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (
            "SELECT total FROM shop.orders",
            "column 8: total may have any number of digits, which no table can hold; say how",
        ),
        ("SELECT * FROM crm.rates", "factor may have any number of digits"),
        ("SELECT total + 1 AS x FROM shop.orders", "may have any number of digits"),
        ("SELECT CAST(total AS TEXT) AS x FROM shop.orders", "CAST(CAST(… AS DECIMAL(p, s)) AS TEXT)"),
        ("SELECT id FROM shop.orders WHERE total / 3 > 1", "the digits of this quotient depend on how"),
    ],
)
def test_what_depends_on_digits_that_nobody_declared_is_refused_with_the_place(sql: str, said: str) -> None:
    with pytest.raises(ViewError) as caught:
        parse_view("v", sql, CATALOG)
    assert any(said in str(problem) and "line 1, column" in str(problem) for problem in caught.value.problems)


def test_a_view_kept_by_refresh_asks_for_declared_digits() -> None:
    with pytest.raises(
        ViewError, match="total may have any number of digits, which DuckDB does not have; declare it as"
    ):
        parse_recomputed("v", "SELECT sum(total) AS total FROM shop.orders", CATALOG)
    assert parse_recomputed("v", "SELECT count(*) AS n FROM shop.orders", CATALOG).outputs[0].name == "n"


def test_the_outputs_of_a_view_over_such_columns_have_their_digits() -> None:
    assert [o.expr.type for o in parse_view("v", SQL, CATALOG).outputs] == [INTEGER, decimal(20, 4)]
