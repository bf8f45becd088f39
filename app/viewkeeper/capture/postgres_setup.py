"""Publication and replication slot: what makes a PostgreSQL database tell its changes.

A table's changes are in the log's stream from the moment it is published; a transaction that ran at that moment may
have made changes before it. So a relation counts as captured only once every such transaction has ended: whatever it
did is then in every later snapshot, and nothing of it is missing.

A small file beside the warehouse remembers since when each relation is captured, and how PostgreSQL names that fact:
a table that was taken out of the publication and put back, or a slot that is gone, is noticed by it.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from psycopg import errors as pg

from viewkeeper.capture import RELATION
from viewkeeper.capture.postgres_claims import COMMENT, Claimant, Claims
from viewkeeper.capture.postgres_findings import Finding, Names, fatal_types, findings, unpublished
from viewkeeper.capture.postgres_memory import Captured, Memory
from viewkeeper.capture.postgres_state import Connection, State, connected, read_state
from viewkeeper.config_sources import PostgresConfig
from viewkeeper.errors import Problem, SourceError, SourceUnreachable
from viewkeeper.managers.sources.postgres import PREFIX
from viewkeeper.managers.sources.postgres_state import same_published
from viewkeeper.warehouse.layout import Layout

WAIT_SECONDS = 20.0
"""How long ``install`` waits for transactions that ran when a table was published; the caller may try again."""

SHOW_SECONDS = 5.0
"""How long a load waits for transactions that run; it has another way if they go on."""

_RELOAD = "run `viewkeeper init --reload`"
_FORWARD_BYTES = 64 << 20
_POLL_SECONDS = 0.05


class PostgresCapture:
    """The set-up of one source for Debezium. ``memory`` is a file of its own, beside the warehouse's tables.

    ``claimant`` is the project it is for; others may use the same database.
    """

    def __init__(self, name: str, section: PostgresConfig, memory: Path, claimant: Claimant | None = None):
        self.name = name
        self.section = section
        self.place = f"source {name}"
        self._file = memory
        self._claimant = claimant
        self._names = Names(section)
        self._done: list[str] = []

    # ---- what the job asks for

    def install(self, relations: Mapping[str, Collection[str]], reload: bool = False) -> bool:
        """See ``Capture``. What the role may not do is a SourceError with the statements for those who may."""
        with connected(self.place, self.section) as db, self._alone(db):
            self._done = []
            memory, state = Memory.read(self._file), read_state(db, self.section, relations)
            claims = self._claims(db)
            self._raise_problems([*self._judged(state, relations, memory, reload), *self._conflicts(claims)])
            anew = self._require_uninterrupted(state, relations, memory, reload)
            made_slot = self._set_up(db, state, relations, memory, anew, claims)
            self._claim(db, claims, relations)
            new = self._remember(db, relations, memory, anew, made_slot, reload)
            return bool(new)

    def installed(self) -> list[str]:
        return self._done

    def begun(self, relations: Collection[str]) -> int:
        """0: a load takes everything from one snapshot, later than whatever was not captured."""
        return 0

    def captured(self) -> dict[str, list[str]]:
        """The relations that ``install`` published; it remembers no columns."""
        return {name: [] for name in Memory.read(self._file).active}

    def since(self) -> dict[str, dict[str, int]]:
        """Where a capture that had been interrupted began again; 0 for relations without a gap."""
        return {name: {RELATION: c.since if c.again else 0} for name, c in Memory.read(self._file).active.items()}

    def pass_topic(self) -> bool:
        """Waits a little until every transaction that runs now has ended: all that was logged can be seen then.

        Positions of a log never go back but with the database, and that is told by its identity.
        """
        with connected(self.place, self.section) as db:
            return self._older_ended(db, SHOW_SECONDS)

    def prune(self, position: int) -> int:
        """Lets a slot move on that only other tables' changes hold back: the bytes it kept, if they were many."""
        with connected(self.place, self.section) as db:
            slot = read_state(db, self.section, {}).slot
            if slot is None or slot.held < _FORWARD_BYTES:
                return 0
            db.execute("SELECT pg_logical_emit_message(true, %s, 'forward')", (PREFIX,))
            return slot.held

    def remove(self) -> list[str]:
        """Drops the slot and the publication that ``install`` has made; tells what it did, and what is not its own."""
        with connected(self.place, self.section) as db, self._alone(db):
            memory, state = Memory.read(self._file), read_state(db, self.section, {})
            claims = self._claims(db)
            self._claim(db, claims, None)
            told = [*self._remove_slot(db, state, memory, claims), *self._remove_publication(db, state, claims)]
            self._file.unlink(missing_ok=True)
            return told or ["nothing to remove"]

    # ---- what commands ask for

    def findings(self, relations: Mapping[str, Collection[str]]) -> list[Finding]:
        """What is fine and what is not, for ``check``; changes nothing."""
        with connected(self.place, self.section) as db:
            memory, state = Memory.read(self._file), read_state(db, self.section, relations)
            broken = self._interrupted(state, relations, memory)
            found = [*findings(state, self.section, relations), *self._conflicts(self._claims(db, Layout.known_id))]
            return [*found, *(Finding("problem", what, _RELOAD) for what in broken)]

    def require_same_slot(self, sent: Callable[[], int]) -> None:
        """Raises SourceError unless the slot can be read on, and is the one that was read before.

        Its reader confirms only what the topic has; ``sent`` tells how far that is. A slot past it, and past where it
        was seen last, was made anew while nobody looked, or moved: the changes between are in no topic.
        """
        with connected(self.place, self.section) as db, self._alone(db):
            memory, state = Memory.read(self._file), read_state(db, self.section, {})
            slot = state.slot
            if slot is None or slot.lost:
                raise SourceError.at(self.place, self._gone(), _RELOAD)
            for finding in fatal_types(state):  # its own words would name no type; it is tried again
                raise SourceUnreachable([finding.problem(self.place)])
            if slot.confirmed > memory.confirmed and not memory.overtaken:
                memory.overtaken = slot.confirmed > sent()
                memory.confirmed = memory.confirmed if memory.overtaken else slot.confirmed
                memory.write(self._file)
            if memory.overtaken:
                raise SourceError.at(self.place, self._anew(), _RELOAD)

    def remember_slot(self) -> None:
        """Notes where the slot stands, if it is being read: retention may empty the topic that tells it now."""
        with connected(self.place, self.section) as db, self._alone(db):
            memory, slot = Memory.read(self._file), read_state(db, self.section, {}).slot
            if slot is not None and slot.active_pid is not None and slot.confirmed > memory.confirmed:
                memory.confirmed = slot.confirmed
                memory.write(self._file)

    # ---- installing

    @contextmanager
    def _alone(self, db: Connection) -> Iterator[None]:
        """Job and capture may both install at their start: one after the other."""
        names = (f"viewkeeper {self.section.slot}", f"viewkeeper publication {self.section.publication}")
        for key in sorted(zlib.crc32(name.encode()) for name in names):
            db.execute("SELECT pg_advisory_lock(%s)", (key,))
        yield  # the locks end with the connection

    def _claims(self, db: Connection, name: Callable[[Layout], str] = Layout.id) -> Claims:
        return Claims.read(db, name(self._claimant.warehouse) if self._claimant else "")

    def _conflicts(self, claims: Claims) -> Iterator[Finding]:
        return claims.conflicts(self._claimant.claim(self.section, ()), self._names) if self._claimant else iter(())

    def _claim(self, db: Connection, claims: Claims, relations: Collection[str] | None) -> None:
        """Writes down what this project needs, or that it needs nothing, where the publication is one of ours."""
        publication = read_state(db, self.section, {}).publication
        if self._claimant and publication is not None and publication.ours and publication.owned:
            claim = None if relations is None else self._claimant.claim(self.section, relations)
            claims.write(db, self.section, self.name, claim)

    def _judged(
        self, state: State, relations: Mapping[str, Collection[str]], memory: Memory, reload: bool
    ) -> list[Finding]:
        lost = state.slot is not None and state.slot.lost
        if lost and (reload or not memory.active):
            state = replace(state, slot=None)  # it is made anew
        return [f for f in findings(state, self.section, relations) if f.verdict == "problem"]

    def _raise_problems(self, found: list[Finding]) -> None:
        if found:
            raise SourceError([finding.problem(self.place) for finding in found])

    def _require_uninterrupted(
        self, state: State, relations: Mapping[str, Collection[str]], memory: Memory, reload: bool
    ) -> bool:
        """Must slot and memory be made anew? Raises SourceError if that would lose changes that views need."""
        broken = self._interrupted(state, relations, memory)
        if broken and not reload:
            raise SourceError([Problem(self.place, what, _RELOAD) for what in broken])
        unusable = state.slot is not None and (state.slot.lost or state.publication is None)
        return bool(broken) or unusable

    def _interrupted(self, state: State, relations: Collection[str], memory: Memory) -> list[str]:
        """What happened to the capture since the last ``install``, so that changes may be missing."""
        if not memory.active:
            return []
        if state.slot is None or state.slot.lost:
            return [self._gone()]
        if memory.overtaken:
            return [self._anew()]
        marks = self._marks(state)
        known = {r: memory.active[r].mark for r in relations if r in memory.active}
        broken = [r for r, mark in known.items() if not same_published(mark, marks.get(r))]
        name = self.section.publication
        return [
            f"{r} was not in publication {name} as it is now all the time, so changes may be missing" for r in broken
        ]

    def _anew(self) -> str:
        return f"slot {self.section.slot} was made anew, so changes may be missing"

    def _gone(self) -> str:
        return f"slot {self.section.slot} is gone, so changes may be missing"

    def _marks(self, state: State) -> dict[str, str]:
        published = state.publication.marks if state.publication else {}
        return {r: published[table.oid] for r, table in state.tables.items() if table.oid in published}

    def _set_up(
        self,
        db: Connection,
        state: State,
        relations: Mapping[str, Collection[str]],
        memory: Memory,
        anew: bool,
        claims: Claims,
    ) -> bool:
        """Publication first: what is logged before it exists could not be read. Was a slot made?"""
        missing = unpublished(state, relations)
        if state.publication is None:
            self._create_publication(db, relations)
        elif missing:
            self._do(db, self._names.add_tables(missing), f"{', '.join(missing)} added to {self._called}")
        if state.publication is not None:
            self._retire(db, state, relations, memory, claims.needed(self.section.publication))
        if new := sorted(relations.keys() if anew else {*missing, *(relations.keys() - memory.active.keys())}):
            self._await_older(db, new)
        if state.slot is not None and not anew:
            return False
        if state.slot is not None:
            self._drop_slot(db, state)
        self._create_slot(db)
        return True

    @property
    def _called(self) -> str:
        return f"publication {self.section.publication}"

    def _create_publication(self, db: Connection, relations: Collection[str]) -> None:
        with db.transaction():
            self._do(
                db, self._names.create_publication(relations), f"{self._called} for {', '.join(sorted(relations))}"
            )
            comment = f"{COMMENT}changes of source {self.name}"
            db.execute(f"COMMENT ON PUBLICATION {self._names.publication} IS '{comment}'".encode())

    def _retire(
        self, db: Connection, state: State, relations: Collection[str], memory: Memory, needed: Collection[str]
    ) -> None:
        """Takes tables out that nobody uses any more, if we had put them in; a table may be gone by itself."""
        assert state.publication is not None
        if not (state.publication.ours and state.publication.owned):
            return
        for relation in sorted(memory.active.keys() - {*relations, *needed}):
            with suppress(pg.UndefinedObject, pg.UndefinedTable):
                self._do(db, self._names.drop_table(relation), f"{relation} taken out of {self._called}")

    def _do(self, db: Connection, statement: str, told: str) -> None:
        db.execute(statement.encode())
        self._done.append(told)

    def _create_slot(self, db: Connection) -> None:
        try:
            self._do(db, self._names.create_slot(), f"slot {self.section.slot}")
        except pg.QueryCanceled:
            what = f"slot {self.section.slot} cannot be made while older transactions run"
            raise SourceUnreachable.at(self.place, what + _oldest(db), "end it, or wait") from None

    def _drop_slot(self, db: Connection, state: State) -> None:
        assert state.slot is not None
        if state.slot.active_pid is not None and not state.slot.lost:
            what = f"slot {self.section.slot} must be made anew, but process {state.slot.active_pid} reads it"
            raise SourceUnreachable.at(self.place, what, "stop capture first")
        db.execute(self._names.drop_slot().encode())

    def _await_older(self, db: Connection, relations: list[str]) -> None:
        """Waits until every transaction has ended that ran when the tables were published."""
        if not self._older_ended(db, WAIT_SECONDS):
            what = f"changes of {', '.join(relations)} by an older transaction would be missing" + _oldest(db)
            raise SourceUnreachable.at(self.place, what, "end it, or wait")

    def _older_ended(self, db: Connection, seconds: float) -> bool:
        """Have all transactions ended, after so many seconds at most, that run now?"""
        # A number of our own is past those of all that run; the end of a snapshot is only past those that are over.
        (limit,) = _one(db, "SELECT pg_current_xact_id()::text::int8")
        deadline = time.monotonic() + seconds
        while _one(db, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::int8")[0] < limit:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _remember(
        self,
        db: Connection,
        relations: Mapping[str, Collection[str]],
        memory: Memory,
        anew: bool,
        made_slot: bool,
        reload: bool,
    ) -> list[str]:
        """Writes down what is captured since when; the relations that are captured only from now on."""
        state = read_state(db, self.section, relations)
        marks = self._marks(state)
        kept = {} if anew or made_slot else memory.active
        new = [r for r in relations if r not in kept]
        captured = {r: replace(entry, active=r in relations) for r, entry in memory.relations.items()}
        # A new owner of the publication is known from now on.
        for r in {*kept} & {*marks}:
            if same_published(captured[r].mark, marks[r]):
                captured[r] = replace(captured[r], mark=marks[r])
        captured |= {r: Captured(state.position, marks[r], again=r in memory.relations) for r in new}
        # Whatever a slot has passed before views are loaded, the load contains.
        to_be_loaded = reload or anew or made_slot or not memory.relations
        confirmed = state.slot.confirmed if state.slot and to_be_loaded else memory.confirmed
        now = Memory(made_slot or memory.made_slot, confirmed, False, captured)
        if now != memory:
            now.write(self._file)
        return new

    # ---- removing

    def _remove_slot(self, db: Connection, state: State, memory: Memory, claims: Claims) -> Iterator[str]:
        name = self.section.slot
        if state.slot is None:
            return
        if user := claims.user_of(slot=name):
            yield f"left slot {name}, which is used by {user}"
            return
        ours = memory.made_slot or (state.publication is not None and state.publication.ours)
        if not ours or state.slot.database != state.database:
            yield f"left slot {name}, which somebody else made ({self._names.drop_slot()})"
        elif state.slot.active_pid is not None:
            what = f"slot {name} is being read by process {state.slot.active_pid}"
            raise SourceError.at(self.place, what, "stop capture first")
        else:
            db.execute(self._names.drop_slot().encode())
            yield f"slot {name} removed"

    def _remove_publication(self, db: Connection, state: State, claims: Claims) -> Iterator[str]:
        if state.publication is None:
            return
        if user := claims.user_of(publication=self.section.publication):
            yield f"left {self._called}, which is used by {user}"
            return
        statement = f"DROP PUBLICATION {self._names.publication}"
        if not (state.publication.ours and state.publication.owned):
            yield f"left {self._called}, which somebody else made ({statement})"
        else:
            db.execute(statement.encode())
            yield f"{self._called} removed"


# Every running transaction holds a lock on its own number, which everybody may see; a prepared one has no process.
_OLDEST = """
    SELECT l.pid, extract(epoch FROM now() - coalesce(a.xact_start, p.prepared))::int8, p.gid
    FROM pg_locks l
    LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    LEFT JOIN pg_prepared_xacts p ON p.transaction = l.transactionid
    WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
        AND l.pid IS DISTINCT FROM pg_backend_pid()
    ORDER BY age(l.transactionid) DESC LIMIT 1
"""


def _oldest(db: Connection) -> str:
    """Who is in the oldest transaction, as far as the role may know."""
    row = db.execute(_OLDEST.encode()).fetchone()
    if row is None:
        return ""
    pid, age, prepared = row
    who = f"the prepared transaction {prepared}" if prepared else f"process {pid}"
    return f" ({who}" + (f", {age} s old)" if age is not None else ")")


def _one(db: Connection, query: str) -> tuple[int, ...]:
    row = db.execute(query.encode()).fetchone()
    assert row is not None
    return row
