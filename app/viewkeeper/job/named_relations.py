"""Which relations a view's SQL names, read from its text alone: a source that is away cannot describe itself."""

from __future__ import annotations

from collections.abc import Collection

from viewkeeper.algebra.sql import tables_named
from viewkeeper.algebra.sql_problems import SqlProblems
from viewkeeper.algebra.sql_scope import match
from viewkeeper.errors import ViewError
from viewkeeper.managers.recomputed_sql_tree import parsed, walk
from viewkeeper.managers.recomputing import engine

Named = frozenset[tuple[str, str]]
"""Relations by name: the source as the configuration writes it, the relation as the view does."""


def relations_named(sql: str, sources: Collection[str]) -> Named:
    """The relations of these sources that a statement names, in subqueries and CTEs too.

    Relations are always written ``source.relation``, so for a view that can be understood these are its relations.
    """
    known = ((match(source, sources), relation) for source, relation in _tables(sql))
    return frozenset((source, relation) for source, relation in known if source is not None)


def names_known_sources(sql: str, sources: Collection[str]) -> bool:
    """Whether a statement names relations, and of these sources only: then its sources are known, whatever is wrong."""
    tables = _tables(sql)
    return bool(tables) and all(match(source, sources) is not None for source, _ in tables)


def sources_named(sql: str, sources: Collection[str]) -> frozenset[str]:
    """The sources whose relations a statement names."""
    return frozenset(source for source, _ in relations_named(sql, sources))


def _tables(sql: str) -> set[tuple[str, str]]:
    """As DuckDB reads the statement, which accepts more; as our own views are read where it does not (its keywords)."""
    try:
        with engine() as connection:
            tree = parsed(connection, SqlProblems("", sql))
        tables = [node for node in walk(tree) if node.get("type") == "BASE_TABLE"]
        return {(node["schema_name"], node["table_name"]) for node in tables if node["schema_name"]}
    except (ViewError, RecursionError):
        return tables_named(sql)
