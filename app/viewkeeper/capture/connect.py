"""Debezium in Kafka Connect (standalone), for people who have no Kafka Connect: one process, a connector per source.

The supervisor starts it, hands it the connectors, looks at their state, and starts again what failed, after a pause
that grows. A connector never resumes from the offsets that Connect has stored, because inside a transaction that loses
rows (see ``debezium_connector``): they are thrown away, and every start is under a name that has none. So it begins
where the slot stands, with a whole transaction.

Sources' passwords are in the environment of the process, the broker's in a file that only we can read. Connectors refer
to them by name, because the REST API shows configurations; it listens on this machine only, and asks for a password
that is made at each start.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from viewkeeper.capture.connect_rest import ConnectorState, ConnectRest, Refused, Unanswered, root_cause
from viewkeeper.capture.debezium_connector import Connector
from viewkeeper.children import dying_with_us, ignoring
from viewkeeper.errors import KafkaError, SourceError, SourceUnreachable, UsageError, WorldError

START_DEADLINE = 120.0
STOP_DEADLINE = 15.0
_POLL_SECONDS = 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_UNREACHABLE_PAUSE = 2.0
_STEADY_SECONDS = 5.0
_REMEMBER_SECONDS = 30.0
_KEEP_LOG_BYTES = 10_000_000
_PLAIN = "._-/,;$@*+()[]{}"

_JVM = [
    "-Xmx512m",
    "-Xms64m",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.io.debezium.connector.postgresql=info",
    "-Dorg.slf4j.simpleLogger.log.io.debezium.metrics=error",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
]

_WORKER = {
    "plugin.discovery": "service_load",
    "offset.flush.interval.ms": "1000",
    "topic.creation.enable": "false",
    "rest.extension.classes": "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension",
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "config.providers": "env",
    "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
    "producer.linger.ms": "2",
    "producer.batch.size": "262144",
    "producer.compression.type": "lz4",
    "producer.enable.idempotence": "true",
    "producer.max.in.flight.requests.per.connection": "5",
    # As large as the topics take a row.
    "producer.max.request.size": "100000000",
    "producer.buffer.memory": "134217728",
}

logger = logging.getLogger(__name__)


@dataclass
class Supervised:
    """A connector that must run, for which source, and what must hold before it starts.

    ``check`` raises SourceUnreachable to be tried again later, any other error of the source to give it up: Debezium
    would make a slot that is missing, and the changes before it would be lost unseen. ``remember`` may note how far it
    has come; it is called now and then while it runs. One that is ``away`` is left alone until somebody says that it is
    no more. What follows is where its supervisor stands: why it was given up, under which name it was started last,
    asked to run or waiting until ``due``, running since when, the failure last told.
    """

    source: str
    connector: Connector
    check: Callable[[], None] = lambda: None
    remember: Callable[[], None] = lambda: None
    away: bool = False
    error: SourceError | None = None
    name: str = ""
    asked: bool = False
    due: float = 0.0
    pause: float = _FIRST_PAUSE
    running_since: float | None = None
    remembered: float = 0.0
    told: str = ""

    def rename(self) -> None:
        """Takes a name that no connector had before."""
        self.name = f"{self.connector.name}-{secrets.token_hex(4)}"

    def reset(self) -> None:
        """Nothing runs any more."""
        self.asked, self.due, self.running_since = False, 0.0, None


@dataclass(frozen=True)
class Program:
    """How to start Kafka Connect: the Java to use, the jars of Connect and Debezium."""

    java: str
    jars: Path


@dataclass
class Connect:
    """Runs the connectors until it is told to stop. ``kafka`` are the Java client's settings, ``folder`` is its own.

    A connector that cannot go on is given up alone. ``secrets`` are environment variables for the process; a
    connector's configuration has ``reference(name)`` for one.
    """

    folder: Path
    program: Program
    kafka: Mapping[str, str]
    connectors: list[Supervised]
    secrets: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _rest: ConnectRest | None = None
    _lock: IO[str] | None = None

    @property
    def name(self) -> str:
        return "connect"

    @property
    def log(self) -> Path:
        return self.folder / "connect.log"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def run(self, stop: threading.Event, ready: Callable[[], None] = lambda: None) -> None:
        """Keeps every connector running until ``stop``; calls ``ready`` once all of them do, for the first time.

        Returns early if all were given up; in the end, raises why some were.
        """
        pause = _FIRST_PAUSE
        self._claim()
        try:
            while not stop.is_set() and self._left():
                began = time.monotonic()
                try:
                    self._start(stop)
                    self._supervise(stop, ready)
                except KafkaError as error:
                    if stop.is_set():  # who asked us to end may have asked Kafka Connect as well
                        break
                    pause = _FIRST_PAUSE if time.monotonic() - began > _LONGEST_PAUSE else pause
                    logger.warning("%s; starting again in %.1f s", self._masked(str(error)), pause)
                    self._end()
                    stop.wait(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)
        finally:
            self._end()
            lock, self._lock = self._lock, None
            if lock is not None:
                lock.close()
        if given_up := [supervised.error for supervised in self.connectors if supervised.error is not None]:
            raise SourceError([problem for error in given_up for problem in error.problems])

    def _left(self) -> bool:
        """Is there one that was not given up, or may there still be?"""
        return not self.connectors or any(supervised.error is None for supervised in self.connectors)

    # ---- the process

    def _claim(self) -> None:
        """Makes the folder ours alone; the kernel gives it back when we end, however we end."""
        try:
            for folder in (self.folder.parent, self.folder):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.fdopen(os.open(self.folder / "lock", os.O_WRONLY | os.O_CREAT, 0o600), "w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what = "another capture of the same sources runs in this folder"
            raise UsageError.at(str(self.folder), what, "run one capture per source") from None
        except OSError as e:
            what = f"cannot be written ({e.strerror})"
            raise UsageError.at(str(self.folder), what, "make it writable for this user") from None

    def _start(self, stop: threading.Event) -> None:
        """Starts the worker without connectors, and waits until its API answers."""
        port, user, password = _free_port(), "viewkeeper", secrets.token_urlsafe(24)
        worker = self._write_files(port, user, password)
        (self.folder / "offsets").unlink(missing_ok=True)
        for supervised in self.connectors:
            supervised.reset()
        self._process = self._launch(worker)
        self._rest = ConnectRest(port, user, password)
        deadline = time.monotonic() + START_DEADLINE
        while not self._rest.ready() and not stop.wait(0.1):
            self._require_alive()
            if time.monotonic() > deadline:
                raise self._failure(f"Kafka Connect was not ready after {START_DEADLINE:.0f} s")

    def _write_files(self, port: int, user: str, password: str) -> Path:
        """Everything Connect reads, for our eyes only; the worker's settings among it."""
        worker = {
            **_WORKER,
            **{f"{part}{key}": value for part in ("", "producer.") for key, value in self.kafka.items()},
            "listeners": f"http://127.0.0.1:{port}",
            "offset.storage.file.filename": str(self.folder / "offsets"),
            "config.providers.env.param.allowlist.pattern": "|".join(self.secrets) or "none",
        }
        login = self.folder / "rest.properties"
        module = "org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule"
        _write_private(login, _properties({user: password}))
        _write_private(
            self.folder / "rest.jaas",
            f"KafkaConnect {{ {module} required file={json.dumps(str(login), ensure_ascii=False)}; }};",
        )
        _write_private(self.folder / "worker.properties", _properties(worker))
        return self.folder / "worker.properties"

    def _launch(self, worker: Path) -> subprocess.Popen[bytes]:
        """A Java process in our process group that ignores Ctrl-C and dies with us."""
        command = [
            self.program.java,
            *_JVM,
            f"-Djava.security.auth.login.config={(self.folder / 'rest.jaas').absolute().as_uri()}",
        ]
        command += ["-cp", f"{self.program.jars}/*", "org.apache.kafka.connect.cli.ConnectStandalone", str(worker)]
        # The kernel's parent-death signal needs no cooperation of the JVM, and holds after a kill -9 of ours.
        guard = [*ignoring("INT", umask="077"), *dying_with_us()]
        if self.log.exists() and self.log.stat().st_size > _KEEP_LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.old"))
        with os.fdopen(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
            return subprocess.Popen(
                [*guard, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.secrets, "LC_ALL": "C.UTF-8"},  # or Java finds no folder with an umlaut
            )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _require_alive(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise self._failure("Kafka Connect ended")

    def _failure(self, what: str) -> KafkaError:
        text = self.log.read_text(errors="replace")[-20_000:] if self.log.exists() else ""
        said = root_cause(text) if "Exception" in text else ""
        return KafkaError.at("capture", what + (f" ({said})" if said else ""), f"see {self.log}")

    # ---- the connectors

    def _supervise(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        """Creates and restarts connectors, and tells what fails of them, until the process ends or ``stop``."""
        assert self._rest is not None
        told = False
        while not stop.is_set() and self._left():
            self._require_alive()
            with contextlib.suppress(Unanswered):  # a process that is alive will answer again, or end
                self._look(self._rest)
            if not told and all(s.running_since is not None for s in self.connectors):
                ready()
                told = True
            stop.wait(_POLL_SECONDS)
        for supervised in self.connectors:
            if supervised.running_since is not None:
                self._remember(supervised)

    def _look(self, rest: ConnectRest) -> None:
        states = {state.name: state for state in rest.states()}
        for unwanted in states.keys() - {supervised.name for supervised in self.connectors}:
            with contextlib.suppress(Refused):  # it is gone already
                rest.delete(unwanted)
        for supervised in self.connectors:
            state = states.get(supervised.name)
            if supervised.away or supervised.error is not None:
                continue
            if not supervised.asked or state is None:
                if time.monotonic() >= supervised.due:
                    self._begin(rest, supervised, state)
            elif state.failure is not None:
                self._failed(supervised, state.failure)
            elif state.running:
                self._runs(supervised)

    def _begin(self, rest: ConnectRest, supervised: Supervised, state: ConnectorState | None) -> None:
        """Starts the connector in place of the one that failed; a source that cannot be reached is tried later."""
        try:
            if state is not None:
                rest.delete(supervised.name)
            supervised.check()
            supervised.rename()
            rest.create(supervised.name, dict(supervised.connector.config))
            supervised.asked = True
        except (SourceUnreachable, KafkaError) as error:
            self._failed(supervised, str(error), _UNREACHABLE_PAUSE)
        except SourceError as error:
            supervised.reset()
            supervised.error = error
            if self._left():
                logger.warning("%s; no longer captured here", self._masked(str(error)))
        except Refused as error:
            self._failed(supervised, str(error))

    def _runs(self, supervised: Supervised) -> None:
        now = time.monotonic()
        since = supervised.running_since = supervised.running_since or now
        if supervised.told and now - since > _STEADY_SECONDS:
            logger.info("source %s: going on", supervised.source)
            supervised.told, supervised.pause = "", _FIRST_PAUSE
        if now - max(since, supervised.remembered) > _REMEMBER_SECONDS:
            self._remember(supervised)

    def _remember(self, supervised: Supervised) -> None:
        supervised.remembered = time.monotonic()
        with contextlib.suppress(WorldError):  # the next time will do
            supervised.remember()

    def _failed(self, supervised: Supervised, reason: str, longest: float = _LONGEST_PAUSE) -> None:
        """Has it started again after a pause; to ask whether a source is back is cheap, so that one stays short."""
        supervised.reset()
        supervised.due = time.monotonic() + min(supervised.pause, longest)
        supervised.pause = min(2 * supervised.pause, longest)
        said = self._masked(" ".join(reason.split())).removeprefix(f"source {supervised.source}: ")
        if said != supervised.told:
            logger.warning("source %s: %s; trying again", supervised.source, said)
        supervised.told = said

    def _masked(self, text: str) -> str:
        for secret in filter(None, [*self.secrets.values(), *_kafka_secrets(self.kafka)]):
            text = text.replace(secret, "***")
        return text


def _kafka_secrets(kafka: Mapping[str, str]) -> list[str]:
    return [value for key, value in kafka.items() if "password" in key or "jaas" in key or key.endswith(".key")]


def reference(variable: str) -> str:
    """What stands in a connector's configuration for an environment variable of Kafka Connect's process."""
    return f"${{env:{variable}}}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _write_private(file: Path, text: str) -> None:
    """The file is never readable for others, not even while it is written."""
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as out:
        out.write(text)


def _properties(values: Mapping[str, str]) -> str:
    """Java's format of properties: what it takes for syntax or does not read as Latin-1 is escaped."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in values.items())


def _escaped(text: str) -> str:
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
    return "".join(chr(u) if u < 128 and (chr(u).isalnum() or chr(u) in _PLAIN) else f"\\u{u:04x}" for u in units)
