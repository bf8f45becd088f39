"""Columns that PostgreSQL knows more of than their text or number: what a view's SQL may do with them."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest

from viewkeeper.algebra.evaluate import evaluate
from viewkeeper.algebra.render import render
from viewkeeper.algebra.rows import evaluate_row
from viewkeeper.algebra.sql import parse_view
from viewkeeper.algebra.types import FLOAT, INTEGER, TEXT, Column, Relation
from viewkeeper.algebra.view import Edge, View
from viewkeeper.errors import ViewError

_TEXTS = {
    "mail": "citext",
    "w": "uuid",
    "k": "bpchar",
    "e": "enum",
    "q": "jsonb",
    "j": "json",
    "l": "_int4",
    "t": "text",
}
_COLUMNS = (
    Column("id", INTEGER, "int8"),
    *(Column(name, TEXT, declared) for name, declared in _TEXTS.items()),
    Column("r", FLOAT, "float4"),
    Column("f", FLOAT, "float8"),
)
CATALOG = {("s", name): Relation("s", name, _COLUMNS) for name in ("a", "b")}
UUID = "a1111111-1111-1111-1111-11111111111f"


def parsed(sql: str) -> View:
    view = parse_view("v", sql, CATALOG)
    assert parse_view("v", view.sql, CATALOG) == view
    return view


def read(sql: str) -> str:
    return render(parsed(f"SELECT {sql} AS x FROM s.a").outputs[0].expr)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("mail = 'A@b.c'", "citext would be compared by case here (mail = 'A@b.c'); compare lower(…)"),
        ("mail <> 'a'", "citext would be compared by case here"),
        ("mail < 'a'", "citext would be compared by case here"),
        ("mail IN ('a', 'b')", "citext would be compared by case here"),
        ("mail BETWEEN 'a' AND 'b'", "citext would be compared by case here"),
        ("mail = mail", "citext would be compared by case here"),
        ("mail IS DISTINCT FROM 'a'", "citext would be compared by case here"),
        ("coalesce(mail, 'b') = 'a'", "citext would be compared by case here"),
        ("CASE WHEN id > 1 THEN mail END = 'a'", "citext would be compared by case here"),
        ("CASE mail WHEN 'a' THEN 1 END", "citext would be compared by case here"),
        ("nullif(mail, 'a')", "citext would be compared by case here"),
        ("mail LIKE 'a%'", "LIKE is another for citext"),
        ("e < 'ok'", "an enumeration is ordered as it is declared, which is not known here"),
        ("e BETWEEN 'a' AND 'b'", "an enumeration is ordered"),
        ("w = 'soon'", "'soon' is no uuid (w = 'soon'); write its 32 hexadecimal digits"),
        ("k LIKE 'a'", "LIKE is another for char(n)"),
        ("concat(k, 'x')", "concat is another for char(n)"),
        ("q = '1'", "jsonb would be compared as text here"),
        ("j = '1'", "json would be compared as text here"),
        ("l = '[1]'", "an array would be compared as text here"),
        ("CAST(l AS TEXT)", "an array has another text here"),
        ("CAST(q AS INTEGER)", "jsonb has another integer here"),
        ("coalesce(q, '{}')", "a constant beside jsonb would be kept as it is written"),
        ("r + r", "two reals are calculated with in 32 bits"),
        ("CAST(r AS TEXT)", "a real would become another text here"),
        ("coalesce(r, id)", "a number instead of a real would become one, of 32 bits"),
        ("r || t", "|| is another for real"),
        ("mail = w", "citext and uuid cannot be compared"),
    ],
)
def test_what_would_mean_something_else_is_refused_with_its_place(sql: str, said: str) -> None:
    with pytest.raises(ViewError) as refusal:
        read(sql)
    assert [str(p) for p in refusal.value.problems if said in str(p) and "line 1, column" in str(p)], refusal.value


@pytest.mark.parametrize(
    ("sql", "meant"),
    [
        ("mail", "mail"),
        ("mail IS NULL", "(mail IS NULL)"),
        ("lower(mail) = 'a'", "(LOWER(mail) = 'a')"),
        ("CAST(mail AS TEXT) = 'a'", "(CAST(mail AS TEXT) = 'a')"),
        ("mail = t", "(mail = t)"),
        ("mail || 'x'", "(mail || 'x')"),
        ("e = 'ok'", "(e = 'ok')"),
        ("CAST(e AS TEXT) < 'ok'", "(CAST(e AS TEXT) < 'ok')"),
        (f"w = '{UUID.upper()}'", f"(w = '{UUID}')"),
        (f"w IN ('{{{UUID.upper().replace('-', '')}}}', NULL)", f"(w IN ('{UUID}', CAST(NULL AS TEXT)))"),
        (f"'{UUID.upper()}' < w", f"('{UUID}' < w)"),
        ("k = 'ab  '", "(k = 'ab')"),
        ("CAST(k AS TEXT) LIKE 'a_'", "(CAST(k AS TEXT) LIKE 'a_')"),
        ("CAST(q AS TEXT) = '1'", "(CAST(q AS TEXT) = '1')"),
        ("r = r", "(r = r)"),
        ("- r = r", "((-r) = r)"),
        ("r = 0.1", "(CAST(r AS FLOAT) = CAST('0.1' AS FLOAT))"),
        ("r * f", "(CAST(r AS FLOAT) * f)"),
        ("coalesce(r, f)", "COALESCE(CAST(r AS FLOAT), f)"),
        ("round(r)", "ROUND(CAST(r AS FLOAT))"),
    ],
)
def test_what_means_the_same_is_taken(sql: str, meant: str) -> None:
    assert read(sql) == meant


def test_citext_joins_by_case_only_where_the_view_says_so() -> None:
    for join in ("ON a.mail = b.mail", "USING (mail)"):
        with pytest.raises(ViewError, match="citext would be compared by case here"):
            parsed(f"SELECT a.id FROM s.a JOIN s.b {join}")
    for join in ("CAST(a.mail AS TEXT) = CAST(b.mail AS TEXT)", "a.mail = b.t"):
        view = parsed(f"SELECT a.id FROM s.a JOIN s.b ON {join}")
        assert view.edges == (Edge(0, "mail", 1, view.edges[0].right_column),)


def test_a_text_beside_a_char_keeps_its_blanks() -> None:
    expr = parse_view("v", "SELECT k = CAST('ab ' AS TEXT) AS x FROM s.a", CATALOG).outputs[0].expr
    assert evaluate_row(expr, lambda *_: "ab") is False


def test_a_real_beside_a_double_is_the_double_of_its_32_bits() -> None:
    expr = parsed("SELECT CAST(r AS DOUBLE PRECISION) AS x FROM s.a").outputs[0].expr
    reals = [0.1, 1.1, 16777216.0, 1e-45, 3.4028235e38, float("inf"), -2.5]
    doubles = [struct.unpack("f", struct.pack("f", real))[0] for real in reals]
    assert evaluate(expr, lambda *_: pa.array(reals), len(reals)).to_pylist() == doubles
    assert [evaluate_row(expr, lambda *_, real=real: real) for real in reals] == doubles


def test_a_real_whose_text_is_in_the_middle_between_two_is_the_one_of_that_text() -> None:
    expr = parsed("SELECT CAST(r AS DOUBLE PRECISION) AS x FROM s.a").outputs[0].expr
    assert str(np.float32(evaluate_row(expr, lambda *_: 7.038531e-26))) == "7.038531e-26"
