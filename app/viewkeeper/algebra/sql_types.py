"""The types that a view's SQL may cast to, with their limits, as PostgreSQL means them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from viewkeeper.algebra import construct, functions
from viewkeeper.algebra.construct import TypeMismatchError
from viewkeeper.algebra.decimal_types import DIGITS
from viewkeeper.algebra.expressions import Expr, Literal
from viewkeeper.algebra.sql_problems import SqlProblems
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

_TYPES: dict[exp.DataType.Type, Type] = {
    **dict.fromkeys((exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.MEDIUMINT), INTEGER),
    **dict.fromkeys((exp.DType.INT, exp.DType.BIGINT), INTEGER),
    **dict.fromkeys((exp.DType.FLOAT, exp.DType.DOUBLE), FLOAT),
    **dict.fromkeys((exp.DType.TEXT, exp.DType.VARCHAR, exp.DType.NVARCHAR), TEXT),
    exp.DType.BOOLEAN: BOOLEAN,
    exp.DType.DATE: DATE,
    **dict.fromkeys((exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.DATETIME), TIMESTAMP),
    **dict.fromkeys((exp.DType.BINARY, exp.DType.VARBINARY, exp.DType.BLOB), BINARY),
}
_NAMES = "INTEGER, FLOAT, DECIMAL(p, s), TEXT, VARCHAR(n), BOOLEAN, DATE, TIMESTAMP, TIMESTAMPTZ, BINARY"
_WIDE_FLOATS = range(25, 54)  # binary digits: fewer are a REAL
_MICROSECONDS = 6


@dataclass(frozen=True)
class Target:
    """What a cast goes to: ``letters`` limits a text, ``zoned`` is a timestamp whose text may name a time zone."""

    type: Type
    letters: int | None = None
    zoned: bool = False


def cast_to(arg: Expr, target: Target, tried: bool = False) -> Expr:
    """``CAST(arg AS target)``; ``tried`` as TRY_CAST, which PostgreSQL does not have."""
    if arg.type == TEXT and target.type.kind in (Kind.DATE, Kind.TIMESTAMP) and not tried:
        _refuse_time(arg, target)
    value = construct.cast(arg, target.type)
    if target.letters is None:
        return value
    return functions.call("substr", [value, Literal(1, INTEGER), Literal(target.letters, INTEGER)])


def _refuse_time(text: Expr, target: Target) -> None:
    """Which texts PostgreSQL reads as a date or timestamp depends on its settings; ISO 8601 is certain."""
    if not isinstance(text, Literal):
        what = f"PostgreSQL reads more texts as a {target.type} than there is a rule for here"
        raise TypeMismatchError(what, f"write TRY_CAST(… AS {str(target.type).upper()}): ISO 8601, or NULL")
    if not target.zoned:
        construct.refuse_zone(text.value, target.type)


def sql_type(problems: SqlProblems, node: exp.Cast) -> Target | None:
    """The type that a cast names; None if it was refused (and noted)."""
    to: exp.DataType = node.args["to"]
    parameters = [str(p.this) for p in to.expressions]
    what, remedy = "", ""
    if to.this == exp.DType.DECIMAL:
        of = _decimal_type(problems, node, parameters)
        return Target(of) if of else None
    if to.this in (exp.DType.CHAR, exp.DType.NCHAR, exp.DType.BPCHAR):
        what, remedy = f"{to.sql()} has blanks that are there and do not count", "write TEXT, or VARCHAR(n) to cut it"
    elif to.this not in _TYPES:
        written = to.args.get("kind") or to.sql()
        what, remedy = f"unknown type {written}", f"there is {_NAMES}"
    elif parameters and not _holds_all(to.this, parameters):
        what, remedy = f"{to.sql()} is not supported", "write it without the limit"
    if what:
        problems.add(node, what, remedy)
        return None
    cut = int(parameters[0]) if parameters and _TYPES[to.this] == TEXT else None
    return Target(_TYPES[to.this], cut, to.this == exp.DType.TIMESTAMPTZ)


def _holds_all(of: exp.DataType.Type, parameters: list[str]) -> bool:
    """Is the limit one that is kept, or none at all?"""
    if len(parameters) != 1 or not parameters[0].isdigit():
        return False
    limit = int(parameters[0])
    if of == exp.DType.VARCHAR:
        return limit > 0
    if of in (exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ):
        return limit == _MICROSECONDS
    return of == exp.DType.FLOAT and limit in _WIDE_FLOATS


def _decimal_type(problems: SqlProblems, node: exp.Cast, parameters: list[str]) -> Type | None:
    if not parameters:
        return NUMERIC
    if not all(p.isdigit() for p in parameters):
        problems.add(node, f"{node.args['to'].sql()} is no type", "write DECIMAL(precision, scale)")
        return None
    precision, scale = int(parameters[0]), int(parameters[1]) if len(parameters) > 1 else 0
    if not (1 <= precision <= DIGITS and scale <= precision):
        named = node.args["to"].sql()
        problems.add(node, f"{named} has no room", f"at most {DIGITS} digits, scale within them")
        return None
    return decimal(precision, scale)
