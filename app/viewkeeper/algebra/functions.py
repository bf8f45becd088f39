"""The functions that a view's SQL may call: how many arguments each takes, of which types, and what results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from viewkeeper.algebra import construct, time_functions
from viewkeeper.algebra.construct import TypeMismatchError, article, folded, typed_like
from viewkeeper.algebra.decimal_types import DIGITS, as_decimal_type, rounded_type
from viewkeeper.algebra.expressions import Call, Expr, Literal
from viewkeeper.algebra.types import (
    BOOLEAN,
    DATE,
    FLOAT,
    INTEGER,
    TEXT,
    TIMESTAMP,
    Kind,
    Type,
    decimal,
)

MOST_REPEATED = 10_000
"""How often a text may be repeated, or how long it may be made by filling."""

_MANY = 1_000_000


def call(function: str, args: Sequence[Expr]) -> Expr:
    """A function of ``FUNCTIONS`` on as many arguments as it takes."""
    least, most, build = FUNCTIONS[function]
    if not least <= len(args) <= most:
        wanted = f"{least}" if least == most else f"at least {least}" if most == _MANY else f"{least} or {most}"
        raise TypeMismatchError(f"{function} takes {wanted} argument(s), not {len(args)}")
    return build(function, args)


# ---- numbers


def _number(function: str, args: Sequence[Expr]) -> Expr:
    return construct.number_call(function, args[0])


def _rounding(function: str, args: Sequence[Expr]) -> Expr:
    """Without places, an integer is a float, as PostgreSQL has it; with places, a decimal."""
    value = construct.number(function, args[0])
    if len(args) == 1:
        return _rounded_whole(function, construct.cast(value, FLOAT) if value.type == INTEGER else value)
    places = args[1]
    if not (isinstance(places, Literal) and isinstance(places.value, int) and abs(places.value) <= DIGITS):
        what = f"the second argument of {function} must be an integer constant between -38 and 38"
        raise TypeMismatchError(what)
    value = construct.cast(value, as_decimal_type(value.type)) if value.type == INTEGER else value
    return folded(Call(function, (value, places), _rounded(value.type, places.value, function)))


def _rounded_whole(function: str, value: Expr) -> Expr:
    return folded(Call(function, (value,), _rounded(value.type, 0, function)))


def _rounded(of: Type, places: int, function: str) -> Type:
    return rounded_type(of, places, carries=function != "trunc") if of.kind is Kind.DECIMAL else of


def _sign(function: str, args: Sequence[Expr]) -> Expr:
    value = construct.number(function, args[0])
    if value.type.kind in (Kind.INTEGER, Kind.FLOAT):
        return folded(Call(function, (construct.cast(value, FLOAT),), FLOAT))
    return folded(Call(function, (value,), decimal(1, 0)))


def _square_root(function: str, args: Sequence[Expr]) -> Expr:
    value = construct.number(function, args[0])
    if value.type.kind in (Kind.DECIMAL, Kind.NUMERIC):
        raise TypeMismatchError("sqrt wants a float here, not a decimal", "cast it: sqrt(CAST(… AS FLOAT))")
    return folded(Call(function, (construct.cast(value, FLOAT),), FLOAT))


def _modulo(function: str, args: Sequence[Expr]) -> Expr:
    return construct.arithmetic("%", *args)


# ---- texts


def _texts(result: Type) -> Callable[[str, Sequence[Expr]], Expr]:
    """A function of texts alone."""

    def build(function: str, args: Sequence[Expr]) -> Expr:
        return folded(Call(function, tuple(construct.text(function, arg) for arg in args), result))

    return build


def _of_bytes(function: str, args: Sequence[Expr]) -> Expr:
    arg = args[0] if args[0].type.kind is Kind.BINARY else construct.text(function, args[0])
    return folded(Call(function, (arg,), INTEGER))


def _integers(function: str, args: Sequence[Expr]) -> list[Expr]:
    numbers = [typed_like(arg, construct.NULL) for arg in args]
    for arg in numbers:
        if arg.type != INTEGER:
            raise TypeMismatchError(f"{function} wants an integer here, not {article(arg.type)} value", "cast it")
    return numbers


def _text_and_integers(function: str, args: Sequence[Expr]) -> Expr:
    return folded(Call(function, (construct.text(function, args[0]), *_integers(function, args[1:])), TEXT))


def _lengthening(function: str, args: Sequence[Expr]) -> Expr:
    """The count must be seen in the SQL: a row must not ask for any amount of memory."""
    text, count, *fill = args
    if not (isinstance(count, Literal) and isinstance(count.value, int) and count.value <= MOST_REPEATED):
        what = f"the second argument of {function} must be an integer constant up to {MOST_REPEATED}"
        raise TypeMismatchError(what)
    texts = [construct.text(function, arg) for arg in (text, *fill)]
    return folded(Call(function, (texts[0], count, *texts[1:]), TEXT))


def _split_part(function: str, args: Sequence[Expr]) -> Expr:
    texts = [construct.text(function, arg) for arg in args[:2]]
    return folded(Call(function, (*texts, *_integers(function, args[2:])), TEXT))


def _joined(function: str, args: Sequence[Expr]) -> Expr:
    return folded(Call(function, tuple(_written(function, arg) for arg in args), TEXT))


def _written(function: str, arg: Expr) -> Expr:
    """As concat writes an argument: a truth value is t or f, unlike in a cast."""
    if arg.type != BOOLEAN:
        return construct.as_text(function, arg)
    yes, no = Literal("t", TEXT), Literal("f", TEXT)
    return construct.case([(arg, yes), (construct.negation(arg), no)], Literal(None, TEXT))


# ---- choices


def _chosen(function: str, args: Sequence[Expr]) -> Expr:
    alike, of = construct.unified(f"the arguments of {function}", args)
    return folded(Call(function, tuple(alike), of))


def _nullif(function: str, args: Sequence[Expr]) -> Expr:
    return construct.nullif(args[0], args[1])


# ---- days and moments


def _field(function: str, arg: Expr, known: Sequence[str]) -> Literal:
    """The constant that names a part of a moment."""
    name = arg.value.lower() if isinstance(arg, Literal) and isinstance(arg.value, str) else None
    if name not in known:
        said = f"'{name}'" if name else "anything but a constant"
        raise TypeMismatchError(f"{function} does not take {said} as its field", f"there is {', '.join(known)}")
    return Literal(name, TEXT)


def _moment(function: str, arg: Expr) -> Expr:
    if arg == construct.NULL:
        return Literal(None, TIMESTAMP)
    if arg.type.kind not in (Kind.DATE, Kind.TIMESTAMP):
        what = f"{function} wants a date or timestamp, not {article(arg.type)} value"
        raise TypeMismatchError(what, "cast it: CAST(… AS TIMESTAMP)")
    return arg


def _extract(function: str, args: Sequence[Expr]) -> Expr:
    at = _moment(function, args[1])
    known = [field for field in time_functions.FIELDS if at.type != DATE or field in time_functions.OF_DAYS]
    field = _field(function, args[0], known)
    return folded(Call(function, (field, at), time_functions.part_type(field.value, at.type == DATE)))


def _date_part(function: str, args: Sequence[Expr]) -> Expr:
    field = _field(function, args[0], time_functions.FIELDS)
    return folded(Call(function, (field, _moment(function, args[1])), FLOAT))


def _date_trunc(function: str, args: Sequence[Expr]) -> Expr:
    field = _field(function, args[0], list(time_functions.TRUNCATIONS))
    return folded(Call(function, (field, construct.cast(_moment(function, args[1]), TIMESTAMP)), TIMESTAMP))


def _make_date(function: str, args: Sequence[Expr]) -> Expr:
    return folded(Call(function, tuple(_integers(function, args)), DATE))


def _to_char(function: str, args: Sequence[Expr]) -> Expr:
    if args[0].type.kind in construct.NUMBERS:
        remedy = "cast it: CAST(… AS TEXT), and lpad or replace for its form"
        raise TypeMismatchError("to_char writes dates and timestamps, not numbers", remedy)
    at, form = construct.cast(_moment(function, args[0]), TIMESTAMP), args[1]
    if not (isinstance(form, Literal) and isinstance(form.value, str)):
        raise TypeMismatchError("the format of to_char must be a constant")
    try:
        time_functions.format_parts(form.value)
    except ValueError as unknown:
        known = ", ".join(dict.fromkeys(p for p in time_functions.PATTERNS if p.upper() == p))
        remedy = f'there is {known}; put other letters and digits in double quotes, as in HH24"h"'
        raise TypeMismatchError(f"to_char does not take '{unknown}' here", remedy) from None
    return folded(Call(function, (at, form), TEXT))


Build = Callable[[str, Sequence[Expr]], Expr]

FUNCTIONS: dict[str, tuple[int, int, Build]] = {
    "abs": (1, 1, _number),
    "ascii": (1, 1, _texts(INTEGER)),
    "bit_length": (1, 1, _of_bytes),
    "ceil": (1, 1, _rounding),
    "coalesce": (1, _MANY, _chosen),
    "concat": (1, _MANY, _joined),
    "concat_ws": (2, _MANY, _joined),
    "date_part": (2, 2, _date_part),
    "date_trunc": (2, 2, _date_trunc),
    "extract": (2, 2, _extract),
    "floor": (1, 1, _rounding),
    "greatest": (1, _MANY, _chosen),
    "least": (1, _MANY, _chosen),
    "left": (2, 2, _text_and_integers),
    "length": (1, 1, _of_bytes),
    "lower": (1, 1, _texts(TEXT)),
    "lpad": (2, 3, _lengthening),
    "ltrim": (1, 2, _texts(TEXT)),
    "make_date": (3, 3, _make_date),
    "md5": (1, 1, _texts(TEXT)),
    "mod": (2, 2, _modulo),
    "nullif": (2, 2, _nullif),
    "octet_length": (1, 1, _of_bytes),
    "repeat": (2, 2, _lengthening),
    "replace": (3, 3, _texts(TEXT)),
    "reverse": (1, 1, _texts(TEXT)),
    "right": (2, 2, _text_and_integers),
    "round": (1, 2, _rounding),
    "rpad": (2, 3, _lengthening),
    "rtrim": (1, 2, _texts(TEXT)),
    "sign": (1, 1, _sign),
    "split_part": (3, 3, _split_part),
    "sqrt": (1, 1, _square_root),
    "starts_with": (2, 2, _texts(BOOLEAN)),
    "strpos": (2, 2, _texts(INTEGER)),
    "substr": (2, 3, _text_and_integers),
    "to_char": (2, 2, _to_char),
    "translate": (3, 3, _texts(TEXT)),
    "trim": (1, 2, _texts(TEXT)),
    "trunc": (1, 2, _rounding),
    "upper": (1, 1, _texts(TEXT)),
}
"""Per function: the least and the most arguments, and how to build the call."""
