"""The names in a recomputed view's statement: relations of the catalogue, CTEs, aliases and columns.

What is certainly wrong is said here, all of it and with its place; how the names that are left resolve is DuckDB's
to say.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from viewkeeper.algebra.sql_problems import SqlProblems, nearest
from viewkeeper.algebra.sql_scope import Scope, match
from viewkeeper.algebra.types import Catalog, Column, Kind, Relation
from viewkeeper.managers.recomputed_sql_functions import NOT_THE_SAME
from viewkeeper.managers.recomputed_sql_tree import Node, expressions, names_of, note, tables_of, walk, written


@dataclass
class Names:
    """What a statement names; all names in lower case, as DuckDB compares them."""

    problems: SqlProblems
    relations: list[Relation] = field(default_factory=list)  # each once, in the order of the text
    tables: dict[str, list[Relation]] = field(default_factory=dict)  # what FROM calls a relation → the relation
    derived: set[str] = field(default_factory=set)  # CTEs and subqueries, whose columns only DuckDB knows
    outputs: set[str] = field(default_factory=set)  # names that the statement gives to columns
    complete: bool = True  # False once a relation of FROM could not be resolved

    @classmethod
    def of(cls, tree: Node, catalog: Catalog, problems: SqlProblems) -> Names:
        """The names of a tree; in it, relations are afterwards named as the catalogue does. Notes every problem."""
        names = cls(problems)
        ctes = {each["key"].lower() for node in walk(tree) if "cte_map" in node for each in node["cte_map"]["map"]}
        names.derived |= ctes
        for node in walk(tree):
            names._given(node)
        for node in walk(tree):
            if node.get("type") == "BASE_TABLE":
                if node["schema_name"] or node["table_name"].lower() not in ctes:
                    names._relation(node, catalog)
                else:
                    names.derived.add((node["alias"] or node["table_name"]).lower())
        for node in expressions(tree, "COLUMN_REF"):
            names._column(node)
        for node in walk(tree):
            if node.get("type") == "SELECT_NODE":
                for star in (item for item in node["select_list"] if item["class"] == "STAR"):
                    names._star(star, node["from_table"])
        return names

    def _given(self, node: Node) -> None:
        """Notes the names that a node gives to columns or to a subquery."""
        given = [*(node.get("column_name_alias") or []), *(node.get("aliases") or [])]
        if "class" in node and node.get("alias"):
            given.append(node["alias"])
        elif node.get("type") in ("SUBQUERY", "EXPRESSION_LIST", "JOIN") and node.get("alias"):
            self.derived.add(node["alias"].lower())
        self.outputs |= {name.lower() for name in given}

    def _relation(self, node: Node, catalog: Catalog) -> None:
        """Finds the relation that a name in FROM means."""
        called = (node["alias"] or node["table_name"]).lower()
        table = exp.table_(node["table_name"], db=node["schema_name"] or None, catalog=node["catalog_name"] or None)
        table.meta["start"] = len(self.problems.text.encode()[: node["query_location"]].decode(errors="replace"))
        named = Scope(self.problems).add(table, catalog)
        if node["column_name_alias"]:
            what = f"column names after an alias are not supported ({written(self.problems, node)})"
            note(self.problems, node, what)
        if named is None:
            self.derived.add(called)
            self.complete = False
            return
        relation = named.relation
        if relation not in self.relations:
            self.relations.append(relation)
        self.tables.setdefault(called, []).append(relation)
        node["schema_name"], node["table_name"] = relation.source, relation.name
        node["qualified_name"] = {"path": [relation.source, relation.name]}

    def _column(self, node: Node) -> None:
        *qualifiers, name = names_of(node)
        relations = self.relations
        if qualifiers:
            table = qualifiers[-1].lower()
            relations = self.tables.get(table, [])
            if not relations and table not in self.derived | self.outputs:
                what = f"nothing in FROM is called {qualifiers[-1]}"
                note(self.problems, node, what, nearest(table, (*self.tables, *self.derived)))
                return
            if table in self.derived:
                return
        found = [(r, column) for r in relations if (column := _column(r, name))]
        for relation, column in found:
            self._typed(node, relation, column)
        if found:
            return
        if qualifiers and relations:
            owner = relations[0]
            what = f"{owner.source}.{owner.name} has no column {name}"
            note(self.problems, node, what, nearest(name, (c.name for c in owner.columns)))
        elif not qualifiers and name.lower() in NOT_THE_SAME:
            note(self.problems, node, f"{name} is not the same each time", "leave it to the reader of the view")
        elif not qualifiers and self.complete and name.lower() not in self.outputs | self.derived | self.tables.keys():
            names = (c.name for r in self.relations for c in r.columns)
            note(self.problems, node, f"unknown column {name}", nearest(name, names))

    def _star(self, star: Node, joined: Node) -> None:
        """A star shows every column, so all of them must have a type."""
        excluded = {name.lower() for name in star["exclude_list"]}
        for table in tables_of(joined):
            called = (table.get("alias") or table.get("table_name") or "").lower()
            if star["relation_name"].lower() not in ("", called):
                continue
            for relation in self.relations:
                if (relation.source, relation.name) == (table.get("schema_name"), table.get("table_name")):
                    for column in (c for c in relation.columns if c.name.lower() not in excluded):
                        self._typed(star, relation, column)

    def _typed(self, node: Node, relation: Relation, column: Column) -> None:
        if column.type.kind not in (Kind.UNKNOWN, Kind.NUMERIC):
            return
        unusable = "has no usable type; declare its type in the source, or leave it out"
        if column.type.kind is Kind.NUMERIC:
            unusable = (
                "may have any number of digits, which DuckDB does not have; declare it as numeric(38,10) or the like"
            )
        what, _, remedy = (column.refused or unusable).partition("; ")
        note(self.problems, node, f"column {relation.name}.{column.name} {what}", remedy)


def _column(relation: Relation, name: str) -> Column | None:
    known = match(name, (c.name for c in relation.columns))
    return relation.column(known) if known else None
