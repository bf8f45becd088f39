"""The two evaluators, on random expressions and random rows: ``evaluate`` (Arrow) and ``rows`` (Python)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from viewkeeper.algebra import construct, functions, time_functions
from viewkeeper.algebra.casts import EXACT, castable, fit, numeric_text
from viewkeeper.algebra.evaluate import evaluate, holds
from viewkeeper.algebra.expressions import ColumnRef, Expr, Literal
from viewkeeper.algebra.render import render
from viewkeeper.algebra.rows import evaluate_row
from viewkeeper.algebra.types import (
    BINARY,
    BOOLEAN,
    DATE,
    FLOAT,
    INTEGER,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    Kind,
    Type,
    decimal,
)

DECIMALS = (decimal(5, 2), decimal(10, 0), decimal(12, 6), decimal(38, 2), decimal(38, 30), decimal(3, 3))
TYPES = (INTEGER, FLOAT, TEXT, BOOLEAN, DATE, TIMESTAMP, BINARY, *DECIMALS, NUMERIC)
ROWS = 6

_TELLING = (
    "|12| -7 |1.5e3|NaN|-Infinity|2024-02-29|2024-02-30|2024-01-01T12:30:00.5+02:00|9223372036854775808|true|F|"
    "1e999|٣|0001-01-01|9999-12-31T23:59:59.999999Z|1e-7|+.5"
)
_NUMERICS = [*map(Decimal, ("0", "-0.00", "1.50", "-2.5", "7", "9" * 60, "1e-40", "-123456789012345678901234567890.5"))]
_texts = st.text(alphabet="aAbßΣςİ %_!'0", max_size=5) | st.sampled_from(_TELLING.split("|"))
_integers = st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**53 + 1, 2**63 - 1, -(2**63)])
_floats = (
    st.floats()
    | st.sampled_from([0.0, -0.0, 0.5, 2.5, 2.675, 2.0**53, 2.0**63, -(2.0**63), 1e22])
    | _integers.map(float)
)


def values(of: Type) -> st.SearchStrategy[Any]:
    match of.kind:
        case Kind.INTEGER:
            return _integers
        case Kind.FLOAT:
            return _floats
        case Kind.TEXT:
            return _texts
        case Kind.BOOLEAN:
            return st.booleans()
        case Kind.DATE:
            return st.dates() | st.sampled_from([date.min, date.max, date(1970, 1, 1)])
        case Kind.TIMESTAMP:
            return st.datetimes(timezones=st.just(UTC)) | st.just(datetime(1969, 12, 31, 23, 59, 59, 999999, UTC))
        case Kind.BINARY:
            return st.binary(max_size=4)
        case _:
            if of == NUMERIC:
                return st.sampled_from(_NUMERICS) | st.decimals(allow_nan=False, allow_infinity=False, places=3)
            digits = st.integers(-(10**of.precision) + 1, 10**of.precision - 1) | st.integers(-150, 150)
            return digits.map(lambda n: fit(Decimal(n).scaleb(-of.scale, context=EXACT), of))


COLUMNS = {f"{name}{i}": of for i, of in enumerate(TYPES) for name in ("x", "y")}


def worlds(expr: Expr) -> st.SearchStrategy[dict[str, list[Any]]]:
    """Values for the columns that the expression reads."""
    used = {ref.column: ref.type for ref in sorted(expr.columns, key=lambda ref: ref.column)}
    return st.fixed_dictionaries(
        {name: st.lists(st.none() | values(of), min_size=ROWS, max_size=ROWS) for name, of in used.items()}
    )


def leaves() -> st.SearchStrategy[Expr]:
    columns = st.sampled_from([ColumnRef(0, name, of) for name, of in COLUMNS.items()])
    literals = st.sampled_from(TYPES[:-1]).flatmap(
        lambda of: (st.none() | values(of)).map(lambda v: Literal(_unsigned(v), of))
    )
    return columns | columns | literals.filter(lambda e: e.value == e.value) | st.just(construct.NULL)


def _unsigned(value: Any) -> Any:
    return value + 0.0 if isinstance(value, float) else value


Operation = Callable[[Expr, Expr, Expr], Expr]


def _compare(op: Any) -> Operation:
    return lambda a, b, c: construct.compare(op, a, b)


def _arithmetic(op: Any) -> Operation:
    return lambda a, b, c: construct.arithmetic(op, a, b)


def _call(function: str, operands: int) -> Operation:
    return lambda *args: functions.call(function, args[:operands])


def _round(places: int) -> Operation:
    return lambda a, b, c: functions.call("round", [a, Literal(places, INTEGER)])


def _of_moment(function: str, field: str) -> Operation:
    return lambda a, b, c: functions.call(function, [Literal(field, TEXT), a])


def _cast(of: Type) -> Operation:
    return lambda a, b, c: construct.cast(a, of)


OPERATIONS: list[Operation] = [
    *map(_compare, ("=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")),
    *map(_arithmetic, "+-*/%"),
    lambda a, b, c: construct.conjunction([a, b, c]),
    lambda a, b, c: construct.disjunction([a, b, c]),
    lambda a, b, c: construct.negation(a),
    lambda a, b, c: construct.is_null(a),
    lambda a, b, c: construct.in_list(a, [b, c, a]),
    lambda a, b, c: construct.between(a, b, c),
    lambda a, b, c: construct.like(a, b),
    lambda a, b, c: construct.like(a, b, "!"),
    lambda a, b, c: construct.case([(construct.is_null(a), b)], c),
    lambda a, b, c: construct.case([(a, b)], c),
    lambda a, b, c: construct.concatenation(a, b),
    lambda a, b, c: construct.negative(a),
    lambda a, b, c: construct.nullif(a, b),
    *(_call(function, 1) for function in ("abs", "length", "lower", "upper", "trim", "ltrim", "rtrim", "round")),
    *(_call(function, 3) for function in ("coalesce", "concat", "substr")),
    _call("substr", 2),
    *map(_round, (-20, -1, 1, 2, 38)),
    *(
        _call(function, 1)
        for function in ("floor", "ceil", "trunc", "sign", "sqrt", "octet_length", "reverse", "ascii")
    ),
    *(_call(function, 2) for function in ("left", "right", "trim", "ltrim", "rtrim", "strpos", "starts_with", "mod")),
    *(_call(function, 3) for function in ("greatest", "least", "concat_ws", "replace", "translate", "split_part")),
    *(_call(function, 3) for function in ("make_date",)),
    *(_of_moment(function, field) for function in ("extract", "date_part") for field in time_functions.FIELDS),
    *(_of_moment("date_trunc", field) for field in time_functions.TRUNCATIONS),
    lambda a, b, c: functions.call("to_char", [a, Literal("YYYY-MM-DD HH24:MI:SS.US Dy Mon IW", TEXT)]),
    lambda a, b, c: functions.call("lpad", [a, Literal(4, INTEGER), b]),
    lambda a, b, c: functions.call("repeat", [a, Literal(2, INTEGER)]),
    *map(_cast, TYPES),
]


@st.composite
def expressions(draw: st.DrawFn, depth: int = 2) -> Expr:
    """An expression of at most ``depth`` operations; operands that do not go together are replaced by the first."""
    operands = [draw(leaves() if depth == 1 or draw(st.booleans()) else expressions(depth - 1)) for _ in "abc"]
    operation = draw(st.sampled_from(OPERATIONS))
    for attempt in (operands, [operands[0], operands[0], operands[0]], [operands[1], operands[2], operands[1]]):
        with suppress(construct.TypeMismatchError):
            return operation(*attempt)
    return construct.is_null(operands[0])


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, Decimal) and isinstance(other, Decimal):
        return str(one) == str(other)
    return type(one) is type(other) and bool(one == other)


def array(values: list[Any], of: Type) -> pa.Array:
    """The values as Arrow carries them."""
    return pa.array([carried(value, of) for value in values], of.arrow)


def carried(value: Any, of: Type) -> Any:
    return numeric_text(value) if of == NUMERIC and value is not None else value


def assert_agree(expr: Expr, world: dict[str, list[Any]]) -> None:
    """Both evaluators give the same values, of exactly the expression's type."""
    length = max(map(len, world.values()), default=ROWS)
    arrays = {ref.column: array(world[ref.column], ref.type) for ref in expr.columns}
    by_arrow = evaluate(expr, lambda _, name: arrays[name], length)
    by_rows = [evaluate_row(expr, lambda _, name, i=i: world[name][i]) for i in range(length)]
    assert by_arrow.type == expr.type.arrow
    by_arrow.validate(full=True)
    pairs = zip(by_arrow.to_pylist(), (carried(value, expr.type) for value in by_rows), strict=True)
    differing = [(i, a, b) for i, (a, b) in enumerate(pairs) if not same(a, b)]
    assert not differing, (render(expr), differing[:3])


