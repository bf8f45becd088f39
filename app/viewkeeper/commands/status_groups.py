"""The groups of a configuration, found without looking at any source: one of them may be down."""

from __future__ import annotations

from viewkeeper.config import Config
from viewkeeper.config_groups import ALL, AUTO
from viewkeeper.integrator.groups import Split, split
from viewkeeper.job.named_relations import sources_named
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
