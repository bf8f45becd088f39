"""Building typed expressions: which operands go together, what type results, which casts are implied.

Everything that parses SQL or makes expressions by hand goes through these functions, so the evaluators meet
only well-typed trees. What does not go together raises ``TypeMismatchError``.
Constant parts are folded into literals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal

from viewkeeper.algebra import casts, rows
from viewkeeper.algebra.decimal_types import as_decimal_type, common_decimal, quotient_type, result_type
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
from viewkeeper.algebra.types import BOOLEAN, FLOAT, INTEGER, NUMERIC, TEXT, UNKNOWN, Kind, Type, decimal

NULL = Literal(None, UNKNOWN)
NUMBERS = {Kind.INTEGER, Kind.FLOAT, Kind.DECIMAL, Kind.NUMERIC}
_EXACT_TEXT = "say with how many digits: CAST(CAST(… AS DECIMAL(p, s)) AS TEXT)"
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
    if (expr.type.kind, target.kind) == (Kind.TIMESTAMP, Kind.TEXT):
        raise TypeMismatchError(
            "the text of a timestamp is another with than without time zone", "cast it to a date, or keep it as it is"
        )
    if target == TEXT and (expr.type.kind is Kind.NUMERIC or expr.type.loose):
        raise TypeMismatchError("the digits that this number has as a text depend on how it came about", _EXACT_TEXT)
    if not casts.castable(expr.type, target):
        raise TypeMismatchError(f"{expr.type} cannot be cast to {target}")
    return folded(Cast(expr, target))


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
    return deciding[0] if len(deciding) == 1 else folded(connective(deciding))


def negation(arg: Expr) -> Expr:
    return folded(Not(truth(arg)))


def is_null(arg: Expr) -> Expr:
    return folded(IsNull(arg))


def compare(op: CompareOp, left: Expr, right: Expr) -> Expr:
    left, right = _comparable(left, right)
    return folded(Compare(op, left, right))


def in_list(value: Expr, items: Sequence[Expr]) -> Expr:
    """``value IN (items)``; where an item needs the value cast, the list becomes a chain of equalities."""
    pairs = [_comparable(value, item) for item in items]
    if len({left for left, _ in pairs}) > 1:
        return disjunction(compare("=", value, item) for item in items)
    return folded(InList(pairs[0][0], tuple(right for _, right in pairs)))


def between(value: Expr, low: Expr, high: Expr) -> Expr:
    return conjunction((compare(">=", value, low), compare("<=", value, high)))


def between_symmetric(value: Expr, one: Expr, other: Expr) -> Expr:
    return disjunction((between(value, one, other), between(value, other, one)))


def like(value: Expr, pattern: Expr, escape: str = "\\") -> Expr:
    """``value LIKE pattern ESCAPE escape``; the empty text for no escape character."""
    value, pattern = text("LIKE", value), text("LIKE", pattern)
    if len(escape) > 1:
        raise TypeMismatchError("the ESCAPE of a LIKE must be one character")
    known = pattern.value if isinstance(pattern, Literal) else None
    if known is not None and not rows.like_regex(known, escape or None)[1]:
        raise TypeMismatchError(f"the pattern of a LIKE ends with {escape}", "write it twice to mean it")
    return folded(Like(value, pattern, escape or None))


def case(branches: Sequence[tuple[Expr, Expr]], default: Expr = NULL) -> Expr:
    (*results, last), of = unified("the results of CASE", [*(result for _, result in branches), default])
    conditions = tuple(truth(condition) for condition, _ in branches)
    return folded(Case(conditions, tuple(results), last, of))


def arithmetic(op: ArithmeticOp, left: Expr, right: Expr) -> Expr:
    """``left op right`` in the type that the rules of ``expressions`` give."""
    left, right = typed_like(left, right), typed_like(right, left)
    kinds = {left.type.kind, right.type.kind}
    if Kind.DATE in kinds:
        return folded(Arithmetic(op, left, right, _date_result(op, left.type, right.type)))
    if not kinds <= NUMBERS:
        raise TypeMismatchError(f"{left.type} {op} {right.type} is not defined", "cast both sides to numbers")
    if Kind.FLOAT in kinds:
        return folded(Arithmetic(op, cast(left, FLOAT), cast(right, FLOAT), FLOAT))
    if kinds != {Kind.INTEGER}:
        return folded(_exact_arithmetic(op, _as_exact(left), _as_exact(right)))
    return folded(Arithmetic(op, left, right, INTEGER))


def _exact_arithmetic(op: ArithmeticOp, left: Expr, right: Expr) -> Arithmetic:
    if op == "/":
        return Arithmetic(op, left, right, _quotient(left, right))
    if Kind.NUMERIC in (left.type.kind, right.type.kind):
        return Arithmetic(op, left, right, NUMERIC)
    return Arithmetic(op, left, right, result_type(op, left.type, right.type))


def _quotient(left: Expr, right: Expr) -> Type:
    of = None
    if Kind.NUMERIC not in (left.type.kind, right.type.kind):
        values = [side.value if isinstance(side, Literal) else None for side in (left, right)]
        of = quotient_type((left.type, values[0]), (right.type, values[1]))
    if of is None:
        what = "the digits of this quotient depend on how its operands came about"
        raise TypeMismatchError(what, "say with how many digits they are meant: CAST(… AS DECIMAL(p, s)) / …")
    return of


def concatenation(left: Expr, right: Expr) -> Expr:
    """``left || right``."""
    return folded(Call("||", (as_text("||", left), as_text("||", right)), TEXT))


def negative(arg: Expr) -> Expr:
    """``-arg``."""
    return number_call("negate", arg)


def nullif(left: Expr, right: Expr) -> Expr:
    return case([(compare("=", left, right), Literal(None, replace(left.type, loose=False)))], left)


def folded(expr: Expr) -> Expr:
    """The expression, or its value if all its operands are constants (and SQL has constants of its type)."""
    if expr.type.loose or expr.type.kind is Kind.NUMERIC:
        return expr
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
            f"a condition is needed here, not {article(arg.type)} value", "compare it with something"
        )
    return arg


def typed_like(expr: Expr, other: Expr) -> Expr:
    """A bare NULL takes the type of what it stands beside (integer beside another NULL)."""
    return cast(expr, INTEGER if other == NULL else other.type) if expr == NULL else expr


def _comparable(left: Expr, right: Expr) -> tuple[Expr, Expr]:
    """Both sides as ``Compare`` wants them."""
    left, right = typed_like(left, right), typed_like(right, left)
    left, right = _read_as_time(left, right), _read_as_time(right, left)
    kinds = {left.type.kind, right.type.kind}
    if len(kinds) > 1 and Kind.FLOAT in kinds and kinds <= NUMBERS:
        return cast(left, FLOAT), cast(right, FLOAT)
    if kinds == _TIMES:
        stamp = left.type if left.type.kind is Kind.TIMESTAMP else right.type
        return cast(left, stamp), cast(right, stamp)
    if len(kinds) > 1 and not kinds <= NUMBERS:
        raise TypeMismatchError(
            f"{left.type} and {right.type} cannot be compared",
            f"cast one side, e.g. CAST(… AS {_sql_name(left.type)})",
        )
    return left, right


def _read_as_time(expr: Expr, other: Expr) -> Expr:
    """A text constant beside a date or timestamp is read as one."""
    if not (isinstance(expr, Literal) and expr.type == TEXT and other.type.kind in _TIMES):
        return expr
    refuse_zone(expr.value, other.type)
    value = casts.cast(expr.value, TEXT, other.type)
    if value is None and expr.value is not None:
        form = "'YYYY-MM-DD'" if other.type.kind is Kind.DATE else "'YYYY-MM-DD' or 'YYYY-MM-DD HH:MM:SS'"
        raise TypeMismatchError(f"'{expr.value}' is no {other.type}", f"write it as {form}")
    return Literal(value, other.type)


def refuse_zone(text: str | None, of: Type) -> None:
    """PostgreSQL's TIMESTAMP ignores a zone in a text, its TIMESTAMPTZ heeds it: the writer must say which is meant."""
    if of.kind is Kind.TIMESTAMP and text is not None and casts.zoned(text):
        what = f"the time zone in '{text}' would be ignored by a TIMESTAMP"
        raise TypeMismatchError(what, f"write TIMESTAMPTZ '{text}', or leave the zone out")


