"""Connections to PostgreSQL: a control connection (psycopg) and readers, which give Arrow (ADBC, binary COPY).

No setting that answers depend on is left to the server, the database or the role. Nothing here names a password.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import adbc_driver_manager
import psycopg
import pyarrow as pa
from adbc_driver_postgresql import dbapi  # type: ignore[import-untyped]
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from viewkeeper.errors import SourceError, SourceUnreachable
from viewkeeper.managers.sources.postgres_catalog import quoted

CONNECT_SECONDS = 10
IDLE_SECONDS = 10.0
"""After so long without a question, the server closes a worker's connection."""

RELOAD = "run `viewkeeper init --reload`"

_PASSING_CLASSES = ("08", "40", "53", "57", "58")
_PASSING = {"25P02", "25P03", "25P04", "55P03", "72000"}
_NO_SNAPSHOT = {"22023", "42704"}
_REFUSED = re.compile(r"authentication failed|no pg_hba\.conf entry|does not exist|not permitted to log in|certificate")
_DRIVER_WORDS = re.compile(r"^[A-Z_]+: (?:\[libpq\] )?(?:[^:]*: )??(?=ERROR|FATAL|PANIC|connection)")

_ALWAYS = {
    "application_name": "viewkeeper",
    "standard_conforming_strings": "on",
    "datestyle": "ISO",
    "timezone": "UTC",
    "jit": "off",  # costs more than any question
    "max_parallel_workers_per_gather": "0",
    "row_security": "off",  # an error instead of rows that are hidden
    "idle_in_transaction_session_timeout": "0",
    "transaction_timeout": "0",
    "idle_session_timeout": "0",
}

LOOK_UP = {"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off"}
"""Whatever the statistics say, keys are looked up by index."""

SCAN = dict.fromkeys(LOOK_UP, "on")


@dataclass(frozen=True)
class Access:
    """How a source is reached, and how its failures are reported."""

    place: str
    url: str = field(repr=False)
    schema: str
    timeout_ms: int

    @cached_property
    def _parts(self) -> dict[str, Any]:
        try:
            return conninfo_to_dict(self.url)
        except psycopg.Error:
            raise SourceError.at(self.place, "its URL cannot be read", "write it as libpq has it") from None

    @property
    def conninfo(self) -> str:
        """What both drivers connect by; what the user's URL says stands."""
        own: dict[str, Any] = {
            "connect_timeout": CONNECT_SECONDS,
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            "tcp_user_timeout": 60_000,
        }
        return make_conninfo("", **{**own, **self._parts, "client_encoding": "UTF8"})

    @contextlib.contextmanager
    def reporting(self, relation: str | None = None, *also: type[Exception]) -> Iterator[None]:
        """Turns what the drivers raise, and these exceptions, into our errors."""
        reported: tuple[type[Exception], ...] = (psycopg.Error, adbc_driver_manager.Error, *also)
        try:
            yield
        except reported as error:
            raise self._translated(error, relation) from None

    def _translated(self, error: Exception, relation: str | None) -> SourceError:
        state, text = _state(error), self._said(error)
        if state == "42501":
            return SourceError.at(self.place, text, self._grant(text, relation))
        if state in ("42P01", "42703", "3F000"):
            of = f"table {relation}: " if relation else ""
            return SourceError.at(self.place, f"{of}{text}: it was altered", f"undo that, or {RELOAD}")
        if state in _NO_SNAPSHOT and "snapshot" in text:
            return SourceUnreachable.at(self.place, "the snapshot is gone that was to be read")
        passing = state[:2] in _PASSING_CLASSES or state in _PASSING if state else not _REFUSED.search(text)
        return (SourceUnreachable if passing else SourceError).at(self.place, text)

    def _said(self, error: Exception) -> str:
        """The first line of what the server or libpq says: no question, no password."""
        lines = [line.strip() for line in str(error).split("Query was:")[0].splitlines() if line.strip()]
        text = _DRIVER_WORDS.sub("", lines[0]) if lines else "the connection was lost"
        text = re.sub(r"^(ERROR|FATAL|PANIC):\s+|\.?\s*SQLSTATE: \w+$", "", text)
        password = self._parts.get("password")
        return text.replace(password, "***") if password else text

    def _grant(self, text: str, relation: str | None) -> str:
        role = quoted(str(self._parts.get("user") or "the role"))
        if "for schema" in text:
            return f"GRANT USAGE ON SCHEMA {quoted(self.schema)} TO {role}"
        return f"GRANT SELECT ON {quoted(self.schema, relation)} TO {role}" if relation else f"grant it to {role}"


