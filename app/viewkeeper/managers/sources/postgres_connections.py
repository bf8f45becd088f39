"""The connections of a PostgreSQL source: one for control, and readers; in each process its own, made on first use.

The process and thread that took a snapshot reads it inside the transaction that holds it; others import it for the time
of each question. A connection that failed is closed and forgotten.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from viewkeeper.config_sources import PostgresConfig
from viewkeeper.errors import SourceError, SourceUnreachable
from viewkeeper.managers.sources.postgres_budget import Budget
from viewkeeper.managers.sources.postgres_catalog import PgTable
from viewkeeper.managers.sources.postgres_encodings import UTF8
from viewkeeper.managers.sources.postgres_session import Access, Control, Reader
from viewkeeper.managers.sources.postgres_state import TableState

KnownTables = Mapping[str, tuple[TableState | None, PgTable]]
"""Tables by name, each as it was declared in a state of it."""

_FREEZING = "SELECT pg_current_snapshot()::text, pg_export_snapshot(), (pg_current_wal_insert_lsn() - '0/0')::int8"


@dataclass
class Process:
    """What one process has open and knows: a control connection, readers, tables, and its row budget."""

    pid: int
    budget: Budget
    control: Control | None = None
    frozen: dict[str, tuple[Reader, int]] = field(default_factory=dict)  # by snapshot: its reader, and whose it is
    idle: list[Reader] = field(default_factory=list)
    guests: dict[int, Reader] = field(default_factory=dict)  # by thread: for snapshots that others hold
    tables: dict[str, tuple[TableState | None, PgTable]] = field(default_factory=dict)
    encoding: str = UTF8
    lock: threading.RLock = field(default_factory=threading.RLock)


_workers: dict[tuple[int, PostgresConfig], Process] = {}  # a worker gets its source anew with every task
_inherited: list[Process] = []  # a forked child must not even close its parent's connections


class Connections:
    """Lends connections to whoever has a question; at most ``readers`` workers share the row budget."""

    def __init__(self, access: Access, section: PostgresConfig, readers: int):
        self._access = access
        self._section = section
        self._readers = readers
        self._driver = True
        self._process: Process | None = None

    def serve_worker(self, tables: KnownTables, encoding: str) -> None:
        """This is a worker's process; what it would look up on a second connection is known."""
        self._driver = False
        process = self.here()
        with process.lock:
            process.tables |= tables
            process.encoding = encoding

    def here(self) -> Process:
        """What this process has open. The budget of several workers is each one's share."""
        process = self._process
        if process is not None and process.pid == os.getpid():
            return process
        if process is not None:
            _inherited.append(process)
            self._driver = False
        rate = self._section.max_rows_per_second
        if self._driver:
            self._process = Process(os.getpid(), Budget(rate))
        else:
            share = rate if rate is None else rate / self._readers
            self._process = _workers.setdefault(self._worker, Process(os.getpid(), Budget(share)))
        return self._process

    @property
    def _worker(self) -> tuple[int, PostgresConfig]:
        return os.getpid(), self._section

    def close(self) -> None:
        """Closes what this process has open, what a thread uses when it is done; a later use opens it again."""
        process, self._process = self.here(), None
        for reader in [*process.idle, *process.guests.values(), *(reader for reader, _ in process.frozen.values())]:
            reader.close()
        _workers.pop(self._worker, None)
        if process.control is not None:
            process.control.close()

    # ---- lending

    @contextlib.contextmanager
    def controlling(self) -> Iterator[Control]:
        """The control connection, for one thread at a time; one that failed is not used again."""
        process = self.here()
        with process.lock:
            if process.control is None or not process.control.usable:
                process.control = Control(self._access)
            control = process.control
            with control.used(), self._discarding(control):
                yield control
            self._close_if_late(process, control)

    @contextlib.contextmanager
    def reading(self, snapshot: str) -> Iterator[Reader]:
        """A reader inside the snapshot: the transaction that holds it, or one that imports it for one question."""
        process = self.here()
        with process.lock:
            reader, thread = process.frozen.get(snapshot, (None, 0))
        if reader is not None and reader.usable and thread == threading.get_ident():
            with reader.used(), self._discarding(reader):
                yield reader
            return
        guest = self._guest(process)
        with guest.used(), self._discarding(guest):
            guest.begin(snapshot)
            yield guest
            guest.end()
        self._close_if_late(process, guest)

    def _guest(self, process: Process) -> Reader:
        """This thread's reader for snapshots that others hold."""
        guests, thread = process.guests, threading.get_ident()
        guest = guests.get(thread)
        if guest is not None and not guest.usable:
            guest.close()
            guest = None
        if guest is None:
            guest = guests[thread] = Reader(self._access, lingers=False)
        return guest

    # ---- holding snapshots

    def hold(self) -> tuple[str, str, int]:
        """Begins a transaction that holds a snapshot until ``release``: what it contains, its id, the log's end.

        All three are read in the transaction's first query, so the log's end just after the snapshot was taken.
        """
        reader = self._idle_reader()
        with reader.used(), self._discarding(reader):
            reader.begin()
            contains, id, lsn = (column[0].as_py() for column in reader.run(_FREEZING).columns)
            process = self.here()
            with process.lock:
                process.frozen[id] = (reader, threading.get_ident())
        return contains, id, lsn

    def release(self, snapshot: str) -> None:
        """Ends the transaction that holds the snapshot, if it is this process's."""
        process = self.here()
        with process.lock:
            reader, _ = process.frozen.pop(snapshot, (None, 0))
        if reader is None:
            return
        with contextlib.suppress(SourceError), reader.used(), self._discarding(reader):
            if not reader.usable:
                return
            reader.end()
            with process.lock:
                process.idle.append(reader)
                superfluous, process.idle[1:] = process.idle[1:], []
            for spare in superfluous:
                spare.close()
            self._close_if_late(process, reader)

    def _idle_reader(self) -> Reader:
        process = self.here()
        with process.lock:
            while process.idle:
                if (reader := process.idle.pop()).usable:
                    return reader
        return Reader(self._access, lingers=True)

    # ---- failures

    @contextlib.contextmanager
    def _discarding(self, connection: Control | Reader) -> Iterator[None]:
        """Reports errors; after one, the connection is closed and forgotten."""
        try:
            with self._access.reporting():
                yield
        except BaseException as error:
            if not isinstance(connection, Control) or not isinstance(error, SourceError) or connection.db.broken:
                connection.close()
            guests = self.here().guests
            if guests.get(threading.get_ident()) is connection:
                del guests[threading.get_ident()]
            if isinstance(error, SourceUnreachable):
                self._close_idle()  # a server that is gone for one is gone for all
            raise

    def _close_if_late(self, process: Process, connection: Control | Reader) -> None:
        """Closes what was made, or put back, after all that the process had open was closed."""
        if self._process is not process:
            connection.close()

    def _close_idle(self) -> None:
        process = self.here()
        with process.lock:
            idle, process.idle = process.idle, []
        for reader in idle:
            reader.close()
