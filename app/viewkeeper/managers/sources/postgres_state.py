"""What must stay as it is for answers and log to fit together: the server, its history, the slot, the watched tables.

All of it is read in one query. TRUNCATE and rewrites of a table ignore MVCC (an older snapshot sees the table empty,
or in its new form), so a table's file node tells whether answers of a snapshot are void. A renamed label of an
enumeration changes rows without any log.

The log names tables and columns as they were called at the time. What was renamed and renamed back looks as it did
before, but changes in between were told of another name, or under that of another: so the catalog's rows are also
known by the transactions that wrote them (``xmin``). A table's row type is written when the table is renamed, moved to
another schema or given away, and by nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson

from viewkeeper.config_sources import PostgresConfig
from viewkeeper.errors import SourceError, SourceUnreachable
from viewkeeper.managers.sources.postgres_session import RELOAD, Control

_STATE = """
SELECT pg_is_in_recovery(), (SELECT system_identifier::text FROM pg_control_system()), (SELECT oid::text FROM
       pg_database WHERE datname = current_database()),
       CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) END,
       CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_insert_lsn() - '0/0')::int8 END,
       pg_snapshot_xmax(pg_current_snapshot())::text::int8,
       (SELECT json_build_object('plugin', s.plugin, 'database', s.database = current_database(), 'status',
               s.wal_status, 'flushed', (s.confirmed_flush_lsn - '0/0')::int8)
        FROM pg_replication_slots s WHERE s.slot_name = %(slot)s),
       (SELECT json_object_agg(c.relname, json_build_object(
               'oid', c.oid::int8, 'file', coalesce(pg_relation_filenode(c.oid), 0)::int8,
               'logged', c.relreplident, 'form', concat(c.relkind, c.relpersistence, c.relrowsecurity, c.relispartition,
                   EXISTS (SELECT FROM pg_inherits i WHERE c.oid IN (i.inhrelid, i.inhparent))),
               'columns', (SELECT json_object_agg(a.attname, json_build_array(
                       a.attnum, a.atttypid::int8, a.atttypmod, a.attgenerated))
                   FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                   AND a.attname = ANY(%(columns)s::text[])),
               'labels', (SELECT json_object_agg(e.oid::text, e.enumlabel) FROM pg_attribute a
                   JOIN pg_enum e ON e.enumtypid = a.atttypid WHERE a.attrelid = c.oid AND NOT a.attisdropped
                   AND a.attname = ANY(%(columns)s::text[])),
               'written', (SELECT json_object_agg(w.what, json_build_array(w.writer, w.wrote, w.command)) FROM (
                   SELECT 'name', t.xmin::text, t.typowner::text, '' FROM pg_type t WHERE t.oid = c.reltype
                   UNION ALL SELECT 'schema', n.xmin::text, '', ''
                   UNION ALL SELECT 'place', c.xmin::text, '', '' FROM pg_publication p
                   WHERE p.pubname = %(publication)s AND p.pubviaroot
                   UNION ALL SELECT concat('column ', a.attnum), a.xmin::text, md5(concat_ws(',', a.attname,
                       a.atttypid, a.atttypmod, a.attnotnull, a.attisdropped, a.attstattarget, a.attstorage,
                       a.attcompression, a.atthasdef, a.atthasmissing, a.attidentity, a.attgenerated, a.attcollation,
                       a.attacl, a.attoptions, (SELECT d.oid FROM pg_attrdef d
                           WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum))), a.cmin::text
                   FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
                   UNION ALL SELECT concat('label ', e.oid), e.xmin::text, concat(e.enumlabel, ' ', e.enumsortorder), ''
                   FROM pg_attribute a JOIN pg_enum e ON e.enumtypid = a.atttypid
                   WHERE a.attrelid = c.oid AND NOT a.attisdropped AND a.attname = ANY(%(columns)s::text[])
                   ) AS w(what, writer, wrote, command)),
               'published', (SELECT concat_ws('.', p.oid, concat(p.xmin, ':', p.pubowner), r.oid, r.xmin, s.oid, s.xmin)
                   FROM pg_publication p
                   LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
                   LEFT JOIN pg_publication_namespace s ON s.pnpubid = p.oid AND s.pnnspid = c.relnamespace
                   WHERE p.pubname = %(publication)s
                   AND (p.puballtables OR r.oid IS NOT NULL OR s.oid IS NOT NULL))))
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %(schema)s AND c.relname = ANY(%(tables)s::text[]))
"""

Watched = Mapping[str, tuple[str, ...]]
"""The tables that views use, and the columns they use of each."""


@dataclass(frozen=True)
class TableState:
    """A watched table: which it is, which file holds it, what the log tells of it, and its used columns.

    A column is its number, type, type modifier and how it is generated; ``labels`` are those of its enumerations.
    ``written`` has for its name, every column and every label the transaction that wrote it, what it wrote, and by
    which of its commands; besides, who wrote what else may name it in the log: its schema, and its place in another
    table if the publication tells of that one instead. ``published`` changes whenever the table leaves the publication
    or comes back. Without either, nothing is known.
    """

    oid: int
    file: int
    logged: str
    form: str
    columns: Mapping[str, list[Any]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    written: Mapping[str, list[str]] = field(default_factory=dict)
    published: str | None = None

    def problem(self, name: str, before: TableState) -> str | None:
        """Why what was known of the table no longer holds."""
        if self.oid != before.oid:
            return f"table {name} was dropped and made anew"
        if self.form != before.form:
            return f"table {name} was altered: it is no longer of the same kind"
        if self.logged != before.logged:
            return f"the REPLICA IDENTITY of table {name} was changed"
        for column, known in before.columns.items():
            if column not in self.columns:
                continue  # no view uses it any more: those that are used are there
            if self.columns[column][0] != known[0]:
                return f"column {name}.{column} was dropped or renamed"
            if self.columns[column] != known:
                return f"the type of column {name}.{column} was changed"
        if any(self.labels.get(label) != text for label, text in before.labels.items()):
            return f"a label of an enumeration was renamed or dropped that table {name} uses"
        return None

    def gap(self, name: str, before: TableState) -> str | None:
        """Why changes of the table may be missing, or told wrongly, though it is as it was."""
        touched = {what for what, (by, *_) in self.written.items() if by != before.written.get(what, [""])[0]}
        again = {what for what in touched & before.written.keys() if self.written[what][1] == before.written[what][1]}
        if "name" in again:
            return f"table {name} was renamed or moved, if only for a while: changes of it may be missing"
        if before.published is not None and not same_published(before.published, self.published):
            return f"table {name} was not in the publication as it is now all the time: changes of it may be missing"
        used = {f"column {number}" for number, *_ in self.columns.values()}
        named = self._alone(what for what in touched if what.startswith("column "))
        if again & used & named and len(named) > 1:
            return f"columns of table {name} were renamed, if only for a while: changes of them may be mixed up"
        if any(what.startswith("label ") for what in again):
            return f"a label of an enumeration that table {name} uses was renamed for a while: rows may hold the other"
        return None

    def _alone(self, columns: Iterable[str]) -> set[str]:
        """Those that a command wrote alone: it renames one column, while GRANT, say, may write several."""
        writers = {column: (by, *command) for column in columns for by, _, *command in [self.written[column]]}
        times = Counter(writers.values())
        return {column for column, writer in writers.items() if times[writer] == 1}


def same_published(before: str, now: str | None) -> bool:
    """Whether a table is published as it was, going by what names that: ``publication.writer:owner.…``.

    A publication that has another owner was written for that; what was remembered without owners is compared as it is.
    """
    if now is None:
        return False
    (publication, row, *entries), (its, writer, *others) = before.split("."), now.split(".")
    (wrote, _, owned), (writes, _, owns) = row.partition(":"), writer.partition(":")
    return (publication, entries) == (its, others) and (wrote == writes or owned not in ("", owns))


@dataclass(frozen=True)
class SlotState:
    """The replication slot; ``flushed`` is what its reader has confirmed to have."""

    plugin: str
    database: bool
    status: str | None
    flushed: int | None


@dataclass(frozen=True)
class ServerState:
    """Where a database stands: its identity, how far it has come, its slot and the watched tables."""

    system: str
    database: str
    timeline: str
    lsn: int
    xid: int
    slot: SlotState | None
    tables: Mapping[str, TableState]

    @classmethod
    def read(cls, control: Control, section: PostgresConfig, watched: Watched) -> ServerState:
        """The state now; raises SourceError where the server is a standby, or a watched table is gone."""
        place = control.access.place
        columns = sorted({column for used in watched.values() for column in used})
        names = {"schema": section.schema_name, "slot": section.slot, "publication": section.publication}
        standby, system, database, timeline, lsn, xid, found, tables = control.row(
            _STATE, **names, tables=sorted(watched), columns=columns
        )
        if standby:
            remedy = "name its primary in the URL, or add target_session_attrs=read-write to it"
            raise SourceError.at(place, "the server is a standby, which cannot tell what it shows", remedy)
        states = {name: _used(_table(row), watched[name]) for name, row in (tables or {}).items()}
        for name, used in watched.items():
            _require_columns(place, name, states.get(name), used)
        return cls(system, database, timeline, lsn, xid, SlotState(**found) if found else None, states)

    def identity(self) -> dict[str, str]:
        """What tells this database, in this history of it, from another."""
        tables = {f"table {name}": orjson.dumps(asdict(state)).decode() for name, state in self.tables.items()}
        return {**self.history(), "xid": str(self.xid), **tables}

    def history(self) -> dict[str, str]:
        """The part of it that stays as it is as long as it is the same history."""
        return {"system": self.system, "database": self.database, "timeline": self.timeline}

    def require(self, place: str, known: Mapping[str, str]) -> None:
        """Raises SourceError if this is not the database, or not the history, that was known."""
        if known.get("system", self.system) != self.system or known.get("database", self.database) != self.database:
            remedy = f"put the right database back, or {RELOAD}"
            raise SourceError.at(place, "this is another database than the one that the views were made from", remedy)
        if known.get("timeline", self.timeline) != self.timeline:
            what = f"the server's timeline was {known['timeline']} and is {self.timeline}: it was restored or promoted"
            raise SourceError.at(place, what, RELOAD)
        if int(known.get("xid", 0)) > self.xid:
            what = f"its transactions are at {self.xid}, and were at {known['xid']}: it was restored from a backup"
            raise SourceError.at(place, what, RELOAD)
        before = {name: orjson.loads(known[f"table {name}"]) for name in self.tables if f"table {name}" in known}
        self.require_tables(place, {name: TableState(**state) for name, state in before.items()})

    def require_tables(self, place: str, before: Mapping[str, TableState]) -> None:
        """Raises SourceError if a watched table is not what it was."""
        for name, state in self.tables.items():
            if name in before and (problem := state.problem(name, before[name])):
                raise SourceError.at(place, problem, f"undo that, or {RELOAD}")
            if name in before and (gap := state.gap(name, before[name])):
                raise SourceError.at(place, gap, RELOAD)

    def require_reached(self, place: str, last: int) -> None:
        """Raises SourceError if the log ends before what was delivered."""
        if self.lsn < last:
            what = f"its log ends at {self.lsn}, before {last}, which was delivered: is it an older copy?"
            raise SourceError.at(place, what, f"put the right database back, or {RELOAD}")


def require_slot(place: str, name: str, slot: SlotState | None, last: int | None = None) -> None:
    """Raises SourceError where changes may be lost: ``last`` is the end of the last transaction that the topic holds.

    Whoever reads the slot confirms only what is in the topic. A slot that is past that was made anew.
    """
    if slot is None:
        raise SourceError.at(place, f"its replication slot {name} is gone, and changes with it", RELOAD)
    if slot.plugin != "pgoutput" or not slot.database:
        what = f"its replication slot {name} belongs to another database, or to another plugin than pgoutput"
        raise SourceError.at(place, what, f"drop that slot, then {RELOAD}")
    if slot.status == "lost":
        remedy = f"raise max_slot_wal_keep_size, drop the slot, then {RELOAD}"
        raise SourceError.at(place, f"its replication slot {name} was invalidated, and changes are lost", remedy)
    if last is not None and (slot.flushed or 0) > last:
        what = f"its replication slot {name} is at {slot.flushed}, past the topic's last transaction at {last}"
        raise SourceError.at(place, f"{what}: it was made anew, and changes may be lost", RELOAD)


def require_same(place: str, before: Mapping[str, TableState], after: Mapping[str, TableState]) -> None:
    """Raises SourceUnreachable if a table was emptied, rewritten or altered in between: then answers are void."""
    for name, state in before.items():
        if after.get(name) != state:
            raise SourceUnreachable.at(place, f"table {name} was truncated, rewritten or altered while it was read")


def _table(row: dict[str, Any]) -> TableState:
    return TableState(
        row["oid"], row["file"], row["logged"], row["form"], row["columns"] or {}, row["labels"] or {},
        row["written"] or {}, row["published"],
    )  # fmt: skip


def _used(state: TableState, used: tuple[str, ...]) -> TableState:
    columns = {name: state.columns[name] for name in used if name in state.columns}
    return replace(state, columns=columns)


def _require_columns(place: str, name: str, state: TableState | None, used: tuple[str, ...]) -> None:
    if state is None:
        raise SourceError.at(place, f"table {name} was dropped or renamed", f"put it back, and {RELOAD}")
    for column in used:
        if column not in state.columns:
            what = f"column {name}.{column} was dropped or renamed"
            raise SourceError.at(place, what, f"undo that, or {RELOAD}")
