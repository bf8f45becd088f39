"""Expressions as SQL that reads back as the same expression: for people, and for a view's canonical text."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from viewkeeper.algebra.casts import EXACT, cast, numeric_text
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
from viewkeeper.algebra.types import FLOAT, TEXT, TIMESTAMP, Kind, Type, decimal

QUOTE = "'"
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_WORDS = (
    "all and any as asc between by case cast column create cross current_date current_time current_timestamp "
    "date default delete desc distinct drop else end escape except exists false fetch for from full group "
    "having if in inner insert intersect interval into is join key lateral left like limit natural not null "
    "offset on or order outer over partition primary right row rows select semi set some table then "
    "timestamp to true union unique update using values view when where window with"
)
_RESERVED = frozenset(_WORDS.split())

_MOST_DIGITS = 1_000

Name = Callable[[ColumnRef], str]


def render(expr: Expr, name: Name = lambda ref: identifier(ref.column)) -> str:
    """The expression as SQL, its columns called as ``name`` says."""
    if isinstance(expr, ColumnRef):
        return name(expr)
    if isinstance(expr, Literal):
        return _literal(expr.value, expr.type)
    parts = [render(child, name) for child in expr.children]
    return _RENDER[type(expr)](expr, parts)


def identifier(name: str) -> str:
    """The name, quoted where SQL needs it."""
    if _PLAIN_NAME.match(name) and name.lower() not in _RESERVED:
        return name
    return '"' + name.replace('"', '""') + '"'


def type_name(of: Type) -> str:
    return str(of).upper()


def literal_decimal(digits: str) -> tuple[Decimal, Type]:
    """What digits with a point or an exponent mean in SQL: a decimal with exactly these digits."""
    mantissa, _, exponent = digits.lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    shift = int(exponent or 0)
    scale = max(len(fraction) - shift, 0)
    precision = max(len((whole + fraction).lstrip("0")) + max(shift - len(fraction), 0), scale, 1)
    if precision > _MOST_DIGITS:
        return Decimal(0), decimal(precision, scale)
    return Decimal(digits).quantize(Decimal(1).scaleb(-scale), context=EXACT), decimal(precision, scale)


def _literal(value: Any, of: Type) -> str:
    match of.kind:
        case _ if value is None:
            return "NULL" if of.kind is Kind.UNKNOWN else f"CAST(NULL AS {type_name(of)})"
        case Kind.INTEGER:
            return str(value)
        case Kind.FLOAT:
            return _cast_text(value, of)
        case Kind.DECIMAL:
            return _decimal(value, of)
        case Kind.NUMERIC:
            return f"CAST('{numeric_text(value)}' AS NUMERIC)"
        case Kind.BOOLEAN:
            return "TRUE" if value else "FALSE"
        case Kind.DATE:
            return f"DATE '{value.isoformat()}'"
        case Kind.TIMESTAMP:
            return f"TIMESTAMP '{cast(value, TIMESTAMP, TEXT)}'"
        case Kind.BINARY:
            return f"X'{value.hex()}'"
        case _:
            return _quoted(value)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _cast_text(value: float, of: Type) -> str:
    return f"CAST({_quoted(cast(value, FLOAT, TEXT))} AS {type_name(of)})"


def _decimal(value: Decimal, of: Type) -> str:
    text = format(value, "f")
    if of.scale and literal_decimal(text.lstrip("-"))[1] == of:
        return text
    return f"CAST({text} AS {type_name(of)})"


def _cast_word(expr: Cast) -> str:
    read = expr.arg.type == TEXT and expr.type.kind in (Kind.DATE, Kind.TIMESTAMP)
    return "TRY_CAST" if read else "CAST"


def _case(expr: Case, parts: list[str]) -> str:
    count = len(expr.conditions)
    branches = zip(parts[:count], parts[count:-1], strict=True)
    return "CASE " + " ".join(f"WHEN {c} THEN {r}" for c, r in branches) + f" ELSE {parts[-1]} END"


def _call(expr: Call, parts: list[str]) -> str:
    if expr.function == "||":
        return f"({parts[0]} || {parts[1]})"
    if expr.function == "negate":
        return f"(-{parts[0]})"
    if expr.function == "extract":
        return f"EXTRACT({parts[0].strip(QUOTE).upper()} FROM {parts[1]})"
    if expr.function == "widened":
        return f"CAST({parts[0]} AS {type_name(expr.type)})"
    return f"{expr.function.upper()}({', '.join(parts)})"


def _like(expr: Like, parts: list[str]) -> str:
    escape = f" ESCAPE {_quoted(expr.escape or '')}" if expr.escape != "\\" else ""
    return f"({parts[0]} LIKE {parts[1]}{escape})"


_RENDER: dict[type[Expr], Callable[[Any, list[str]], str]] = {
    And: lambda expr, parts: f"({' AND '.join(parts)})",
    Or: lambda expr, parts: f"({' OR '.join(parts)})",
    Not: lambda expr, parts: f"(NOT {parts[0]})",
    IsNull: lambda expr, parts: f"({parts[0]} IS NULL)",
    Compare: lambda expr, parts: f"({parts[0]} {expr.op} {parts[1]})",
    InList: lambda expr, parts: f"({parts[0]} IN ({', '.join(parts[1:])}))",
    Like: _like,
    Arithmetic: lambda expr, parts: f"({parts[0]} {expr.op} {parts[1]})",
    Cast: lambda expr, parts: f"{_cast_word(expr)}({parts[0]} AS {type_name(expr.type)})",
    Case: _case,
    Call: _call,
}
