"""SQL expressions, as sqlglot parses them, into typed expressions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlglot import exp

from viewkeeper.algebra import construct, functions
from viewkeeper.algebra.construct import TypeMismatchError
from viewkeeper.algebra.decimal_types import DIGITS
from viewkeeper.algebra.expressions import Expr, Literal
from viewkeeper.algebra.render import literal_decimal
from viewkeeper.algebra.sql_functions import CALLS, OTHER_NAMES, Written
from viewkeeper.algebra.sql_natures import Natures, Operand
from viewkeeper.algebra.sql_problems import SqlProblems, nearest, shown
from viewkeeper.algebra.sql_scope import Scope
from viewkeeper.algebra.sql_types import sql_type
from viewkeeper.algebra.types import BINARY, BOOLEAN, INTEGER, TEXT, decimal

_NUMBER = re.compile(r"([0-9]+)(\.[0-9]*)?([eE][+-]?[0-9]+)?\Z")
_MOST_DIGITS = 19  # of an integer
_FUNCTIONS = ", ".join(sorted(functions.FUNCTIONS))
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
        understood = CALLS[type(node)].parts if type(node) in CALLS else _UNDERSTOOD
        if any(given for arg, given in node.args.items() if arg not in understood):
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

    @property
    def natures(self) -> Natures:
        return Natures(self.scope)

    def operands(self, nodes: Sequence[exp.Expression]) -> list[Operand] | None:
        """Every expression beside its node, or None if one was refused."""
        exprs = self.all(nodes)
        return list(zip(nodes, exprs, strict=True)) if exprs is not None else None

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
        close = nearest(name, functions.FUNCTIONS)
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
    def translate(to: Translator, node: exp.Expression) -> Expr | None:
        sides = to.operands([node.args["this"], node.args["expression"]])
        return to.natures.compare(op, *sides) if sides is not None else None

    return translate


def _calculated(op: Any) -> Translate:
    def translate(to: Translator, node: exp.Expression) -> Expr | None:
        exprs = to.all([node.args["this"], node.args["expression"]])
        return to.natures.calculated(op, *exprs) if exprs is not None else None

    return translate


def _concatenated(to: Translator, node: exp.DPipe) -> Expr | None:
    exprs = to.all([node.this, node.expression])
    return to.natures.concatenation(*exprs) if exprs is not None else None


def _called(written: Written) -> Translate:
    """Translates a call by what sqlglot makes of it."""

    def translate(to: Translator, node: exp.Expression) -> Expr | None:
        operands = to.operands(written.operands(node))
        return to.natures.call(written.function(node), operands) if operands is not None else None

    return translate


def _anonymous(to: Translator, node: exp.Anonymous) -> Expr | None:
    name = OTHER_NAMES.get(function_name(node), function_name(node))
    if name not in functions.FUNCTIONS:
        to.problems.add(node, *_refusal(node))
        return None
    operands = to.operands(node.expressions)
    return to.natures.call(name, operands) if operands is not None else None


def _literal(to: Translator, node: exp.Literal) -> Expr | None:
    if node.is_string:
        return Literal(node.this, TEXT)
    match = _NUMBER.match(node.this)
    if not match:
        to.problems.add(node, f"'{node.this}' is no number")
        return None
    whole, fraction, exponent = match.groups()
    if fraction is None and exponent is None and int(whole) < 2**63:
        return Literal(int(whole), INTEGER)
    value, of = literal_decimal(node.this)
    if of.precision > DIGITS:
        to.problems.add(node, f"{node.this} has more than {DIGITS} digits")
        return None
    return Literal(value, of)


def _negative(to: Translator, node: exp.Neg) -> Expr | None:
    """The least integer is an integer, though its digits alone are too many."""
    arg = to.translate(node.this)
    if arg == Literal(Decimal(2**63), decimal(_MOST_DIGITS, 0)):
        return Literal(-(2**63), INTEGER)
    if arg == Literal(-(2**63), INTEGER):
        return Literal(Decimal(2**63), decimal(_MOST_DIGITS, 0))
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
    operands = to.operands([node.this, *items])
    return to.natures.in_list(operands[0], operands[1:]) if operands is not None else None


def _between(to: Translator, node: exp.Between) -> Expr | None:
    build = to.natures.between_symmetric if node.args.get("symmetric") else to.natures.between
    operands = to.operands([node.this, node.args["low"], node.args["high"]])
    return build(*operands) if operands is not None else None


def _like(to: Translator, node: exp.Like, escape: str = "\\") -> Expr | None:
    exprs = to.all([node.this, node.expression])
    if exprs is None:
        return None
    like = to.natures.like(exprs, escape)
    return construct.negation(like) if node.args.get("negate") else like


def _escaped_like(to: Translator, node: exp.Escape) -> Expr | None:
    escape = node.expression
    if isinstance(node.this, exp.Like) and isinstance(escape, exp.Literal) and escape.is_string:
        return _like(to, node.this, escape.this)
    to.problems.add(node, f"ESCAPE wants a LIKE before it and a character after it ({shown(node)})")
    return None


def _case(to: Translator, node: exp.Case) -> Expr | None:
    ifs = node.args["ifs"]
    subject = to.operands([node.this]) if node.this else []
    tests = to.operands([branch.this for branch in ifs])
    results = to.operands([*(branch.args["true"] for branch in ifs), node.args.get("default") or exp.Null()])
    if subject is None or tests is None or results is None:
        return None
    conditions = [to.natures.compare("=", subject[0], test) if subject else test[1] for test in tests]
    *chosen, default = to.natures.chosen(results)
    return construct.case(list(zip(conditions, chosen, strict=True)), default)


def _cast(to: Translator, node: exp.Cast) -> Expr | None:
    arg, target = to.translate(node.this), sql_type(to.problems, node)
    if arg is None or target is None:
        return None
    value = to.natures.cast(arg, target, tried=isinstance(node, exp.TryCast))
    if isinstance(value, Literal) and value.value is None and isinstance(arg, Literal) and arg.value is not None:
        to.problems.add(node, f"{shown(node.this)} is no {target.type}")
        return None
    return value


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
    exp.DPipe: _concatenated,
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Like: _like,
    exp.Escape: _escaped_like,
    exp.Case: _case,
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.Anonymous: _anonymous,
    **{node: _called(written) for node, written in CALLS.items()},
}
