"""Columns that are text or a float here and something more in PostgreSQL: citext, uuid, char(n), enumerations, json,
arrays, real.

A view shows them as they are. Where they are compared, calculated with or cast, either the meaning is PostgreSQL's or
it is refused: citext knows no case, an enumeration has the order of its declaration, equal json may be different texts,
an array has another text, and a real beside another number is the double of its 32 bits. CAST(… AS TEXT) makes a plain
text of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from viewkeeper.algebra import construct, functions
from viewkeeper.algebra.construct import TypeMismatchError
from viewkeeper.algebra.expressions import ArithmeticOp, Call, Case, Cast, ColumnRef, CompareOp, Expr, Literal
from viewkeeper.algebra.sql_scope import Scope
from viewkeeper.algebra.sql_types import Target, cast_to
from viewkeeper.algebra.types import FLOAT, TEXT

CITEXT, UUID, CHAR, ENUM, REAL, ARRAY = "citext", "uuid", "bpchar", "enum", "float4", "array"
_JSON = ("json", "jsonb")
_SPECIAL = frozenset({CITEXT, UUID, CHAR, ENUM, REAL, *_JSON})
_UUID = re.compile(r"(\{?)((?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4})(\}?)\Z")
_EQUALITIES = ("=", "<>", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")
_CASELESS = frozenset({"lower", "upper", "length", "substr", "trim", "ltrim", "rtrim", "concat"})
"""Functions that take a citext for the text it is; of others there are some that do not heed case."""
_PADDED = frozenset({"concat", "concat_ws", "format", "octet_length"})
"""Functions that see the blanks at the end of a char(n)."""
_CHOOSING = frozenset({"coalesce", "greatest", "least"})
_TO_TEXT = "cast it: CAST(… AS TEXT)"
_TO_DOUBLE = "cast it: CAST(… AS DOUBLE PRECISION)"

Operand = tuple[exp.Expression, Expr]
"""An operand as it is written, and what it means."""


@dataclass(frozen=True)
class Natures:
    """What the expressions over a scope's columns are in PostgreSQL, where that is more than their type here."""

    scope: Scope

    def of(self, expr: Expr) -> str:
        """The nature of an expression; empty where there is none."""
        match expr:
            case ColumnRef():
                return self._declared(expr)
            case Case():
                return self._common((*expr.results, expr.default))
            case Call(function="negate" | "abs"):
                return self.of(expr.args[0])
            case Call() if expr.function in _CHOOSING:
                return self._common(expr.args)
        return ""

    def _declared(self, ref: ColumnRef) -> str:
        column = self.scope.occurrences[ref.occurrence].relation.column(ref.column)
        declared = column.declared if column else ""
        return ARRAY if declared.startswith("_") else declared if declared in _SPECIAL else ""

    def _common(self, exprs: Iterable[Expr]) -> str:
        found = {self.of(expr) for expr in exprs if not isinstance(expr, Literal)}
        return found.pop() if len(found) == 1 else ""

    def plainly(self, called: Callable[[ColumnRef], str], occurrence: int, column: str) -> str:
        """A column that is joined by its text, as SQL: cast where PostgreSQL would not join it so by itself."""
        ref = ColumnRef(occurrence, column, TEXT)
        return f"CAST({called(ref)} AS TEXT)" if self.of(ref) in (CITEXT, *_JSON) else called(ref)

    # ---- comparing

    def pair(self, op: str, left: Operand, right: Operand) -> tuple[Expr, Expr]:
        """Two operands as they are to be compared; raises ``TypeMismatchError`` where that has another meaning."""
        natures = {self.of(left[1]), self.of(right[1])} - {""}
        if not natures:
            return left[1], right[1]
        if len(natures) > 1:
            raise TypeMismatchError(f"{' and '.join(sorted(map(_spoken, natures)))} cannot be compared", _TO_TEXT)
        (nature,) = natures
        self._refuse_order(nature, op)
        if nature == CITEXT and (_is_text(left) or _is_text(right) or self.of(left[1]) == self.of(right[1])):
            raise TypeMismatchError("citext would be compared by case here", "compare lower(…), or CAST(… AS TEXT)")
        return self._beside(nature, left), self._beside(nature, right)

    def _refuse_order(self, nature: str, op: str) -> None:
        if nature in _JSON or nature == ARRAY:
            raise TypeMismatchError(f"{_spoken(nature)} would be compared as text here", _text_remedy(nature))
        if nature == ENUM and op not in _EQUALITIES:
            what = "an enumeration is ordered as it is declared, which is not known here"
            raise TypeMismatchError(what, "cast it to order it as text: CAST(… AS TEXT)")

    def _beside(self, nature: str, operand: Operand) -> Expr:
        """An operand beside one of this nature."""
        expr = operand[1]
        if not _is_text(operand) or not isinstance(expr, Literal):
            return expr
        if nature == UUID:
            return Literal(_read_uuid(expr.value), TEXT)
        return Literal(expr.value.rstrip(" "), TEXT) if nature == CHAR else expr

    def compare(self, op: CompareOp, left: Operand, right: Operand) -> Expr:
        """``left op right``."""
        one, other = self.doubles(self.pair(op, left, right))
        return construct.compare(op, one, other)

    def in_list(self, value: Operand, items: Sequence[Operand]) -> Expr:
        pairs = [self.doubles(self.pair("=", value, item)) for item in items]
        if len({one for one, _ in pairs}) > 1:
            return construct.disjunction(construct.compare("=", one, other) for one, other in pairs)
        return construct.in_list(pairs[0][0], [other for _, other in pairs])

    def between(self, value: Operand, low: Operand, high: Operand) -> Expr:
        return construct.conjunction((self.compare(">=", value, low), self.compare("<=", value, high)))

    def between_symmetric(self, value: Operand, one: Operand, other: Operand) -> Expr:
        return construct.disjunction((self.between(value, one, other), self.between(value, other, one)))

    # ---- what else is made of them

    def doubles(self, exprs: Sequence[Expr]) -> list[Expr]:
        """The expressions as they stand beside each other: a real beside other numbers is a double."""
        natures = {self.of(expr) for expr in exprs if expr != construct.NULL}
        if REAL not in natures or natures == {REAL}:
            return list(exprs)
        return [self.double(expr) for expr in exprs]

    def double(self, expr: Expr) -> Expr:
        return Call("widened", (expr,), FLOAT) if self.of(expr) == REAL else expr

    def calculated(self, op: ArithmeticOp, left: Expr, right: Expr) -> Expr:
        """``left op right``."""
        if self.of(left) == self.of(right) == REAL:
            raise TypeMismatchError("two reals are calculated with in 32 bits, which is not done here", _TO_DOUBLE)
        return construct.arithmetic(op, *self.doubles([left, right]))

    def chosen(self, operands: Sequence[Operand]) -> list[Expr]:
        """The results of CASE or coalesce, of which each row has one."""
        nature = self._common(expr for _, expr in operands)
        if nature in _JSON and any(_is_text(operand) for operand in operands):
            raise TypeMismatchError(f"a constant beside {nature} would be kept as it is written", _TO_TEXT)
        known = [expr for _, expr in operands if expr != construct.NULL]
        if any(self.of(expr) == REAL for expr in known) and any(expr.type != FLOAT for expr in known):
            raise TypeMismatchError("a number instead of a real would become one, of 32 bits", _TO_DOUBLE)
        return self.doubles([self._beside(nature, operand) for operand in operands])

    def cast(self, expr: Expr, target: Target, tried: bool = False) -> Expr:
        """``CAST(expr AS target)``."""
        nature = self.of(expr)
        if nature == REAL:
            if target.type != FLOAT:
                raise TypeMismatchError(f"a real would become another {target.type} here", _TO_DOUBLE)
            return self.double(expr)
        if nature == ARRAY or (nature in _JSON and target.type != TEXT):
            raise TypeMismatchError(f"{_spoken(nature)} has another {target.type} here", _text_remedy(nature))
        # A cast that changes nothing here: from then on it is a text like others.
        return cast_to(Cast(expr, TEXT) if nature and target.type == TEXT else expr, target, tried)

    def like(self, exprs: Sequence[Expr], escape: str) -> Expr:
        for nature in map(self.of, exprs):
            if nature in (CITEXT, CHAR, ARRAY, *_JSON):
                raise TypeMismatchError(f"LIKE is another for {_spoken(nature)}", _text_remedy(nature))
        return construct.like(exprs[0], exprs[1], escape)

    def concatenation(self, left: Expr, right: Expr) -> Expr:
        self._refuse_texts("||", (left, right))
        return construct.concatenation(left, right)

    def call(self, function: str, operands: Sequence[Operand]) -> Expr:
        """A function of ``functions.FUNCTIONS``."""
        exprs = [expr for _, expr in operands]
        if function == "nullif" and len(exprs) == 2:
            one, other = self.doubles(self.pair("=", *operands))
            return construct.case([(construct.compare("=", one, other), Literal(None, exprs[0].type))], exprs[0])
        if function in _CHOOSING:
            for nature in map(self.of, exprs if function != "coalesce" else ()):
                self._refuse_order(nature, "<")
                if nature == CITEXT:
                    raise TypeMismatchError(f"{function} would order citext by case here", _TO_TEXT)
            return functions.call(function, self.chosen(operands))
        if function == "abs":
            return functions.call(function, exprs)
        self._refuse_texts(function, exprs)
        return functions.call(function, [self.double(expr) for expr in exprs])

    def _refuse_texts(self, function: str, exprs: Iterable[Expr]) -> None:
        for nature in map(self.of, exprs):
            padded = nature == CHAR and function in _PADDED
            caseless = nature == CITEXT and function not in (*_CASELESS, "||")
            real = nature == REAL and function in ("||", *_PADDED)
            if padded or caseless or real or nature == ARRAY or nature in _JSON:
                remedy = _TO_DOUBLE if real else _text_remedy(nature)
                raise TypeMismatchError(f"{function} is another for {_spoken(nature)}", remedy)


def _is_text(operand: Operand) -> bool:
    """Is it a text constant, which PostgreSQL reads as whatever stands beside it?"""
    node = operand[0]
    while isinstance(node, exp.Paren):
        node = node.this
    return isinstance(node, exp.Literal) and bool(node.is_string)


def _read_uuid(text: str) -> str:
    canonical = canonical_uuid(text)
    if canonical is None:
        raise TypeMismatchError(f"'{text}' is no uuid", "write its 32 hexadecimal digits")
    return canonical


def canonical_uuid(text: str) -> str | None:
    """The uuid as PostgreSQL writes it; None if it is none."""
    match = _UUID.match(text)
    if not match or bool(match[1]) != bool(match[3]):
        return None
    digits = match[2].replace("-", "").lower()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _spoken(nature: str) -> str:
    return {CHAR: "char(n)", ENUM: "an enumeration", ARRAY: "an array", REAL: "real"}.get(nature, nature)


def _text_remedy(nature: str) -> str:
    return "leave it to the reader of the view" if nature == ARRAY else _TO_TEXT
