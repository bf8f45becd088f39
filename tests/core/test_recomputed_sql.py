"""SQL that can only be recomputed: what is understood, what it uses, and what is refused with its place and remedy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from viewkeeper.algebra.bag import COUNT
from viewkeeper.algebra.types import (
    DATE,
    FLOAT,
    INTEGER,
    TEXT,
    TIMESTAMP,
    UNKNOWN,
    Column,
    Relation,
    decimal,
)
from viewkeeper.algebra.view import View
from viewkeeper.commands.check import unindexed
from viewkeeper.commands.explain import explanation
from viewkeeper.config import Config, load_config
from viewkeeper.errors import ViewError
from viewkeeper.integrator.arrange import arrange
from viewkeeper.integrator.integrator import Batch, number
from viewkeeper.job.assembly import parse_views
from viewkeeper.managers.keeping import Keeping
from viewkeeper.managers.recomputed_sql import parse_recomputed
from viewkeeper.managers.recomputed_sql_functions import AGGREGATES, NOT_THE_SAME, OPERATORS, SCALARS
from viewkeeper.managers.recomputing import engine
from viewkeeper.messages import ORDINAL, Received, Truncation, Update

from . import worlds

SHOP = worlds.catalog(
    Relation(
        "shop",
        "orders",
        (
            Column("id", INTEGER),
            Column("customer_id", INTEGER),
            Column("total", decimal(10, 2)),
            Column("weight", FLOAT),
            Column("Note", TEXT),
            Column("placed", TIMESTAMP),
            Column("odd", UNKNOWN),
        ),
        key=("id",),
    ),
    Relation("crm", "customers", (Column("id", INTEGER), Column("name", TEXT), Column("born", DATE)), key=("id",)),
    Relation("crm", "visits", (Column("customer_id", INTEGER), Column("page", TEXT))),
    Relation("crm", "twice", (Column("a", INTEGER), Column("A", INTEGER))),
    Relation("crm", "parts", (Column("id", INTEGER),), refused="is partitioned; name its partitions"),
)


def parse(sql: str) -> View:
    return parse_recomputed("v", sql, SHOP)


# What is understood -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "outputs"),
    [
        ("SELECT count(*) AS n FROM shop.orders", "n integer"),
        ("SELECT sum(id) AS s, sum(total) AS t FROM shop.orders", "s decimal(38,0), t decimal(38,2)"),
        ("SELECT avg(id) AS i, avg(total) AS d, avg(weight) AS f FROM shop.orders", "i float, d float, f float"),
        ("SELECT DISTINCT note FROM shop.orders", "Note text"),
        ("SELECT DISTINCT NOTE AS MyNote FROM shop.ORDERS", "MyNote text"),
        ("SELECT name, born FROM crm.customers EXCEPT SELECT name, born FROM crm.customers", "name text, born date"),
        ("SELECT date_trunc('month', placed) AS m, count(*) AS n FROM shop.orders GROUP BY 1",
         "m timestamp, n integer"),
        ("SELECT CAST(placed AS DATE) AS d FROM shop.orders GROUP BY 1", "d date"),
        ("SELECT born + 1 AS d, born - born AS n FROM crm.customers GROUP BY ALL", "d date, n integer"),
        ("SELECT id % 2 = 0 AS even, count(*) AS n FROM crm.customers GROUP BY 1", "even boolean, n integer"),
        ("SELECT name, rank() OVER (ORDER BY born) AS r FROM crm.customers", "name text, r integer"),
        ("SELECT id, lag(total) OVER (ORDER BY placed, id) AS t FROM shop.orders", "id integer, t decimal(10,2)"),
        ("SELECT id FROM shop.orders ORDER BY total DESC LIMIT 10", "id integer"),
        ("FROM crm.customers", "id integer, name text, born date"),
        ("SELECT c.* FROM crm.customers c ANTI JOIN crm.visits v ON customer_id = c.id",
         "id integer, name text, born date"),
        ("SELECT * FROM crm.customers c NATURAL JOIN (SELECT id FROM shop.orders)", "id integer, name text, born date"),
        ("SELECT 1 AS one, x FROM (VALUES (2), (3)) AS v(x), crm.visits", "one integer, x integer"),
    ],
)  # fmt: skip
def test_names_and_types_of_the_outputs(sql: str, outputs: str) -> None:
    assert ", ".join(f"{o.name} {o.expr.type}" for o in parse(sql).outputs) == outputs


@pytest.mark.parametrize(
    ("sql", "used"),
    [
        ("SELECT count(*) AS n FROM shop.orders", "shop.orders(id)"),
        ("SELECT sum(total) AS s FROM shop.orders WHERE note = 'x'", "shop.orders(total Note)"),
        ("SELECT c.name, n FROM crm.customers c "
         "LEFT JOIN (SELECT customer_id, count(*) AS n FROM crm.visits GROUP BY 1) v ON v.customer_id = c.id",
         "crm.customers(id name), crm.visits(customer_id)"),
        ("SELECT count(*) AS n FROM crm.visits a JOIN crm.visits b USING (page)", "crm.visits(page)"),
        ("SELECT DISTINCT name FROM crm.customers c WHERE EXISTS (SELECT 1 FROM shop.orders WHERE customer_id = c.id)",
         "crm.customers(id name), shop.orders(customer_id)"),
    ],
)  # fmt: skip
def test_a_view_uses_the_columns_that_its_statement_reads_and_no_others(sql: str, used: str) -> None:
    view = parse(sql)
    found = [f"{o.source}.{o.relation}({' '.join(c.name for c in o.columns)})" for o in view.occurrences]
    assert ", ".join(sorted(found)) == used
    assert [o.index for o in view.occurrences] == list(range(len(found)))
    assert all(view.hops(o.index) == () and o.selection is None for o in view.occurrences)


def test_the_canonical_text_is_the_same_for_every_layout_and_another_for_another_meaning() -> None:
    one = parse("SELECT name, count(*) AS n FROM crm.customers GROUP BY name")
    same = parse("select  name ,COUNT(*) as n -- how many\nfrom CRM.customers\ngroup by name")
    other = parse("SELECT name, count(id) AS n FROM crm.customers GROUP BY name")
    assert one.sql == same.sql != other.sql
    assert "relation 0" not in one.sql


def test_the_name_of_a_cte_does_not_hide_a_relation() -> None:
    view = parse(
        'WITH "relation 0" AS (SELECT 1 AS id), customers AS (SELECT 2 AS id) SELECT count(*) AS n FROM crm.customers'
    )
    assert 'FROM "temp".main."relation 0"' in (view.query or "")


# What is refused --------------------------------------------------------------------------------------------------

REFUSED = [
    ("SELECT nme FROM crm.customers", "line 1, column 8: unknown column nme; did you mean name?"),
    ("SELECT c.nme FROM crm.customers c GROUP BY 1", "column 8: crm.customers has no column nme; did you mean name?"),
    ("SELECT d.name FROM crm.customers c GROUP BY 1", "nothing in FROM is called d"),
    ("SELECT DISTINCT name\nFROM crm.custmers",
     "line 2, column 6: source crm has no relation custmers; did you mean customers?"),
    ("SELECT DISTINCT name FROM cmr.customers", "unknown source cmr; did you mean crm?"),
    ("SELECT DISTINCT name FROM customers", "'customers' must be written source.relation"),
    ("SELECT DISTINCT id FROM crm.parts", "crm.parts is partitioned; name its partitions"),
    ("SELECT DISTINCT odd FROM shop.orders", "column orders.odd has no usable type; declare its type in the source"),
    ("SELECT * FROM shop.orders LEFT JOIN crm.visits USING (customer_id)", "column orders.odd has no usable type"),
    ("SELECT count(*) AS n FROM crm.twice", "names differ only in upper and lower case; rename one"),
    ("SELECT sum(CAST(id AS REAL)) AS s FROM crm.customers", "line 1, column 23: unknown type REAL; write FLOAT"),
    ("SELECT DISTINCT id::float4 AS real FROM crm.customers", "column 21: unknown type FLOAT4; write FLOAT"),
    ("SELECT DISTINCT real '1.5' AS r FROM crm.customers", "column 17: unknown type REAL"),
    ("SELECT 'é', nme FROM crm.customers", "line 1, column 13: unknown column nme"),
    ("SELECT 1 AS x", "no relation is used; name at least one source.relation"),
    ("SELECT count(*) FROM crm.customers", "output 1 has no name; give it a name with AS"),
    ("SELECT id AS _id FROM crm.customers", "output _id starts with _"),
    ('SELECT id AS "a b" FROM crm.customers', "output 'a b' has a character that Delta refuses"),
    ("SELECT id, name AS ID FROM crm.customers", "two outputs are called ID"),
    ("SELECT DISTINCT NULL AS n FROM crm.customers", "NULL has no type here (n); cast it: CAST(NULL AS TEXT)"),
    ("SELECT DISTINCT INTERVAL 1 DAY AS i FROM crm.customers", "output i is of type INTERVAL, which no table can hold"),
    ("SELECT DISTINCT CAST(name AS UUID) AS u FROM crm.customers", "output u is of type UUID"),
    ("SELECT DISTINCT CAST(id AS BIT) AS u FROM crm.customers", "output u is of type BIT"),
    ("SELECT DISTINCT {'a': id} AS s FROM crm.customers", "function struct_pack is not supported"),
    ("SELECT id FROM crm.customers ORDER BY id",
     "ORDER BY is not supported; a view is a bag: order it when reading it"),
    ("SELECT id FROM crm.customers LIMIT 3", "column 36: LIMIT without ORDER BY is not deterministic; add ORDER BY"),
    ("SELECT * FROM crm.customers ORDER BY id LIMIT 3", "LIMIT cannot order the rows of *; name the columns"),
    ("SELECT DISTINCT ON (name) name, id FROM crm.customers", "DISTINCT ON is not supported"),
    ("SELECT id FROM crm.customers TABLESAMPLE 10%",
     "TABLESAMPLE is not supported; the result would not be deterministic"),
    ("SELECT id FROM crm.customers USING SAMPLE 3", "TABLESAMPLE is not supported"),
    ("SELECT random() AS r FROM crm.customers", "random is not the same each time; leave it to the reader"),
    ("SELECT uuid() AS r FROM crm.customers", "uuid is not the same each time"),
    ("SELECT id FROM shop.orders WHERE placed > now() - INTERVAL 1 DAY", "now is not the same each time"),
    ("SELECT DISTINCT current_date AS d FROM crm.customers", "current_date is not the same each time"),
    ("SELECT DISTINCT current_timestamp AS d FROM crm.customers", "current_timestamp is not the same each time"),
    ("SELECT DISTINCT user AS d FROM crm.customers", "user is not the same each time"),
    ("SELECT x FROM (SELECT page AS current_date FROM crm.visits) t, (SELECT current_date AS x FROM crm.customers) u",
     "current_date is not the same each time"),
    ("SELECT any_value(name) AS n FROM crm.customers", "any_value depends on the order of rows; use min or max"),
    ("SELECT first(name) AS n FROM crm.customers", "first depends on the order of rows"),
    ("SELECT arg_max(name, born) AS n FROM crm.customers", "arg_max depends on the order of rows"),
    ("SELECT list(name) AS n FROM crm.customers", "list depends on the order of rows"),
    ("SELECT max(name, 2) AS n FROM crm.customers", "max with 2 arguments is not supported"),
    ("SELECT string_agg(name, ',') AS n FROM crm.customers", "string_agg without ORDER BY is not deterministic"),
    ("SELECT string_agg(name, page ORDER BY name) AS n FROM crm.customers, crm.visits",
     "needs a constant between the values"),
    ("SELECT string_agg(DISTINCT name, ',' ORDER BY id) AS n FROM crm.customers",
     "can be ordered by its own value only"),
    ("SELECT row_number() OVER (ORDER BY total) AS n FROM shop.orders", "row_number depends on the order of rows"),
    ("SELECT row_number() OVER (ORDER BY page) AS n FROM crm.visits", "must hold the primary key of every relation"),
    ("SELECT row_number() OVER (ORDER BY c.id) AS n FROM crm.customers c, crm.visits v", "row_number depends on"),
    ("SELECT row_number() OVER (ORDER BY id) AS n FROM (SELECT id FROM crm.customers)", "row_number depends on"),
    ("SELECT sum(id) OVER (ORDER BY name ROWS 1 PRECEDING) AS n FROM crm.customers",
     "ROWS depends on the order of rows"),
    ("SELECT sum(id) OVER (ORDER BY name RANGE UNBOUNDED PRECEDING EXCLUDE TIES) AS n FROM crm.customers",
     "EXCLUDE is not supported in a window"),
    ("SELECT sum(weight) OVER () AS s FROM shop.orders",
     "sum of floats over a window depends on the order of rows; cast"),
    ("SELECT * FROM crm.visits a POSITIONAL JOIN crm.customers b", "POSITIONAL JOIN is not supported"),
    ("SELECT a.page FROM crm.visits a ASOF JOIN crm.customers b ON a.customer_id >= b.id",
     "ASOF JOIN is not supported"),
    ("SELECT * FROM read_csv('/etc/passwd')", "'read_csv('/etc/passwd')' is not supported; name a source.relation"),
    ("SELECT * FROM '/etc/passwd'", "'/etc/passwd' must be written source.relation"),
    ("SELECT * FROM duckdb_settings(), crm.visits", "'duckdb_settings()' is not supported"),
    ("SELECT * FROM information_schema.tables", "unknown source information_schema"),
    ("SELECT getenv('HOME') AS h FROM crm.customers", "function getenv is not supported"),
    ("SELECT current_setting('threads') AS h FROM crm.customers", "current_setting is not the same each time"),
    ("SELECT * FROM glob('*'), crm.customers", "'glob('*')' is not supported"),
    ("SELECT content FROM read_text('/etc/passwd'), crm.visits", "'read_text('/etc/passwd')' is not supported"),
    ("SELECT main.sum(id) AS s FROM crm.customers", "function sum is not supported"),
    ("SELECT unnest([id]) AS s FROM crm.customers", "function unnest is not supported"),
    ("SELECT rowid FROM crm.customers", "unknown column rowid"),
    ("SELECT columns('i.*') FROM crm.customers", "is not supported; name the columns"),
    ("SELECT name COLLATE NOCASE AS n FROM crm.customers GROUP BY 1", "is not supported"),
    ("SELECT ? AS n FROM crm.customers", "'?' is not supported"),
    ("SELECT a FROM crm.visits AS v(a, b)", "column names after an alias are not supported"),
    ("SELECT id FROM crm.customers UNION BY NAME SELECT customer_id FROM crm.visits", "UNION BY NAME is not supported"),
    ("PIVOT crm.visits ON page", "a view is a SELECT"),
    ("SELECT * FROM crm.visits PIVOT (count(*) FOR page IN ('a'))", "PIVOT is not supported; write a CASE"),
    ("WITH RECURSIVE x AS (SELECT id FROM crm.customers UNION ALL SELECT id + 1 FROM x) SELECT id FROM x",
     "WITH RECURSIVE is not supported; it might never end"),
    ("DESCRIBE crm.customers", "a view is a SELECT"),
    ("ATTACH 'x.db'", "a view is a SELECT"),
    ("PRAGMA database_list", "a view is a SELECT"),
    ("COPY (SELECT 1) TO 'x'", "a view is a SELECT"),
    ("SELECT count(*) AS n FROM crm.customers; SELECT 1", "one SELECT is wanted, not 2 statements"),
    ("SELECT count( AS n FROM crm.customers", "syntax error"),
    ("", "one SELECT is wanted, not 0 statements"),
    ("SELECT DISTINCT DATE '2023-02-30' AS d FROM crm.customers", "column 17: date field value out of range"),
    ("SELECT CAST('x' AS INTEGER) + id AS d FROM crm.customers", "Could not convert string 'x' to INT"),
    ("SELECT name, count(*) AS n FROM crm.customers", "must appear in the GROUP BY clause"),
    ("SELECT sum(name) AS n FROM crm.customers", "No function matches the given name and argument types"),
    ("SELECT id FROM crm.customers UNION SELECT id, name FROM crm.customers", "same number of result columns"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "says"), REFUSED, ids=[sql[:60] or "nothing" for sql, _ in REFUSED])
def test_is_refused(sql: str, says: str) -> None:
    with pytest.raises(ViewError) as refused:
        parse(sql)
    assert all(problem.place == "views.v.sql" for problem in refused.value.problems)
    assert any(says in str(problem) for problem in refused.value.problems), str(refused.value)


def test_all_problems_of_a_statement_are_told_at_once() -> None:
    with pytest.raises(ViewError) as refused:
        parse(
            "SELECT random(), o.nme, nothing, any_value(id) AS a FROM shop.orders o JOIN crm.nowhere n ON true LIMIT 1"
        )
    told = str(refused.value)
    expected = (
        "random is not",
        "output 1 has no name",
        "no column nme",
        "any_value depends",
        "no relation nowhere",
        "LIMIT",
    )
    assert [each for each in expected if each not in told] == []


def test_a_statement_that_is_nested_without_end_is_refused_in_a_sentence() -> None:
    with pytest.raises(ViewError, match=r"views\.v\.sql: "):
        parse(f"SELECT DISTINCT {'(' * 3000}id{')' * 3000} AS x FROM crm.customers")


def test_every_allowed_function_exists_and_depends_on_its_arguments_alone() -> None:
    with engine() as connection:
        known = connection.execute("SELECT function_name, stability, function_type FROM duckdb_functions()").fetchall()
    steady = {name for name, stability, kind in known if stability == "CONSISTENT" or kind in ("macro", "window")}
    grammar = OPERATORS | {"if", "ifnull", "coalesce", "position", "listagg", "count_star"}
    assert sorted((SCALARS | AGGREGATES) - steady - grammar) == []
    assert {name for name, stability, _ in known if stability == "VOLATILE"} & (SCALARS | AGGREGATES) == set()
    assert not NOT_THE_SAME & (SCALARS | AGGREGATES)


def test_the_engine_reaches_nothing_outside_and_stays_so() -> None:
    with engine() as connection:
        for sql in (
            "SELECT * FROM read_csv('/etc/passwd')",
            "COPY (SELECT 1) TO '/tmp/out.csv'",
            "ATTACH '/tmp/x.db' AS x",
            "SET enable_external_access = true",
            "SET threads = 8",
            "INSTALL httpfs",
            "LOAD httpfs",
        ):
            with pytest.raises(Exception, match=r"disabled by configuration|has been locked|not be loaded|disabled"):
                connection.execute(sql).fetchall()


# In its place -----------------------------------------------------------------------------------------------------


def numbered(truncated: Sequence[Truncation] = ()) -> Batch:
    """Two updates of crm.visits, numbered for a view that counts pages: only the second changes a page's count."""
    view = parse("SELECT page, count(*) AS n FROM crm.visits GROUP BY page")
    columns = [*SHOP["crm", "visits"].columns, Column(COUNT, INTEGER), Column(ORDINAL, INTEGER)]
    rows = [(1, "a", -1, 0), (2, "a", 1, 0), (3, "b", 1, 1)]
    updates = [Update("crm", f"t{i}", i, "crm.updates", i, 0) for i in range(2)]
    received = Received(updates, {("crm", "visits"): worlds.arrow(columns, rows)}, [], truncated)
    return number(arrange(received, ["crm"]), 10, [view])


