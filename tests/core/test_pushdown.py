"""What SQLite is asked to decide never loses a row that the predicate keeps."""

from __future__ import annotations

import sqlite3
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viewkeeper.algebra import construct, functions
from viewkeeper.algebra.expressions import ColumnRef, Expr, Literal
from viewkeeper.algebra.rows import evaluate_row
from viewkeeper.algebra.types import BOOLEAN, DATE, FLOAT, INTEGER, TEXT, Type, decimal
from viewkeeper.managers.sources.sqlite_pushdown import certain_sql
from viewkeeper.managers.sources.sqlite_values import arrow_column

N, R, T, B, D, M = (
    ColumnRef(0, name, of)
    for name, of in zip("nrtbdm", (INTEGER, FLOAT, TEXT, BOOLEAN, DATE, decimal(10, 2)), strict=True)
)
COLUMNS = {ref.column: ref for ref in (N, R, T, B, D, M)}
TABLE = "CREATE TABLE t (n INTEGER, r REAL, t TEXT COLLATE NOCASE, b BOOLEAN, d DATE COLLATE NOCASE, m DECIMAL(10,2))"

_integers = st.integers(-3, 3) | st.sampled_from([2**53 + 1, 2**63 - 1, -(2**63)])
_floats = st.sampled_from([0.0, -0.0, 0.5, 1.5, -2.5, 2.0**53, 2.0**63, 1e300, float("inf")]) | st.floats(
    allow_nan=False
)
_texts = st.sampled_from(["", "a", "A", "ä", "Ä", "a ", "1", "1.0", "ß", "SS", "😀", "a\0b", "a'b", "\n"])
_dates = st.sampled_from([date(1, 1, 1), date(999, 12, 31), date(1970, 1, 1), date(2024, 2, 29), date(9999, 12, 31)])
_decimals = st.sampled_from([Decimal("0.00"), Decimal("1.10"), Decimal("-2.50")])


def literals(of: Type) -> st.SearchStrategy[Literal]:
    values: dict[Type, st.SearchStrategy[Any]] = {
        INTEGER: _integers,
        FLOAT: _floats,
        TEXT: _texts,
        BOOLEAN: st.booleans(),
        DATE: _dates,
    }
    return (st.none() | values.get(of, _decimals)).map(lambda value: Literal(value, of))


@st.composite
def predicates(draw: st.DrawFn, depth: int = 3) -> Expr:
    if depth > 1 and draw(st.booleans()):
        parts = [draw(predicates(depth - 1)), draw(predicates(depth - 1))]
        build = draw(st.sampled_from([construct.conjunction, construct.disjunction]))
        return draw(st.sampled_from([build(parts), construct.negation(parts[0])]))
    ref = draw(st.sampled_from([N, N, R, T, B, D, M]))
    others = {INTEGER: (INTEGER, FLOAT, M.type), FLOAT: (FLOAT, INTEGER, M.type), M.type: (M.type, INTEGER)}
    items = [draw(literals(draw(st.sampled_from(others.get(ref.type, (ref.type,)))))) for _ in range(2)]
    op: Any = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"]))
    return draw(
        st.sampled_from(
            [
                construct.compare(op, ref, items[0]),
                construct.compare(op, items[0], ref),
                construct.in_list(ref, items),
                construct.between(ref, *items),
                construct.is_null(ref),
                B,
            ]
        )
    )


rows = st.tuples(
    *(st.none() | values for values in (_integers, _floats, _texts, st.integers(0, 1), _dates, _decimals.map(float)))
)


def kept_by_sqlite(stored: list[tuple[Any, ...]], predicate: Expr, encoding: str = "UTF-8") -> set[int]:
    certain = certain_sql(predicate, lambda name: f'_t."{name}"')
    db = sqlite3.connect(":memory:")
    db.execute(f"PRAGMA encoding = '{encoding}'")
    db.execute(TABLE)
    db.executemany(
        "INSERT INTO t VALUES (?, ?, ?, ?, ?, ?)",
        [tuple(v.isoformat() if isinstance(v, date) else v for v in row) for row in stored],
    )
    sql, parameters = certain or ("1", [])
    kept = db.execute(f"SELECT rowid FROM t AS _t WHERE {sql}", parameters).fetchall()
    db.close()
    return {rowid - 1 for (rowid,) in kept}


def kept_by_predicate(stored: list[tuple[Any, ...]], predicate: Expr) -> set[int]:
    typed = [
        arrow_column([v.isoformat() if isinstance(v, date) else v for v in column], ref.type).to_pylist()
        for column, ref in zip(zip(*stored, strict=True), COLUMNS.values(), strict=True)
    ]
    by_name = dict(zip(COLUMNS, typed, strict=True))
    return {i for i in range(len(stored)) if evaluate_row(predicate, lambda _, name, i=i: by_name[name][i]) is True}


@settings(max_examples=150, deadline=None)
@given(predicates(), st.lists(rows, min_size=1, max_size=8), st.sampled_from(["UTF-8", "UTF-16le"]))
def test_sqlite_never_loses_a_row_that_the_predicate_keeps(
    predicate: Expr, stored: list[tuple[Any, ...]], encoding: str
) -> None:
    assert kept_by_predicate(stored, predicate) <= kept_by_sqlite(stored, predicate, encoding)


@pytest.mark.parametrize(
    ("predicate", "sql", "parameters"),
    [
        (construct.compare("=", T, Literal("A", TEXT)), "(t COLLATE BINARY = ?)", ["A"]),
        (construct.compare(">", N, Literal(Decimal("1.5"), decimal(2, 1))), "(n > ?)", [1]),
        (construct.in_list(N, [Literal(1, INTEGER), Literal(None, INTEGER)]), "(n IN (?))", [1]),
        (construct.is_null(M), "(m IS NULL)", []),
        (construct.negation(B), "(b = 0)", []),
        (construct.compare(">=", D, Literal("2024-02-29", TEXT)), "(d COLLATE BINARY >= ?)", ["2024-02-29"]),
    ],
)
def test_certain_conditions_are_pushed(predicate: Expr, sql: str, parameters: list[Any]) -> None:
    assert certain_sql(predicate, lambda name: name) == (sql, parameters)


@pytest.mark.parametrize(
    "predicate",
    [
        construct.compare(">", M, Literal(1, INTEGER)),
        construct.compare("<", T, Literal("b", TEXT)),
        construct.like(T, Literal("a%", TEXT)),
        construct.compare("=", functions.call("lower", [T]), Literal("a", TEXT)),
        construct.compare("=", N, Literal(2**64, decimal(20, 0))),
        construct.disjunction([construct.is_null(N), construct.compare(">", M, Literal(1, INTEGER))]),
        construct.compare("=", N, Literal(None, INTEGER)),
    ],
)
def test_what_is_not_certain_stays_here(predicate: Expr) -> None:
    assert certain_sql(predicate, lambda name: name) is None


def test_the_certain_part_of_a_conjunction_is_pushed_alone() -> None:
    both = construct.conjunction([construct.compare(">", M, Literal(1, INTEGER)), construct.is_null(N)])
    assert certain_sql(both, lambda name: name) == ("(n IS NULL)", [])


def test_a_very_long_list_is_not_pushed() -> None:
    long = construct.in_list(N, [Literal(i, INTEGER) for i in range(100_000)])
    assert certain_sql(long, lambda name: name) is None
