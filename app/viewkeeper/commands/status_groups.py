"""The groups of a configuration, found without looking at any source: one of them may be down."""

from __future__ import annotations

from collections.abc import Collection

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from viewkeeper.algebra.sql_scope import match
from viewkeeper.config import Config
from viewkeeper.config_groups import ALL, AUTO
from viewkeeper.integrator.groups import Split, split
from viewkeeper.warehouse.groups import groups_of


def configured_groups(config: Config) -> Split:
    """The groups as the job makes them; a view whose SQL cannot be understood is where the warehouse has it."""
    if config.groups != AUTO:
        return split(config, {})
    sources_of = {view: sources_named(section.sql, config.sources) for view, section in config.views.items()}
    understood = {view: section for view, section in config.views.items() if sources_of[view]}
    found = split(config.model_copy(update={"views": understood}), sources_of)
    rest = [view for view in config.views if view not in understood]
    for view, group in groups_of(config.warehouse, rest).items() if rest else ():
        found[group or ALL] = (*found.get(group or ALL, ()), view)
    return found


def sources_named(sql: str, sources: Collection[str]) -> frozenset[str]:
    """The sources whose relations a statement names: relations are always written ``source.relation``."""
    try:
        tables = [table for part in sqlglot.parse(sql, dialect="duckdb") if part for table in part.find_all(exp.Table)]
    except SqlglotError:
        return frozenset()
    named = {match(table.db, sources) for table in tables if table.db}
    return frozenset(name for name in named if name is not None)
