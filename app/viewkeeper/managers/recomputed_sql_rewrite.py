"""From the statement as its author wrote it to the one that runs: the same result, without what is left to chance.

- Relations are the tables that ``recomputing`` registers.
- No row makes the query fail, as in every other view (see ``algebra.expressions``): a cast that cannot be made and
  arithmetic that overflows are NULL. Where an aggregate, a window or a subquery is inside, DuckDB cannot do that.
- An integer is 64 bits wide and a float is a double, whatever width a cast or a literal has; except in a statement
  that has no meaning then, because DuckDB adds only narrow integers to a date.
- LIMIT and aggregates in the order of rows settle what their ORDER BY leaves open by the values that they show.
- Floats are added up in the order of their values, so that the last digit does not depend on the order of rows.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from viewkeeper.managers import recomputed_sql_functions as functions
from viewkeeper.managers.recomputed_sql_rules import leftmost
from viewkeeper.managers.recomputed_sql_tree import Node, arguments, expressions, names_of, walk
from viewkeeper.managers.recomputed_sql_types import WIDER

_INTEGERS = range(-(2**63), 2**63)


@dataclass(frozen=True)
class Rewriting:
    """How far a statement is rewritten beyond what it needs to run and to be deterministic."""

    guarded: bool  # arithmetic that fails is NULL
    wide: bool  # numbers are of 64 bits
    sorted_floats: bool = False  # sums are made in the order of their values


PLAIN = Rewriting(guarded=False, wide=False)

REWRITINGS = tuple(Rewriting(guarded, wide) for wide in (True, False) for guarded in (True, False))
"""From the one that is wanted to the one that DuckDB accepts if it accepts the statement at all."""


def rewritten(tree: Node, tables: Mapping[tuple[str, str], int], how: Rewriting) -> Node:
    """The statement that runs; ``tables`` are the places of the relations."""
    tree = copy.deepcopy(tree)
    for node in list(walk(tree)):
        _settle(node, tables)
        if how.wide:
            for holder, place in _values(node):
                _widen(holder, place)
    for node in list(walk(tree)):
        if node.get("class") == "CAST":
            _cast(node, how.wide)
        if how.guarded and _may_fail(node):
            _wrap(node, lambda inner: _operator("OPERATOR_TRY", inner))
        if how.sorted_floats and node.get("class") == "FUNCTION" and node["function_name"] in functions.SUMMING:
            _sort(node)
    return tree


def varies(node: Node) -> bool:
    """Does the value depend on a row?"""
    return any(True for _ in expressions(node, "COLUMN_REF", "SUBQUERY"))


def _settle(node: Node, tables: Mapping[tuple[str, str], int]) -> None:
    """Everything that is done where a node stands, before any node is wrapped into another."""
    if node.get("type") == "BASE_TABLE" and node["schema_name"]:
        name = f"relation {tables[node['schema_name'], node['table_name']]}"
        node["alias"] = node["alias"] or node["table_name"]
        node.update(catalog_name="temp", schema_name="main", table_name=name)
        node["qualified_name"] = {"path": ["temp", "main", name]}
    elif node.get("class") == "COLUMN_REF" and len(names_of(node)) > 2:
        node["column_names"] = names_of(node)[-2:]  # source.relation.column: FROM calls it by its relation
    elif node.get("class") == "FUNCTION" and node["function_name"] in functions.JOINING:
        node["order_bys"]["orders"].append(_order(copy.deepcopy(arguments(node)[0])))
    if str(node.get("type")).endswith("_NODE"):
        _limit(node)


def _limit(query: Node) -> None:
    """Rows that ORDER BY leaves equal are ordered by all that they show; the rest are the same row."""
    modifiers = {each["type"]: each for each in query["modifiers"]}
    if "LIMIT_MODIFIER" in modifiers:
        shown = len(leftmost(query)["select_list"])
        modifiers["ORDER_MODIFIER"]["orders"] += [_order(_integer(n)) for n in range(1, shown + 1)]


def _values(node: Node) -> list[tuple[Any, Any]]:
    """Where results stand whose type is that of a literal among them: (what holds it, under which key)."""
    found: list[tuple[Any, Any]] = []
    match node.get("class"), node.get("type"):
        case None, "SELECT_NODE":
            found = [(node["select_list"], i) for i in range(len(node["select_list"]))]
        case None, "EXPRESSION_LIST":
            found = [(row, i) for row in node["values"] for i in range(len(row))]
        case "CASE", _:
            found = [(node, "else_expr"), *((check, "then_expr") for check in node["case_checks"])]
        case "OPERATOR", "OPERATOR_COALESCE":
            found = [(node["children"], i) for i in range(len(node["children"]))]
        case "FUNCTION", _ if node["function_name"] in functions.SAME_TYPE | functions.AGGREGATES - functions.QUANTILES:
            found = [(argument, "expression") for argument in node["arguments"]]
    return found


def _widen(holder: Any, place: Any) -> None:
    """An integer literal that decides the type of a result is one of 64 bits."""
    node = holder[place]
    if not node or node.get("class") != "CONSTANT" or node["literal"]["kind"] != "INTEGER":
        return
    if int(node["literal"]["text"]) in _INTEGERS:
        holder[place] = {**_cast_to("BIGINT", {**node, "alias": ""}), "alias": node["alias"]}


def _cast(node: Node, wide: bool) -> None:
    node["try_cast"] = node["try_cast"] or varies(node["child"])
    wider = WIDER.get(node["type_expr"].get("type_name", "").upper()) if wide else None
    if wider:
        node["type_expr"].update(type_name=wider, children=[], qualified_name={"path": [wider]})


def _may_fail(node: Node) -> bool:
    """Is this a computation that DuckDB can be told to answer with NULL, and that may need it?"""
    if node.get("class") != "FUNCTION" or node["function_name"] not in functions.SCALARS - functions.LIKE:
        return False
    if any(True for _ in expressions(node, "SUBQUERY", "WINDOW")) or not varies(node):
        return False
    return all(each["function_name"] not in functions.AGGREGATES for each in expressions(node, "FUNCTION"))


def _sort(node: Node) -> None:
    """``sum(x)`` becomes ``list_aggregate(list_sort(list(x)), 'sum')``."""

    def summed(inner: Node) -> Node:
        values = {**inner, "function_name": "list", "qualified_name": {"path": ["list"]}}
        return _function("list_aggregate", _function("list_sort", values), _text(inner["function_name"]))

    _wrap(node, summed)


def _wrap(node: Node, by: Any) -> None:
    """Puts another node in the place of this one, which goes inside; the name of the column stays outside."""
    inner = dict(node)
    inner["alias"] = ""
    outer = by(inner)
    alias = node["alias"]
    node.clear()
    node.update(outer)
    node["alias"] = alias


def _node(kind: str, type_: str, **more: Any) -> Node:
    return {"class": kind, "type": type_, "alias": "", **more}


def _integer(value: int) -> Node:
    return _node("CONSTANT", "VALUE_CONSTANT", literal={"kind": "INTEGER", "text": str(value)})


def _text(value: str) -> Node:
    return _node("CONSTANT", "VALUE_CONSTANT", literal={"kind": "STRING", "text": value})


def _operator(type_: str, *children: Node) -> Node:
    return _node("OPERATOR", type_, children=list(children))


def _order(expression: Node) -> Node:
    return {"type": "ORDER_DEFAULT", "null_order": "ORDER_DEFAULT", "expression": expression}


def _cast_to(name: str, child: Node) -> Node:
    type_expr = _node("TYPE", "TYPE", catalog="", schema="", type_name=name, children=[])
    type_expr["qualified_name"] = {"path": [name]}
    return _node("CAST", "OPERATOR_CAST", child=child, try_cast=False, type_expr=type_expr)


def _function(name: str, *called_with: Node) -> Node:
    return _node(
        "FUNCTION", "FUNCTION", function_name=name, schema="", catalog="", filter=None, distinct=False,
        order_bys={"type": "ORDER_MODIFIER", "orders": []}, is_operator=False, export_state=False,
        arguments=[{"name": "", "expression": each} for each in called_with], qualified_name={"path": [name]},
    )  # fmt: skip
