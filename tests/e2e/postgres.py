"""Real PostgreSQL servers for tests: one per version and test run, a database of its own for every source of a test."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psycopg

from tests.conftest import SharedBroker, eventually
from viewkeeper.capture.connect import Connect, Program, Supervised, reference
from viewkeeper.capture.debezium_connector import Login, connector
from viewkeeper.capture.postgres_setup import PostgresCapture
from viewkeeper.capture.topic_end import furthest_sent
from viewkeeper.config_sources import PostgresConfig
from viewkeeper.local.jars import jar_folder, java
from viewkeeper.local.postgres import PostgresServer, binaries_of, installed

VERSIONS = sorted(installed())
"""What this machine has; a test that is about versions is parametrized by it."""

USUAL = int(os.environ.get("VIEWKEEPER_TEST_POSTGRES", 16 if 16 in VERSIONS else max(VERSIONS, default=16)))

_numbers = itertools.count(1)
_run = uuid.uuid4().hex[:6]


@dataclass
class Database:
    """A database that no other test uses, with a slot and a publication of its own names (not made yet)."""

    server: PostgresServer
    name: str
    slots: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots.append(self.name)

    @property
    def slot(self) -> str:
        return self.slots[0]

    @property
    def url(self) -> str:
        return self.server.url(self.name)

    def section(self, **settings: Any) -> dict[str, Any]:
        """Its section of a configuration; ``topic`` is for the test to name."""
        return {"kind": "postgres", "url": self.url, "slot": self.slot, "publication": self.slot, **settings}

    def config(self, **settings: Any) -> PostgresConfig:
        return PostgresConfig.model_validate(self.section(**settings))

    def connect(self, **settings: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection as an application has it; every statement commits by itself unless told otherwise."""
        return psycopg.connect(self.url, **{"autocommit": True, **settings})

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """All the statements in one transaction; the rows of the last one."""
        rows: list[tuple[Any, ...]] = []
        with self.connect() as connection, connection.transaction():
            for statement in statements:
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else []
        return rows

    def drop(self) -> None:
        """Takes the database and its slots away: a slot that nobody reads keeps the server's log for ever."""
        if self.server.pid is None:
            return
        self.server.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self.name}'",
            f"SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots "
            f"WHERE database = '{self.name}' AND active_pid IS NOT NULL",
            f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            f"WHERE database = '{self.name}' AND NOT active",
            f"DROP DATABASE {self.name} WITH (FORCE)",
        )


class Servers:
    """The servers of a test run, each started when first asked for."""

    def __init__(self, folder: Callable[[str], Path]):
        self._folder = folder
        self._started: dict[str, PostgresServer] = {}

    def shared(self, version: int = USUAL) -> PostgresServer:
        """The server that all tests share: leave it running, as it was."""
        return self._server(f"postgres{version}", version)

    def own(self, version: int = USUAL, **settings: str) -> PostgresServer:
        """A server for one test alone, to be stopped, killed or misconfigured."""
        return self._server(f"own{next(_numbers)}", version, settings)

    def standby(self, primary: PostgresServer) -> PostgresServer:
        """A standby of a server, not started yet; use it as a context."""
        return PostgresServer(self._folder(f"standby{next(_numbers)}"), primary.binaries).copy(primary)

    def _server(self, name: str, version: int, settings: Mapping[str, str] | None = None) -> PostgresServer:
        if name not in self._started:
            self._started[name] = PostgresServer(self._folder(name), binaries_of(version), settings).start()
        return self._started[name]

    def stop(self) -> None:
        for server in self._started.values():
            server.__exit__(None, None, None)


@contextmanager
def database(server: PostgresServer, statements: Sequence[str] = (), name: str = "t") -> Iterator[Database]:
    """A fresh database in which the statements were executed; gone after the block."""
    made = Database(server, f"{name}_{_run}_{next(_numbers)}".lower())
    server.execute(f"CREATE DATABASE {made.name}")
    try:
        made.execute(*statements)
        yield made
    finally:
        made.drop()


@dataclass
class Captured:
    """A source of a test: its database, its topic, and the relations (→ used columns) that are captured."""

    name: str
    database: Database
    topic: str
    relations: Mapping[str, Sequence[str]]

    def capture(self, folder: Path) -> PostgresCapture:
        return PostgresCapture(self.name, self.database.config(topic=self.topic), folder / f"{self.name}.json")


class Debezium:
    """Real Debezium in a real Kafka Connect for these sources, in a thread of the test, until ``stop``."""

    def __init__(self, folder: Path, broker: SharedBroker, *sources: Captured):
        self.broker = broker
        self._stop = threading.Event()
        self._ready = threading.Event()
        self.failures: list[Exception] = []
        self._connectors = [self._supervised(folder, source) for source in sources]
        self.connect = Connect(
            folder / "connect",
            Program(java(), jar_folder("connect")),
            {"bootstrap.servers": broker.bootstrap},
            self._connectors,
            {f"PASSWORD_{s.name.upper()}": p for s in sources if (p := Login.parse("url", s.database.url).password)},
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _supervised(self, folder: Path, source: Captured) -> Supervised:
        capture = source.capture(folder)
        capture.install(source.relations)
        login = Login.parse("url", capture.section.url)
        password = reference(f"PASSWORD_{source.name.upper()}") if login.password else ""
        made = connector(capture.section, source.topic, login, password)
        check = partial(capture.require_same_slot, partial(furthest_sent, self.broker.client(), source.topic))
        return Supervised(source.name, made, check, capture.remember_slot)

    def _run(self) -> None:
        try:
            self.connect.run(self._stop, self._ready.set)
        except Exception as error:
            self.failures.append(error)

    def start(self) -> Debezium:
        self._thread.start()
        eventually(lambda: self._ready.is_set() or self.failures, 120, "Debezium runs")
        assert not self.failures, self.failures
        return self

    def add(self, folder: Path, source: Captured, guarded: bool = True) -> None:
        """Captures one more source. Not ``guarded``, a lost slot ends nothing, as in a user's own Kafka Connect."""
        supervised = self._supervised(folder, source)
        if guarded:
            supervised.check()  # what it raises would be raised only in the end
        else:
            supervised = Supervised(source.name, supervised.connector)
        self._connectors.append(supervised)
        eventually(lambda: supervised.running_since or self.failures, 120, "the connector runs")
        assert not self.failures, self.failures

    def remove(self, source: Captured) -> None:
        """Captures it no longer."""
        gone = [s for s in self._connectors if s.connector.config["slot.name"] == source.database.slot]
        names = {supervised.name for supervised in gone}
        self._connectors[:] = [s for s in self._connectors if s not in gone]
        rest = self.connect._rest
        assert rest is not None
        eventually(lambda: names.isdisjoint(state.name for state in rest.states()), 60, "it is captured no longer")

    def kill(self) -> None:
        """kill -9 of Kafka Connect; its supervisor starts it again."""
        assert self.connect.pid is not None
        os.kill(self.connect.pid, signal.SIGKILL)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def contents(broker: SharedBroker, topic: str) -> list[dict[str, Any]]:
    """The messages of a topic as JSON."""
    return [orjson.loads(message.value()) for message in broker.messages(topic) if message.value()]