def _state(error: Exception) -> str:
    """The SQLSTATE, or nothing where no server has spoken."""
    if state := getattr(error, "sqlstate", None):
        return str(state)
    found = re.search(r"SQLSTATE: (\w{5})", str(error))
    return found[1] if found else ""


def _settings(values: Mapping[str, str]) -> str:
    """A query that makes settings for the session; those that the server does not have are left out."""
    named = ", ".join(f"('{name}', '{value}')" for name, value in values.items())
    return (
        f"SELECT pg_catalog.count(set_config(v.name, v.value, false)) FROM (VALUES {named}) AS v(name, value) "
        "WHERE current_setting(v.name, true) IS NOT NULL"
    )


class Connected:
    """A connection that is closed only while nobody uses it: closed under a thread, its driver crashes the process."""

    def __init__(self) -> None:
        self._user = threading.RLock()
        self._let_go = False

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """This thread uses it; if it is to be closed meanwhile, then afterwards."""
        try:
            with self._user:
                yield
        finally:
            if self._let_go:
                self.close()

    def close(self) -> None:
        """Closes it, at once or when the thread that uses it is done."""
        self._let_go = True
        if self._user.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._user.release()

    def _close(self) -> None:
        raise NotImplementedError


class Control(Connected):
    """An autocommit connection for everything besides questions; its commits wait for no standby."""

    def __init__(self, access: Access):
        super().__init__()
        self.access = access
        with access.reporting():
            self.db = psycopg.connect(access.conninfo, autocommit=True)
            limits = {"statement_timeout": str(access.timeout_ms), "lock_timeout": str(access.timeout_ms)}
            self.row(_settings({**_ALWAYS, **limits, "synchronous_commit": "local"}))

    @property
    def usable(self) -> bool:
        return not self._let_go and not self.db.closed

    def row(self, sql: str, **parameters: Any) -> tuple[Any, ...]:
        """The one row that a query gives."""
        found: tuple[Any, ...] | None = self.db.execute(sql.encode(), parameters or None).fetchone()
        assert found is not None
        return found

    def _close(self) -> None:
        with contextlib.suppress(psycopg.Error):
            self.db.close()


class Reader(Connected):
    """A connection that answers questions in Arrow; in a read-only transaction, if one was begun.

    After an error it is of no more use than to be closed.
    """

    def __init__(self, access: Access, lingers: bool):
        """``lingers``: the connection stays, however long it is not used."""
        super().__init__()
        self.access = access
        self.lingers = lingers
        self._mode: dict[str, str] = {}
        with access.reporting():
            self._connection = dbapi.connect(access.conninfo, autocommit=True)
            idle = "0" if lingers else str(int(IDLE_SECONDS * 1000))
            self.run(_settings({**_ALWAYS, "idle_session_timeout": idle}))
        self._used = time.monotonic()

    @property
    def usable(self) -> bool:
        """Whether the server can be expected to have kept the connection."""
        return not self._let_go and (self.lingers or time.monotonic() - self._used < IDLE_SECONDS / 2)

    def run(self, sql: str) -> pa.Table:
        """The rows of a query; none of another statement."""
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetch_arrow_table()

    def batches(self, sql: str, relation: str, settings: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        """The rows of a query of a relation as they come, under these settings."""
        with self.access.reporting(relation, pa.ArrowException, OSError):
            if any(self._mode.get(name) != value for name, value in settings.items()):
                self.run(_settings(settings))
                self._mode.update(settings)
            with self._connection.cursor() as cursor:
                cursor.execute(sql)
                yield from cursor.fetch_record_batch()

    def begin(self, snapshot: str | None = None) -> None:
        """Begins a transaction; with the id of an exported snapshot, one that sees just that."""
        self.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        if snapshot is not None:
            self.run(f"SET TRANSACTION SNAPSHOT '{snapshot}'")

    def end(self) -> None:
        """Ends the transaction. Not by a rollback, which would undo the session's settings too."""
        self.run("COMMIT")
        self._used = time.monotonic()

    def _close(self) -> None:
        with contextlib.suppress(adbc_driver_manager.Error, RuntimeError):
            self._connection.close()
