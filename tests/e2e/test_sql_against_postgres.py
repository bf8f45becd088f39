"""A view's SQL means what it means in PostgreSQL, or is refused with its place: random expressions on a real server.

More of them: ``SQL_EXPRESSIONS=20000 SQL_SEED=7 pytest tests/e2e/test_sql_against_postgres.py``.
"""

from __future__ import annotations

import math
import os
import struct
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from tests.e2e.postgres import USUAL, Servers, database
from tests.e2e.random_sql import COLUMNS, Made, Maker, rows
from tests.e2e.sql_oracle import Differs, Oracle, Verdict
from viewkeeper.algebra.casts import cast
from viewkeeper.algebra.types import FLOAT, TEXT

pytestmark = pytest.mark.e2e

CITEXT = """
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_available_extensions WHERE name = 'citext') THEN CREATE EXTENSION citext;
    ELSE CREATE DOMAIN citext AS text; END IF;
END $$
"""
"""Where the server has no citext, it is text in the table, and expressions with it are compared as such."""


@pytest.fixture(scope="module")
def oracle(postgres: Servers) -> Iterator[Oracle]:
    declared = ", ".join(f"{name} {type_}" for name, (_, type_, _) in COLUMNS.items())
    tables = ("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')", f"CREATE TABLE t (id int PRIMARY KEY, {declared})")
    with database(postgres.shared(USUAL), (CITEXT, *tables)) as made:
        with made.connect() as db:
            for number, row in enumerate(rows(Random(1), 40)):
                db.execute(f"INSERT INTO t VALUES (%s{', %s' * len(row)})", [str(number), *row])
        yield Oracle.of(made)


def smallest(oracle: Oracle, made: Made) -> Differs | None:
    """What a smallest part of the expression that still differs says; None if nothing differs."""
    try:
        oracle.judge(str(made))
    except Differs as differs:
        for less in made.smaller():
            if found := smallest(oracle, less):
                return found
        return differs
    return None


def test_oracle_random_expressions_mean_what_they_mean_in_postgres(oracle: Oracle) -> None:
    seed, count = int(os.environ.get("SQL_SEED", "1")), int(os.environ.get("SQL_EXPRESSIONS", "600"))
    maker = Maker(Random(seed))
    verdicts: Counter[Verdict] = Counter()
    for _ in range(count):
        made = maker.expression(maker.random.choice((1, 2, 2, 3)))
        try:
            verdicts[oracle.judge(str(made))] += 1
        except Differs as differs:
            raise AssertionError(f"SQL_SEED={seed}: {smallest(oracle, made) or differs}") from None
    print(f"{count} expressions:", {verdict.value: number for verdict, number in verdicts.items()})
    assert verdicts[Verdict.SAME] > count / 4


def test_oracle_doubles_have_the_texts_that_postgres_gives_them(oracle: Oracle) -> None:
    """Of any bits; and round numbers that may stand in the middle between two doubles."""
    random = Random(5)
    any_bits = [*struct.unpack("<5000d", random.randbytes(40_000))]
    round_numbers = [float(random.randrange(10**17) * 10 ** random.randrange(9)) for _ in range(5_000)]
    halves = [random.randrange(2**53) * 5.0 ** random.randrange(-8, 9) for _ in range(5_000)]
    doubles = [x for x in (*any_bits, *round_numbers, *halves) if math.isfinite(x)]
    texts = oracle.db.execute("SELECT x::text FROM unnest(%s::float8[]) AS t (x)", [doubles]).fetchall()
    assert [cast(x, FLOAT, TEXT) for x in doubles] == [text for (text,) in texts]


