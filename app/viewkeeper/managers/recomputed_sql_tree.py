"""A statement as DuckDB parses it: a tree of plain dictionaries, in the form of its ``json_serialize_sql``.

Rules are checked on the tree, and the tree is turned back into text by DuckDB itself, so what is checked is what runs:
there is no second parser that could understand a statement in another way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb

from viewkeeper.algebra.sql_problems import SqlProblems

Node = dict[str, Any]

_NOWHERE = 2**64 - 1


def parsed(connection: duckdb.DuckDBPyConnection, problems: SqlProblems) -> Node:
    """The one SELECT in the text; raises the problem if it is none."""
    found = json.loads(_value(connection, "SELECT json_serialize_sql(?)", problems.text))
    if not found["error"]:
        if len(found["statements"]) != 1:
            problems.add(None, f"one SELECT is wanted, not {len(found['statements'])} statements")
        problems.check()
        node: Node = found["statements"][0]["node"]
        return node
    if found["error_type"] == "not implemented":
        problems.add(None, "a view is a SELECT")
    else:
        note(
            problems,
            {"query_location": int(found.get("position", _NOWHERE))},
            found["error_message"].partition("\n")[0],
        )
    problems.check()
    raise AssertionError("a problem was noted")


def text(connection: duckdb.DuckDBPyConnection, node: Node) -> str:
    """The statement as SQL, laid out as DuckDB does it, whatever its author's layout was."""
    whole = {"error": False, "statements": [{"node": node, "named_param_map": []}]}
    return _value(connection, "SELECT json_deserialize_sql(?)", json.dumps(whole))


def constant(connection: duckdb.DuckDBPyConnection, expression: Node) -> Node:
    """The statement that computes an expression and nothing else."""
    one = parsed(connection, SqlProblems("", "SELECT 1"))
    return {**one, "select_list": [expression]}


def plan(connection: duckdb.DuckDBPyConnection, sql: str) -> Node:
    """The statement bound to the tables there are: what it reads and computes, or what is wrong with it."""
    found: Node = json.loads(_value(connection, "SELECT json_serialize_plan(?)", sql))
    return found


def _value(connection: duckdb.DuckDBPyConnection, sql: str, parameter: str) -> str:
    ((value,),) = connection.execute(sql, [parameter]).fetchall()
    return str(value)


def walk(node: Any) -> Iterator[Node]:
    """Every dictionary of a tree, parents first."""
    if isinstance(node, dict):
        yield node
        for child in node.values():
            yield from walk(child)
    elif isinstance(node, list):
        for child in node:
            yield from walk(child)


def expressions(node: Any, *classes: str) -> Iterator[Node]:
    """The expressions of these classes."""
    return (found for found in walk(node) if found.get("class") in classes)


def names_of(node: Node) -> list[str]:
    """The parts of a column's name as it is written: qualifiers first."""
    names: list[str] = node["column_names"]
    return names


def arguments(node: Node) -> list[Node]:
    """What a function is called with."""
    return [argument["expression"] for argument in node["arguments"]]


def tables_of(joined: Node) -> list[Node]:
    """What a FROM clause joins, from left to right."""
    if joined["type"] != "JOIN":
        return [joined]
    return [*tables_of(joined["left"]), *tables_of(joined["right"])]


def note(problems: SqlProblems, node: Node, what: str, remedy: str = "") -> None:
    """Notes a problem at the place of ``node``, as far as DuckDB tells it."""
    at = node.get("query_location", _NOWHERE)
    if at == _NOWHERE:
        problems.add(None, what, remedy)
        return
    before = problems.text.encode()[:at].decode(errors="replace")  # DuckDB counts bytes
    problems.add_at(before.count("\n") + 1, len(before) - before.rfind("\n"), what, remedy)


def written(problems: SqlProblems, node: Node) -> str:
    """The node as its author wrote it, cut to a length that suits a message."""
    at, length = node.get("query_location", _NOWHERE), node.get("query_location_length", 0)
    found = problems.text.encode()[at : at + length].decode(errors="replace") if at != _NOWHERE else ""
    plain = " ".join(found.split())
    return plain if len(plain) <= 60 else plain[:59] + "…"
