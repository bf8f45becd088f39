"""Columns that are text here and something more in PostgreSQL, in a statement that DuckDB runs: see ``sql_natures``.

DuckDB sees texts. What would compare them otherwise than PostgreSQL does is refused: citext wherever it is more than
shown (or cast, or made lower case), enumerations where they are ordered, constants beside a uuid or char(n) that are
not written as the column's own values are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from viewkeeper.algebra.sql_natures import CHAR, CITEXT, ENUM, UUID, canonical_uuid
from viewkeeper.algebra.sql_problems import SqlProblems
from viewkeeper.algebra.sql_scope import match
from viewkeeper.managers.recomputed_sql_names import Names
from viewkeeper.managers.recomputed_sql_tree import Node, arguments, names_of, note

_AS_TEXT = frozenset({"lower", "upper", "lcase", "ucase", "length", "len", "concat", "||", "count"})
_EXTREMES = frozenset({"min", "max", "greatest", "least", "median"})
_EQUALITIES = ("COMPARE_EQUAL", "COMPARE_NOTEQUAL", "COMPARE_DISTINCT_FROM", "COMPARE_NOT_DISTINCT_FROM")
_CAST = "cast it: CAST(… AS TEXT)"


@dataclass(frozen=True)
class NatureRules:
    """Checks a statement's tree, whose relations have been named."""

    names: Names
    problems: SqlProblems

    def check(self, tree: Node) -> None:
        """Notes every problem there is."""
        if any(c.declared in (CITEXT, ENUM, UUID, CHAR) for r in self.names.relations for c in r.columns):
            plain = tree if _shows_rows(tree) else None
            self._visit(tree, None, plain)

    def _visit(self, node: Any, holder: Node | None, shown: Node | None) -> None:
        """``holder`` is the expression or order that a part belongs to; ``shown`` the query whose columns are shown."""
        if isinstance(node, list):
            for each in node:
                self._visit(each, holder, shown)
        elif isinstance(node, dict):
            for key, child in node.items():
                if not (node is shown and key == "select_list"):
                    self._visit(child, node if "class" in node or "null_order" in node else holder, shown)
            if node is shown:
                self._shown(node["select_list"])
            self._one(node, holder)

    def _shown(self, items: list[Node]) -> None:
        """What is shown as it is needs no comparison."""
        for item in items:
            if item["class"] not in ("COLUMN_REF", "STAR"):
                self._visit(item, None, None)

    def _one(self, node: Node, holder: Node | None) -> None:
        if node.get("class") == "STAR" and any(c.declared == CITEXT for r in self.names.relations for c in r.columns):
            note(self.problems, node, "* shows a citext, which DuckDB compares by case", "name the columns")
        if node.get("type") == "JOIN":
            self._join(node)
        if node.get("class") != "COLUMN_REF":
            return
        for nature in self._natures(node):
            if said := _misuse(nature, node, holder):
                note(self.problems, node, *said)

    def _join(self, node: Node) -> None:
        """USING and NATURAL compare columns without naming each."""
        citext = {c.name.lower() for r in self.names.relations for c in r.columns if c.declared == CITEXT}
        used = {name.lower() for name in node.get("using_columns") or []}
        if citext & used or (citext and node["ref_type"] == "NATURAL"):
            note(self.problems, node, "citext would be compared by case here", "write JOIN … ON, with CAST(… AS TEXT)")

    def _natures(self, node: Node) -> set[str]:
        """What the column is, in every relation that the name can mean."""
        *qualifiers, name = names_of(node)
        relations = self.names.tables.get(qualifiers[-1].lower(), []) if qualifiers else self.names.relations
        known = ((r, match(name, (c.name for c in r.columns))) for r in relations)
        columns = (r.column(found) for r, found in known if found)
        return {column.declared for column in columns if column}


def _shows_rows(tree: Node) -> bool:
    """Is it one SELECT that shows rows as they are, neither grouped nor made distinct?"""
    return (
        tree["type"] == "SELECT_NODE"
        and not any(tree[part] for part in ("group_expressions", "group_sets", "having"))
        and not any(modifier["type"] != "LIMIT_MODIFIER" for modifier in tree["modifiers"])
    )


def _misuse(nature: str, node: Node, holder: Node | None) -> tuple[str, str] | None:
    kind, name = (holder or {}).get("class"), (holder or {}).get("function_name")
    sort = str((holder or {}).get("type"))
    if nature == CITEXT:
        as_text = kind == "CAST" or _is_argument(node, holder) or (kind == "OPERATOR" and "NULL" in sort)
        return None if as_text else ("citext would be compared by case here", f"{_CAST}, or lower(…)")
    if nature == ENUM:
        compared = kind == "COMPARISON" and sort not in _EQUALITIES
        if compared or kind == "BETWEEN" or name in _EXTREMES or "null_order" in (holder or {}):
            return "an enumeration is ordered as it is declared, which is not known here", _CAST
    if kind in ("COMPARISON", "OPERATOR") and nature in (UUID, CHAR):
        for text in _constants(holder):
            if text != (canonical_uuid(text) if nature == UUID else text.rstrip(" ")):
                meant = "in small letters, 8-4-4-4-12" if nature == UUID else "without blanks at its end"
                return f"'{text}' is not written as the column's values are", f"write it {meant}"
    return None


def _is_argument(node: Node, holder: Node | None) -> bool:
    """Is it handed to a function that takes citext for the text it is, and not to part rows by, or to count once?"""
    if holder is None or holder.get("function_name") not in _AS_TEXT or holder.get("distinct"):
        return False
    return any(argument is node for argument in arguments(holder))


def _constants(holder: Any) -> Iterator[str]:
    """The text constants that stand beside the column."""
    sides = (holder.get("left"), holder.get("right"), *(holder.get("children") or []))
    for side in sides:
        if side and side.get("class") == "CONSTANT" and side["literal"]["kind"] == "STRING":
            yield side["literal"]["text"]