RANDOM = settings(max_examples=int(os.environ.get("AGREE_EXAMPLES", "150")), deadline=None)


@RANDOM
@given(st.data())
def test_agree_both_evaluators_give_the_same_values(data: st.DataObject) -> None:
    expr = data.draw(expressions(3))
    world = data.draw(worlds(expr))
    assert_agree(expr, world)


@settings(RANDOM, max_examples=50)
@given(st.data())
def test_agree_a_predicate_holds_where_the_row_evaluator_says_true(data: st.DataObject) -> None:
    expr = construct.compare("=", data.draw(expressions(1)), construct.NULL)
    expr = construct.disjunction([expr, construct.is_null(data.draw(expressions(2)))])
    world = data.draw(worlds(expr))
    arrays = {
        ref.column: pa.chunked_array([array(world[ref.column][:2], ref.type), array(world[ref.column][2:], ref.type)])
        for ref in expr.columns
    }
    held = holds(expr, lambda _, name: arrays[name], ROWS).to_pylist()
    assert held == [evaluate_row(expr, lambda _, name, i=i: world[name][i]) is True for i in range(ROWS)]


@settings(RANDOM, max_examples=50)
@given(expressions(2))
def test_agree_on_no_rows_at_all(expr: Expr) -> None:
    for none in (pa.array([], pa.null()), pa.chunked_array([], pa.null())):
        empty = evaluate(expr, lambda _, name, none=none: none.cast(COLUMNS[name].arrow), 0)
        assert empty.type == expr.type.arrow and len(empty) == 0


