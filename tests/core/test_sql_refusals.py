"""What a view's SQL may not say: each refusal names the thing, its place and a remedy."""

from __future__ import annotations

import pytest

from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.types import (
    BINARY,
    BOOLEAN,
    DATE,
    FLOAT,
    INTEGER,
    TEXT,
    TIMESTAMP,
    UNKNOWN,
    Catalog,
    Column,
    Relation,
    Type,
    decimal,
)
from viewkeeper.errors import ViewError


def relation(source: str, name: str, /, **columns: Type) -> Relation:
    return Relation(source, name, tuple(Column(c, of) for c, of in columns.items()))


T = relation("s", "t", id=INTEGER, n=INTEGER, x=TEXT, d=decimal(10, 2), f=FLOAT, b=BOOLEAN, day=DATE, raw=BINARY)
U = relation("s", "u", id=INTEGER, t_id=INTEGER, name=TEXT, at=TIMESTAMP, blob=UNKNOWN, d4=decimal(12, 4))
CATALOG: Catalog = {("s", "t"): T, ("s", "u"): U, ("s", "w"): relation("s", "w", id=TEXT)}


def refusals(sql: str) -> list[str]:
    """What is said about the SQL, without the place in the configuration."""
    with pytest.raises(ViewError) as caught:
        parse_view("v", sql, CATALOG)
    assert all(problem.place == "views.v.sql" for problem in caught.value.problems)
    return [str(problem).removeprefix("views.v.sql: ") for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT count(*) AS n FROM s.t", "line 1, column 8: aggregates are not supported"),
        ("SELECT max(id) + 1 AS n FROM s.t", "line 1, column 8: aggregates are not supported"),
        ("SELECT id FROM s.t GROUP BY id", "GROUP BY is not supported"),
        ("SELECT id FROM s.t HAVING id > 1", "HAVING is not supported"),
        ("SELECT DISTINCT id FROM s.t", "line 1, column 8: DISTINCT is not supported"),
        ("SELECT id FROM s.t ORDER BY id", "ORDER BY is not supported"),
        ("SELECT id FROM s.t LIMIT 3", "LIMIT is not supported"),
        ("SELECT id FROM s.t OFFSET 3", "OFFSET is not supported"),
        ("SELECT t.id FROM s.t LEFT JOIN s.u ON t.id = t_id", "LEFT JOIN is not supported; only inner joins are"),
        ("SELECT t.id FROM s.t FULL OUTER JOIN s.u ON t.id = t_id", "FULL OUTER JOIN is not supported"),
        ("SELECT t.id FROM s.t SEMI JOIN s.u ON t.id = t_id", "SEMI JOIN is not supported"),
        ("SELECT t.id FROM s.t ANTI JOIN s.u ON t.id = t_id", "ANTI JOIN is not supported"),
        ("SELECT t.id FROM s.t NATURAL JOIN s.u", "NATURAL JOIN is not supported"),
        ("SELECT t.id FROM s.t, LATERAL (SELECT 1) x", "is not supported"),
        ("SELECT id FROM (SELECT id FROM s.t) q", "subqueries are not supported"),
        ("SELECT id FROM s.t WHERE id IN (SELECT id FROM s.u)", "write a join instead of a subquery"),
        ("SELECT id FROM s.t WHERE EXISTS (SELECT 1 FROM s.u)", "subqueries are not supported"),
        ("SELECT (SELECT 1) AS x FROM s.t", "subqueries are not supported"),
        ("WITH q AS (SELECT 1) SELECT id FROM s.t", "WITH is not supported"),
        ("SELECT id FROM s.t UNION ALL SELECT id FROM s.u", "UNION is not supported"),
        ("SELECT id FROM s.t EXCEPT SELECT id FROM s.u", "EXCEPT is not supported"),
        ("SELECT row_number() OVER (ORDER BY id) AS n FROM s.t", "window functions are not supported"),
        ("SELECT id FROM s.t TABLESAMPLE (10 PERCENT)", "is not supported in FROM"),
        ("SELECT id FROM s.t FOR UPDATE", "FOR UPDATE is not supported"),
        ("SELECT q.id FROM s.t AS q(id)", "column names after an alias are not supported"),
        ("SELECT random() AS r FROM s.t", "random is not deterministic"),
        ("SELECT id FROM s.t WHERE day < current_date", "line 1, column 32: current_date is not deterministic"),
        ("SELECT now() AS r FROM s.t", "now is not deterministic"),
        ("SELECT current_timestamp AS r FROM s.t", "current_timestamp is not deterministic"),
        ("SELECT frobnicate(id) AS r FROM s.t", "unknown function frobnicate"),
        ("SELECT uper(x) AS r FROM s.t", "did you mean upper?"),
        ("SELECT md5(x) AS r FROM s.t", "unknown function md5"),
        ("SELECT id FROM q.t", "line 1, column 16: unknown source q; there is s"),
        ("SELECT id FROM s.tt", "source s has no relation tt; did you mean t?"),
        ("SELECT id FROM t", "'t' must be written source.relation"),
        ("SELECT id FROM a.s.t", "must be written source.relation"),
        ("SELECT\n  idd\nFROM s.t", "line 2, column 3: unknown column idd; did you mean id?"),
        ("SELECT u.nam FROM s.u", "s.u has no column nam; did you mean name?"),
        ("SELECT z.id FROM s.t", "nothing in FROM is called z"),
        ("SELECT t.id FROM s.t AS q", "nothing in FROM is called t"),
        ("SELECT id FROM s.t JOIN s.u ON t.id = t_id", "column id is ambiguous: t and u have it; write t.id"),
        ("SELECT t.id FROM s.t JOIN s.t ON t.id = t.n", "two relations are called t"),
        ("SELECT x FROM s.t JOIN s.u USING (t_id)", "unknown column t_id"),
        ("SELECT x FROM s.t JOIN s.u USING (n)", "s.u has no column n; "),
        ("SELECT x FROM s.t JOIN s.w USING (id)", "integer and text cannot be compared (USING id)"),
        ("SELECT blob FROM s.u", "column u.blob has no usable type"),
        ("SELECT u.* FROM s.u", "column u.blob has no usable type"),
        ("SELECT id FROM s.t WHERE x = 1", "text and integer cannot be compared (x = 1); cast one side"),
        ("SELECT id FROM s.t WHERE x IN (1, 2)", "text and integer cannot be compared"),
        ("SELECT id FROM s.t WHERE b = 1", "boolean and integer cannot be compared"),
        ("SELECT id FROM s.t WHERE day = 'soon'", "'soon' is no date"),
        ("SELECT id FROM s.t WHERE id", "a condition is needed here, not an integer value"),
        ("SELECT id FROM s.t WHERE NOT x", "a condition is needed here, not a text value"),
        ("SELECT id + x AS y FROM s.t", "integer + text is not defined"),
        ("SELECT day + 1.5 AS y FROM s.t", "a date takes + or - an integer number of days"),
        ("SELECT -x AS y FROM s.t", "a minus sign wants a number"),
        ("SELECT lower(id) AS y FROM s.t", "lower wants text, not an integer value"),
        ("SELECT round(d, n) AS y FROM s.t", "the second argument of round must be an integer constant"),
        ("SELECT round(d, 1, 2) AS y FROM s.t", "is not supported in this form"),
        ("SELECT coalesce(id, x) AS y FROM s.t", "the arguments of coalesce have types integer and text"),
        ("SELECT CASE WHEN b THEN 1 ELSE 'a' END AS y FROM s.t", "the results of CASE have types"),
        ("SELECT raw || x AS y FROM s.t", "|| wants text, not binary"),
        ("SELECT CAST(raw AS INTEGER) AS y FROM s.t", "binary cannot be cast to integer"),
        ("SELECT CAST(x AS VARCHAR(3)) AS y FROM s.t", "a text has no length limit here"),
        ("SELECT CAST(x AS DECIMAL) AS y FROM s.t", "write DECIMAL(precision, scale)"),
        ("SELECT CAST(x AS DECIMAL(39, 2)) AS y FROM s.t", "at most 38 digits"),
        ("SELECT CAST(x AS JSON) AS y FROM s.t", "unknown type JSON"),
        ("SELECT DATE '2024-02-30' AS y FROM s.t", "'2024-02-30' is no date"),
        ("SELECT INTERVAL '1 day' AS y FROM s.t", "is not supported"),
        ("SELECT x LIKE 'a' ESCAPE 'ab' AS y FROM s.t", "the ESCAPE of a LIKE must be one character"),
        ("SELECT x ILIKE 'a' AS y FROM s.t", "'x ILIKE 'a'' is not supported"),
        ("SELECT x COLLATE nocase AS y FROM s.t", "is not supported"),
        ("SELECT trim(BOTH 'z' FROM x) AS y FROM s.t", "trim takes spaces only"),
        ("SELECT n & 1 AS y FROM s.t", "'n & 1' is not supported"),
        ("SELECT id FROM s.t WHERE id = ?", "'?' is not supported"),
        ("SELECT NULL AS y FROM s.t", "NULL has no type here"),
        ("SELECT X'abc' AS y FROM s.t", "X'abc' is no binary value"),
        ("SELECT " + "9" * 40 + " AS y FROM s.t", "has more than 38 digits"),
        ("SELECT id + 1 FROM s.t", "'id + 1' has no name; give it a name with AS"),
        ("SELECT id, n AS ID FROM s.t", "two outputs are called ID"),
        ("SELECT id AS _id FROM s.t", "output _id starts with _"),
        ('SELECT id AS "a b" FROM s.t', "has a character that Delta refuses"),
        ("SELECT * EXCEPT (id) FROM s.t", "is not supported; name the columns"),
        ("SELECT t.x FROM s.t, s.u", "no equality of two columns joins u to t"),
        ("SELECT t.x FROM s.t JOIN s.u ON t.id < u.id", "no equality of two columns joins u to t"),
        ("SELECT t.x FROM s.t JOIN s.u ON t.f = u.id", "t.f (float) and u.id (integer) are not two plain columns"),
        ("SELECT t.x FROM s.t JOIN s.u ON t.d = u.d4", "t.d (decimal(10,2)) and u.d4 (decimal(12,4))"),
        ("SELECT t.x FROM s.t JOIN s.u ON t.id = u.id + 1", "no equality of two columns joins u to t"),
        ("SELECT id FROM s.t; SELECT id FROM s.u", "one SELECT is wanted, not 2 statements"),
        ("", "one SELECT is wanted, not 0 statements"),
        ("-- nothing", "one SELECT is wanted, not 0 statements"),
        ("DELETE FROM s.t", "a view is a SELECT, not 'DELETE FROM s.t'"),
        ("VACUUM", "a view is a SELECT"),
        ("SELECT 1 AS x", "FROM is missing"),
        ("SELECT id FROM s.t WHERE", "line 1, column 20: syntax error near 'WHERE'"),
        ("SELECT id FROM s.t WHERE x = 'abc", "look for a quote or a comment that is not closed"),
        ("SELECT lower() AS y FROM s.t", "syntax error"),
        ("SELECT " + "(" * 3000 + "1" + ")" * 3000 + " AS x FROM s.t", "nested too deeply"),
    ],
)
def test_it_is_refused_with_its_reason(sql: str, said: str) -> None:
    assert any(said in problem for problem in refusals(sql)), refusals(sql)


def test_all_problems_are_reported_at_once() -> None:
    problems = refusals(
        "SELECT DISTINCT idd, sum(n) AS s, frob(id) AS g, id = x AS h\nFROM s.t LEFT JOIN s.uu ON t.id = uu.id\n"
        "WHERE now() > day AND x LIMIT 5"
    )
    wanted = ("DISTINCT", "LIMIT", "LEFT JOIN", "no relation uu", "not deterministic", "aggregates", "frob")
    wanted += ("integer and text cannot be compared",)
    assert all(any(word in problem for problem in problems) for word in wanted), problems
    assert any(problem.startswith("line 2, column 20: source s has no relation uu") for problem in problems)


def test_an_unknown_relation_is_not_followed_by_complaints_about_its_columns() -> None:
    assert refusals("SELECT a, b, q.c FROM s.nope AS q WHERE d > 1") == [
        "line 1, column 23: source s has no relation nope; there is t, u, w"
    ]
