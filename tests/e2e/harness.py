"""A small installation for end-to-end tests: real databases, a real broker, and Viewkeeper's commands as processes.

Nothing here uses the sweep. What the views must hold is computed in ``oracle.py``.
"""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tests.conftest import SharedBroker, eventually, unique
from tests.e2e.debezium_topic import transactions
from tests.e2e.postgres import Database
from viewkeeper.config_groups import ALL
from viewkeeper.messages import Reached
from viewkeeper.warehouse.cuts import Cut
from viewkeeper.warehouse.fault import CRASH_AFTER
from viewkeeper.warehouse.groups import groups
from viewkeeper.warehouse.reader import WarehouseReader

VIEWKEEPER = str(Path(sys.executable).with_name("viewkeeper"))
PATIENCE = 180.0
"""Seconds after which something that must happen did not: generous, because test machines are busy."""

Tables = Mapping[str, Sequence[str]]
"""Source → the statements that make its SQLite database."""


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def errors(self) -> list[str]:
        """The lines in the documented form of an error."""
        return [line for line in self.err.splitlines() if line.startswith("viewkeeper: ")]


@dataclass
class Running:
    """A command that was started: its process group, its output in files."""

    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def kill(self) -> None:
        """kill -9 of the command alone: what it started must notice by itself."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def terminate(self) -> Ended:
        """SIGTERM, and how it ended."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def signal_all(self, *numbers: signal.Signals) -> Ended:
        """Sends these signals to the whole process group, as a terminal or a service manager does, and how it ended."""
        for number in numbers:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        return self.wait()

    def wait(self, seconds: float = PATIENCE) -> Ended:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.process.args} did not end within {seconds} s") from None
        return Ended(self.process.returncode, self.out.read_text(), self.err.read_text())

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def leaves_nothing(self) -> bool:
        """Has every process that it started ended as well?"""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def end(self) -> None:
        """Ends the whole group, whatever is left of it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)


@dataclass
class Installation:
    """Databases, a configuration and a warehouse in one folder, with topics that no other test uses.

    ``tables`` are the sources in SQLite, ``databases`` those in PostgreSQL.
    """

    folder: Path
    broker: SharedBroker
    tables: Tables
    views: dict[str, str]
    settings: dict[str, Any] = field(default_factory=dict)
    topics: dict[str, str] = field(default_factory=dict)
    kept_by: dict[str, dict[str, Any]] = field(default_factory=dict)  # per view its algorithm and options
    processes: list[Running] = field(default_factory=list)
    databases: Mapping[str, Database] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for source, statements in self.tables.items():
            self.topics[source] = unique(source)
            with closing(sqlite3.connect(self.database(source))) as db:
                for statement in statements:
                    db.execute(statement)
                db.commit()
        self.topics |= {source: unique(source) for source in self.databases}
        self.configure()

    # ---- configuration

    @property
    def conf(self) -> Path:
        return self.folder / "conf.yaml"

    def configure(self, **settings: Any) -> None:
        """Writes the configuration file anew, from ``views`` and ``settings``."""
        self.settings |= settings
        for view in self.views:
            self.topics.setdefault(f"view.{view}", unique(view))
        config = {
            "kafka": {"bootstrap": self.broker.bootstrap},
            "warehouse": "warehouse",
            "sources": {source: self._section(source) for source in [*self.databases, *self.tables]},
            "views": {
                view: {"sql": sql, "topic": self.topics[f"view.{view}"], **self.kept_by.get(view, {})}
                for view, sql in self.views.items()
            },
            **self.settings,
        }
        self.conf.write_text(json.dumps(config, indent=1))

    def _section(self, source: str) -> dict[str, Any]:
        topic = self.topics[source]
        if source in self.databases:
            return self.databases[source].section(topic=topic)
        return {"kind": "sqlite", "path": f"{source}.db", "topic": topic}

    # ---- databases

    def database(self, source: str) -> Path:
        return self.folder / f"{source}.db"

    def connect(self, source: str) -> sqlite3.Connection:
        """A connection as an application would have it: it waits for others, and commits by itself."""
        return sqlite3.connect(self.database(source), timeout=60, isolation_level=None)

    def write(self, source: str, *statements: str) -> None:
        """One transaction."""
        if source in self.databases:
            self.databases[source].execute(*statements)
            return
        with closing(self.connect(source)) as db:
            db.execute("BEGIN IMMEDIATE")
            for statement in statements:
                db.execute(statement)
            db.execute("COMMIT")

    # ---- commands

    def start(self, *arguments: str, crash_after: str = "") -> Running:
        """Starts a command on this configuration; ``arguments`` begin with its name."""
        command, *rest = arguments
        return self._start(command, [VIEWKEEPER, command, str(self.conf), *rest], crash_after)

    def submit(self, spark_submit: str, job: str) -> Running:
        """Starts the job by spark-submit."""
        return self._start("submit", [spark_submit, job, str(self.conf)])

    def _start(self, name: str, command: list[str], crash_after: str = "") -> Running:
        out, err = (self.folder / f"{len(self.processes):02d}-{name}.{kind}" for kind in ("out", "err"))
        # As in an activated virtual environment: spark-submit looks for its Python in the path.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "COLUMNS": "100"}
        if crash_after:
            environment[CRASH_AFTER] = crash_after
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                env=environment, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        self.processes.append(Running(process, out, err))
        return self.processes[-1]

    def run(self, *arguments: str, crash_after: str = "") -> Ended:
        """Runs a command to its end."""
        return self.start(*arguments, crash_after=crash_after).wait()

    def done(self, *arguments: str) -> Ended:
        """Runs a command that must succeed."""
        ended = self.run(*arguments)
        assert ended.code == 0, f"{arguments}: exit {ended.code}\n{ended.err}"
        return ended

    def start_capture(self) -> Running:
        """Capture, once it has put its triggers in place."""
        capture = self.start("capture")
        eventually(lambda: b"capturing" in capture.out.read_bytes() or not capture.alive, PATIENCE, "capture is up")
        assert capture.alive, capture.err.read_text()
        return capture

    @contextmanager
    def capturing(self) -> Iterator[Running]:
        """Capture runs inside the block; it must end well."""
        capture = self.start_capture()
        yield capture
        if capture.alive:
            assert capture.terminate().code == 0

    def delivered(self, source: str) -> bool:
        """Does the topic hold everything that the SQLite database's change log does?"""
        last = self.last_id(source)
        sent = [m.value() or b"" for m in self.broker.messages(self.topics[source])]
        return last == 0 or any(b'"position":%d,' % last in value for value in sent)

    def deliver(self) -> None:
        """Runs capture until the topics hold every change there is."""
        with self.capturing():
            for source in sorted({source for cut in self.newest_cuts().values() for source in cut.positions}):
                if source in self.databases:
                    self.last_id(source)
                else:
                    eventually(lambda source=source: self.delivered(source), PATIENCE, f"{source} is delivered")

    def end(self) -> None:
        for running in self.processes:
            running.end()

    def logs(self) -> Iterator[tuple[str, str]]:
        """What every command said, for the report of a failed test."""
        for running in self.processes:
            for file in (running.out, running.err):
                if text := file.read_text(errors="replace"):
                    name = f"{file.name} (exit {running.process.poll()})"
                    yield name, text if len(text) < 6000 else f"{text[:2000]}\n…\n{text[-4000:]}"
        log = self.folder / "warehouse" / "logs" / "spark.log"
        if log.exists():
            yield log.name, log.read_text(errors="replace")[-3000:]

    # ---- what came out

    def reader(self, group: str = ALL) -> WarehouseReader:
        return WarehouseReader(self.folder / "warehouse", group)

    def cut(self, group: str = ALL) -> Cut:
        """The newest cut of a group."""
        cut = self.reader(group).newest()
        assert cut is not None, f"there is no cut of {group} yet"
        return cut

    def newest_cuts(self) -> dict[str, Cut]:
        """The newest cut of every group that the warehouse holds."""
        return {group: self.cut(group) for group in groups(self.folder / "warehouse")}

    def messages(self, topic: str) -> list[tuple[int, dict[str, Any]]]:
        """The readable messages of a source's topic or of ``view.<view>``'s: (offset, content)."""
        return [(m.offset(), orjson.loads(m.value())) for m in self.broker.messages(self.topics[topic])]

    def await_cut(self, past: int, job: Running, group: str = ALL) -> None:
        """Waits until the job has committed a cut of the group past this one."""
        reader = self.reader(group)
        self._await(lambda: (c := reader.newest()) is not None and c.cut > past, f"cut {past + 1} of {group}", job)

    def await_position(self, job: Running, group: str = ALL) -> None:
        """Waits until a cut of the group holds all that its sources have committed by now."""
        wanted = {source: self.last_id(source) for source in self.cut(group).positions}

        def reached() -> bool:
            positions = {source: Reached.parse(text) for source, text in self.cut(group).positions.items()}
            return all(max(positions[source].last, positions[source].until) >= last for source, last in wanted.items())

        self._await(reached, f"positions {wanted} in {group}", job)

    def _await(self, condition: Callable[[], bool], what: str, job: Running) -> None:
        eventually(lambda: condition() or not job.alive, PATIENCE, what)
        assert job.alive, f"the job ended before it reached {what}"

    def last_id(self, source: str) -> int:
        """The position of the database's last change that the log still holds, or the topic of a PostgreSQL source."""
        if source in self.databases:
            return self._last_end(source)
        with closing(self.connect(source)) as db:
            return db.execute("SELECT coalesce(max(id), 0) FROM _viewkeeper_log WHERE op <> 'boundary'").fetchone()[0]

    def _last_end(self, source: str) -> int:
        """Where the last transaction ends that touched a captured table of a PostgreSQL database."""
        token, topic = unique("harness"), self.topics[source]
        since = self.broker.end(topic)
        self.databases[source].execute(f"SELECT pg_logical_emit_message(true, 'viewkeeper', '{token}')")
        content = base64.b64encode(token.encode())
        passed = lambda: any(content in (m.value() or b"") for m in self.broker.messages(topic, since))  # noqa: E731
        eventually(passed, PATIENCE, f"{source} is delivered")
        told = transactions(self.broker.messages(topic))
        return max((t.end for t in told if t.changes or t.emptied), default=0)


