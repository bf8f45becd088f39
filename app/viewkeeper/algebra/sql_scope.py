"""The names a view's SQL may use: relations of the catalog, their aliases and their columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sqlglot import exp

from viewkeeper.algebra.expressions import ColumnRef
from viewkeeper.algebra.sql_problems import SqlProblems, nearest
from viewkeeper.algebra.types import Catalog, Column, Kind, Relation


@dataclass(frozen=True)
class Named:
    """A relation as it occurs in FROM. ``aliased`` tells whether the SQL gave it a name of its own."""

    index: int
    alias: str
    relation: Relation
    aliased: bool

    def ref(self, column: Column) -> ColumnRef:
        return ColumnRef(self.index, column.name, column.type)


@dataclass
class Scope:
    """Occurrences in FROM order. Names match exactly, or without regard to case where that is unambiguous."""

    problems: SqlProblems
    occurrences: list[Named] = field(default_factory=list)
    merged: dict[ColumnRef, ColumnRef] = field(default_factory=dict)  # by USING: the hidden column → the shown one
    complete: bool = True  # False once a relation of FROM could not be resolved

    def add(self, table: exp.Table, catalog: Catalog) -> Named | None:
        """The relation that ``table`` names, as the next occurrence."""
        relation = self._relation(table, catalog)
        if relation is None:
            self.complete = False
            return None
        alias = table.alias or relation.name
        if any(o.alias.lower() == alias.lower() for o in self.occurrences):
            self.problems.add(table, f"two relations are called {alias}", "give each its own name with AS")
        named = Named(len(self.occurrences), alias, relation, bool(table.alias))
        self.occurrences.append(named)
        return named

    def _relation(self, table: exp.Table, catalog: Catalog) -> Relation | None:
        source, name = table.db, table.name
        if not source or table.catalog:
            self.problems.add(table, f"'{table.name}' must be written source.relation")
            return None
        sources = {s for s, _ in catalog}
        known_source = match(source, sources)
        if known_source is None:
            self.problems.add(table, f"unknown source {source}", nearest(source, sources))
            return None
        names = {r for s, r in catalog if s == known_source}
        known = match(name, names)
        if known is None:
            self.problems.add(table, f"source {known_source} has no relation {name}", nearest(name, names))
            return None
        relation = catalog[known_source, known]
        if relation.refused:
            what, _, remedy = relation.refused.partition("; ")
            self.problems.add(table, f"{known_source}.{known} {what}", remedy)
        return relation

    def resolve(self, node: exp.Column) -> ColumnRef | None:
        """The column that the SQL means."""
        if node.table:
            owner = self.occurrence(node, node.table, node.db)
            return self.column_of(owner, node) if owner else None
        found = list(dict.fromkeys(self._unqualified(node.name)))
        if len(found) > 1:
            owners = " and ".join(self.occurrences[ref.occurrence].alias for ref in found)
            self.problems.add(
                node,
                f"column {node.name} is ambiguous: {owners} have it",
                f"write {self.occurrences[found[0].occurrence].alias}.{node.name}",
            )
            return None
        if not found:
            # Where a relation is unknown, its columns are too; that one problem was reported.
            if self.complete:
                names = (c.name for o in self.occurrences for c in o.relation.columns)
                self.problems.add(node, f"unknown column {node.name}", nearest(node.name, names))
            return None
        return self._typed(node, found[0])

    def _unqualified(self, name: str) -> Iterator[ColumnRef]:
        for occurrence in self.occurrences:
            known = match(name, (c.name for c in occurrence.relation.columns))
            column = occurrence.relation.column(known) if known else None
            if column:
                ref = occurrence.ref(column)
                yield self.merged.get(ref, ref)

    def occurrence(self, node: exp.Expression, table: str, source: str = "") -> Named | None:
        """The occurrence that a qualifier names."""
        for named in self.occurrences:
            plain = not named.aliased and named.relation.source.lower() == source.lower()
            if named.alias.lower() == table.lower() and (not source or plain):
                return named
        if self.complete:
            written = f"{source}.{table}" if source else table
            self.problems.add(
                node,
                f"nothing in FROM is called {written}",
                nearest(table, (o.alias for o in self.occurrences)),
            )
        return None

    def column_of(self, owner: Named, node: exp.Column) -> ColumnRef | None:
        """The column of that name of one occurrence."""
        names = [c.name for c in owner.relation.columns]
        known = match(node.name, names)
        column = owner.relation.column(known) if known else None
        if column is None:
            relation = f"{owner.relation.source}.{owner.relation.name}"
            self.problems.add(node, f"{relation} has no column {node.name}", nearest(node.name, names))
            return None
        return self._typed(node, owner.ref(column))

    def _typed(self, node: exp.Expression, ref: ColumnRef) -> ColumnRef | None:
        if ref.type.kind is not Kind.UNKNOWN:
            return ref
        owner = self.occurrences[ref.occurrence]
        column = owner.relation.column(ref.column)
        unusable = "has no usable type; declare its type in the source, or leave it out"
        what, _, remedy = (column.refused if column and column.refused else unusable).partition("; ")
        self.problems.add(node, f"column {owner.alias}.{ref.column} {what}", remedy)
        return None

    def star(self, node: exp.Expression, owner: Named | None = None) -> list[ColumnRef]:
        """The columns that ``*`` or ``owner.*`` stands for."""
        owners = self.occurrences if owner is None else [owner]
        refs = [o.ref(c) for o in owners for c in o.relation.columns]
        shown = refs if owner else [ref for ref in refs if ref not in self.merged]
        return [ref for ref in shown if self._typed(node, ref)]


def match(name: str, names: Iterable[str]) -> str | None:
    """The name among ``names``: exactly, else the only one that differs in case alone."""
    candidates = [n for n in names if n.lower() == name.lower()]
    if name in candidates:
        return name
    return candidates[0] if len(candidates) == 1 else None
