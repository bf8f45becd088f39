"""What a recomputed view may say: everything whose result is decided by the rows of its relations alone.

The rules are lists of what is allowed, so that what a later DuckDB adds is refused until somebody has thought of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from viewkeeper.algebra.sql_problems import SqlProblems
from viewkeeper.algebra.types import Relation
from viewkeeper.managers import recomputed_sql_functions as functions
from viewkeeper.managers.recomputed_sql_names import Names
from viewkeeper.managers.recomputed_sql_tree import Node, arguments, expressions, names_of, note, tables_of, written

_TYPES = {
    "SELECT_NODE", "SET_OPERATION_NODE", "BASE_TABLE", "JOIN", "SUBQUERY", "EXPRESSION_LIST", "EMPTY",
    "ORDER_MODIFIER", "LIMIT_MODIFIER", "DISTINCT_MODIFIER", "ORDER_DEFAULT", "ASCENDING", "DESCENDING",
}  # fmt: skip
"""Queries, what stands in FROM, and what follows a query."""

_CLASSES = {
    "COLUMN_REF", "CONSTANT", "FUNCTION", "WINDOW", "CAST", "CASE", "COMPARISON", "CONJUNCTION", "BETWEEN", "SUBQUERY",
    "STAR", "TYPE", "OPERATOR",
}  # fmt: skip
_OPERATORS = {
    "COMPARE_IN", "COMPARE_NOT_IN", "OPERATOR_COALESCE", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "OPERATOR_NOT",
    "OPERATOR_TRY", "GROUPING_FUNCTION",
}  # fmt: skip
_JOINS = {"REGULAR", "CROSS", "NATURAL", "DEPENDENT"}
_NOT_HERE = {
    "RECURSIVE_CTE_NODE": ("WITH RECURSIVE is not supported", "it might never end"),
    "PIVOT": ("PIVOT is not supported", "write a CASE expression for each column"),
    "SHOW_REF": ("a view is a SELECT", ""),
}
_READER = "leave it to the reader of the view"
_TOTAL = "the order must hold the primary key of every relation in FROM, as plain columns"


@dataclass(frozen=True)
class Rules:
    """Checks a statement's tree, whose relations have been named."""

    names: Names
    problems: SqlProblems

    def check(self, tree: Node) -> None:
        """Notes every problem there is."""
        if not self.names.relations and not self.problems.found:
            self.problems.add(None, "no relation is used", "name at least one source.relation")
        if _has(tree, "ORDER_MODIFIER") and not _has(tree, "LIMIT_MODIFIER"):
            self.problems.add(None, "ORDER BY is not supported", "a view is a bag: order it when reading it")
        self._outputs(tree)
        self._visit(tree, tree)

    def _outputs(self, tree: Node) -> None:
        for number, item in enumerate(leftmost(tree)["select_list"], 1):
            if item["class"] not in ("COLUMN_REF", "STAR") and not item["alias"]:
                note(self.problems, item, f"output {number} has no name", "give it a name with AS")

    def _visit(self, node: object, query: Node) -> None:
        """Checks a part of the tree that belongs to ``query``."""
        if isinstance(node, list):
            for each in node:
                self._visit(each, query)
        elif isinstance(node, dict):
            if not self._one(node, query):
                return
            inner = node if str(node.get("type")).endswith("_NODE") else query
            for child in node.values():
                self._visit(child, inner)

    def _one(self, node: Node, query: Node) -> bool:
        """Checks one node; tells whether to look inside it."""
        kind = node.get("type")
        if node.get("sample"):
            note(self.problems, node, "TABLESAMPLE is not supported", "the result would not be deterministic")
            return False
        if "class" in node:
            return self._expression(node, query)
        if not isinstance(kind, str) or kind in _TYPES:
            if kind == "JOIN":
                self._join(node)
            elif kind in ("SELECT_NODE", "SET_OPERATION_NODE"):
                self._query(node)
            elif kind == "BASE_TABLE" and node["at_clause"]:
                note(self.problems, node, "AT is not supported", "a view is of one moment")
            return True
        what, remedy = _NOT_HERE.get(
            kind, (f"'{written(self.problems, node) or kind}' is not supported", "name a source.relation")
        )
        note(self.problems, node, what, remedy)
        return False

    def _join(self, node: Node) -> None:
        if node["ref_type"] not in _JOINS or node["ranking_expression"]:
            what = f"{node['ref_type']} JOIN is not supported"
            note(self.problems, node, what, "its result depends on the order of rows; write JOIN … ON")

    def _query(self, node: Node) -> None:
        limited = _has(node, "LIMIT_MODIFIER")
        if node.get("setop_type") == "UNION_BY_NAME":
            note(self.problems, node, "UNION BY NAME is not supported", "name the columns in the same order")
        for modifier in node["modifiers"]:
            if modifier["type"] == "DISTINCT_MODIFIER" and modifier["distinct_on_targets"]:
                note(self.problems, node, "DISTINCT ON is not supported", "which row it takes is not determined")
        if limited and not _has(node, "ORDER_MODIFIER"):
            first = next(expressions(node["modifiers"], "CONSTANT"), node)
            note(self.problems, first, "LIMIT without ORDER BY is not deterministic", "add ORDER BY")
        elif limited and any(item["class"] == "STAR" for item in leftmost(node)["select_list"]):
            star = next(expressions(leftmost(node)["select_list"], "STAR"))
            note(self.problems, star, "LIMIT cannot order the rows of *", "name the columns")

    def _expression(self, node: Node, query: Node) -> bool:
        kind = node["class"]
        if kind not in _CLASSES or (kind == "OPERATOR" and node["type"] not in _OPERATORS):
            note(self.problems, node, f"'{written(self.problems, node) or kind}' is not supported")
            return False
        if kind == "FUNCTION":
            self._function(node)
        elif kind == "WINDOW":
            self._window(node, query)
        elif kind == "CAST":
            self._cast(node)
        elif kind == "STAR" and node["columns"]:
            note(self.problems, node, f"'{written(self.problems, node)}' is not supported", "name the columns")
        return True

    def _cast(self, node: Node) -> None:
        """DuckDB takes no notice of the limit of a text, and cuts what PostgreSQL rounds of a timestamp."""
        named = written(self.problems, node["type_expr"]).upper()
        if named in ("REAL", "FLOAT4"):  # DuckDB's tree calls both FLOAT, which is a double here
            note(self.problems, node["type_expr"], f"unknown type {named}", "write FLOAT, which has 64 bits")
        name, limits = str(node["type_expr"].get("type_name", "")).upper(), node["type_expr"].get("children")
        if (limits and name in ("VARCHAR", "BPCHAR", "TEXT", "FLOAT")) or name in ("TIMESTAMP_S", "TIMESTAMP_MS"):
            note(self.problems, node, "a cast to a type with a limit is not supported", "write it without the limit")

    def _function(self, node: Node) -> None:
        name, count = node["function_name"], len(node["arguments"])
        if not self._allowed(node, functions.SCALARS | functions.AGGREGATES):
            return
        if name in functions.ONE_ARGUMENT and count != 1:
            note(self.problems, node, f"{name} with {count} arguments is not supported", f"write {name}(x)")
        if name in functions.JOINING:
            self._joining(node)

    def _joining(self, node: Node) -> None:
        """An aggregate in the order of the rows; rows that its order leaves equal must be the same to it."""
        name, orders = node["function_name"], node["order_bys"]["orders"]
        value, *separator = arguments(node)
        if not orders:
            what = f"{name} without ORDER BY is not deterministic"
            note(self.problems, node, what, f"write {name}(x, ',' ORDER BY x)")
        if any(each["class"] != "CONSTANT" for each in separator):
            note(self.problems, node, f"{name} needs a constant between the values", "write ', '")
        if node["distinct"] and any(not _same(order["expression"], value) for order in orders):
            what = f"{name}(DISTINCT …) can be ordered by its own value only"
            note(self.problems, node, what, f"write {name}(DISTINCT x, ',' ORDER BY x)")

    def _allowed(self, node: Node, allowed: frozenset[str]) -> bool:
        name = node["function_name"]
        if name in allowed and node["qualified_name"]["path"] == [name] and not node.get("export_state"):
            return True
        if name in functions.NOT_THE_SAME:
            note(self.problems, node, f"{name} is not the same each time", _READER)
        elif name in functions.ANY_ROW:
            note(self.problems, node, f"{name} depends on the order of rows", "use min or max")
        else:
            note(self.problems, node, f"function {name} is not supported")
        return False

    def _window(self, node: Node, query: Node) -> None:
        name, kind = node["function_name"], node["type"]
        aggregates = functions.SUMMING | functions.COUNTING
        if kind == "WINDOW_AGGREGATE" and not self._allowed(node, aggregates):
            return
        if kind not in functions.PEERS | functions.ORDERED | {"WINDOW_AGGREGATE"}:
            note(self.problems, node, f"window function {name} is not supported")
            return
        if node["exclude_clause"] != "NO_OTHER":
            note(self.problems, node, "EXCLUDE is not supported in a window", "write a join")
        if node["arg_orders"]:
            note(self.problems, node, "ORDER BY inside a window's function is not supported", "write it after OVER")
        rows = kind == "WINDOW_AGGREGATE" and any(node[end].endswith("_ROWS") for end in ("start", "end"))
        if (rows or kind in functions.ORDERED) and not self._total(node, query):
            told = "ROWS" if rows else f"{name}"
            note(
                self.problems, node, f"{told} depends on the order of rows that the window's order leaves equal", _TOTAL
            )

    def _total(self, window: Node, query: Node) -> bool:
        """Do partition and order hold a key of every row that the window can see?"""
        if query["type"] != "SELECT_NODE" or query["group_expressions"] or query["group_sets"] or query["having"]:
            return False
        if any(node["function_name"] in functions.AGGREGATES for node in expressions(query["select_list"], "FUNCTION")):
            return False
        tables = tables_of(query["from_table"])
        if any(table["type"] != "BASE_TABLE" or not table["schema_name"] for table in tables):
            return False
        held = [names_of(e) for e in _ordered(window) if e["class"] == "COLUMN_REF"]
        owners = [((table["alias"] or table["table_name"]).lower(), self._relation(table)) for table in tables]
        return all(relation is not None and _holds(alias, relation, held, len(owners)) for alias, relation in owners)

    def _relation(self, table: Node) -> Relation | None:
        named = (table["schema_name"], table["table_name"])
        return next((r for r in self.names.relations if (r.source, r.name) == named), None)


def leftmost(query: Node) -> Node:
    """The SELECT that names a query's columns."""
    while query["type"] == "SET_OPERATION_NODE":
        query = query.get("left") or query["children"][0]
    return query


def _has(query: Node, modifier: str) -> bool:
    return any(each["type"] == modifier for each in query["modifiers"])


def _ordered(window: Node) -> list[Node]:
    return [*window["partitions"], *(order["expression"] for order in window["orders"])]


def _holds(alias: str, relation: Relation, columns: list[list[str]], tables: int) -> bool:
    """Are the columns of a key of the relation, which tells all its rows apart, among these columns?"""
    key = set(relation.key)
    if not key or key & relation.nullable or key & relation.blurred:
        return False
    mine = {
        names[-1].lower()
        for names in columns
        if (len(names) > 1 and names[-2].lower() == alias) or (len(names) == 1 and tables == 1)
    }
    return {name.lower() for name in key} <= mine


def _same(one: Node, other: Node) -> bool:
    """Are two expressions written alike?"""
    return _bare(one) == _bare(other)


def _bare(node: object) -> object:
    if isinstance(node, dict):
        return {key: _bare(value) for key, value in node.items() if not key.startswith("query_location")}
    return [_bare(each) for each in node] if isinstance(node, list) else node
