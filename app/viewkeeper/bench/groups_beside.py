"""Another group at work beside the one that is measured, in the same process and Spark session, as the job has it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from viewkeeper.job.assembly import Project
from viewkeeper.job.group_job import GroupJob
from viewkeeper.job.opening import Opening
from viewkeeper.job.status import StatusFile
from viewkeeper.warehouse.warehouse import Warehouse

_POLL = 0.02


class Beside:
    """One group in a thread of its own until ``close``; it works when the constructor returns."""

    def __init__(self, project: Project, group: str, spark: Any):
        config, part = project.config, project.part(group)
        self._stop = threading.Event()
        warehouse = Warehouse(config.warehouse, group, keep=config.keep)
        self._keeper = Opening(part, warehouse, stop=self._stop).open()
        self._failure: list[BaseException] = []
        job = GroupJob(part, self._keeper, StatusFile.of(config.warehouse, group), self._stop, lambda: spark)
        self._thread = threading.Thread(target=self._run, args=(job,), name=f"group {group}")
        self._thread.start()
        name = f"viewkeeper {group}"  # of its query, after its checkpoint's folder
        self._until(lambda: any(query.name == name for query in spark.streams.active))

    def reach(self, targets: Mapping[str, str]) -> None:
        """Returns when these positions are in a cut."""
        self._until(lambda: not self._keeper.behind(targets))

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self, job: GroupJob) -> None:
        try:
            job.run(until_idle=False)
        except BaseException as error:
            self._failure.append(error)

    def _until(self, condition: Any) -> None:
        while not condition():
            if self._failure:
                raise self._failure[0]
            time.sleep(_POLL)