@pytest.mark.parametrize(
    "sql",
    [
        "b = c IS NULL",
        "b < c IS TRUE",
        "b IS DISTINCT FROM c = b",
        "NOT i = j",
        "i - s - 1",
        "- f * g",
        "i + j IS NULL",
        "1.5e-3",
        "1e2 % n",
        "-9223372036854775808 / s",
        "- -9223372036854775808",
        "j = f",
        "j < 9007199254740992::float8",
        "f / n",
        "i / s",
        "i % s",
        "- i % 3",
        "n % m",
        "i IN (1, NULL)",
        "i NOT IN (1, NULL)",
        "n IN (1, f)",
        "d - d",
        "d + i",
        "t LIKE 'a\\%'",
        "t LIKE u",
        "t NOT LIKE u",
        "t LIKE u ESCAPE ''",
        "t LIKE u ESCAPE '_'",
        "t LIKE 'a\\\\c'",
        "t ~~ u",
        "CAST(f AS TEXT)",
        "CAST(g AS VARCHAR)",
        "f || ''",
        "CAST(t AS INTEGER)",
        "CAST(u AS DOUBLE PRECISION)",
        "CAST(t AS BOOLEAN)",
        "CAST(u AS NUMERIC(8,1))",
        "CAST(y AS TEXT)",
        "CAST(t AS VARCHAR(2))",
        "CAST(n AS VARCHAR(2))",
        "CAST(b AS VARCHAR(2))",
        "TIMESTAMPTZ '2024-01-05 12:30:00+02' = tz",
        "tz < ts",
        "d < ts",
        "d <= '2024-01-05'",
        "ts > '2024-01-05 12:00'",
        "i BETWEEN SYMMETRIC 3 AND -1",
        "w = 'A1111111-1111-1111-1111-11111111111F'",
        "'A1111111111111111111-11111111111F' < w",
        "e = 'ok'",
        "k = 'ab  '",
        "k < t",
        "k || 'x'",
        "length(k)",
        "r = 0.1",
        "r < f",
        "r + f",
        "r * 2",
        "r = r",
        "- r",
        "abs(r)",
        "coalesce(r, f)",
        "CASE r WHEN 0.1 THEN 1 END",
        "CAST(r AS DOUBLE PRECISION)",
        "nullif(k, 'a  ')",
        "coalesce(k, 'a  ')",
        "CAST(q AS TEXT) = '1'",
        "CAST(e AS TEXT) < 'ok'",
        "t || e",
        "w || t",
        "'12' || i",
        "'a' || 'b'",
    ],
)
def test_oracle_an_expression_that_once_meant_something_else_means_the_same(oracle: Oracle, sql: str) -> None:
    assert oracle.judge(sql) is Verdict.SAME


@pytest.mark.parametrize(
    "sql",
    [
        "b = c = b",
        "b IS NULL = c",
        "i = j < s",
        "t LIKE t LIKE u",
        "b = NOT c",
        "0x1F",
        "1_000",
        "E'a'",
        "B'1'",
        "$$a$$",
        "DATE '2024-01-05'::text",
        "CAST(t AS CHAR(3))",
        "CAST(n AS CHAR)",
        "CAST(ts AS TIMESTAMP(0))",
        "CAST(n AS REAL)",
        "CAST(f AS FLOAT4)",
        "CAST(f AS FLOAT(10))",
        "CAST(t AS BYTEA)",
        "CAST(t AS DATE)",
        "CAST(ts AS TEXT)",
        "tz || t",
        "TIMESTAMP '2024-01-05 12:30:00+02'",
        "ts < '2024-01-05 12:30:00+02'",
        "d < '2024-01-05 12:00'",
        "e < 'ok'",
        "q = '1'",
        "q < 'null'",
        "k LIKE t",
        "r + r",
        "coalesce(r, s)",
        "CAST(r AS TEXT)",
        "t ILIKE u",
        "t SIMILAR TO u",
        "t ~ u",
        "f ^ g",
        "(i, t) = (j, u)",
        "t LIKE 'a\\'",
        "w = 'a'",
    ],
)
def test_oracle_an_expression_that_once_meant_something_else_is_refused(oracle: Oracle, sql: str) -> None:
    assert oracle.judge(sql) is Verdict.REFUSED
