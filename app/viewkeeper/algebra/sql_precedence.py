"""What binds tighter: PostgreSQL's table of operators, held against the tree that sqlglot made.

sqlglot reads some texts in another way than PostgreSQL: ``p IS NULL = q`` at all, ``a = b < c`` as ``a = (b < c)``. A
tree in which every operand that is not in parentheses binds tighter than the operator it belongs to is the one
PostgreSQL makes; any other is refused, and parentheses settle it. (On the left of an operator of the same rank nothing
needs to be said where PostgreSQL goes from left to right.)
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp, parser, tokens

from viewkeeper.algebra.sql_problems import SqlProblems, shown

WRITTEN = "written"
"""Marks parentheses that are in the text."""

_RANKS: tuple[tuple[type[exp.Expression], ...], ...] = (
    (exp.Or,),
    (exp.And,),
    (exp.Not,),
    (exp.Is, exp.NullSafeEQ, exp.NullSafeNEQ),
    (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE),
    (exp.Between, exp.In, exp.Like, exp.ILike, exp.SimilarTo, exp.Escape),
    (exp.DPipe,),
    (exp.Add, exp.Sub),
    (exp.Mul, exp.Div, exp.Mod),
    (exp.Neg,),
)
"""From the loosest to the tightest; what is in none of them is closed on both sides."""

_RANK = {kind: rank for rank, kinds in enumerate(_RANKS) for kind in kinds}
_CHAINS = (exp.Or, exp.And)  # a OR (b OR c) is (a OR b) OR c
_FROM_LEFT_TO_RIGHT = (exp.DPipe, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod)
_PREFIXES = (exp.Not, exp.Neg)
_OPERANDS = ("this", "expression", "low", "high")


def check_precedence(statement: exp.Expression, problems: SqlProblems) -> None:
    """Notes every operand that PostgreSQL would give to another operator."""
    for node in statement.walk():
        rank = _RANK.get(type(node))
        if rank is None:
            continue
        for operand in _operands(node):
            if not _is_settled(node, rank, operand):
                what = f"'{shown(_bare(operand))}' without parentheses in '{shown(node)}' is not read so by PostgreSQL"
                problems.add(node, what, "put parentheses around what belongs together")


def _operands(node: exp.Expression) -> Iterator[exp.Expression]:
    if isinstance(node, exp.Escape):  # part of the LIKE before it
        return
    for name in _OPERANDS:
        operand = node.args.get(name)
        if isinstance(operand, exp.Expression):
            yield operand


def _bare(operand: exp.Expression) -> exp.Expression:
    """The operand without parentheses that only sqlglot has put around it."""
    while isinstance(operand, exp.Paren) and not operand.meta.get(WRITTEN):
        operand = operand.this
    return operand


def _is_settled(node: exp.Expression, rank: int, operand: exp.Expression) -> bool:
    inner = _RANK.get(type(_bare(operand)), len(_RANKS))
    if inner != rank:
        return inner > rank
    if isinstance(node, _CHAINS + _PREFIXES):
        return True
    return isinstance(node, _FROM_LEFT_TO_RIGHT) and operand is node.args["this"]


_PREFIXED = {
    "e": "an E'…' string",
    "b": "a bit string",
    "u": "a U&'…' string",
    "n": "an N'…' string",
    "r": "an R'…' string",
}


def check_tokens(found: list[tokens.Token], text: str, problems: SqlProblems) -> None:
    """Notes constants that PostgreSQL reads in another way than sqlglot."""
    for index, token in enumerate(found):
        before = found[index - 1] if index else None
        after = found[index + 1] if index + 1 < len(found) else None
        if said := _misread(before, token, after, text) or _signed(found, index) or _matched(found, index):
            line, column = text.count("\n", 0, token.start) + 1, token.start - text.rfind("\n", 0, token.start)
            problems.add_at(line, column, *said)


def _misread(
    before: tokens.Token | None, token: tokens.Token, after: tokens.Token | None, text: str
) -> tuple[str, str] | None:
    """What is wrong with a token among its neighbours, and the remedy."""
    written = text[token.start : token.end + 1]
    adjacent = after is not None and after.start == token.end + 1
    if token.token_type is tokens.TokenType.NUMBER and after and adjacent and after.token_type in _NAMES:
        return f"'{written}{after.text}' is no number", "put a space behind the number, or write it in decimal digits"
    if token.token_type is tokens.TokenType.HEX_STRING and written.startswith("0"):
        return f"'{written}' is not supported", "write the number in decimal digits"
    if token.token_type is tokens.TokenType.VAR and after and adjacent and after.token_type is tokens.TokenType.STRING:
        return (
            f"{_PREFIXED.get(written.lower(), f'a {written} string')} is not supported",
            "write the text itself in '…'",
        )
    cast = after is not None and after.token_type is tokens.TokenType.DCOLON
    if token.token_type is tokens.TokenType.STRING and before and cast and _is_type(before):
        return f"what is cast in '{before.text} {written}::' is not certain", "put parentheses around the constant"
    return None


_NAMES = (tokens.TokenType.VAR, tokens.TokenType.IDENTIFIER)
_UNTYPED = (tokens.TokenType.STRING, tokens.TokenType.NULL)
_ENDS = {
    *_NAMES,
    *_UNTYPED,
    *parser.Parser.TYPE_TOKENS,
    tokens.TokenType.NUMBER,
    tokens.TokenType.HEX_STRING,
    tokens.TokenType.TRUE,
    tokens.TokenType.FALSE,
    tokens.TokenType.END,
    tokens.TokenType.R_PAREN,
}
"""What an operand may end with: a + after it adds, any other is a sign."""


def _signed(found: list[tokens.Token], index: int) -> tuple[str, str] | None:
    """A plus sign that sqlglot passes over: it makes a double of a constant without a type."""
    if found[index].token_type is not tokens.TokenType.PLUS or (index and found[index - 1].token_type in _ENDS):
        return None
    inside = (tokens.TokenType.L_PAREN, tokens.TokenType.PLUS)
    of, *then = [token.token_type for token in found[index + 1 :] if token.token_type not in inside] or [None]
    if of not in _UNTYPED or then[:1] == [tokens.TokenType.DCOLON]:
        return None
    return "a plus sign before a constant without a type is not supported", "leave it out, or write CAST(… AS …)"


_SYMBOLS = ("~~", "~~*")
_ENDINGS = (
    "COMMA",
    "AND",
    "OR",
    "EQ",
    "NEQ",
    "LT",
    "LTE",
    "GT",
    "GTE",
    "IS",
    "THEN",
    "ELSE",
    "END",
    "ALIAS",
    "FROM",
    "ON",
)
"""What ends the right operand of a LIKE."""


def _matched(found: list[tokens.Token], index: int) -> tuple[str, str] | None:
    """A LIKE written as an operator binds like ||, from left to right; sqlglot takes it for the word."""
    if found[index].text not in _SYMBOLS or found[index].token_type is tokens.TokenType.STRING:
        return None
    depth = 0
    for token in found[index + 1 :]:
        depth += (token.token_type is tokens.TokenType.L_PAREN) - (token.token_type is tokens.TokenType.R_PAREN)
        if depth < 0 or (depth == 0 and token.token_type.name in _ENDINGS):
            return None
        if depth == 0 and token.token_type is tokens.TokenType.DPIPE:
            what = f"'||' behind '{found[index].text}' without parentheses is not read so by PostgreSQL"
            return what, "put parentheses around what belongs together"
    return None


def _is_type(token: tokens.Token) -> bool:
    """Whether a type ends with the token: DATE '…', DOUBLE PRECISION '…', NUMERIC(5, 2) '…'."""
    ends = token.token_type is tokens.TokenType.R_PAREN or token.text.upper() in ("ZONE", "PRECISION")
    return ends or token.token_type in parser.Parser.TYPE_TOKENS
