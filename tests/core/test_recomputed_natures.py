"""What a recomputed view may do with columns that PostgreSQL knows more of than their text."""

from __future__ import annotations

import pytest

from tests.core.test_sql_natures import CATALOG, UUID
from viewkeeper.errors import ViewError
from viewkeeper.managers.recomputed_sql import parse_recomputed


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT count(*) AS n FROM s.a WHERE mail = 'A'", "column 37: citext would be compared by case here"),
        ("SELECT DISTINCT mail FROM s.a", "citext would be compared by case here"),
        ("SELECT mail, count(*) AS n FROM s.a GROUP BY mail", "citext would be compared by case here"),
        ("SELECT count(DISTINCT mail) AS n FROM s.a", "citext would be compared by case here"),
        ("SELECT id, count(id) OVER (PARTITION BY mail) AS n FROM s.a", "citext would be compared by case here"),
        ("SELECT count(id) FILTER (WHERE mail = 'a') AS n FROM s.a", "citext would be compared by case here"),
        ("SELECT max(mail) AS m FROM s.a", "citext would be compared by case here"),
        ("SELECT a.id FROM s.a LEFT JOIN s.b ON a.mail = b.mail", "citext would be compared by case here"),
        ("SELECT a.id FROM s.a LEFT JOIN s.b USING (mail)", "citext would be compared by case here"),
        ("SELECT count(*) AS n FROM (SELECT mail FROM s.a) WHERE mail = 'A'", "citext would be compared by case here"),
        ("SELECT count(*) AS n FROM (SELECT * FROM s.a) AS z", "* shows a citext"),
        ("SELECT max(e) AS m FROM s.a", "an enumeration is ordered as it is declared"),
        ("SELECT count(*) AS n FROM s.a WHERE e < 'ok'", "an enumeration is ordered as it is declared"),
        ("SELECT id, rank() OVER (ORDER BY e) AS n FROM s.a", "an enumeration is ordered as it is declared"),
        ("SELECT count(*) AS n FROM s.a WHERE CAST(t AS VARCHAR(3)) = 'abc'", "a cast to a type with a limit"),
        ("SELECT DISTINCT CAST(t AS CHAR(3)) AS x FROM s.a", "write it without the limit"),
        ("SELECT DISTINCT CAST(t AS TIMESTAMP(0)) AS x FROM s.a", "a cast to a type with a limit"),
        (f"SELECT count(*) AS n FROM s.a WHERE w = '{UUID.upper()}'", "write it in small letters"),
        ("SELECT count(*) AS n FROM s.a WHERE k IN ('ab ', 'c')", "write it without blanks at its end"),
    ],
)
def test_what_would_mean_something_else_is_refused(sql: str, said: str) -> None:
    with pytest.raises(ViewError) as refusal:
        parse_recomputed("v", sql, CATALOG)
    assert any(said in str(problem) for problem in refusal.value.problems), refusal.value


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a.mail, b.t FROM s.a LEFT JOIN s.b ON a.id = b.id",
        "SELECT lower(mail) AS m, count(*) AS n FROM s.a GROUP BY lower(mail)",
        "SELECT count(mail) AS n, count(DISTINCT lower(mail)) AS d FROM s.a",
        "SELECT id, count(mail) OVER (PARTITION BY id) AS n FROM s.a",
        "SELECT max(CAST(mail AS TEXT)) AS m FROM s.a WHERE mail IS NOT NULL",
        "SELECT e, count(*) AS n FROM s.a WHERE e = 'ok' GROUP BY e",
        f"SELECT count(*) AS n FROM s.a WHERE w = '{UUID}' AND k = 'ab'",
        "SELECT max(CAST(e AS TEXT)) AS m FROM s.a",
    ],
)
def test_what_means_the_same_is_taken(sql: str) -> None:
    assert parse_recomputed("v", sql, CATALOG).outputs
