"""Views that are only recomputed: against SQLite, as of any update, and bit by bit the same for the same bags."""

from __future__ import annotations

import math
import random
import struct
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.scale import scaled
from viewkeeper.algebra.bag import COUNT
from viewkeeper.algebra.types import (
    BINARY,
    BOOLEAN,
    DATE,
    FLOAT,
    INTEGER,
    TEXT,
    TIMESTAMP,
    Catalog,
    Column,
    Relation,
    Type,
    decimal,
)
from viewkeeper.algebra.view import View
from viewkeeper.algorithms.sweep import Queue
from viewkeeper.errors import SourceError, ViewError
from viewkeeper.job.judging import Recomputation
from viewkeeper.job.past import Numbered, Past
from viewkeeper.managers.manager import ViewManager
from viewkeeper.managers.recomputed_sql import parse_recomputed
from viewkeeper.managers.recomputing import recompute_bag, recomputed
from viewkeeper.messages import Answer, Ask

from . import worlds
from .recomputed_queries import Statements, by_sqlite
from .worlds import Row, World


def result(view: View, pieces: Iterable[pa.Table]) -> Counter[Row]:
    rows: Counter[Row] = Counter()
    for piece in pieces:
        columns = [piece[name].to_pylist() for name in (*view.schema.names, COUNT)]
        for *row, count in zip(*columns, strict=True):
            rows[tuple(row)] += count
    return rows


# Against SQLite, as of any update ---------------------------------------------------------------------------------


def check_random_statement(seed: int) -> None:
    """The statement as of an update, whatever of later and earlier ones the answers include, against SQLite."""
    rng = random.Random(seed)
    world = worlds.random_world(rng, updates=rng.randint(0, 8))
    sql = Statements(rng, world.catalog).statement()
    view = parse_recomputed("v", sql, world.catalog)
    total = len(world.history)
    last = rng.randint(0, total)
    delivered = rng.randint(last, total)
    settled = rng.randint(0, last)
    known = range(settled + 1, delivered + 1)
    queue = world.queue([k for k in known if k <= last], [k for k in known if k > last])

    def ask(question: Ask) -> Answer:
        tail = [k for k in range(delivered + 1, total + 1) if rng.random() < 0.5]
        seen = [k for k in known if rng.random() < 0.6]
        return world.answer(question, [*range(1, settled + 1), *seen, *tail], tail)

    found = result(view, ViewManager(view, ask).whole(queue, last))
    wanted = by_sqlite(sql, world.catalog, world.state(range(1, last + 1)))
    assert found == wanted, f"seed {seed}, as of update {last}: {sql}"


@pytest.mark.parametrize("block", range(4))
def test_oracle_random_statements_are_what_sqlite_makes_of_the_sources_after_the_same_updates(block: int) -> None:
    for seed in range(block * 10_000, block * 10_000 + scaled(6, 100)):
        check_random_statement(seed)


SHOP = worlds.catalog(
    Relation("shop", "orders", (Column("id", INTEGER), Column("customer", INTEGER), Column("total", decimal(8, 2)))),
    Relation("crm", "customers", (Column("id", INTEGER), Column("name", TEXT))),
)


