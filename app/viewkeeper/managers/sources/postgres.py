"""A PostgreSQL database as a source: one snapshot for all questions of a batch, in all processes.

``freeze`` begins a REPEATABLE READ transaction and exports its snapshot, so that all can ask in it
(``postgres_connections``). What a snapshot includes is decided by the visibility of transactions
(``postgres_snapshot``); that everything it includes has been received, by a barrier in the log. What ignores snapshots
(TRUNCATE, rewrites) is noticed by ``confirm`` (``postgres_state``).
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from viewkeeper.algebra.bag import COUNT
from viewkeeper.algebra.types import Kind, Relation
from viewkeeper.config_sources import PostgresConfig
from viewkeeper.errors import SourceError
from viewkeeper.managers.sources.postgres_answers import schema_of, typed
from viewkeeper.managers.sources.postgres_catalog import PgTable, read_tables
from viewkeeper.managers.sources.postgres_connections import Connections
from viewkeeper.managers.sources.postgres_formats import refuse_formats
from viewkeeper.managers.sources.postgres_names import Names, require_settled, require_strangers
from viewkeeper.managers.sources.postgres_questions import Question
from viewkeeper.managers.sources.postgres_session import LOOK_UP, SCAN, Access, Control, Reader
from viewkeeper.managers.sources.postgres_snapshot import PgSnapshot
from viewkeeper.managers.sources.postgres_state import (
    ServerState,
    SlotState,
    TableState,
    Watched,
    require_same,
    require_slot,
)
from viewkeeper.messages import Answer, Ask, Reached, Strangers
from viewkeeper.warehouse.mapped import gather

PREFIX = "viewkeeper"
"""Of the logical messages that barriers are."""

_KEYS_AT_ONCE = 50_000
_QUIET = "SELECT NOT EXISTS (SELECT FROM pg_locks WHERE locktype = 'transactionid' AND mode = 'ExclusiveLock')"
"""Every transaction that writes holds a lock on its own number until it can be seen, a prepared one too."""


@dataclass(frozen=True)
class PostgresSnapshot:
    """An exported snapshot: ``id`` imports it, ``contains`` says what it includes, the log ended at ``lsn`` after it.

    ``tables`` and ``slot`` are what they were just before; ``quiet``, then no transaction ran that has written. Of
    ``forgiven`` relations, rows that do not fit their types are left out without a word.
    """

    id: str
    contains: PgSnapshot
    lsn: int
    tables: Mapping[str, TableState]
    slot: SlotState | None
    quiet: bool
    forgiven: frozenset[str] = frozenset()


class PostgresSource:
    """The ``Source`` for ``kind: postgres``."""

    late = True

    def __init__(self, name: str, section: PostgresConfig):
        self.name = name
        self.section = section
        readers = max(1, section.max_connections - 2)  # two are the driver's own
        self.readers: int | None = readers
        milliseconds = max(1, int(section.statement_timeout.total_seconds() * 1000))
        self._access = Access(self.place, section.url, section.schema_name, milliseconds)
        self._watched: Watched = {}
        self._known: dict[str, TableState] = {}
        self._history: dict[str, str] = {}  # as of the last snapshot
        self._names = Names()
        self._forgiven: frozenset[str] = frozenset()
        self._connections = Connections(self._access, section, readers)

    def __getstate__(self) -> dict[str, Any]:
        """What a worker needs: the tables too, or each would want a second connection to look them up."""
        known = self._connections.here()
        with known.lock:
            return {
                "name": self.name,
                "section": self.section,
                "tables": dict(known.tables),
                "encoding": known.encoding,
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["name"], state["section"])  # type: ignore[misc]
        self._connections.serve_worker(state["tables"], state["encoding"])

    def __repr__(self) -> str:
        return f"PostgresSource({self.name!r})"

    @property
    def place(self) -> str:
        return f"source {self.name}"

    # ---- what is there

    def describe(self, relations: Iterable[str] | None = None) -> dict[str, Relation]:
        """The relations as they are declared now: all, or just the named ones that exist."""
        with self._connections.controlling() as control:
            tables = read_tables(control.db, self.name, self.section.schema_name, relations)
            return {r.name: r for r in refuse_formats(control, (table.relation for table in tables))}

    def watch(self, relations: Mapping[str, Collection[str]]) -> None:
        """From now on these relations, and these columns of them, must stay as they are: a snapshot checks it."""
        self._watched = {name: tuple(sorted(columns)) for name, columns in relations.items()}
        self._known = {}

    def identity(self) -> dict[str, str]:
        """What tells this database, in this history of it, from another.

        A message behind it flushes the log: a crash would otherwise take transaction ids back that left no trace in it.
        """
        with self._connections.controlling() as control:
            state = self._state(control)
            self._emit(control)
        state.require(self.place, self._history)
        state.require_tables(self.place, self._known)
        return {**state.identity(), **self._names.identity()}

    def require_identity(self, known: Mapping[str, str]) -> None:
        """Raises SourceError if this is not the database, or not the history, that was known."""
        with self._connections.controlling() as control:
            state = self._state(control)
        self._names.recall(known, state)
        state.require(self.place, known)
        state.require_tables(self.place, self._known)
        self._known |= {name: table for name, table in state.tables.items() if f"table {name}" in known}

    def require(self, position: str) -> None:
        """Raises SourceError unless the log still tells everything after the position."""
        with self._connections.controlling() as control:
            state = self._state(control)
        state.require_reached(self.place, Reached.parse(position).last)
        require_slot(self.place, self.section.slot, state.slot)

    def require_unbroken(self, snapshot: PostgresSnapshot, before: int) -> None:
        """Raises SourceError if the slot has passed changes that the topic lacks; it stood at ``before``."""
        require_slot(self.place, self.section.slot, snapshot.slot, before)

    def require_named(self, strangers: Strangers, relations: Collection[str]) -> None:
        """Raises SourceError where a stranger may have been one of these relations, under another name."""
        with self._connections.controlling() as control:
            require_settled(control, self._known.values())
            state = self._state(control)
            state.require_tables(self.place, self._known)
            if suspects := self._names.suspects(strangers, relations):
                tables = state.tables.values()
                require_strangers(control, self.section.publication, strangers, suspects, tables)

    def last_change(self) -> str:
        """Where the log ends; changes nothing."""
        with self._connections.controlling() as control:
            return str(control.row("SELECT (pg_current_wal_lsn() - '0/0')::int8")[0])

    def mark(self) -> str:
        """Where the log ends, and a message behind it, so that the topic passes it."""
        with self._connections.controlling() as control:
            end: int = control.row("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8")[0]
            self._emit(control)
        return str(end)

    def reached(self, position: str, target: str) -> bool:
        return Reached.parse(position).last >= int(target)

    # ---- snapshots

    def freeze(self, delivered: str | None, hold: bool = False) -> PostgresSnapshot:
        """Begins a transaction that holds the snapshot until ``release``, and exports it.

        The state of the tables is read first: whatever changes them later is noticed, and whatever did before is in
        the snapshot.
        """
        with self._connections.controlling() as control:
            state = self._state(control)
            quiet = delivered is None and bool(control.row(_QUIET)[0])
        state.require(self.place, self._history)
        state.require_tables(self.place, self._known)
        self._known, self._history = dict(state.tables), state.history()
        if delivered is not None:
            state.require_reached(self.place, Reached.parse(delivered).last)
        for name, table in state.tables.items():
            self._table(name, table)
        contains, id, lsn = self._connections.hold()
        forgiven = frozenset[str]() if hold else self._forgiven
        return PostgresSnapshot(id, PgSnapshot.parse(contains), lsn, state.tables, state.slot, quiet, forgiven)

    def contains(self, snapshot: PostgresSnapshot) -> PgSnapshot:
        return snapshot.contains

    def shows_all(self, snapshot: PostgresSnapshot) -> bool:
        """A transaction that is logged and not shown still runs.

        The snapshot itself does not tell: one that none has outrun yet is not in it, neither as over nor as running.
        """
        return snapshot.quiet

    def position(self, snapshot: PostgresSnapshot) -> str:
        return str(Reached(0, snapshot.lsn, str(snapshot.contains)))

    def barrier(self, snapshot: PostgresSnapshot) -> str:
        """Writes a token into the log; not in the snapshot's own transaction, which would log it only at its end."""
        with self._connections.controlling() as control:
            return self._emit(control)

    def confirm(self, snapshot: PostgresSnapshot) -> None:
        """Raises SourceUnreachable if a table was truncated, rewritten or altered since just before the snapshot."""
        with self._connections.controlling() as control:
            state = self._state(control)
        require_same(self.place, snapshot.tables, state.tables)

    def forgive(self, relations: Collection[str]) -> None:
        self._forgiven = frozenset(relations)

    def release(self, snapshot: PostgresSnapshot) -> None:
        """Ends the transaction that holds the snapshot, if it is this process's."""
        self._connections.release(snapshot.id)

    def close(self) -> None:
        """Closes what this process has open; a later use opens it again."""
        self._connections.close()

    # ---- answering

    def ask(self, ask: Ask, snapshot: PostgresSnapshot) -> Answer:
        """Answers in the snapshot."""
        question = self._question(ask, snapshot)
        with self._connections.reading(snapshot.id) as reader:
            rows = gather(self._batches(question, reader, ask.relation in snapshot.forgiven), schema_of(question))
        return Answer(rows.append_column(COUNT, pa.array(np.ones(len(rows), np.int64))), snapshot.contains)

    def _question(self, ask: Ask, snapshot: PostgresSnapshot) -> Question:
        table = self._table(ask.relation, snapshot.tables.get(ask.relation))
        for name in (*ask.columns, *ask.key):
            column = table.relation.column(name)
            if column is None or column.type.kind is Kind.UNKNOWN:
                raise SourceError.at(f"{self.place}: {ask.relation}", f"has no usable column {name}")
        return Question(ask, table, self.section.schema_name, self._connections.here().encoding)

    def _table(self, relation: str, state: TableState | None) -> PgTable:
        """The table as it is declared; what was read in another state of it is not used."""
        process = self._connections.here()
        with process.lock:
            known, table = process.tables.get(relation, (None, None))
            if table is None or state is None or known != state:
                with self._connections.controlling() as control:
                    found = read_tables(control.db, self.name, self.section.schema_name, [relation])
                    process.encoding = control.row("SELECT getdatabaseencoding()")[0]
                if not found:
                    raise SourceError.at(self.place, f"there is no table {relation}")
                table = found[0]
                process.tables[relation] = (state, table)
        return table

    def _batches(self, question: Question, reader: Reader, forgiving: bool) -> Iterator[pa.RecordBatch]:
        """The rows that fit. Look-ups are paid for when they are done, so that waiting does not count as their time."""
        budget = self._connections.here().budget
        timeout = str(self._access.timeout_ms)
        # How long a whole table takes depends on its size alone.
        limits = {"statement_timeout": timeout if question.keyed else "0", "lock_timeout": timeout}
        settings = {**(LOOK_UP if question.looked_up else SCAN), **limits}
        at_once = _KEYS_AT_ONCE if budget.rate is None else max(100, min(_KEYS_AT_ONCE, int(budget.rate)))
        for statement in question.statements(at_once):
            read = 0
            for batch in reader.batches(statement, question.ask.relation, settings):
                yield typed(self.place, batch, question, forgiving)
                read += len(batch)
                if not question.keyed:
                    budget.pay(len(batch))
            if question.keyed:
                budget.pay(read)

    def _state(self, control: Control) -> ServerState:
        state = ServerState.read(control, self.section, self._watched)
        self._names.see(state)
        return state

    def _emit(self, control: Control) -> str:
        token = uuid.uuid4().hex
        control.row("SELECT pg_logical_emit_message(true, %(prefix)s, %(token)s)::text", prefix=PREFIX, token=token)
        return token
