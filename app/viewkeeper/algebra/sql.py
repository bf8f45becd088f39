"""A view's SQL into a ``View``: one SELECT over inner joins, bag semantics, no aggregates.

What is accepted: columns, expressions with names, ``*`` and ``t.*``; ``source.relation [AS] alias`` joined by
JOIN … ON, USING, CROSS JOIN or commas; WHERE. Everything else is refused, all of it at once, with its place.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

import sqlglot
from sqlglot import exp, parser, tokens
from sqlglot.errors import ParseError, SqlglotError

from viewkeeper.algebra import construct
from viewkeeper.algebra.expressions import ColumnRef, Compare, Expr, conjunction, conjuncts
from viewkeeper.algebra.render import identifier, render
from viewkeeper.algebra.sql_expressions import Translator
from viewkeeper.algebra.sql_natures import Natures
from viewkeeper.algebra.sql_precedence import WRITTEN, check_precedence, check_tokens
from viewkeeper.algebra.sql_problems import SqlProblems, shown
from viewkeeper.algebra.sql_scope import Named, Scope
from viewkeeper.algebra.sql_shape import Shape, components, shape
from viewkeeper.algebra.types import Catalog, Column, Kind
from viewkeeper.algebra.view import Occurrence, Output, View
from viewkeeper.errors import ViewError

# sqlglot warns in its log about statements it does not know; here a sentence of our own refuses them.
logging.getLogger("sqlglot").setLevel(logging.CRITICAL)

_CLAUSES = {
    "with_": ("WITH", "write the joins out, without CTEs"),
    "distinct": ("DISTINCT", "a view keeps how often each row occurs in _count"),
    "group": ("GROUP BY", "keep the rows in the view and aggregate when reading it"),
    "having": ("HAVING", "keep the rows in the view and aggregate when reading it"),
    "order": ("ORDER BY", "a view is a bag: order it when reading it"),
    "sort": ("SORT BY", "a view is a bag: order it when reading it"),
    "limit": ("LIMIT", "a view holds every row: limit it when reading it"),
    "offset": ("OFFSET", "a view holds every row: limit it when reading it"),
    "windows": ("WINDOW", ""),
    "qualify": ("QUALIFY", ""),
    "into": ("INTO", ""),
    "laterals": ("LATERAL", "write a join"),
    "sample": ("TABLESAMPLE", "the result would not be deterministic"),
    "locks": ("FOR UPDATE", ""),
}
_FORBIDDEN_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")


_OTHER_THERE = ("REAL", "FLOAT4", "BYTEA")
"""Types that sqlglot takes for others, which have another meaning in PostgreSQL."""


class _ViewSql(sqlglot.Dialect):
    """SQL as the standard has it, plus X'…' for binary values."""

    class Tokenizer(tokens.Tokenizer):
        HEX_STRINGS = [("x'", "'"), ("X'", "'")]  # noqa: RUF012  (sqlglot's own form)
        KEYWORDS = {k: v for k, v in tokens.Tokenizer.KEYWORDS.items() if k not in _OTHER_THERE}  # noqa: RUF012

    class Parser(parser.Parser):
        # sqlglot would take a column for the name of a field, and show another function in messages.
        FUNCTIONS = {n: f for n, f in parser.Parser.FUNCTIONS.items() if n not in ("DATE_TRUNC", "TO_CHAR")}  # noqa: RUF012
        IS_PREDICATE_PRECEDENCE = parser.IsPredicatePrecedence.LOW  # p = q IS NULL is (p = q) IS NULL

        def _parse_paren(self) -> exp.Expr | None:
            found = super()._parse_paren()
            if isinstance(found, exp.Paren):
                found.meta[WRITTEN] = True
            return found


def parse_view(name: str, sql: str, catalog: Catalog) -> View:
    """The view that ``sql`` defines over the catalog's relations; raises ``ViewError`` with every problem."""
    problems = SqlProblems(f"views.{name}.sql", sql)
    try:
        return _parsed(name, sql, catalog, problems)
    except RecursionError:
        raise ViewError.at(problems.place, "the statement is nested too deeply") from None


