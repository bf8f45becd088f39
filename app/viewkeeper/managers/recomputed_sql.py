"""SQL that can only be recomputed into a ``View``: any deterministic SELECT over the catalogue's relations.

Aggregates, GROUP BY, HAVING, DISTINCT, outer joins, set operations, subqueries, CTEs, window functions. The dialect is
DuckDB's, and expressions mean what they mean there: ``/`` is never integer division (that is ``//``), a SUM of integers
is a decimal of 38 digits, the quotient and the average of decimals are floats. What differs, differs so that no row
makes the query fail and nothing is left to chance: see ``recomputed_sql_rewrite``.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import duckdb

from viewkeeper.algebra.bag import SignedBag
from viewkeeper.algebra.sql_problems import SqlProblems
from viewkeeper.algebra.types import Catalog, Column, Kind, Relation
from viewkeeper.algebra.view import Computed, Occurrence, Output, View
from viewkeeper.errors import ViewError
from viewkeeper.managers import recomputed_sql_functions as functions
from viewkeeper.managers.recomputed_sql_names import Names
from viewkeeper.managers.recomputed_sql_natures import NatureRules
from viewkeeper.managers.recomputed_sql_rewrite import PLAIN, REWRITINGS, Rewriting, rewritten, varies
from viewkeeper.managers.recomputed_sql_rules import Rules
from viewkeeper.managers.recomputed_sql_tree import Node, constant, expressions, note, parsed, plan, text, walk
from viewkeeper.managers.recomputed_sql_types import declared, delivered, quoted, result
from viewkeeper.managers.recomputing import engine, first_line, recomputed_by, table_name

_FORBIDDEN_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")
_FLOATS = {"FLOAT", "DOUBLE"}


def parse_recomputed(name: str, sql: str, catalog: Catalog) -> View:
    """The view that ``sql`` defines over the catalog's relations; raises ``ViewError`` with every problem found."""
    problems = SqlProblems(f"views.{name}.sql", sql)
    try:
        with engine() as connection:
            view = _view(name, connection, catalog, problems)
            _try(connection, view)
    except RecursionError:
        raise ViewError.at(problems.place, "the statement is nested too deeply") from None
    return view


def _view(name: str, connection: duckdb.DuckDBPyConnection, catalog: Catalog, problems: SqlProblems) -> View:
    tree = parsed(connection, problems)
    names = Names.of(tree, catalog, problems)
    Rules(names, problems).check(tree)
    NatureRules(names, problems).check(tree)
    _check_constants(connection, tree, problems)
    problems.check()
    canonical = text(connection, tree)
    for index, relation in enumerate(names.relations):
        _create(connection, index, relation, problems)
    problems.check()
    bound = _Bound.of(connection, tree, names.relations, problems)
    outputs = _outputs(connection, bound.sql, problems)
    problems.check()
    columns = ", ".join(f"{delivered(quoted(o.name), o.expr.type)} AS {quoted(o.name)}" for o in outputs)
    occurrences = tuple(
        Occurrence(index, relation.name, relation.source, relation.name, bound.used(index, relation))
        for index, relation in enumerate(names.relations)
    )
    return View(name, occurrences, (), (), outputs, canonical, f"SELECT {columns} FROM ({bound.sql}) AS result")


def _check_constants(connection: duckdb.DuckDBPyConnection, tree: Node, problems: SqlProblems) -> None:
    """A constant that cannot be cast is a mistake in the text, not a row without value."""
    for node in expressions(tree, "CAST"):
        if not varies(node) and not node["try_cast"]:
            try:
                connection.execute(text(connection, constant(connection, node))).fetchall()
            except duckdb.ConversionException as error:
                note(problems, node, first_line(error))
            except duckdb.Error:
                pass  # more is wrong than its value; that is found where the whole is checked and bound


def _create(connection: duckdb.DuckDBPyConnection, index: int, relation: Relation, problems: SqlProblems) -> None:
    """An empty table with the columns of the relation that have a type."""
    columns = _typed(relation)
    lower = [column.name.lower() for column in columns]
    if len(set(lower)) < len(lower):
        what = f"{relation.source}.{relation.name} has columns whose names differ only in upper and lower case"
        problems.add(None, what, "rename one of them in the source")
        return
    listed = ", ".join(f"{quoted(c.name)} {declared(c.type)}" for c in columns)
    connection.execute(f"CREATE TEMP TABLE {table_name(index)} ({listed})").fetchall()


def _typed(relation: Relation) -> list[Column]:
    return [column for column in relation.columns if column.type.kind not in (Kind.UNKNOWN, Kind.NUMERIC)]