def test_every_state_of_a_grouped_outer_join_can_be_recomputed_from_answers_that_include_too_much() -> None:
    world = World(
        SHOP,
        {
            ("shop", "orders"): Counter({(1, 7, Decimal("1.50")): 1, (2, 7, Decimal("2.00")): 1}),
            ("crm", "customers"): Counter({(7, "Ada"): 1, (8, "Bob"): 1}),
        },
        [
            worlds.Did("shop", {"orders": Counter({(3, 8, Decimal("5.00")): 1})}),
            worlds.Did("crm", {"customers": Counter({(7, "Ada"): -1, (7, "Ann"): 1})}),
            worlds.Did("shop", {"orders": Counter({(1, 7, Decimal("1.50")): -1, (2, 7, Decimal("2.00")): -1})}),
        ],
    )
    sql = (
        "SELECT c.name, count(o.id) AS n, sum(o.total) AS total FROM crm.customers c "
        "LEFT JOIN shop.orders o ON o.customer = c.id GROUP BY c.name"
    )
    view = parse_recomputed("v", sql, SHOP)
    states = [
        {("Ada", 2, Decimal("3.50")), ("Bob", 0, None)},
        {("Ada", 2, Decimal("3.50")), ("Bob", 1, Decimal("5.00"))},
        {("Ann", 2, Decimal("3.50")), ("Bob", 1, Decimal("5.00"))},
        {("Ann", 0, None), ("Bob", 1, Decimal("5.00"))},
    ]
    heard: list[str] = []
    for k, state in enumerate(states):
        manager = ViewManager(view, lambda ask: world.answer(ask, [1, 2, 3]), heard.append)
        assert result(view, manager.whole(world.queue([1, 2, 3]), k)) == Counter(state), f"as of update {k}"
    assert set(heard) == {"shop", "crm"}


def test_progress_ends_with_everything_done() -> None:
    view = parse_recomputed("v", "SELECT DISTINCT name FROM crm.customers", SHOP)
    world = World(SHOP, {name: Counter() for name in SHOP})
    shares: list[float] = []
    list(ViewManager(view, lambda ask: world.answer(ask, [])).whole(Queue(), 0, on_progress=shares.append))
    assert shares == sorted(shares) and shares[-1] == 1.0


# Counts, nothing, and too little ----------------------------------------------------------------------------------


NUMBERS = worlds.catalog(Relation("s", "r", (Column("a", INTEGER), Column("b", INTEGER))))


def over(sql: str, *rows: tuple[Any, ...], catalog: Catalog = NUMBERS) -> Counter[Row]:
    """The statement over rows of the catalogue's one relation, each with its count at the end."""
    view = parse_recomputed("v", sql, catalog)
    return Counter(recompute_bag(view, catalog, {name: {row[:-1]: row[-1] for row in rows} for name in catalog}))


def test_a_row_that_is_there_three_times_counts_three_times() -> None:
    assert over("SELECT sum(a) AS s, count(*) AS n FROM s.r", (5, 0, 3), (1, 0, 1)) == {(16, 4): 1}


def test_equal_rows_of_the_result_are_one_row_with_a_count() -> None:
    assert over("SELECT a FROM s.r UNION ALL SELECT b FROM s.r", (1, 1, 2), (2, 1, 1)) == {(1,): 5, (2,): 1}


def test_an_aggregate_without_groups_has_a_row_even_over_nothing() -> None:
    assert over("SELECT count(*) AS n, sum(a) AS s, max(b) AS m FROM s.r") == {(0, None, None): 1}
    assert over("SELECT a, count(*) AS n FROM s.r GROUP BY a") == {}


def test_a_relation_that_would_hold_a_row_less_than_zero_times_is_no_relation() -> None:
    with pytest.raises(SourceError, match="less than zero times"):
        over("SELECT DISTINCT a FROM s.r", (1, 1, -1))


def test_a_subquery_of_two_rows_where_one_is_wanted_is_an_error_and_no_choice() -> None:
    with pytest.raises(ViewError, match=r"views\.v\.sql: cannot be recomputed"):
        over("SELECT a, (SELECT b FROM s.r) AS b FROM s.r", (1, 1, 1), (1, 2, 1))


# The laws of expressions that hold for every view -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("a / 0", None),
        ("a % 0", None),
        ("a // 0", None),
        ("a + 9223372036854775807", None),
        ("COALESCE(a * 9223372036854775807, 4)", 4),
        ("CAST('x' || CAST(a AS TEXT) AS INTEGER)", None),
        ("CAST(a * 5000000000 AS INTEGER)", 10_000_000_000),
        ("CASE WHEN a > 0 THEN 2000000000 ELSE 0 END + CASE WHEN a > 0 THEN 2000000000 ELSE 0 END", 4_000_000_000),
        ("sqrt(-a)", None),
        ("-7 // a", -3),
        ("7 / a", 3.5),
        ("make_date(9999, 12, 31) + CAST(a AS INTEGER)", None),
        ("make_date(2023, 2, 27 + a)", None),
    ],
)
def test_no_row_makes_an_expression_fail(expression: str, value: object) -> None:
    ((found,),) = over(f"SELECT DISTINCT {expression} AS x FROM s.r", (2, 0, 1))
    assert found == value