def tables_named(sql: str) -> set[tuple[str, str]]:
    """The relations that a statement names, as (source, relation) in its own writing; none if it cannot be read."""
    try:
        statements = [s for s in sqlglot.parse(sql, dialect=_ViewSql) if s is not None]
        return {(table.db, table.name) for s in statements for table in s.find_all(exp.Table) if table.db}
    except (SqlglotError, RecursionError):
        return set()


def _parsed(name: str, sql: str, catalog: Catalog, problems: SqlProblems) -> View:
    select = _statement(sql, problems)
    _refuse_clauses(select, problems)
    check_precedence(select, problems)
    scope = Scope(problems)
    translator = Translator(scope, problems)
    conditions = _from(select, catalog, translator)
    if select.args.get("where"):
        conditions.append(translator.condition(select.args["where"].this))
    outputs = _outputs(select, translator)
    problems.check()
    found = shape((c for c in conditions if c is not None), len(scope.occurrences))
    _check_connected(scope, found, problems)
    problems.check()
    return _view(name, scope, found, outputs)


def _statement(sql: str, problems: SqlProblems) -> exp.Select:
    """The one SELECT in the text."""
    statements: list[Any] = []
    try:
        check_tokens(_ViewSql().tokenize(sql), sql, problems)
        statements = [s for s in sqlglot.parse(sql, dialect=_ViewSql) if s is not None]
    except ParseError as error:
        first: dict[str, Any] = error.errors[0] if error.errors else {}
        near = str(first.get("highlight") or "")
        column = max(first.get("col", 1) - len(near) + 1, 1)
        if not problems.found:
            problems.add_at(first.get("line", 1), column, f"syntax error near '{near}'" if near else "syntax error")
    except SqlglotError:
        problems.add(None, "syntax error", "look for a quote or a comment that is not closed")
    problems.check()
    if len(statements) != 1:
        problems.add(None, f"one SELECT is wanted, not {len(statements)} statements")
    elif isinstance(statements[0], exp.SetOperation):
        problems.add(statements[0], f"{statements[0].key.upper()} is not supported", "make each SELECT a view")
    elif not isinstance(statements[0], exp.Select):
        problems.add(None, f"a view is a SELECT, not '{shown(statements[0])}'")
    problems.check()
    return statements[0]


def _refuse_clauses(select: exp.Select, problems: SqlProblems) -> None:
    for key, part in select.args.items():
        if not part or key in ("expressions", "from_", "joins", "where"):
            continue
        clause, remedy = _CLAUSES.get(key, (key.strip("_").upper(), ""))
        node = part[0] if isinstance(part, list) else part
        problems.add(node if isinstance(node, exp.Expression) else None, f"{clause} is not supported", remedy)
    if not select.args.get("from_"):
        problems.add(None, "FROM is missing", "name at least one source.relation")


def _from(select: exp.Select, catalog: Catalog, translator: Translator) -> list[Expr | None]:
    """Adds every relation of FROM to the scope; the conditions of its joins."""
    scope = translator.scope
    first = select.args.get("from_")
    joins: list[exp.Join] = select.args.get("joins") or []
    named = [_relation(table, catalog, scope) for table in ([first.this] if first else []) + [j.this for j in joins]]
    conditions: list[Expr | None] = []
    for join, joined in zip(joins, named[1:], strict=True):
        _refuse_join(join, scope.problems)
        if join.args.get("on"):
            conditions.append(translator.condition(join.args["on"]))
        if joined and join.args.get("using"):
            conditions += [_using(column, joined, scope) for column in join.args["using"]]
    return conditions