def test_an_update_is_relevant_if_it_changes_a_column_that_the_statement_reads() -> None:
    assert numbered().updates["views"].to_pylist() == [[], ["v"]]


def test_a_relation_that_was_emptied_concerns_the_view() -> None:
    batch = numbered([Truncation(1, "crm", "visits")])
    assert batch.updates["views"].to_pylist() == [[], ["v"]]
    assert list(batch.emptied) == ["v"]


def config(tmp_path: Path, sql: str, algorithm: str) -> Config:
    conf = tmp_path / "conf.yaml"
    conf.write_text(
        "kafka: {bootstrap: '127.0.0.1:9092'}\nwarehouse: ./warehouse\n"
        "sources: {shop: {kind: sqlite, path: shop.db}, crm: {kind: sqlite, path: crm.db}}\n"
        f'views: {{v: {{sql: "{sql}", algorithm: {algorithm}}}}}\n'
    )
    return load_config(conf)


GROUPED = "SELECT name, count(*) AS n FROM crm.customers GROUP BY name"
JOINED = "SELECT c.name, v.page FROM crm.customers c JOIN crm.visits v ON v.customer_id = c.id"


def test_refresh_takes_what_other_algorithms_refuse(tmp_path: Path) -> None:
    assert parse_views(config(tmp_path, GROUPED, "refresh"), SHOP)["v"].query is not None


