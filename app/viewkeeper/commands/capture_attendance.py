"""Which sources are there to be captured: those that are begin, the others are waited for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

from viewkeeper.capture.connect import Connect, Program, Supervised, reference
from viewkeeper.capture.debezium_connector import Login, connector
from viewkeeper.capture.postgres_setup import PostgresCapture
from viewkeeper.capture.presence import Presence, Present
from viewkeeper.capture.side_by_side import SideBySide
from viewkeeper.capture.sqlite_capture import SqliteCapture
from viewkeeper.capture.topic_end import furthest_sent
from viewkeeper.config import Config
from viewkeeper.config_sources import PostgresConfig
from viewkeeper.errors import SourceError, SourceUnreachable, ViewError
from viewkeeper.job.assembly import Project, make_capture, make_source
from viewkeeper.job.joining import as_seen
from viewkeeper.job.looking import LOOK, Onlooker
from viewkeeper.job.patience import FIRST_START, patiently
from viewkeeper.local.jars import jar_folder, java
from viewkeeper.warehouse.topics import ensure_topics

logger = logging.getLogger(__name__)


class Attendance:
    """Begins the capture of these sources, each as soon as it is there.

    What a source is to log is what views use. Views that use another one that is away cannot be understood yet: what
    is logged for them stays so (``Understood``), and who loads one sees to the rest.
    """

    def __init__(self, config: Config, names: list[str], captures: SideBySide):
        self.config = config
        self.captures = captures
        self.stop = captures.stop
        self._awaited = list(names)
        self._has_begun = False
        self._told: set[str] = set()
        self._sources = {name: make_source(config, name) for name in config.sources}
        self._onlooker = Onlooker(self._sources.values())
        self._debezium = _Debezium(config, names)

    def take(self) -> None:
        """Returns when every source has begun or failed, as all have if none has begun after a while; or Stopped."""
        try:
            self._look_patiently()
            while self._awaited:
                self._look_patiently()
        except SourceUnreachable as error:
            self.captures.fail(error)

    def _look_patiently(self) -> None:
        patiently(self._look, seconds=None if self._has_begun else FIRST_START, stop=self.stop)

    def _look(self) -> None:
        """Begins with what is there; raises SourceUnreachable if nothing new is."""
        waited = len(self._awaited)
        looked = self._onlooker.look(self.stop, LOOK)
        missed = {name: looked.away[name] for name in self._awaited if name in looked.away}
        there = [name for name in self._awaited if name not in missed]
        if there or not self._awaited:
            project = as_seen(self.config, self._sources, looked)
            self._tell(project.refused)
            missed |= self._install(project, there)
        self._begin([name for name in there if name not in missed])
        failed = [name for name, error in missed.items() if not isinstance(error, SourceUnreachable)]
        for name in failed:
            self._fail(name, missed[name])
        if self._awaited and len(self._awaited) == waited:
            raise SourceUnreachable([problem for error in missed.values() for problem in error.problems])

    def _tell(self, refused: Mapping[str, ViewError]) -> None:
        """A view that cannot be understood holds up no capture: what is logged for it stays so."""
        for name in refused.keys() - self._told:
            logger.warning("%s; its sources are captured all the same", refused[name])
        self._told |= refused.keys()

    def _install(self, project: Project, names: list[str]) -> dict[str, SourceError]:
        """Makes these sources log what views need; tells which of them cannot begin, and why."""
        ensure_topics(self.config.kafka.client(), {self.config.sources[name].topic: 1 for name in names})
        failures: dict[str, SourceError] = {}
        for name in names:
            capture = project.captures[name]
            try:
                if not project.used(name) and not capture.captured():
                    self._require_understood(name, project)
                    raise SourceUnreachable.at(f"source {name}", "every view of it waits for another source")
                project.understood.install(capture)
            except SourceError as error:
                failures[name] = error
                continue
            for line in capture.installed():
                print(f"{name}: created {line}", flush=True)
        return failures

    @staticmethod
    def _require_understood(source: str, project: Project) -> None:
        """Raises why no view of a source is understood, unless they wait for another one."""
        for view, error in project.refused.items():
            if source in project.sources_of[view]:
                raise SourceError(error.problems)

    def _begin(self, names: list[str]) -> None:
        for name in names:
            self._awaited.remove(name)
            capture = make_capture(self.config, name)
            if isinstance(capture, SqliteCapture):
                self.captures.start(Present(capture, Presence.of(self.config.warehouse, name)))
            else:
                self._debezium.begin(name, self.captures)
        if names:
            self._has_begun = True
            print(f"capturing {', '.join(names)}; Ctrl-C ends it", flush=True)

    def _fail(self, name: str, error: SourceError) -> None:
        self._awaited.remove(name)
        self._debezium.leave(name)
        self.captures.fail(error)


class _Debezium:
    """All that Debezium reads, in one Kafka Connect, which starts with the first source that is there."""

    def __init__(self, config: Config, names: list[str]):
        self._config = config
        self._secrets: dict[str, str] = {}
        self._supervised = {
            name: self._supervise(name, section)
            for name in names
            if isinstance(section := config.sources[name], PostgresConfig)
        }
        # A process of its own for other sources has a folder of its own.
        self._folder = config.warehouse / "connect" / min(self._supervised, default="")
        self._connect: Connect | None = None

    def begin(self, name: str, captures: SideBySide) -> None:
        self._supervised[name].away = False
        if self._connect is None:
            self._connect = self._worker()
            captures.start(self._connect)

    def leave(self, name: str) -> None:
        """The source will not come, if it is one for Debezium."""
        if (supervised := self._supervised.pop(name, None)) and self._connect is not None:
            self._connect.connectors.remove(supervised)

    def _worker(self) -> Connect:
        return Connect(
            self._folder,
            Program(java(), jar_folder("connect")),
            self._config.kafka.java(),
            list(self._supervised.values()),
            self._secrets,
        )

    def _supervise(self, name: str, section: PostgresConfig) -> Supervised:
        login = Login.parse(self._config.place("sources", name, "url"), section.url)
        variable = f"VIEWKEEPER_PASSWORD_{name}"  # not in capitals: names may differ in case alone
        if login.password:
            self._secrets[variable] = login.password
        made = connector(section, section.topic, login, reference(variable) if login.password else "")
        capture = make_capture(self._config, name)
        assert isinstance(capture, PostgresCapture)
        sent = partial(furthest_sent, self._config.kafka.client(), section.topic)
        return Supervised(name, made, partial(capture.require_same_slot, sent), capture.remember_slot, away=True)
