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
        ("SELECT sha1(x) AS r FROM s.t", "unknown function sha"),
        ("SELECT power(f, 2) AS r FROM s.t", "'POWER(f, 2)' is not supported"),
        ("SELECT sqrt(d) AS r FROM s.t", "sqrt wants a float here, not a decimal"),
        ("SELECT d / n AS r FROM s.t", "may have any number of digits, which no table can hold; say how many to keep"),
        ("SELECT n / d AS r FROM s.t", "say how many to keep: CAST(… AS DECIMAL(p, s))"),
        ("SELECT CAST(d / 3 AS TEXT) AS r FROM s.t", "depend on how it came about"),
        (
            "SELECT concat(coalesce(d, 0)) AS r FROM s.t",
            "say with how many digits: CAST(CAST(… AS DECIMAL(p, s)) AS TEXT)",
        ),
        ("SELECT d / 3 / n AS r FROM s.t", "the digits of this quotient depend on how its operands came about"),
        (
            "SELECT date_trunc('fortnight', day) AS r FROM s.t",
            "does not take 'fortnight' as its field",
        ),
        ("SELECT date_trunc(x, day) AS r FROM s.t", "date_trunc does not take anything but a constant as its field"),
        ("SELECT date_trunc('day', day, 'Europe/Berlin') AS r FROM s.t", "date_trunc takes 2 argument(s), not 3"),
        ("SELECT extract(hour FROM day) AS r FROM s.t", "extract does not take 'hour' as its field"),
        ("SELECT extract(year FROM x) AS r FROM s.t", "extract wants a date or timestamp, not a text value"),
        ("SELECT to_char(day, 'Month') AS r FROM s.t", "to_char does not take 'Month' here"),
        ("SELECT to_char(day, 'DDth') AS r FROM s.t", "to_char does not take 'th' here"),
        ("SELECT to_char(day, 'YYYY-MM-DDTHH24') AS r FROM s.t", "to_char does not take 'TH' here"),
        ("SELECT to_char(day, 'SSSS') AS r FROM s.t", "to_char does not take 'SSSS' here"),
        ("SELECT to_char(day, x) AS r FROM s.t", "the format of to_char must be a constant"),
        ("SELECT to_char(d, '999') AS r FROM s.t", "to_char writes dates and timestamps, not numbers"),
        ("SELECT repeat(x, n) AS r FROM s.t", "the second argument of repeat must be an integer constant up to 10000"),
        ("SELECT lpad(x, 20000) AS r FROM s.t", "the second argument of lpad must be an integer constant up to 10000"),
        ("SELECT left(x, d) AS r FROM s.t", "left wants an integer here"),
        ("SELECT greatest(x, n) AS r FROM s.t", "the arguments of greatest have types text and integer"),
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
        ("SELECT CAST(x AS CHAR(3)) AS y FROM s.t", "CHAR(3) has blanks that are there and do not count"),
        ("SELECT CAST(x AS CHAR) AS y FROM s.t", "write TEXT, or VARCHAR(n) to cut it"),
        ("SELECT CAST(day AS TIMESTAMP(0)) AS y FROM s.t", "TIMESTAMP(0) is not supported; write it without the limit"),
        ("SELECT CAST(day AS TIMESTAMP(3) WITH TIME ZONE) AS y FROM s.t", "is not supported"),
        ("SELECT CAST(n AS FLOAT(10)) AS y FROM s.t", "FLOAT(10) is not supported"),
        ("SELECT CAST(n AS INT(3)) AS y FROM s.t", "INT(3) is not supported"),
        ("SELECT CAST(x AS DATE) AS y FROM s.t", "write TRY_CAST(… AS DATE): ISO 8601, or NULL"),
        ("SELECT CAST(CAST(day AS TIMESTAMP) AS TEXT) AS y FROM s.t", "the text of a timestamp is another with than"),
        ("SELECT day || x AS y FROM s.t WHERE CAST(day AS TIMESTAMP) || x = x", "column 42: the text of a timestamp"),
        ("SELECT TIMESTAMP '2024-01-01 00:00+02' AS y FROM s.t", "write TIMESTAMPTZ '2024-01-01 00:00+02'"),
        ("SELECT id FROM s.t WHERE day < '2024-01-01 12:00'", "'2024-01-01 12:00' is no date"),
        ("SELECT id FROM s.t WHERE CAST(day AS TIMESTAMP) < '2024-01-01 12:00-01'", "would be ignored by a TIMESTAMP"),
        ("SELECT id FROM s.t WHERE x LIKE 'a\\'", "write it twice to mean it"),
        (
            "SELECT CAST(x AS DECIMAL) AS y FROM s.t",
            "any number of digits, which no table can hold; say how many to keep",
        ),
        ("SELECT CAST(x AS DECIMAL(39, 2)) AS y FROM s.t", "at most 38 digits"),
        ("SELECT CAST(x AS JSON) AS y FROM s.t", "unknown type JSON"),
        ("SELECT DATE '2024-02-30' AS y FROM s.t", "'2024-02-30' is no date"),
        ("SELECT INTERVAL '1 day' AS y FROM s.t", "is not supported"),
        ("SELECT x LIKE 'a' ESCAPE 'ab' AS y FROM s.t", "the ESCAPE of a LIKE must be one character"),
        ("SELECT x ILIKE 'a' AS y FROM s.t", "'x ILIKE 'a'' is not supported"),
        ("SELECT x COLLATE nocase AS y FROM s.t", "is not supported"),
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


def test_in_a_line_too_long_to_count_in_the_words_at_the_place_are_shown() -> None:
    folded = " ".join(["SELECT id, n, x,", " ".join(["id + n AS a,"] * 10), "uper(x) AS y", "FROM s.t"])
    told = [problem for problem in refusals(folded) if "did you mean upper?" in problem]
    assert told and f"column {folded.index('uper') + 1} (at 'uper(x) AS y FROM s.t'): unknown function" in told[0]