@pytest.mark.parametrize("algorithm", ["sweep", "t_strobe", "complete_n"])
def test_another_algorithm_names_refresh_as_a_remedy(tmp_path: Path, algorithm: str) -> None:
    with pytest.raises(ViewError) as refused:
        parse_views(config(tmp_path, GROUPED, algorithm), SHOP)
    assert {problem.remedy.endswith("let 'algorithm: refresh' keep it") for problem in refused.value.problems} == {True}


def test_refresh_is_no_remedy_for_a_name_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ViewError) as refused:
        parse_views(config(tmp_path, "SELECT nme, count(*) AS n FROM crm.customers GROUP BY nme", "sweep"), SHOP)
    assert "algorithm: refresh" not in str(refused.value)


def test_what_a_sweep_can_compute_stays_as_it_was_under_refresh(tmp_path: Path) -> None:
    assert parse_views(config(tmp_path, JOINED, "refresh"), SHOP)["v"].query is None


def test_explain_says_what_is_read_in_full() -> None:
    view = parse(
        "SELECT name, count(page) AS n FROM crm.customers c LEFT JOIN crm.visits ON customer_id = id GROUP BY name"
    )
    told = "\n".join(explanation(view, Keeping("refresh", {}, 10)))
    assert "is computed anew, as a load is, every 10 updates" in told
    assert "1. reads all rows of crm.customers, as they stand with the last update" in told
    assert "columns   customer_id, page" in told
    assert "computed by DuckDB" in told and "  n integer" in told


def test_no_index_is_missing_where_everything_is_read() -> None:
    assert list(unindexed(parse(GROUPED), SHOP)) == []