def test_a_sum_of_integers_is_exact_past_64_bits() -> None:
    assert over("SELECT sum(a) AS s FROM s.r", (2**63 - 1, 0, 1000)) == {(Decimal(2**63 - 1) * 1000,): 1}


def test_text_compares_by_code_point() -> None:
    texts = worlds.catalog(Relation("s", "r", (Column("t", TEXT),)))
    rows = [("Z", 1), ("a", 1), ("é", 1), ("e", 1), ("\U0001f600", 1), ("\uffff", 1), ("a\x00b", 1), ("", 1)]
    assert over("SELECT min(t) AS low, max(t) AS high, count(DISTINCT t) AS n FROM s.r", *rows, catalog=texts) == {
        ("", "\U0001f600", len(rows)): 1
    }


# Values come out as they are --------------------------------------------------------------------------------------

VALUES: dict[Type, list[Any]] = {
    INTEGER: [None, 0, -(2**63), 2**63 - 1],
    FLOAT: [None, 0.0, math.inf, -math.inf, math.nan, 5e-324, 1.7976931348623157e308, 0.1],
    decimal(38, 10): [None, Decimal("0E-10"), Decimal("9" * 28 + "." + "9" * 10), Decimal("-0.0000000001")],
    decimal(5, 0): [None, Decimal(-99999)],
    TEXT: [None, "", " ", "a\x00b", "é", "\U0001f600", "'", "NULL"],
    BOOLEAN: [None, True, False],
    DATE: [None, date(1, 1, 1), date(1582, 10, 10), date(9999, 12, 31)],
    TIMESTAMP: [None, datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)],
    BINARY: [None, b"", b"\x00\xff", b"abc"],
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_a_plain_column_keeps_its_type_and_every_value(kind: Type) -> None:
    catalog = worlds.catalog(Relation("s", "r", (Column("x", kind),)))
    view = parse_recomputed("v", "SELECT DISTINCT x FROM s.r", catalog)
    assert view.outputs[0].expr.type == kind
    values = VALUES[kind]
    table = pa.table(
        {"x": pa.array([*values, *values], kind.arrow), COUNT: pa.array([1] * 2 * len(values), pa.int64())}
    )
    piece = pa.concat_tables(recomputed(view, [table]))
    assert piece.schema == view.schema.append(pa.field(COUNT, pa.int64()))
    expected = pa.array(values, kind.arrow).to_pylist()
    assert Counter(map(repr, piece["x"].to_pylist())) == Counter(map(repr, expected))
    assert set(piece[COUNT].to_pylist()) == {1}


def test_negative_zero_and_the_many_nans_are_one_value_each() -> None:
    catalog = worlds.catalog(Relation("s", "r", (Column("x", FLOAT),)))
    other_nan = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
    found = over(
        "SELECT x, count(*) AS n FROM s.r GROUP BY x", (-0.0, 1), (math.nan, 1), (other_nan, 1), catalog=catalog
    )
    assert sorted(map(repr, found)) == ["(0.0, 1)", "(nan, 2)"]
    computed = over("SELECT DISTINCT x * -1 AS y FROM s.r", (0.0, 1), catalog=catalog)
    assert repr(list(computed)) == "[(0.0,)]"


# The same bags give the same bits ---------------------------------------------------------------------------------

FLOATS = worlds.catalog(Relation("s", "r", (Column("g", INTEGER), Column("x", FLOAT), Column("t", TEXT))))

