"""Expressions on Arrow arrays: the meaning of ``expressions``, a column at a time.

Common operations run as Arrow kernels. Where Arrow's meaning differs from ours or it has no kernel, the
operation runs once per distinct value through ``rows.apply``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.algebra import arrow_numbers as numbers
from viewkeeper.algebra import rows
from viewkeeper.algebra.arrow_numbers import Value
from viewkeeper.algebra.casts import numeric_text
from viewkeeper.algebra.expressions import (
    And,
    Arithmetic,
    Call,
    Case,
    Cast,
    ColumnRef,
    Compare,
    Expr,
    InList,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
)
from viewkeeper.algebra.types import FLOAT, Kind, Type

ColumnOf = Callable[[int, str], pa.Array | pa.ChunkedArray]


def evaluate(expr: Expr, column: ColumnOf, length: int) -> pa.Array:
    """The values of ``expr`` on ``length`` rows, as an array of exactly ``expr.type.arrow``.

    ``column(occurrence, name)`` gives the rows' values of a column.
    """
    result = _Batch(column, length).array(expr)
    assert len(result) == length and result.type == expr.type.arrow
    return result


def holds(predicate: Expr, column: ColumnOf, length: int) -> pa.BooleanArray:
    """Per row whether the predicate is true; false where it is NULL."""
    return evaluate(predicate, column, length).fill_null(False)


@dataclass(frozen=True)
class _Batch:
    """Rows to evaluate on. A value is an array, or a scalar where it is the same in every row."""

    column: ColumnOf
    length: int

    def value(self, expr: Expr) -> Value:
        if isinstance(expr, ColumnRef):
            return self._input(expr)
        if isinstance(expr, Literal):
            return pa.scalar(_carried(expr, expr.value), expr.type.arrow)
        return _EVALUATE[type(expr)](expr, self)

    def array(self, expr: Expr) -> pa.Array:
        value = self.value(expr)
        return value if isinstance(value, pa.Array) else pa.repeat(value, self.length)

    def converted(self, expr: Expr, of: Type) -> pa.Array:
        """The values as ``of``, to which an exact number of a choice may have to be cast."""
        return self.array(expr if expr.type.arrow == of.arrow else Cast(expr, replace(of, loose=False)))

    def _input(self, ref: ColumnRef) -> pa.Array:
        values = self.column(ref.occurrence, ref.column)
        if isinstance(values, pa.ChunkedArray):
            values = values.chunk(0) if values.num_chunks == 1 else pa.concat_arrays(_chunks(values))
        if values.type != ref.type.arrow:
            values = values.cast(ref.type.arrow)
        return numbers.unsigned_zero(values) if ref.type == FLOAT else values

    def by_rows(self, expr: Expr) -> pa.Array:
        """Through ``rows.apply``, once per distinct value where only one operand varies."""
        varying = [child for child in expr.children if not isinstance(child, Literal)]
        if len(varying) == 1:
            encoded = pc.dictionary_encode(self.array(varying[0]), null_encoding="encode")
            return self._applied(expr, {varying[0]: encoded.dictionary}).take(encoded.indices)
        return self._applied(expr, {child: self.array(child) for child in varying})

    def _applied(self, expr: Expr, operands: dict[Expr, pa.Array]) -> pa.Array:
        length = max((len(values) for values in operands.values()), default=self.length)
        columns = [
            [child.value] * length if isinstance(child, Literal) else _read(child, operands[child])
            for child in expr.children
        ]
        results = [_carried(expr, rows.apply(expr, values)) for values in zip(*columns, strict=True)]
        return pa.array(results, expr.type.arrow)


def _read(expr: Expr, values: pa.Array) -> list[Any]:
    """The values as ``rows`` takes them."""
    plain = values.to_pylist()
    return [rows.read(value, expr.type) for value in plain] if expr.type.kind is Kind.NUMERIC else plain


def _carried(expr: Expr, value: Any) -> Any:
    """A value of ``rows`` as Arrow holds it: numerics, which have no limit, as texts."""
    return numeric_text(value) if expr.type.kind is Kind.NUMERIC and value is not None else value


def _numeric(*exprs: Expr) -> bool:
    return any(expr.type.kind is Kind.NUMERIC for expr in exprs)


def _chunks(values: pa.ChunkedArray) -> list[pa.Array]:
    return values.chunks or [pa.array([], values.type)]


def _compare(expr: Compare, batch: _Batch) -> Value:
    if _numeric(expr.left, expr.right):
        return batch.by_rows(expr)
    left, right = batch.value(expr.left), batch.value(expr.right)
    if not expr.op.endswith("DISTINCT FROM"):
        return numbers.compare(expr.op, left, right)
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    same = pc.or_(pc.fill_null(numbers.compare("=", left, right), False), both_null)
    return same if expr.op == "IS NOT DISTINCT FROM" else pc.invert(same)


def _in_list(expr: InList, batch: _Batch) -> Value:
    if _numeric(*expr.children):
        return batch.by_rows(expr)
    value = batch.array(expr.value)
    if expr.value.type == FLOAT or not _plain_set(expr):
        return reduce(pc.or_kleene, (numbers.compare("=", value, batch.value(item)) for item in expr.items))
    wanted = {item.value for item in expr.items if isinstance(item, Literal)}
    found = pc.is_in(value, pa.array([w for w in wanted if w is not None], value.type))
    unsure = pc.is_null(value) if None not in wanted else pc.invert(found)
    return pc.if_else(pc.or_(pc.is_null(value), unsure), pa.scalar(None, pa.bool_()), found)


def _plain_set(expr: InList) -> bool:
    return all(isinstance(item, Literal) and item.type == expr.value.type for item in expr.items)


def _like(expr: Like, batch: _Batch) -> Value:
    """Patterns with % only at their ends are plain searches."""
    pattern = expr.pattern.value if isinstance(expr.pattern, Literal) else None
    special = "_" if expr.escape is None else f"_{expr.escape}"
    if pattern is None or "%" in pattern.strip("%") or not set(special).isdisjoint(pattern):
        return batch.by_rows(expr)
    value, bare = batch.value(expr.value), pattern.strip("%")
    match pattern.startswith("%"), pattern.endswith("%"):
        case False, False:
            return pc.equal(value, bare)
        case False, True:
            return pc.starts_with(value, bare)
        case True, False:
            return pc.ends_with(value, bare)
        case _:
            return pc.match_substring(value, bare)


def _arithmetic(expr: Arithmetic, batch: _Batch) -> Value:
    if _numeric(expr) or (expr.op == "/" and expr.type.kind is Kind.DECIMAL):
        return batch.by_rows(expr)
    left, right = batch.value(expr.left), batch.value(expr.right)
    result: Value | None
    if Kind.DATE in (expr.left.type.kind, expr.right.type.kind):
        result = numbers.date_arithmetic(expr.op, left, right)
    elif expr.type.kind is Kind.INTEGER:
        result = numbers.integer_arithmetic(expr.op, left, right)
    elif expr.type.kind is Kind.DECIMAL:
        result = numbers.decimal_arithmetic(expr.op, left, right, expr.type)
    elif expr.op == "%":
        result = numbers.float_modulo(batch.array(expr.left), batch.array(expr.right))
    else:
        result = numbers.float_arithmetic(expr.op, left, right)
    return batch.by_rows(expr) if result is None else result


def _cast(expr: Cast, batch: _Batch) -> Value:
    source, target = expr.arg.type, expr.type
    kinds = (source.kind, target.kind)
    if source == target:
        return batch.value(expr.arg)
    if _numeric(expr, expr.arg):
        return batch.by_rows(expr)
    if kinds == (Kind.INTEGER, Kind.FLOAT):
        return pc.cast(batch.value(expr.arg), pa.float64(), safe=False)
    if kinds == (Kind.DECIMAL, Kind.FLOAT):
        floats = numbers.decimal_to_float(batch.array(expr.arg))
        return batch.by_rows(expr) if floats is None else floats
    if kinds in _SAME_IN_ARROW or (target.kind is Kind.DECIMAL and _widens(expr)):
        return batch.value(expr.arg).cast(target.arrow)
    return batch.by_rows(expr)


_SAME_IN_ARROW = {
    (Kind.INTEGER, Kind.TEXT),
    (Kind.BOOLEAN, Kind.INTEGER),
    (Kind.BOOLEAN, Kind.TEXT),
    (Kind.DATE, Kind.TIMESTAMP),
    (Kind.TIMESTAMP, Kind.DATE),
    (Kind.TEXT, Kind.BINARY),
}


def _widens(expr: Cast) -> bool:
    """A cast to decimal that loses no digit on either side of the point."""
    source, target = expr.arg.type, expr.type
    if source.kind is Kind.INTEGER:
        return target.precision - target.scale >= 19
    whole = source.precision - source.scale
    return source.kind is Kind.DECIMAL and target.scale >= source.scale and target.precision - target.scale >= whole


def _case(expr: Case, batch: _Batch) -> Value:
    result = batch.converted(expr.default, expr.type)
    for condition, value in reversed(list(zip(expr.conditions, expr.results, strict=True))):
        chosen = batch.array(condition).fill_null(False)
        result = pc.if_else(chosen, batch.converted(value, expr.type), result)
    return result


def _call(expr: Call, batch: _Batch) -> Value:
    kernel = _CALLS.get(expr.function)
    return kernel(expr, batch) if kernel and not _numeric(*expr.children) else batch.by_rows(expr)


def _negate(expr: Call, batch: _Batch) -> Value:
    value = batch.value(expr.args[0])
    if expr.type.kind is Kind.INTEGER:
        return _unless_overflow(pc.negate_checked, expr, batch)
    return pc.subtract(0.0, value) if expr.type == FLOAT else pc.negate(value)


def _abs(expr: Call, batch: _Batch) -> Value:
    return _unless_overflow(pc.abs_checked, expr, batch)


def _unless_overflow(kernel: Callable[[Value], Value], expr: Call, batch: _Batch) -> Value:
    try:
        return kernel(batch.value(expr.args[0]))
    except pa.ArrowInvalid:
        return batch.by_rows(expr)


def _round(expr: Call, batch: _Batch) -> Value:
    """One place for halves: ``rows`` decides those of doubles and of long decimals."""
    value, *places = expr.args
    if value.type == FLOAT:
        return batch.by_rows(expr) if places else numbers.round_floats(batch.array(value))
    rounded = numbers.round_decimal(batch.array(value), _constant(places[0]) if places else 0, expr.type)
    return batch.by_rows(expr) if rounded is None else rounded


def _constant(expr: Expr) -> int:
    assert isinstance(expr, Literal)
    return int(expr.value)


def _substr(expr: Call, batch: _Batch) -> Value:
    text, *bounds = expr.args
    limits = [bound.value for bound in bounds if isinstance(bound, Literal) and bound.value is not None]
    if len(limits) < len(bounds) or min(limits[1:], default=0) < 0:
        return batch.by_rows(expr)
    start = limits[0] - 1
    stop = min(max(start + limits[1], 0), _LONGEST_TEXT) if len(limits) > 1 else None
    return pc.utf8_slice_codeunits(batch.value(text), min(max(start, 0), _LONGEST_TEXT), stop)


_LONGEST_TEXT = 2**31


def _letters(kernel: Callable[[Value], Value]) -> Callable[[Call, _Batch], Value]:
    def change(expr: Call, batch: _Batch) -> Value:
        text = batch.array(expr.args[0])
        # Arrow maps letter by letter; Unicode's full mapping (ß → SS, final sigma) is Python's.
        ascii_only = pc.all(pc.string_is_ascii(text)).as_py() is not False
        return kernel(text) if ascii_only else batch.by_rows(expr)

    return change


def _trimmed(kernel: Callable[[Value, str], Value]) -> Callable[[Call, _Batch], Value]:
    def trim(expr: Call, batch: _Batch) -> Value:
        return kernel(batch.value(expr.args[0]), " ") if len(expr.args) == 1 else batch.by_rows(expr)

    return trim


def _length(expr: Call, batch: _Batch) -> Value:
    value = batch.value(expr.args[0])
    count = pc.binary_length if expr.args[0].type.kind is Kind.BINARY else pc.utf8_length
    return count(value).cast(pa.int64())


def _concat(expr: Call, batch: _Batch) -> Value:
    return pc.binary_join_element_wise(*(pc.fill_null(batch.array(arg), "") for arg in expr.args), "")


_CALLS: dict[str, Callable[[Call, _Batch], Value]] = {
    "||": lambda expr, batch: pc.binary_join_element_wise(*map(batch.array, expr.args), ""),
    "concat": _concat,
    "coalesce": lambda expr, batch: pc.coalesce(*(batch.converted(arg, expr.type) for arg in expr.args)),
    "negate": _negate,
    "abs": _abs,
    "round": _round,
    "substr": _substr,
    "lower": _letters(pc.utf8_lower),
    "upper": _letters(pc.utf8_upper),
    "length": _length,
    "trim": _trimmed(pc.utf8_trim),
    "ltrim": _trimmed(pc.utf8_ltrim),
    "rtrim": _trimmed(pc.utf8_rtrim),
    "widened": lambda expr, batch: batch.by_rows(expr),
}
_EVALUATE: dict[type[Expr], Callable[[Any, _Batch], Value]] = {
    And: lambda expr, batch: reduce(pc.and_kleene, map(batch.value, expr.args)),
    Or: lambda expr, batch: reduce(pc.or_kleene, map(batch.value, expr.args)),
    Not: lambda expr, batch: pc.invert(batch.value(expr.arg)),
    IsNull: lambda expr, batch: pc.is_null(batch.value(expr.arg)),
    Compare: _compare,
    InList: _in_list,
    Like: _like,
    Arithmetic: _arithmetic,
    Cast: _cast,
    Case: _case,
    Call: _call,
}
