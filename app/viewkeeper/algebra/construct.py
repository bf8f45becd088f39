"""Building typed expressions: which operands go together, what type results, which casts are implied.

Everything that parses SQL or makes expressions by hand goes through these functions, so the evaluators meet
only well-typed trees. What does not go together raises ``TypeMismatchError``.
Constant parts are folded into literals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

from viewkeeper.algebra import casts, rows
from viewkeeper.algebra.expressions import (
    And,
    Arithmetic,
    ArithmeticOp,
    Call,
    Case,
    Cast,
    Compare,
    CompareOp,
    Expr,
    InList,
    IsNull,
    Like,
    Literal,
    Not,
    Or,
)
from viewkeeper.algebra.types import BOOLEAN, FLOAT, INTEGER, TEXT, UNKNOWN, Kind, Type, decimal

DIGITS = 38
LEAST_DIVISION_SCALE = 6
NULL = Literal(None, UNKNOWN)
_INTEGER_DIGITS = 19
_NUMBERS = {Kind.INTEGER, Kind.FLOAT, Kind.DECIMAL}
_TIMES = {Kind.DATE, Kind.TIMESTAMP}


class TypeMismatchError(Exception):
    """Operands that do not go together: what is wrong, and what to write instead."""

    def __init__(self, what: str, remedy: str = ""):
        super().__init__(what)
        self.what, self.remedy = what, remedy


def cast(expr: Expr, target: Type) -> Expr:
    """``expr`` as ``target``; the expression itself where it has that type already."""
    if expr.type == target:
        return expr
    if expr == NULL:
        return Literal(None, target)
    if not casts.castable(expr.type, target):
        raise TypeMismatchError(f"{expr.type} cannot be cast to {target}")
    return _folded(Cast(expr, target))


def conjunction(args: Iterable[Expr]) -> Expr:
    """All of them; constants that decide nothing are left out."""
    return _connected(And, [truth(arg) for arg in args], neutral=True)


def disjunction(args: Iterable[Expr]) -> Expr:
    """Any of them; constants that decide nothing are left out."""
    return _connected(Or, [truth(arg) for arg in args], neutral=False)


def _connected(connective: type[And] | type[Or], args: list[Expr], neutral: bool) -> Expr:
    deciding = tuple(arg for arg in args if arg != Literal(neutral, BOOLEAN))
    if not deciding:
        return Literal(neutral, BOOLEAN)
    return deciding[0] if len(deciding) == 1 else _folded(connective(deciding))


def negation(arg: Expr) -> Expr:
    return _folded(Not(truth(arg)))


def is_null(arg: Expr) -> Expr:
    return _folded(IsNull(arg))


def compare(op: CompareOp, left: Expr, right: Expr) -> Expr:
    left, right = _comparable(left, right)
    return _folded(Compare(op, left, right))


def in_list(value: Expr, items: Sequence[Expr]) -> Expr:
    """``value IN (items)``; where an item needs the value cast, the list becomes a chain of equalities."""
    pairs = [_comparable(value, item) for item in items]
    if len({left for left, _ in pairs}) > 1:
        return disjunction(compare("=", value, item) for item in items)
    return _folded(InList(pairs[0][0], tuple(right for _, right in pairs)))


def between(value: Expr, low: Expr, high: Expr) -> Expr:
    return conjunction((compare(">=", value, low), compare("<=", value, high)))


def like(value: Expr, pattern: Expr, escape: str | None = None) -> Expr:
    value, pattern = _text("LIKE", value), _text("LIKE", pattern)
    if escape is not None and len(escape) != 1:
        raise TypeMismatchError("the ESCAPE of a LIKE must be one character")
    return _folded(Like(value, pattern, escape))


def case(branches: Sequence[tuple[Expr, Expr]], default: Expr = NULL) -> Expr:
    *results, last = _unified("the results of CASE", [*(result for _, result in branches), default])
    conditions = tuple(truth(condition) for condition, _ in branches)
    return _folded(Case(conditions, tuple(results), last, last.type))


def arithmetic(op: ArithmeticOp, left: Expr, right: Expr) -> Expr:
    """``left op right`` in the type that the rules of ``expressions`` give."""
    left, right = _typed_like(left, right), _typed_like(right, left)
    kinds = {left.type.kind, right.type.kind}
    if Kind.DATE in kinds:
        return _folded(Arithmetic(op, left, right, _date_result(op, left.type, right.type)))
    if not kinds <= _NUMBERS:
        raise TypeMismatchError(f"{left.type} {op} {right.type} is not defined", "cast both sides to numbers")
    if Kind.FLOAT in kinds:
        return _folded(Arithmetic(op, cast(left, FLOAT), cast(right, FLOAT), FLOAT))
    if Kind.DECIMAL in kinds:
        left, right = _as_decimal(left), _as_decimal(right)
        return _folded(Arithmetic(op, left, right, _decimal_result(op, left.type, right.type)))
    return _folded(Arithmetic(op, left, right, INTEGER))


def call(function: str, args: Sequence[Expr]) -> Expr:
    """A function of ``FUNCTIONS`` on as many arguments as it takes."""
    least, most, build = FUNCTIONS[function]
    if not least <= len(args) <= most:
        wanted = f"{least}" if least == most else f"at least {least}" if most == _MANY else f"{least} or {most}"
        raise TypeMismatchError(f"{function} takes {wanted} argument(s), not {len(args)}")
    return build(function, args)


def concatenation(left: Expr, right: Expr) -> Expr:
    """``left || right``."""
    return _folded(Call("||", (_as_text("||", left), _as_text("||", right)), TEXT))


def negative(arg: Expr) -> Expr:
    """``-arg``."""
    return _numeric("negate", [arg])


def nullif(left: Expr, right: Expr) -> Expr:
    return case([(compare("=", left, right), Literal(None, left.type))], left)


def _folded(expr: Expr) -> Expr:
    """The expression, or its value if all its operands are constants."""
    if not all(isinstance(child, Literal) for child in expr.children):
        return expr
    value = rows.apply(expr, [child.value for child in expr.children if isinstance(child, Literal)])
    # A NaN is not equal to itself, so as a literal it would make equal expressions differ.
    return expr if isinstance(value, float) and math.isnan(value) else Literal(value, expr.type)


def truth(arg: Expr) -> Expr:
    """The expression as a condition."""
    if arg == NULL:
        return Literal(None, BOOLEAN)
    if arg.type.kind is not Kind.BOOLEAN:
        raise TypeMismatchError(
            f"a condition is needed here, not {_article(arg.type)} value", "compare it with something"
        )
    return arg


def _typed_like(expr: Expr, other: Expr) -> Expr:
    """A bare NULL takes the type of what it stands beside (integer beside another NULL)."""
    return cast(expr, INTEGER if other == NULL else other.type) if expr == NULL else expr


def _comparable(left: Expr, right: Expr) -> tuple[Expr, Expr]:
    """Both sides as ``Compare`` wants them."""
    left, right = _typed_like(left, right), _typed_like(right, left)
    left, right = _read_as_time(left, right), _read_as_time(right, left)
    kinds = {left.type.kind, right.type.kind}
    if kinds == {Kind.DECIMAL, Kind.FLOAT}:
        return cast(left, FLOAT), cast(right, FLOAT)
    if kinds == _TIMES:
        stamp = left.type if left.type.kind is Kind.TIMESTAMP else right.type
        return cast(left, stamp), cast(right, stamp)
    if len(kinds) > 1 and not kinds <= _NUMBERS:
        raise TypeMismatchError(
            f"{left.type} and {right.type} cannot be compared",
            f"cast one side, e.g. CAST(… AS {_sql_name(left.type)})",
        )
    return left, right


def _read_as_time(expr: Expr, other: Expr) -> Expr:
    """A text constant beside a date or timestamp is read as one."""
    if not (isinstance(expr, Literal) and expr.type == TEXT and other.type.kind in _TIMES):
        return expr
    for target in (other.type, Type(Kind.TIMESTAMP)):
        value = casts.cast(expr.value, TEXT, target)
        if value is not None:
            return Literal(value, target)
    raise TypeMismatchError(f"'{expr.value}' is no {other.type}", "write it as 'YYYY-MM-DD' or 'YYYY-MM-DD HH:MM:SS'")


def _unified(what: str, exprs: Sequence[Expr]) -> list[Expr]:
    """All expressions cast to their common type."""
    types = list(dict.fromkeys(expr.type for expr in exprs if expr != NULL))
    common = types[0] if types else TEXT
    for other in types[1:]:
        common = _common(what, common, other)
    return [cast(expr, common) for expr in exprs]


def _common(what: str, one: Type, other: Type) -> Type:
    kinds = {one.kind, other.kind}
    if kinds == {Kind.DECIMAL} or kinds == {Kind.INTEGER, Kind.DECIMAL}:
        one, other = _decimal_of(one), _decimal_of(other)
        scale = max(one.scale, other.scale)
        whole = max(one.precision - one.scale, other.precision - other.scale)
        return decimal(min(whole + scale, DIGITS), scale)
    if len(kinds) > 1 and kinds <= _NUMBERS:
        return FLOAT
    if kinds == _TIMES:
        return Type(Kind.TIMESTAMP)
    if len(kinds) > 1:
        raise TypeMismatchError(f"{what} have types {one} and {other}", "cast one of them")
    return one


def _decimal_of(numeric: Type) -> Type:
    return decimal(_INTEGER_DIGITS, 0) if numeric.kind is Kind.INTEGER else numeric


def _as_decimal(expr: Expr) -> Expr:
    if isinstance(expr, Literal) and isinstance(expr.value, int):
        # A constant needs only its own digits, which leaves more of the 38 for the result.
        return Literal(Decimal(expr.value), decimal(len(str(abs(expr.value))), 0))
    return cast(expr, _decimal_of(expr.type))


def _decimal_result(op: ArithmeticOp, left: Type, right: Type) -> Type:
    scale = max(left.scale, right.scale)
    whole_left, whole_right = left.precision - left.scale, right.precision - right.scale
    match op:
        case "*":
            return _squeezed(whole_left + whole_right, left.scale + right.scale)
        case "/":
            scale = max(scale, LEAST_DIVISION_SCALE)
            return decimal(min(whole_left + right.scale + scale, DIGITS), scale)
        case "%":
            return decimal(max(min(whole_left, whole_right) + scale, 1), scale)
        case _:
            return decimal(min(max(whole_left, whole_right) + 1 + scale, DIGITS), scale)


def _squeezed(whole: int, scale: int) -> Type:
    """A decimal type for that many digits around the point, giving up some behind it if need be."""
    if whole + scale > DIGITS:
        scale = max(DIGITS - whole, min(scale, LEAST_DIVISION_SCALE))
    return decimal(min(whole + scale, DIGITS), scale)


def _date_result(op: ArithmeticOp, left: Type, right: Type) -> Type:
    kinds = (left.kind, op, right.kind)
    if kinds in ((Kind.DATE, "+", Kind.INTEGER), (Kind.DATE, "-", Kind.INTEGER)):
        return left
    if kinds == (Kind.INTEGER, "+", Kind.DATE):
        return right
    if kinds == (Kind.DATE, "-", Kind.DATE):
        return INTEGER
    raise TypeMismatchError(f"{left} {op} {right} is not defined", "a date takes + or - an integer number of days")


def _text(function: str, arg: Expr) -> Expr:
    if arg == NULL:
        return Literal(None, TEXT)
    if arg.type != TEXT:
        raise TypeMismatchError(f"{function} wants text, not {_article(arg.type)} value", "cast it: CAST(… AS TEXT)")
    return arg


def _as_text(function: str, arg: Expr) -> Expr:
    if arg.type.kind is Kind.BINARY:
        raise TypeMismatchError(f"{function} wants text, not binary", "cast it: CAST(… AS TEXT)")
    return cast(arg, TEXT)


def _numeric(function: str, args: Sequence[Expr]) -> Expr:
    arg = _typed_like(args[0], NULL)
    if arg.type.kind not in _NUMBERS:
        raise TypeMismatchError(
            f"{_SPOKEN.get(function, function)} wants a number, not {_article(arg.type)} value", "cast it"
        )
    return _folded(Call(function, (arg,), arg.type))


def _round(function: str, args: Sequence[Expr]) -> Expr:
    value = _typed_like(args[0], NULL)
    places = args[1] if len(args) > 1 else Literal(0, INTEGER)
    if value.type.kind not in _NUMBERS:
        raise TypeMismatchError(f"round wants a number, not {_article(value.type)} value", "cast it")
    if not (isinstance(places, Literal) and isinstance(places.value, int) and abs(places.value) <= DIGITS):
        raise TypeMismatchError("the second argument of round must be an integer constant between -38 and 38")
    return _folded(Call("round", (value, places), _rounded_type(value.type, places.value)))


def _rounded_type(of: Type, places: int) -> Type:
    if of.kind is not Kind.DECIMAL or places >= of.scale:
        return of
    scale = max(places, 0)
    # 9.9 rounds to 10: one more digit before the point.
    return decimal(min(of.precision - of.scale + 1 + scale, DIGITS), scale)


def _substr(function: str, args: Sequence[Expr]) -> Expr:
    text, *numbers = args
    numbers = [_typed_like(number, NULL) for number in numbers]
    if any(number.type != INTEGER for number in numbers):
        raise TypeMismatchError("substr wants integers as start and length", "cast them")
    return _folded(Call("substr", (_text("substr", text), *numbers), TEXT))


def _text_function(function: str, args: Sequence[Expr]) -> Expr:
    return _folded(Call(function, (_text(function, args[0]),), TEXT))


def _length(function: str, args: Sequence[Expr]) -> Expr:
    arg = args[0] if args[0].type.kind is Kind.BINARY else _text(function, args[0])
    return _folded(Call(function, (arg,), INTEGER))


def _coalesce(function: str, args: Sequence[Expr]) -> Expr:
    unified = tuple(_unified("the arguments of coalesce", args))
    return _folded(Call(function, unified, unified[0].type))


def _concat(function: str, args: Sequence[Expr]) -> Expr:
    return _folded(Call(function, tuple(_as_text(function, arg) for arg in args), TEXT))


def _nullif(function: str, args: Sequence[Expr]) -> Expr:
    return nullif(args[0], args[1])


def _article(of: Type) -> str:
    return f"an {of}" if of.kind is Kind.INTEGER else f"a {of}"


def _sql_name(of: Type) -> str:
    return str(of).upper()


_SPOKEN = {"negate": "a minus sign"}
_MANY = 1_000_000
FUNCTIONS: dict[str, tuple[int, int, Callable[[str, Sequence[Any]], Expr]]] = {
    "abs": (1, 1, _numeric),
    "coalesce": (1, _MANY, _coalesce),
    "concat": (1, _MANY, _concat),
    "length": (1, 1, _length),
    "lower": (1, 1, _text_function),
    "ltrim": (1, 1, _text_function),
    "nullif": (2, 2, _nullif),
    "round": (1, 2, _round),
    "rtrim": (1, 1, _text_function),
    "substr": (2, 3, _substr),
    "trim": (1, 1, _text_function),
    "upper": (1, 1, _text_function),
}
"""Per function: the least and the most arguments, and how to build the call."""