Write = Callable[[random.Random, sqlite3.Connection], None]
"""What a writer does inside one transaction."""


class Writers:
    """Threads that write to the databases, each its own transactions, until the block ends.

    One that fails ends the block with its failure.
    """

    def __init__(self, world: Installation, seed: int, writes: Mapping[str, Sequence[Write]], pause: float = 0.05):
        self.world = world
        self.pause = pause
        self.stop = threading.Event()
        self.committed = 0
        self.failures: list[BaseException] = []
        self.threads = [
            threading.Thread(target=self._write, args=(source, write, random.Random(f"{seed} {source} {n}")))
            for source, functions in writes.items()
            for n, write in enumerate(functions)
        ]

    def _write(self, source: str, write: Write, rng: random.Random) -> None:
        try:
            with closing(self.world.connect(source)) as db:
                while not self.stop.wait(rng.uniform(0, 2 * self.pause)):
                    db.execute("BEGIN IMMEDIATE")
                    write(rng, db)
                    db.execute("ROLLBACK" if rng.random() < 0.05 else "COMMIT")
                    self.committed += 1
        except BaseException as error:
            self.failures.append(error)

    def __enter__(self) -> Writers:
        for thread in self.threads:
            thread.start()
        return self

    def wait_for(self, transactions: int) -> None:
        """Lets the writers commit this many transactions more."""
        goal = self.committed + transactions
        eventually(lambda: self.committed >= goal or self.failures, PATIENCE, f"{transactions} transactions")

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(PATIENCE)
        if self.failures:
            raise self.failures[0]


def pause_of(rng: random.Random, longest: float) -> None:
    """Lets a random while pass: the only way to hit a process at a moment that it does not announce."""
    time.sleep(rng.uniform(0, longest))


def children(pid: int) -> list[int]:
    """The processes that a process has started, in any of its threads."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):  # it has ended meanwhile
            found += map(int, (thread / "children").read_text().split())
    return found