def _relation(table: exp.Expression, catalog: Catalog, scope: Scope) -> Named | None:
    extra = [k for k, v in table.args.items() if v and k not in ("this", "db", "catalog", "alias")]
    alias = table.args.get("alias")
    if isinstance(table, exp.Table) and isinstance(table.this, exp.Identifier) and not extra:
        if alias is not None and alias.columns:
            scope.problems.add(table, f"column names after an alias are not supported ({shown(table)})")
        return scope.add(table, catalog)
    scope.complete = False
    if isinstance(table, exp.Subquery | exp.Values):
        scope.problems.add(table, f"subqueries are not supported ({shown(table)})", "write a join")
    elif isinstance(table, exp.Lateral | exp.Unnest) or not isinstance(table, exp.Table):
        scope.problems.add(table, f"'{shown(table)}' is not supported in FROM", "name a source.relation")
    else:
        scope.problems.add(table, f"'{shown(table)}' is not supported in FROM", "write source.relation AS alias")
    return None


def _refuse_join(join: exp.Join, problems: SqlProblems) -> None:
    words = [str(join.args[k]).upper() for k in ("method", "side", "kind") if join.args.get(k)]
    extra = [k for k, v in join.args.items() if v and k not in ("this", "on", "using", "method", "side", "kind")]
    if extra:
        problems.add(join.this, f"'{shown(join)}' is not supported", "write JOIN … ON")
    if set(words) <= {"INNER", "CROSS"}:
        return
    remedy = "only inner joins are" if {"LEFT", "RIGHT", "FULL", "OUTER"} & set(words) else "write JOIN … ON"
    problems.add(join.this, f"{' '.join(words)} JOIN is not supported", remedy)


def _using(column: exp.Identifier, right: Named, scope: Scope) -> Expr | None:
    """The equality that USING (column) means; from then on the bare name means the left one."""
    named = exp.Column(this=column)
    before = Scope(scope.problems, scope.occurrences[: right.index], scope.merged, scope.complete)
    left_ref, right_ref = before.resolve(named), scope.column_of(right, named)
    if left_ref is None or right_ref is None:
        return None
    scope.merged[right_ref] = left_ref
    try:
        return Natures(scope).compare("=", (named, left_ref), (named, right_ref))
    except construct.TypeMismatchError as mismatch:
        scope.problems.add(column, f"{mismatch.what} (USING {column.name})", mismatch.remedy)
        return None


def _outputs(select: exp.Select, translator: Translator) -> list[Output]:
    outputs: list[Output] = []
    taken: dict[str, str] = {}
    for node in select.expressions:
        for name, expr in _named(node, translator):
            _check_name(node, name, taken, translator.problems)
            outputs.append(Output(name, expr))
    return outputs


def _named(node: exp.Expression, translator: Translator) -> list[tuple[str, Expr]]:
    """The outputs that one item of the SELECT list stands for."""
    if node.is_star:
        return [(ref.column, ref) for ref in _star(node, translator) if _holdable(node, ref, translator.problems)]
    expr = translator.translate(node.this if isinstance(node, exp.Alias) else node)
    if expr is None:
        return []
    if expr.type.kind is Kind.UNKNOWN:
        translator.problems.add(node, f"NULL has no type here ({shown(node)})", "cast it: CAST(NULL AS TEXT)")
        return []
    if not _holdable(node, expr, translator.problems):
        return []
    if isinstance(node, exp.Alias):
        return [(node.alias, expr)]
    if isinstance(expr, ColumnRef):
        return [(expr.column, expr)]
    translator.problems.add(node, f"'{shown(node)}' has no name", "give it a name with AS")
    return []


def _holdable(node: exp.Expression, expr: Expr, problems: SqlProblems) -> bool:
    """Whether a table can have a column of the expression's type."""
    if expr.type.kind is not Kind.NUMERIC:
        return True
    name = expr.column if isinstance(expr, ColumnRef) else shown(node)
    what = f"{name} may have any number of digits, which no table can hold"
    problems.add(node, what, "say how many to keep: CAST(… AS DECIMAL(p, s))")
    return False


def _star(node: exp.Expression, translator: Translator) -> list[ColumnRef]:
    star = node if isinstance(node, exp.Star) else node.this
    if not isinstance(star, exp.Star) or any(star.args.values()):
        translator.problems.add(node, f"'{shown(node)}' is not supported", "name the columns")
        return []
    if isinstance(node, exp.Star):
        return translator.scope.star(node)
    owner = translator.scope.occurrence(node, node.table, node.db)
    return translator.scope.star(node, owner) if owner else []


