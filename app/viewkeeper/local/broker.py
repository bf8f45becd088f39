"""A real single-node Kafka (KRaft) on this machine, for people and tests that have none.

It cannot outlive the thread that started it: the kernel kills it when that thread ends, however it ends; so
start it from the main thread. It keeps its data in a folder and starts again on it. It ignores
Ctrl-C, because the job beside it in the terminal still needs it to finish; whoever started it calls ``stop``.
"""

from __future__ import annotations

import fcntl
import logging
import os
import random
import re
import signal
import socket
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from types import TracebackType
from typing import IO

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from viewkeeper.children import dying_with_us, ignoring
from viewkeeper.errors import KafkaError, UsageError
from viewkeeper.local.jars import INSTALL_JAVA, jar_folder, java

HOST = "127.0.0.1"
START_DEADLINE = 60.0
STOP_DEADLINE = 15.0

_JVM = [
    "-Xmx256m",
    "-Xms64m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # start in half the time; a local broker is never the bottleneck
    "-Xshare:auto",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
]

_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=data
auto.create.topics.enable=false
num.partitions=1
default.replication.factor=1
min.insync.replicas=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=6000
broker.heartbeat.interval.ms=500
log.retention.hours=168
log.cleaner.dedupe.buffer.size=8388608
num.network.threads=2
num.io.threads=4
"""


class Broker:
    """A broker that keeps its data, its settings and its log in ``directory``.

    ``port`` is that of its clients, the next one its own; without it, two free ones are chosen at each start.
    Use it as a context, or call ``start`` and ``stop``.
    """

    def __init__(self, directory: Path, port: int | None = None):
        self.directory = Path(directory).absolute()
        self.port = port
        self._chosen = port
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: IO[str] | None = None

    @property
    def bootstrap(self) -> str:
        """What clients connect to; known once the broker was started, or if its port was given."""
        assert self.port is not None, "the port is chosen at the start"
        return f"{HOST}:{self.port}"

    @property
    def log(self) -> Path:
        return self.directory / "broker.log"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> Broker:
        """Starts the broker and returns once it serves clients."""
        assert self._process is None, "the broker was started already"
        self.port = free_ports() if self._chosen is None else _require_free(self._chosen)
        self._claim()
        try:
            settings = self._write_settings()
            if not (self.directory / "data" / "meta.properties").exists():
                self._format(settings)
            self._process = self._launch("kafka.Kafka", settings.name)
            self._await_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends the broker; nothing is left running after it. Stopping twice is harmless."""
        process, self._process = self._process, None
        try:
            if process is not None:
                _end(process)
        finally:
            lock, self._lock = self._lock, None
            if lock is not None:
                lock.close()

    def wait(self) -> None:
        """Blocks while the broker runs; a broker that ends by itself is a KafkaError."""
        assert self._process is not None, "the broker was not started"
        self._process.wait()
        raise self._failure("the broker ended")

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _claim(self) -> None:
        """Makes the folder ours alone; the kernel gives it back when we end, however we end."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = (self.directory / "lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            remedy = "stop it, or choose another folder with --dir"
            raise UsageError.at(str(self.directory), "another broker runs in this folder", remedy) from None
        except OSError as e:
            what = f"cannot be written ({e.strerror})"
            raise UsageError.at(str(self.directory), what, "choose a folder with --dir") from None

    def _write_settings(self) -> Path:
        assert self.port is not None
        settings = self.directory / "broker.properties"
        settings.write_text(_SETTINGS.format(host=HOST, port=self.port, controller=self.port + 1))
        self.log.write_bytes(b"")
        return settings

    def _format(self, settings: Path) -> None:
        # A leading letter: an id that begins with '-' would be taken for an option.
        cluster = "v" + urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
        tool = self._launch("kafka.tools.StorageTool", "format", "-t", cluster, "-c", settings.name)
        if tool.wait() != 0:
            raise self._failure("the broker's folder could not be prepared")

    def _launch(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        """A Java process in our process group that ignores Ctrl-C and dies with us."""
        command = [java(), *_JVM, "-cp", f"{jar_folder('broker')}/*", main, *arguments]
        # The kernel's parent-death signal needs no cooperation of the JVM, and holds after a kill -9 of ours.
        guard = [*ignoring("INT"), *dying_with_us()]
        # It works in its folder, whose path may hold what its settings take for syntax, or no Latin letters.
        letters = {**os.environ, "LC_ALL": "C.UTF-8"}
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*guard, *command],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory, env=letters,
            )  # fmt: skip

    def _await_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_DEADLINE
        while not _listening(self.port):
            self._require_alive(deadline)
            time.sleep(0.02)
        admin = AdminClient(
            {"bootstrap.servers": self.bootstrap, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 50},
            logger=_SILENT,
        )
        while not _serves(admin):
            self._require_alive(deadline)

    def _require_alive(self, deadline: float) -> None:
        assert self._process is not None
        if self._process.poll() is not None:
            raise self._failure("the broker did not start")
        if time.monotonic() > deadline:
            raise self._failure(f"the broker was not ready after {START_DEADLINE:.0f} s")

    def _failure(self, what: str) -> KafkaError | UsageError:
        """The error that the end of the broker's log explains."""
        text = self.log.read_text(errors="replace")
        if "UnsupportedClassVersionError" in text:
            return UsageError.at("java", "this Java is too old for the broker, which needs 17", INSTALL_JAVA)
        reasons = re.findall(r"(?:Exception|Error): (.+)", text)
        said = f" ({reasons[-1].strip()})" if reasons else ""
        return KafkaError.at(str(self.directory), what + said, f"see {self.log}")


_SILENT = logging.getLogger("viewkeeper.local.broker.client")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_DEADLINE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_ports() -> int:
    """A port P such that P and P + 1 are free now.

    It lies below those that the kernel gives to outgoing connections, any of which could take it at once.
    """
    while True:
        port = random.randrange(20_000, 32_000, 2)
        if _free(port) and _free(port + 1):
            return port


def _free(port: int) -> bool:
    with socket.socket() as probe:
        # As Kafka binds: connections of the last run that linger in TIME_WAIT do not hold a port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _require_free(port: int) -> int:
    for needed in (port, port + 1):
        if not 0 < needed < 65536:
            raise UsageError.at("--port", f"{port} is no usable port", "choose one from 1 to 65534")
        if not _free(needed):
            raise UsageError.at("--port", f"port {needed} is in use or not allowed", "choose another with --port")
    return port


def _listening(port: int | None) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _serves(admin: AdminClient) -> bool:
    try:
        return bool(admin.list_topics(timeout=1).brokers)
    except KafkaException:
        return False