def unified(what: str, exprs: Sequence[Expr]) -> tuple[list[Expr], Type]:
    """All expressions cast to their common type, which whichever is chosen among them will have."""
    given = [expr for expr in exprs if expr != NULL]
    decimals = any(expr.type.kind is Kind.DECIMAL for expr in given)
    types = list(dict.fromkeys(_as_exact(expr).type if decimals else expr.type for expr in given))
    common = types[0] if types else TEXT
    for other in types[1:]:
        common = _common(what, common, other)
    if common.loose:  # each is converted when it is chosen, so that SQL shows them as they were written
        return [cast(expr, types[0]) if expr == NULL else expr for expr in exprs], common
    return [cast(expr, common) for expr in exprs], common


def _common(what: str, one: Type, other: Type) -> Type:
    kinds = {one.kind, other.kind}
    if len(kinds) > 1 and Kind.FLOAT in kinds and kinds <= NUMBERS:
        return FLOAT
    if Kind.NUMERIC in kinds and kinds <= NUMBERS:
        return NUMERIC
    if kinds == {Kind.DECIMAL}:
        return common_decimal(one, other)
    if kinds == _TIMES:
        return Type(Kind.TIMESTAMP)
    if len(kinds) > 1:
        raise TypeMismatchError(f"{what} have types {one} and {other}", "cast one of them")
    return one