def _check_name(node: exp.Expression, name: str, taken: dict[str, str], problems: SqlProblems) -> None:
    """Names must suit Delta and Spark, where columns that differ only in case are the same."""
    if name.startswith("_"):
        problems.add(node, f"output {name} starts with _", "give it another name with AS")
    if _FORBIDDEN_IN_NAMES.search(name) or not name:
        problems.add(node, f"output '{name}' has a character that Delta refuses in names", "rename it with AS")
    if name.lower() in taken:
        problems.add(node, f"two outputs are called {name}", "give one of them another name with AS")
    taken[name.lower()] = name


def _check_connected(scope: Scope, found: Shape, problems: SqlProblems) -> None:
    """A sweep goes along equalities only, so they must reach every occurrence."""
    first, *others = components(len(scope.occurrences), found.edges)
    for group in others:
        apart = ", ".join(scope.occurrences[i].alias for i in sorted(group))
        start = scope.occurrences[min(first)].alias
        problems.add(
            None,
            f"no equality of two columns joins {apart} to {start}" + _near_miss(scope, found, group),
            "add one to ON or WHERE, between plain columns of the same type",
        )


def _near_miss(scope: Scope, found: Shape, group: set[int]) -> str:
    """Says so where there is an equality that types keep from being a join."""
    for condition in (c for r in found.residuals for c in conjuncts(r)):
        if isinstance(condition, Compare) and condition.op == "=":
            refs = sorted(condition.columns, key=lambda ref: ref.occurrence)
            if len(refs) == 2 and len({ref.occurrence in group for ref in refs}) == 2:
                sides = " and ".join(f"{scope.occurrences[r.occurrence].alias}.{r.column} ({r.type})" for r in refs)
                return f": {sides} are not two plain columns of one type"
    return ""


def _view(name: str, scope: Scope, found: Shape, outputs: Sequence[Output]) -> View:
    used = {ref for selection in found.selections.values() for s in selection for ref in s.columns}
    used |= {ref for expr in (*found.residuals, *(o.expr for o in outputs)) for ref in expr.columns}
    names = {(ref.occurrence, ref.column) for ref in used}
    names |= {side for e in found.edges for side in ((e.left, e.left_column), (e.right, e.right_column))}
    occurrences = tuple(
        Occurrence(
            o.index,
            o.alias,
            o.relation.source,
            o.relation.name,
            _columns(o, names),
            conjunction(found.selections[o.index]),
        )
        for o in scope.occurrences
    )
    text = _canonical(scope, found, outputs)
    return View(name, occurrences, found.edges, found.residuals, tuple(outputs), text)


def _columns(of: Named, used: set[tuple[int, str]]) -> tuple[Column, ...]:
    """The used columns; one typed column where none is used, so that a row is never empty."""
    columns = tuple(c for c in of.relation.columns if (of.index, c.name) in used)
    return columns or tuple(c for c in of.relation.columns if c.type.kind is not Kind.UNKNOWN)[:1]


def _canonical(scope: Scope, found: Shape, outputs: Sequence[Output]) -> str:
    """The view as SQL, independent of how its SQL was laid out."""

    def called(ref: ColumnRef) -> str:
        return f"{identifier(scope.occurrences[ref.occurrence].alias)}.{identifier(ref.column)}"

    shown_outputs = [f"{render(o.expr, called)} AS {identifier(o.name)}" for o in outputs]
    relations = [
        f"{identifier(o.relation.source)}.{identifier(o.relation.name)} AS {identifier(o.alias)}"
        for o in scope.occurrences
    ]
    plainly = Natures(scope).plainly
    equalities = [
        f"({plainly(called, e.left, e.left_column)} = {plainly(called, e.right, e.right_column)})" for e in found.edges
    ]
    selections = [render(s, called) for i in sorted(found.selections) for s in dict.fromkeys(found.selections[i])]
    conditions = [*equalities, *selections, *(render(r, called) for r in found.residuals)]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {', '.join(shown_outputs)} FROM {', '.join(relations)}{where}"