class _Bound:
    """The statement that runs, bound to empty tables, and DuckDB's plan for it."""

    def __init__(self, sql: str, found: Node):
        self.sql = sql
        self.plan = found

    @classmethod
    def of(
        cls, connection: duckdb.DuckDBPyConnection, tree: Node, relations: list[Relation], problems: SqlProblems
    ) -> _Bound:
        """Rewritten as far as DuckDB lets it be; floats are summed in order if there are any."""
        tables = {(r.source, r.name): index for index, r in enumerate(relations)}

        def bound(how: Rewriting) -> _Bound:
            sql = text(connection, rewritten(tree, tables, how))
            return cls(sql, plan(connection, sql))

        tried = ((how, bound(how)) for how in REWRITINGS)
        how, best = next((each for each in tried if not each[1].plan["error"]), (PLAIN, bound(PLAIN)))
        best._check(problems)
        if best._sums_floats():
            best = bound(replace(how, sorted_floats=True))
            best._check(problems)
        return best

    def _check(self, problems: SqlProblems) -> None:
        """Notes what DuckDB does not accept; and, once more, what is not decided by the relations."""
        if self.plan["error"]:
            what, _, more = self.plan["error_message"].partition("\n")
            problems.add(None, what.rstrip("!."), more.partition("\n")[0])
            problems.check()
        for name in sorted(_not_the_same() & set(self._called())):
            problems.add(None, f"{name} is not the same each time", "leave it to the reader of the view")
        for node in self._of("BOUND_WINDOW"):
            if _name(node) in functions.SUMMING and _floating(node):
                what = f"{_name(node)} of floats over a window depends on the order of rows"
                problems.add(None, what, "cast them to a decimal")
        for node in walk(self.plan):
            if node.get("type") == "LOGICAL_GET" and _table_of(node) is None:
                problems.add(None, "something other than relations is read", "name only source.relation")
        problems.check()

    def used(self, index: int, relation: Relation) -> tuple[Column, ...]:
        """The columns that the plan reads of a relation; one where it only counts rows, so that a row is not empty."""
        columns = _typed(relation)
        read: set[int] = set()
        for node in walk(self.plan):
            if node.get("type") == "LOGICAL_GET" and _table_of(node) == f"relation {index}":
                read |= {each["index"] for each in node["column_indexes"]}
        return tuple(column for i, column in enumerate(columns) if i in read) or tuple(columns[:1])

    def _sums_floats(self) -> bool:
        return any(_name(node) in functions.SUMMING and _floating(node) for node in self._of("BOUND_AGGREGATE"))

    def _called(self) -> list[str]:
        return [_name(node) for node in walk(self.plan) if "expression_class" in node and "qname" in node]

    def _of(self, kind: str) -> list[Node]:
        return [node for node in walk(self.plan) if node.get("expression_class") == kind and "qname" in node]


@cache
def _not_the_same() -> frozenset[str]:
    """Functions that DuckDB itself says are not; but a subquery of one row calls ``error`` when it has more."""
    with engine() as connection:
        sql = "SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT'"
        return frozenset(name for (name,) in connection.execute(sql).fetchall()) - {"error"}


def _name(node: Node) -> str:
    return str(node["qname"]["path"][-1])


def _floating(node: Node) -> bool:
    return any(argument["id"] in _FLOATS for argument in node["arguments"])


def _table_of(node: Node) -> str | None:
    table = (node.get("function_data") or {}).get("table")
    return table if isinstance(table, str) and table.startswith("relation ") else None


def _outputs(connection: duckdb.DuckDBPyConnection, sql: str, problems: SqlProblems) -> tuple[Output, ...]:
    """The columns of the result, with names that suit Delta and Spark and types that all of our readers have."""
    outputs: list[Output] = []
    taken: set[str] = set()
    for name, described, *_ in connection.execute(f"DESCRIBE {sql}").fetchall():
        if name.startswith("_"):
            problems.add(None, f"output {name} starts with _", "give it another name with AS")
        if not name or _FORBIDDEN_IN_NAMES.search(name):
            problems.add(None, f"output '{name}' has a character that Delta refuses in names", "rename it with AS")
        if name.lower() in taken:
            problems.add(None, f"two outputs are called {name}", "give one of them another name with AS")
        taken.add(name.lower())
        type_ = result(described)
        if type_ is None and described == '"NULL"':
            problems.add(None, f"NULL has no type here ({name})", "cast it: CAST(NULL AS TEXT)")
        elif type_ is None:
            problems.add(None, f"output {name} is of type {described}, which no table can hold", "cast it to TEXT")
        else:
            outputs.append(Output(name, Computed(type_)))
    return tuple(outputs)


def _try(connection: duckdb.DuckDBPyConnection, view: View) -> None:
    """Runs the view over nothing, as it will run: whatever its text alone makes fail, fails now."""
    for occurrence in view.occurrences:
        connection.execute(f"DROP TABLE {table_name(occurrence.index)}").fetchall()
    for _ in recomputed_by(connection, view, [SignedBag.empty(o.schema).table for o in view.occurrences]):
        pass
