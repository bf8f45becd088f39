"""SQL expressions, as sqlglot parses them, into typed expressions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from viewkeeper.algebra import construct
from viewkeeper.algebra.construct import TypeMismatchError
from viewkeeper.algebra.expressions import Expr, Literal
from viewkeeper.algebra.render import literal_decimal
from viewkeeper.algebra.sql_problems import SqlProblems, nearest, shown
from viewkeeper.algebra.sql_scope import Scope
from viewkeeper.algebra.types import (
    BINARY,
    BOOLEAN,
    DATE,
    FLOAT,
    INTEGER,
    TEXT,
    TIMESTAMP,
    Type,
    decimal,
)

_NUMBER = re.compile(r"([0-9]+)(\.[0-9]*)?([eE][+-]?[0-9]+)?\Z")
_FUNCTIONS = ", ".join(sorted(construct.FUNCTIONS))
_CHANGING = frozenset(
    {
        "now",
        "uuid",
        "gen_random_uuid",
        "clock_timestamp",
        "statement_timestamp",
        "transaction_timestamp",
        "timeofday",
    }
    | {"random", "rand", "randomblob", "last_insert_rowid", "changes", "total_changes", "nextval", "getdate"}
    | {"sysdate", "localtime", "localtimestamp", "current_date", "current_time", "current_timestamp"}
    | {"current_datetime", "current_user", "session_user", "setseed", "newid"}
)
_UNDERSTOOD = frozenset(
    {"this", "expression", "expressions", "table", "db", "is_string", "low", "high", "symmetric", "negate", "ifs"}
    | {"default", "to", "start", "length", "decimals", "position", "query", "unnest", "field"}
    | {"typed", "safe"}  # how other dialects divide, cast and concatenate: here there is one way
)
"""The parts of sqlglot's nodes that are read below; a node with any other part is refused, never half understood."""

_TYPES: dict[exp.DataType.Type, Type] = {
    **dict.fromkeys((exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.MEDIUMINT), INTEGER),
    **dict.fromkeys((exp.DType.INT, exp.DType.BIGINT), INTEGER),
    **dict.fromkeys((exp.DType.FLOAT, exp.DType.DOUBLE), FLOAT),
    **dict.fromkeys((exp.DType.TEXT, exp.DType.VARCHAR, exp.DType.CHAR, exp.DType.NVARCHAR), TEXT),
    exp.DType.BOOLEAN: BOOLEAN,
    exp.DType.DATE: DATE,
    **dict.fromkeys((exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.DATETIME), TIMESTAMP),
    **dict.fromkeys((exp.DType.BINARY, exp.DType.VARBINARY, exp.DType.BLOB), BINARY),
}


@dataclass(frozen=True)
class Translator:
    """Translates expressions over the columns of ``scope``; what it cannot take goes to ``problems``."""

    scope: Scope
    problems: SqlProblems

    def translate(self, node: exp.Expression) -> Expr | None:
        """The expression, or None if something in it was refused (and noted)."""
        translator = _TRANSLATE.get(type(node))
        if translator is None:
            self.problems.add(node, *_refusal(node))
            return None
        if any(given for arg, given in node.args.items() if arg not in _UNDERSTOOD):
            self.problems.add(node, f"'{shown(node)}' is not supported in this form")
            return None
        try:
            return translator(self, node)
        except TypeMismatchError as mismatch:
            self.problems.add(node, f"{mismatch.what} ({shown(node)})", mismatch.remedy)
            return None

    def condition(self, node: exp.Expression) -> Expr | None:
        """The expression as a condition; one that is no truth value is refused."""
        expr = self.translate(node)
        try:
            return construct.truth(expr) if expr is not None else None
        except TypeMismatchError as mismatch:
            self.problems.add(node, f"{mismatch.what} ({shown(node)})", mismatch.remedy)
            return None

    def all(self, nodes: Sequence[exp.Expression]) -> list[Expr] | None:
        """Every expression, or None if one was refused; all of them are looked at."""
        found = [self.translate(node) for node in nodes]
        return None if any(expr is None for expr in found) else [expr for expr in found if expr is not None]


def _refusal(node: exp.Expression) -> tuple[str, str]:
    """Why the node is not taken, and what to do."""
    name = function_name(node)
    if isinstance(node, exp.Window):
        return f"window functions are not supported ({shown(node)})", ""
    if isinstance(node, exp.AggFunc):
        return (
            f"aggregates are not supported ({shown(node)})",
            "keep the rows in the view and aggregate when reading it",
        )
    if isinstance(node, exp.Query | exp.Subquery | exp.Exists | exp.SubqueryPredicate):
        return f"subqueries are not supported ({shown(node)})", "write a join"
    if name in _CHANGING:
        return f"{name} is not deterministic: a view may depend on rows only ({shown(node)})", ""
    if name:
        close = nearest(name, construct.FUNCTIONS)
        known = close if close.startswith("did") else f"there is {_FUNCTIONS}"
        return f"unknown function {name} ({shown(node)})", known
    return f"'{shown(node)}' is not supported", ""