SAME_BITS = [
    "SELECT g, sum(x) AS s, avg(x) AS a FROM s.r GROUP BY g",
    "SELECT sum(x) AS s FROM s.r",
    "SELECT stddev(x) AS a, stddev_pop(x) AS b, variance(x) AS c, var_pop(x) AS d, stddev(g) AS e FROM s.r",
    "SELECT sum(x * x) FILTER (WHERE g > 1) AS s, avg(DISTINCT x) AS d, mean(x) AS m FROM s.r",
    "SELECT g FROM s.r GROUP BY g HAVING sum(x) > 0.5",
    "SELECT a.g, sum(a.x + b.x) AS s FROM s.r a LEFT JOIN s.r b ON a.g = b.g GROUP BY a.g",
    "SELECT g, (SELECT sum(x) FROM s.r b WHERE b.g = a.g) AS s FROM s.r a",
    "SELECT string_agg(t, ',' ORDER BY g) AS s FROM s.r",
    "SELECT g, string_agg(DISTINCT t, ',' ORDER BY t DESC) AS s FROM s.r GROUP BY g",
    "SELECT g, t FROM s.r ORDER BY g LIMIT 7",
    "SELECT g, x FROM s.r WHERE g > 0 ORDER BY t DESC LIMIT 3 OFFSET 2",
    "SELECT g, rank() OVER (PARTITION BY g ORDER BY t) AS k, count(*) OVER (ORDER BY g) AS n FROM s.r",
    "SELECT median(x) AS m, quantile_cont(x, 0.3) AS q, quantile_disc(t, 0.3) AS d FROM s.r",
]


@pytest.mark.parametrize("sql", SAME_BITS)
def test_neither_the_order_of_rows_nor_the_split_of_counts_shows_in_any_bit(sql: str) -> None:
    rng = random.Random(5)
    rows = [
        (rng.randint(0, 3), rng.choice((1e16, -1e16, 1.0, 0.1, rng.random())), rng.choice("abc")) for _ in range(300)
    ]
    view = parse_recomputed("v", sql, FLOATS)
    seen = set()
    for _ in range(4):
        rng.shuffle(rows)
        table = pa.table(
            {
                "g": pa.array([row[0] for row in rows] * 2, pa.int64()),
                "x": pa.array([row[1] for row in rows] * 2, pa.float64()),
                "t": [row[2] for row in rows] * 2,
                # Each row once in all, in two parts that do not tell how it came about.
                COUNT: pa.array([(part := rng.randint(-2, 3))] * len(rows) + [1 - part] * len(rows), pa.int64()),
            }
        )
        pieces = pa.concat_tables(recomputed(view, [table]))
        seen.add(tuple(sorted(map(_bits, pieces.to_pylist()))))
    assert len(seen) == 1


def _bits(row: dict[str, Any]) -> str:
    return repr({name: value.hex() if isinstance(value, float) else value for name, value in row.items()})


def test_a_sum_of_floats_over_a_window_is_refused() -> None:
    with pytest.raises(ViewError, match="avg of floats over a window depends on the order of rows"):
        parse_recomputed("v", "SELECT g, avg(x) OVER (PARTITION BY g ORDER BY t) AS a FROM s.r", FLOATS)


# Judged ----------------------------------------------------------------------------------------------------------


def test_every_past_state_of_the_sources_can_be_judged_by_the_query() -> None:
    orders, customers = ("shop", "orders"), ("crm", "customers")
    one, two = Decimal("1.00"), Decimal("2.00")
    updates = [
        Numbered(1, "shop", "t1", {orders: {(1, 7, one): 1}}),
        Numbered(2, "crm", "t2", {customers: {(7, "Ada"): 1}}),
        Numbered(3, "shop", "t3", {orders: {(2, 7, two): 1}}),
    ]
    now = {orders: {(1, 7, one): 1, (2, 7, two): 1}, customers: {(7, "Ada"): 1}}
    sql = "SELECT name, sum(total) AS t FROM crm.customers c LEFT JOIN shop.orders o ON customer = c.id GROUP BY name"
    recomputation = Recomputation({"v": parse_recomputed("v", sql, SHOP)}, Past(0, updates, now), SHOP)
    states = [dict(recomputation.state("v", k)) for k in range(4)]
    assert states == [{}, {}, {("Ada", one): 1}, {("Ada", Decimal("3.00")): 1}]
