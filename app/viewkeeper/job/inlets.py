"""The queue's end of each source: its topic, read from where a cut stands."""

from __future__ import annotations

from collections.abc import Collection

from viewkeeper.config_sources import PostgresConfig
from viewkeeper.job.assembly import Project
from viewkeeper.messages import Reached
from viewkeeper.queue.update_queue import Inlet
from viewkeeper.warehouse.cuts import Cut


def inlets(project: Project, cut: Cut, sources: Collection[str]) -> list[Inlet]:
    """The inlets of these sources at the cut."""
    return [inlet(project, cut, name) for name in sources]


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