def function_name(node: exp.Expression) -> str:
    """The SQL name of a function call, in lower case; empty for anything else."""
    if isinstance(node, exp.Anonymous):
        return str(node.this).lower()
    if isinstance(node, exp.Func) and not isinstance(node, exp.Connector | exp.Binary):
        return {"rand": "random"}.get(node.sql_name().lower(), node.sql_name().lower())
    return ""


Translate = Callable[[Translator, Any], Expr | None]


def _built(build: Callable[..., Expr], *operands: str) -> Translate:
    """Translates a node by building from the operands it keeps under these names."""

    def translate(to: Translator, node: exp.Expression) -> Expr | None:
        exprs = to.all([node.args[operand] for operand in operands])
        return build(*exprs) if exprs is not None else None

    return translate


def _compared(op: Any) -> Translate:
    return _built(lambda left, right: construct.compare(op, left, right), "this", "expression")


def _calculated(op: Any) -> Translate:
    return _built(lambda left, right: construct.arithmetic(op, left, right), "this", "expression")


def _called(function: str, *operands: str, many: str = "") -> Translate:
    """Translates a call whose arguments sqlglot keeps under these names (and in the list ``many``)."""

    def translate(to: Translator, node: exp.Expression) -> Expr | None:
        nodes = [node.args[operand] for operand in operands if node.args.get(operand) is not None]
        exprs = to.all([*nodes, *(node.args.get(many) or [])])
        return construct.call(function, exprs) if exprs is not None else None

    return translate


def _literal(to: Translator, node: exp.Literal) -> Expr | None:
    if node.is_string:
        return Literal(node.this, TEXT)
    match = _NUMBER.match(node.this)
    if not match:
        to.problems.add(node, f"'{node.this}' is no number")
        return None
    whole, fraction, exponent = match.groups()
    if exponent:
        return Literal(float(node.this), FLOAT)
    if fraction is None and int(whole) < 2**63:
        return Literal(int(whole), INTEGER)
    value, of = literal_decimal(node.this)
    if of.precision > construct.DIGITS:
        to.problems.add(node, f"{node.this} has more than {construct.DIGITS} digits")
        return None
    return Literal(value, of)


def _negative(to: Translator, node: exp.Neg) -> Expr | None:
    if isinstance(node.this, exp.Literal) and node.this.this == str(2**63):
        return Literal(-(2**63), INTEGER)
    arg = to.translate(node.this)
    return construct.negative(arg) if arg is not None else None


def _binary(to: Translator, node: exp.HexString) -> Expr | None:
    try:
        return Literal(bytes.fromhex(node.this), BINARY)
    except ValueError:
        to.problems.add(node, f"X'{node.this}' is no binary value", "write two hexadecimal digits per byte")
        return None


def _is(to: Translator, node: exp.Is) -> Expr | None:
    arg = to.translate(node.this)
    if arg is None:
        return None
    if isinstance(node.expression, exp.Null):
        return construct.is_null(arg)
    if isinstance(node.expression, exp.Boolean):
        return construct.compare("IS NOT DISTINCT FROM", arg, Literal(bool(node.expression.this), BOOLEAN))
    to.problems.add(node, f"'{shown(node)}' is not supported")
    return None


def _in(to: Translator, node: exp.In) -> Expr | None:
    items = node.args.get("expressions")
    if not items:
        to.problems.add(node, f"IN wants a list of values ({shown(node)})", "write a join instead of a subquery")
        return None
    exprs = to.all([node.this, *items])
    return construct.in_list(exprs[0], exprs[1:]) if exprs is not None else None


def _between(to: Translator, node: exp.Between) -> Expr | None:
    if node.args.get("symmetric"):
        to.problems.add(node, "BETWEEN SYMMETRIC is not supported")
        return None
    exprs = to.all([node.this, node.args["low"], node.args["high"]])
    return construct.between(*exprs) if exprs is not None else None


def _like(to: Translator, node: exp.Like, escape: str | None = None) -> Expr | None:
    exprs = to.all([node.this, node.expression])
    if exprs is None:
        return None
    like = construct.like(exprs[0], exprs[1], escape)
    return construct.negation(like) if node.args.get("negate") else like


def _escaped_like(to: Translator, node: exp.Escape) -> Expr | None:
    escape = node.expression
    if isinstance(node.this, exp.Like) and isinstance(escape, exp.Literal) and escape.is_string:
        return _like(to, node.this, escape.this)
    to.problems.add(node, f"ESCAPE wants a LIKE before it and a character after it ({shown(node)})")
    return None


