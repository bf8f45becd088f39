"""What the groups of one job know together: how sources were described, and what views need of them."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from viewkeeper.algebra.types import Catalog, Relation
from viewkeeper.algebra.view import View
from viewkeeper.capture import Capture
from viewkeeper.errors import SourceError
from viewkeeper.job.named_relations import Named


def used_by(views: Mapping[str, View], source: str) -> dict[str, list[str]]:
    """The relations of a source that these views use, and the columns they use of each."""
    columns: dict[str, set[str]] = {}
    for view in views.values():
        for occurrence in view.occurrences:
            if occurrence.source == source:
                columns.setdefault(occurrence.relation, set()).update(c.name for c in occurrence.columns)
    return {relation: sorted(names) for relation, names in sorted(columns.items())}


class Understood:
    """The views understood so far, and the relations that each of the others names; groups share it between threads.

    What a source is to capture does not depend on groups: it is what any view of the configuration uses. A view that
    waits for one source may use another that is there; until it is understood, nobody can say which columns. So as
    much stays captured of the relations it names as is: taken out and put in again, changes between would be missing.
    What it uses beyond that is captured once it is understood, before it is loaded.
    """

    def __init__(self, catalog: Catalog, views: Mapping[str, View], named: Mapping[str, Named]):
        self._catalog = dict(catalog)
        self._views = dict(views)
        self._named = named
        self._lock = threading.Lock()
        self._installing: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)  # by source

    def described(self, catalog: Catalog) -> Catalog:
        """These sources as they were first described in this job: groups that share one must know the same of it."""
        with self._lock:
            known = {source for source, _ in self._catalog}
            self._catalog |= {name: described for name, described in catalog.items() if name[0] not in known}
            sources = {source for source, _ in catalog}
            return {name: described for name, described in self._catalog.items() if name[0] in sources}

    def add(self, views: Mapping[str, View], catalog: Catalog) -> None:
        """These views are understood now; ``catalog`` is how their sources are described by now.

        Raises SourceError where a relation that they use is not what it was when this job first looked.
        """
        with self._lock:
            for name in sorted({name for view in views.values() for name in view.relations}):
                if name not in catalog or _rows_of(catalog[name]) != _rows_of(self._catalog[name]):
                    what = f"table {name[1]} was altered while the job waited for another source"
                    raise SourceError.at(f"source {name[0]}", what, "start the job again")
            self._views |= views

    def install(self, capture: Capture, reload: bool = False) -> None:
        """Makes a source log the changes that views need; groups begin at the same time, and may share the source."""
        with self._lock:
            alone = self._installing[capture.name]
        with alone:
            capture.install(self._captured(capture), reload)

    def _captured(self, capture: Capture) -> dict[str, list[str]]:
        with self._lock:
            used = used_by(self._views, capture.name)
            others = [relations for view, relations in self._named.items() if view not in self._views]
        waiting = {relation.lower() for named in others for source, relation in named if source == capture.name}
        for relation, columns in capture.captured().items() if waiting else ():
            if relation.lower() in waiting:
                used[relation] = sorted({*used.get(relation, ()), *columns})
        return used


def _rows_of(relation: Relation) -> Relation:
    """The relation as far as views and captured rows depend on it; how fast it answers is no part of that."""
    return replace(relation, indexed=frozenset())