def test_agree_on_rounding_at_and_around_ties() -> None:
    random = Random(3)
    ties = [random.randrange(-(10**6), 10**6) / random.choice((8, 200, 2000)) for _ in range(2000)]
    floats = [*ties, *(math.nextafter(tie, random.choice((-1, 1)) * math.inf) for tie in ties), 2.0**31, 1e300]
    for places in (0, 1, 2, 3, 15):
        expr = functions.call("round", [ColumnRef(0, "f", FLOAT), Literal(places, INTEGER)])
        assert_agree(expr, {"f": floats})


@pytest.mark.parametrize("op", "+-*/%")
@pytest.mark.parametrize("digits", [3, 9, 18])
def test_agree_on_decimal_arithmetic(op: Any, digits: int) -> None:
    random = Random(digits)
    left, right = ColumnRef(0, "l", decimal(digits, 2)), ColumnRef(0, "r", decimal(digits, min(digits, 4)))
    world: dict[str, list[Any]] = {
        ref.column: [
            Decimal(random.randrange(-(10 ** random.randrange(digits + 1)), 10**digits)).scaleb(-ref.type.scale)
            for _ in range(300)
        ]
        for ref in (left, right)
    }
    world["r"][:3], world["l"][3:6] = [Decimal(0), None, Decimal(0)], [None, Decimal(0), None]
    for operands in ((left, right), (right, left), (left, Literal(Decimal("-0.30"), decimal(2, 2)))):
        assert_agree(construct.arithmetic(op, *operands), world)


def test_every_cast_is_either_offered_or_refused() -> None:
    refused = {(a.kind.value, b.kind.value) for a in TYPES for b in TYPES if not castable(a, b)}
    assert ("binary", "integer") in refused and ("text", "date") not in refused
