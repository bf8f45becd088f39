"""Operators bind as in PostgreSQL's table, or parentheses are asked for at the place."""

from __future__ import annotations

import pytest

from viewkeeper.algebra.render import render
from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.types import BOOLEAN, INTEGER, TEXT, Column, Relation
from viewkeeper.errors import ViewError

_COLUMNS = (
    *(Column(n, INTEGER) for n in "abc"),
    *(Column(n, BOOLEAN) for n in "pqr"),
    *(Column(n, TEXT) for n in "tu"),
)
CATALOG = {("s", "t"): Relation("s", "t", _COLUMNS)}


def read(sql: str) -> str:
    return render(parse_view("v", f"SELECT {sql} AS x FROM s.t", CATALOG).outputs[0].expr)


def refused(sql: str) -> list[str]:
    with pytest.raises(ViewError) as refusal:
        read(sql)
    return [str(problem) for problem in refusal.value.problems]


@pytest.mark.parametrize(
    "sql",
    [
        "p IS NOT DISTINCT FROM q IS NULL",
        "p IS NULL = q",
        "p IS NULL IS NULL",
        "a = b = c",
        "a < b = p",
        "a < b < c",
        "p = a < b",
        "p = NOT q",
        "NOT p IS NULL = q",
        "p = a NOT IN (1)",
        "a IN (1) IN (TRUE)",
        "t LIKE u LIKE t",
        "p BETWEEN q AND r BETWEEN p AND q",
        "t || NOT p",
        "t ~~ u || t",
        "t !~~ u || t",
        "t !~~* (u) || t",
        "a + b IS NULL = p",
    ],
)
def test_what_postgres_would_read_otherwise_is_refused_with_its_place(sql: str) -> None:
    found = refused(sql)
    assert any("line 1, column" in said and "put parentheses around what belongs together" in said for said in found)


@pytest.mark.parametrize(
    ("sql", "meant"),
    [
        ("p = q IS NULL", "((p = q) IS NULL)"),
        ("p = q IS NOT NULL", "(NOT ((p = q) IS NULL))"),
        ("p = q IS TRUE", "((p = q) IS NOT DISTINCT FROM TRUE)"),
        ("a < b ISNULL", "((a < b) IS NULL)"),
        ("p = q IS DISTINCT FROM r", "((p = q) IS DISTINCT FROM r)"),
        ("p IS DISTINCT FROM q = r", "(p IS DISTINCT FROM (q = r))"),
        ("NOT a = b", "(NOT (a = b))"),
        ("NOT p AND q", "((NOT p) AND q)"),
        ("p OR q AND r", "(p OR (q AND r))"),
        ("p AND q OR r AND p", "((p AND q) OR (r AND p))"),
        ("NOT NOT p", "(NOT (NOT p))"),
        ("a - b - c", "((a - b) - c)"),
        ("a - b * c % a", "(a - ((b * c) % a))"),
        ("- a * b", "((-a) * b)"),
        ("a + b IS NULL", "((a + b) IS NULL)"),
        ("t || u LIKE t || u", "((t || u) LIKE (t || u))"),
        ("t || u ~~ (t || u)", "((t || u) LIKE (t || u))"),
        (
            "CASE WHEN t !~~ '~~' THEN t || u END",
            "CASE WHEN (NOT (t LIKE '~~')) THEN (t || u) ELSE CAST(NULL AS TEXT) END",
        ),
        ("a < b + c", "(a < (b + c))"),
        ("NOT p IS NULL", "(NOT (p IS NULL))"),
        ("a BETWEEN b AND c AND p", "(((a >= b) AND (a <= c)) AND p)"),
        ("p = (q IS NULL)", "(p = (q IS NULL))"),
        ("(p = q) IS NULL", "((p = q) IS NULL)"),
        ("- a::TEXT::INTEGER", "(-CAST(CAST(a AS TEXT) AS INTEGER))"),
        ("a IN (b) = p", "((a IN (b)) = p)"),
        ("+ a + + (b)", "(a + b)"),
        ("a::INTEGER + b", "(a + b)"),
    ],
)
def test_what_both_read_alike_is_taken(sql: str, meant: str) -> None:
    assert read(sql) == meant


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("0x1F", "line 1, column 8: '0x1F' is not supported; write the number in decimal digits"),
        ("1a", "line 1, column 8: '1a' is no number"),
        ("coalesce(1, + NULL)", "line 1, column 20: a plus sign before a constant without a type is not supported"),
        ("concat(+ ('1.50'))", "line 1, column 15: a plus sign before a constant without a type is not supported"),
        ("a + 1_000", "line 1, column 12: '1_000' is no number"),
        (r"t = E'a\n'", "line 1, column 12: an E'…' string is not supported; write the text itself in '…'"),
        ("B'101'", "line 1, column 8: a bit string is not supported"),
        ("DATE '2024-01-01'::TEXT", "line 1, column 13: what is cast in 'DATE '2024-01-01'::' is not certain"),
        ("TIMESTAMP WITH TIME ZONE '2024-01-01'::TEXT", "put parentheses around the constant"),
        ("NUMERIC(5, 2) '1.5'::TEXT", "put parentheses around the constant"),
        ("$$a$$", "unknown column $$a$$"),
        ("CAST(a AS REAL)", "unknown type REAL"),
        ("a::float4", "unknown type float4"),
        ("CAST(t AS BYTEA)", "unknown type BYTEA"),
    ],
)
def test_constants_and_types_that_postgres_reads_otherwise_are_refused(sql: str, said: str) -> None:
    assert any(said in each for each in refused(sql)), refused(sql)
