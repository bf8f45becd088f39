"""The queue's end of each source: its topic, read from where a cut stands."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from viewkeeper.algebra.view import View
from viewkeeper.config_sources import PostgresConfig
from viewkeeper.job.assembly import Project
from viewkeeper.job.understood import used_by
from viewkeeper.messages import Reached
from viewkeeper.queue.update_queue import Inlet
from viewkeeper.warehouse.cuts import Cut


def inlets(
    project: Project, cut: Cut, sources: Collection[str], loaded: Mapping[str, View] | None = None
) -> list[Inlet]:  # fmt: skip
    """The inlets of these sources at the cut; ``loaded`` are the views that it holds, if not all of the project's."""
    made = [inlet(project, cut, name) for name in sources]
    for each in made if loaded is not None else ():
        known = used_by(loaded or {}, each.source)
        each.fresh = {relation: set(used) - set(known.get(relation, ())) for relation, used in each.used.items()}
    return made


def inlet(project: Project, cut: Cut, source: str) -> Inlet:
    """The inlet of a source at the cut."""
    return inlet_at(project, source, Reached.parse(cut.positions[source]), cut.offsets[source])


def inlet_at(project: Project, source: str, position: Reached, offset: int) -> Inlet:
    """The inlet of a source that has come so far, its topic read from an offset on."""
    section = project.config.sources[source]
    return Inlet(
        source=source,
        topic=section.topic,
        relations={r: described for (s, r), described in project.catalog.items() if s == source},
        used=project.used(source),
        position=position,
        offset=offset,
        format="debezium" if isinstance(section, PostgresConfig) else "native",
        schema=section.schema_name if isinstance(section, PostgresConfig) else "",
    )