def _as_exact(expr: Expr) -> Expr:
    if expr.type == INTEGER and isinstance(expr, Literal) and expr.value is not None:
        # A constant needs only its own digits, which leaves more of the 38 for the result.
        return Literal(Decimal(expr.value), decimal(len(str(abs(expr.value))), 0))
    # Whatever is no integer stays as it is.
    return cast(expr, as_decimal_type(expr.type)) if expr.type.kind is Kind.INTEGER else expr


def _date_result(op: ArithmeticOp, left: Type, right: Type) -> Type:
    kinds = (left.kind, op, right.kind)
    if kinds in ((Kind.DATE, "+", Kind.INTEGER), (Kind.DATE, "-", Kind.INTEGER)):
        return left
    if kinds == (Kind.INTEGER, "+", Kind.DATE):
        return right
    if kinds == (Kind.DATE, "-", Kind.DATE):
        return INTEGER
    raise TypeMismatchError(f"{left} {op} {right} is not defined", "a date takes + or - an integer number of days")


def text(function: str, arg: Expr) -> Expr:
    """The argument, which must be a text."""
    if arg == NULL:
        return Literal(None, TEXT)
    if arg.type != TEXT:
        raise TypeMismatchError(f"{function} wants text, not {article(arg.type)} value", "cast it: CAST(… AS TEXT)")
    return arg


def as_text(function: str, arg: Expr) -> Expr:
    """The argument as a text, whatever it is."""
    if arg.type.kind is Kind.BINARY:
        raise TypeMismatchError(f"{function} wants text, not binary", "cast it: CAST(… AS TEXT)")
    return cast(arg, TEXT)


def number(function: str, arg: Expr) -> Expr:
    """The argument, which must be a number."""
    arg = typed_like(arg, NULL)
    if arg.type.kind not in NUMBERS:
        raise TypeMismatchError(
            f"{_SPOKEN.get(function, function)} wants a number, not {article(arg.type)} value", "cast it"
        )
    return arg


def number_call(function: str, arg: Expr) -> Expr:
    """A function whose result is a number of the argument's type."""
    arg = number(function, arg)
    return folded(Call(function, (arg,), arg.type))


def article(of: Type) -> str:
    return f"an {of}" if of.kind is Kind.INTEGER else f"a {of}"


def _sql_name(of: Type) -> str:
    return str(of).upper()


_SPOKEN = {"negate": "a minus sign"}
