"""The long-running job: its groups side by side, until it is told to stop.

A group is the unit of failure. One that cannot go on ends alone, says why, and leaves the others their work; the job
then ends with its error when the others do.
"""

from __future__ import annotations

import logging
import threading
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from viewkeeper.config import Config, load_config
from viewkeeper.errors import UserError, ViewError, ViewkeeperError, raise_together
from viewkeeper.job.assembly import Project
from viewkeeper.job.group_job import GroupJob
from viewkeeper.job.joining import begin, join
from viewkeeper.job.moving import settle_groups
from viewkeeper.job.opening import Opening
from viewkeeper.job.patience import FIRST_START, Stopped
from viewkeeper.job.status import StatusFile
from viewkeeper.job.stopping import stoppable
from viewkeeper.warehouse.durability import disk
from viewkeeper.warehouse.warehouse import Warehouse

log = logging.getLogger("viewkeeper")


def run_job(config_file: str, until_idle: bool = False) -> int:
    """Runs the job in this process; ends on SIGTERM or Ctrl-C after the batch in hand, or when idle if told to."""
    config = load_config(config_file)
    stoppable(partial(_run, config, until_idle))
    return 0


def _run(config: Config, until_idle: bool, stop: threading.Event) -> None:
    try:
        project = begin(config, stop)
        with Warehouse(config.warehouse, keep=config.keep).lock():
            settle_groups(project)
            for source in project.sources.values():
                source.close()  # every group has connections of its own
            Groups(project, until_idle, stop).run()
    except Stopped:
        log.info("stopped while waiting; nothing is lost")


class _Session:
    """The one Spark session of all groups; made when the first of them needs it."""

    def __init__(self, project: Project, stop: threading.Event):
        self._project = project
        self._stop = stop
        self._lock = threading.Lock()
        self._spark: Any = None

    def __call__(self) -> Any:
        # Imported late: what needs no Spark should not wait for it.
        from viewkeeper.job.session import spark_session

        with self._lock:
            if self._spark is None:
                log_file = self._project.config.warehouse / "logs" / "spark.log"
                self._spark = spark_session(log_file, self._stop)
            return self._spark

    def close(self) -> None:
        if self._spark is not None:
            from viewkeeper.job.jvm import stop

            stop(self._spark)


@dataclass
class Groups:
    """The groups of a project at work, each in a thread of its own; the caller holds the warehouse's lock."""

    project: Project
    until_idle: bool
    stop: threading.Event
    patience: float = FIRST_START  # seconds that a group waits for a source that is away at the start
    _failures: dict[str, BaseException] = field(default_factory=dict)

    def run(self) -> None:
        """Returns when every group has ended; raises what one of them failed with."""
        stops = {group: threading.Event() for group in self.project.groups}
        spark = _Session(self.project, self.stop)
        threads = [
            threading.Thread(target=self._run, args=(group, stop, spark), name=f"group {group}")
            for group, stop in stops.items()
        ]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                if self.stop.wait(0.1):
                    for stop in stops.values():
                        stop.set()
                    for thread in threads:
                        thread.join()
        finally:
            spark.close()
        raise_together(self._failures.values())

    def _run(self, group: str, stop: threading.Event, spark: _Session) -> None:
        try:
            self._keep(group, stop, spark)
        except Stopped:
            log.info("stopped while waiting; nothing is lost")
        except BaseException as error:  # the main thread raises it
            self._failures[group] = error
            StatusFile.of(self.project.config.warehouse, group).failed(str(error))
            concerns_all = isinstance(error, UserError) and not isinstance(error, ViewError)
            if concerns_all or not isinstance(error, ViewkeeperError):
                self.stop.set()  # somebody must change something before any of them can be right
            elif len(self.project.groups) > 1:
                log.warning("group %s has stopped: %s; other groups go on", group, error)

    def _keep(self, group: str, stop: threading.Event, spark: _Session) -> None:
        config = self.project.config
        status = StatusFile.of(config.warehouse, group)
        part = self._part(group, stop, status)
        warehouse = Warehouse(config.warehouse, group, config.keep, disk(config.durability))
        opening = Opening(part, warehouse, stop=stop)
        # Others may go on for long: a group that has ended holds nothing.
        with closing(opening):
            GroupJob(part, opening.open(), status, stop, spark).run(self.until_idle)

    def _part(self, group: str, stop: threading.Event, status: StatusFile) -> Project:
        if self.project.understands(group):
            return self.project.part(group)
        with status.waiting() as waiting:
            return join(self.project, group, stop, waiting, self.patience)