def _case(to: Translator, node: exp.Case) -> Expr | None:
    ifs = node.args["ifs"]
    subject = to.all([node.this]) if node.this else []
    tests = to.all([branch.this for branch in ifs])
    results = to.all([branch.args["true"] for branch in ifs])
    default = to.all([node.args["default"]]) if node.args.get("default") else [construct.NULL]
    if subject is None or tests is None or results is None or default is None:
        return None
    conditions = [construct.compare("=", subject[0], test) for test in tests] if subject else tests
    return construct.case(list(zip(conditions, results, strict=True)), default[0])


def _cast(to: Translator, node: exp.Cast) -> Expr | None:
    arg, target = to.translate(node.this), _type(to, node.args["to"])
    if arg is None or target is None:
        return None
    value = construct.cast(arg, target)
    if isinstance(value, Literal) and value.value is None and isinstance(arg, Literal) and arg.value is not None:
        to.problems.add(node, f"{shown(node.this)} is no {target}")
        return None
    return value


def _type(to: Translator, node: exp.DataType) -> Type | None:
    parameters = [str(p.this) for p in node.expressions]
    if node.this == exp.DType.DECIMAL:
        return _decimal_type(to, node, parameters)
    known = _TYPES.get(node.this)
    if known is None:
        names = "INTEGER, FLOAT, DECIMAL(p, s), TEXT, BOOLEAN, DATE, TIMESTAMP, BINARY"
        to.problems.add(node, f"unknown type {node.sql()}", f"there is {names}")
    elif parameters and known == TEXT:
        to.problems.add(node, f"{node.sql()}: a text has no length limit here", "write TEXT, and substr to cut it")
    else:
        return known
    return None


def _decimal_type(to: Translator, node: exp.DataType, parameters: list[str]) -> Type | None:
    if not parameters or not all(p.isdigit() for p in parameters):
        to.problems.add(node, "DECIMAL needs its digits", "write DECIMAL(precision, scale)")
        return None
    precision, scale = int(parameters[0]), int(parameters[1]) if len(parameters) > 1 else 0
    if not (1 <= precision <= construct.DIGITS and scale <= precision):
        to.problems.add(node, f"{node.sql()} has no room", f"at most {construct.DIGITS} digits, scale within them")
        return None
    return decimal(precision, scale)


def _trim(to: Translator, node: exp.Trim) -> Expr | None:
    characters = node.expression
    if characters is not None and not (isinstance(characters, exp.Literal) and characters.this == " "):
        to.problems.add(node, f"trim takes spaces only ({shown(node)})")
        return None
    function = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(node.args.get("position") or "", "trim")
    arg = to.translate(node.this)
    return construct.call(function, [arg]) if arg is not None else None


def _connected(build: Callable[[list[Expr]], Expr]) -> Translate:
    def translate(to: Translator, node: exp.Connector) -> Expr | None:
        exprs = to.all(list(node.flatten()))
        return build(exprs) if exprs is not None else None

    return translate


_TRANSLATE: dict[type[exp.Expression], Translate] = {
    exp.Column: lambda to, node: to.scope.resolve(node),
    exp.Paren: lambda to, node: to.translate(node.this),
    exp.Literal: _literal,
    exp.Boolean: lambda to, node: Literal(bool(node.this), BOOLEAN),
    exp.Null: lambda to, node: construct.NULL,
    exp.HexString: _binary,
    exp.Neg: _negative,
    exp.And: _connected(construct.conjunction),
    exp.Or: _connected(construct.disjunction),
    exp.Not: _built(construct.negation, "this"),
    exp.EQ: _compared("="),
    exp.NEQ: _compared("<>"),
    exp.LT: _compared("<"),
    exp.LTE: _compared("<="),
    exp.GT: _compared(">"),
    exp.GTE: _compared(">="),
    exp.NullSafeEQ: _compared("IS NOT DISTINCT FROM"),
    exp.NullSafeNEQ: _compared("IS DISTINCT FROM"),
    exp.Add: _calculated("+"),
    exp.Sub: _calculated("-"),
    exp.Mul: _calculated("*"),
    exp.Div: _calculated("/"),
    exp.Mod: _calculated("%"),
    exp.DPipe: _built(construct.concatenation, "this", "expression"),
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Like: _like,
    exp.Escape: _escaped_like,
    exp.Case: _case,
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Abs: _called("abs", "this"),
    exp.Coalesce: _called("coalesce", "this", many="expressions"),
    exp.Concat: _called("concat", many="expressions"),
    exp.Length: _called("length", "this"),
    exp.Lower: _called("lower", "this"),
    exp.Upper: _called("upper", "this"),
    exp.Nullif: _called("nullif", "this", "expression"),
    exp.Round: _called("round", "this", "decimals"),
    exp.Substring: _called("substr", "this", "start", "length"),
    exp.Trim: _trim,
}
