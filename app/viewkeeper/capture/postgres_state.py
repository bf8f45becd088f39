"""What a PostgreSQL server says of itself, as far as capture depends on it: one look, nothing changed.

Which tables no log tells of (partitioned, unlogged, …) is known by ``managers/sources``: no view gets to use them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from viewkeeper.config_sources import PostgresConfig
from viewkeeper.managers.sources.postgres_session import Access

Connection = psycopg.Connection[tuple[Any, ...]]

STATEMENT_SECONDS = 20


@contextmanager
def connected(place: str, section: PostgresConfig) -> Iterator[Connection]:
    """An autocommit connection whose statements end in time; the driver's errors in the block come out as ours."""
    access = Access(place, section.url, section.schema_name, STATEMENT_SECONDS * 1000)
    with access.reporting(), psycopg.connect(access.conninfo, autocommit=True) as connection:
        connection.execute(f"SET statement_timeout = '{STATEMENT_SECONDS}s'")
        connection.execute("SET application_name = 'viewkeeper'")
        # What is written here must be logged, but behind a standby that does not answer it would never return.
        connection.execute("SET synchronous_commit = local")
        yield connection


@dataclass(frozen=True)
class Table:
    """A used table. ``logged`` are the columns whose old values are logged; None means all."""

    oid: int
    name: str
    owned: bool
    readable: bool
    keyed: bool
    logged: frozenset[str] | None


@dataclass(frozen=True)
class Publication:
    """``marks`` has, per published used table, what changes when it is taken out and put back (``same_published``)."""

    owned: bool
    ours: bool
    lacking: tuple[str, ...]  # operations it does not publish
    marks: Mapping[int, str]
    filtered: frozenset[int]
    whole: frozenset[int]  # published by FOR ALL TABLES or TABLES IN SCHEMA, not by name


@dataclass(frozen=True)
class Slot:
    plugin: str
    database: str
    temporary: bool
    active_pid: int | None
    lost: bool
    at_risk: bool
    held: int  # bytes of the server's log that it keeps
    confirmed: int


@dataclass(frozen=True)
class State:
    version: str
    wal_level: str
    standby: bool
    database: str
    role: str
    replicates: bool
    creates: bool  # may make publications
    usage: bool  # may look into the schema
    slots_free: int
    senders_free: int
    unlimited: bool  # the log kept for slots has no limit
    fatal: Sequence[str]  # types that Debezium dies of when it starts
    tables: Mapping[str, Table]
    publication: Publication | None
    slot: Slot | None
    position: int = field(default=0)  # where the server's log ends


def read_state(db: Connection, section: PostgresConfig, used: Mapping[str, Collection[str]]) -> State:
    """Looks at the server, the used tables (relation → used columns), publication and slot."""
    server = _row(db, _SERVER, {"schema": section.schema_name})
    tables = _tables(db, section, used)
    return State(
        **server,
        tables=tables,
        publication=_publication(db, section, [table.oid for table in tables.values()]),
        slot=_slot(db, section.slot),
    )


_SERVER = """
    SELECT current_setting('server_version') AS version, current_setting('wal_level') AS wal_level,
        pg_is_in_recovery() AS standby, current_database()::text AS database, current_user::text AS role,
        (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user)
            OR EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_replication'
                AND pg_has_role(current_user, oid, 'USAGE')) AS replicates,
        has_database_privilege(current_database(), 'CREATE') AS creates,
        coalesce((SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = %(schema)s), false)
            AS usage,
        current_setting('max_replication_slots')::int - (SELECT count(*) FROM pg_replication_slots)::int AS slots_free,
        current_setting('max_wal_senders')::int
            - (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walsender')::int AS senders_free,
        current_setting('max_slot_wal_keep_size') = '-1' AS unlimited,
        -- Debezium takes every type of the category of enumerations for one that has labels.
        ARRAY(SELECT format_type(t.oid, NULL) FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
            WHERE t.typcategory = 'E' AND n.nspname <> 'pg_toast'
            AND NOT EXISTS (SELECT FROM pg_enum e WHERE e.enumtypid = t.oid) ORDER BY 1) AS fatal,
        CASE WHEN pg_is_in_recovery() THEN 0 ELSE pg_current_wal_insert_lsn() - '0/0' END::int8 AS position
"""

_TABLES = """
    SELECT c.oid::int8 AS oid, c.relname::text AS name, pg_has_role(c.relowner, 'USAGE') AS owned,
        c.relreplident::text AS identity,
        EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary) AS keyed,
        has_table_privilege(c.oid, 'SELECT') AS readable,
        ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0
            AND NOT a.attisdropped AND has_column_privilege(c.oid, a.attnum, 'SELECT')) AS columns,
        ARRAY(SELECT a.attname::text FROM pg_index i JOIN pg_attribute a
            ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey::int2[])
            WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END)
            AS logged
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relname = ANY (%(names)s) AND c.relkind = 'r'
"""


def _tables(db: Connection, section: PostgresConfig, used: Mapping[str, Collection[str]]) -> dict[str, Table]:
    found = _rows(db, _TABLES, {"schema": section.schema_name, "names": list(used)})
    return {row["name"]: _table(row, used[row["name"]]) for row in found}


def _table(row: Mapping[str, Any], used: Collection[str]) -> Table:
    return Table(
        oid=row["oid"],
        name=row["name"],
        owned=row["owned"],
        readable=row["readable"] or set(used) <= set(row["columns"]),
        keyed=row["keyed"],
        logged=None if row["identity"] == "f" else frozenset(row["logged"] if row["identity"] != "n" else ()),
    )


_PUBLICATION = """
    SELECT p.oid::int8 AS oid, concat(p.xmin, ':', p.pubowner) AS written, pg_has_role(p.pubowner, 'USAGE') AS owned,
        p.puballtables, obj_description(p.oid, 'pg_publication') LIKE 'Viewkeeper:%%' AS ours,
        p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate
    FROM pg_publication p WHERE p.pubname = %(name)s
"""

# A row of these catalogs gets a new oid when the table is taken out and put back, a new xmin when it is altered.
_PUBLISHED = """
    SELECT c.oid::int8 AS table, r.prqual IS NOT NULL OR r.prattrs IS NOT NULL AS filtered, r.oid IS NOT NULL AS named,
        concat_ws('.', c.oid, r.oid, r.xmin, n.oid, n.xmin) AS mark
    FROM pg_class c
    LEFT JOIN pg_publication_rel r ON r.prrelid = c.oid AND r.prpubid = %(publication)s
    LEFT JOIN pg_publication_namespace n ON n.pnnspid = c.relnamespace AND n.pnpubid = %(publication)s
    WHERE c.oid = ANY (%(tables)s::oid[]) AND (r.oid IS NOT NULL OR n.oid IS NOT NULL OR %(all)s)
"""


def _publication(db: Connection, section: PostgresConfig, tables: list[int]) -> Publication | None:
    rows = _rows(db, _PUBLICATION, {"name": section.publication})
    if not rows:
        return None
    (row,) = rows
    asked = {"publication": row["oid"], "tables": tables, "all": row["puballtables"]}
    published = _rows(db, _PUBLISHED, asked)
    return Publication(
        owned=row["owned"],
        ours=bool(row["ours"]),
        lacking=tuple(
            operation for operation in ("insert", "update", "delete", "truncate") if not row[f"pub{operation}"]
        ),
        marks={each["table"]: f"{row['oid']}.{row['written']}.{each['mark']}" for each in published},
        filtered=frozenset(each["table"] for each in published if each["filtered"]),
        whole=frozenset(each["table"] for each in published if not each["named"]),
    )


_SLOT = """
    SELECT coalesce(plugin, '')::text AS plugin, coalesce(database, '')::text AS database, temporary, active_pid,
        coalesce(wal_status, '') = 'lost' AS lost, coalesce(wal_status, '') = 'unreserved' AS at_risk,
        CASE WHEN pg_is_in_recovery() THEN 0 ELSE coalesce(pg_current_wal_lsn() - restart_lsn, 0) END::int8 AS held,
        coalesce(confirmed_flush_lsn - '0/0', 0)::int8 AS confirmed
    FROM pg_replication_slots WHERE slot_name = %(name)s
"""


def _slot(db: Connection, name: str) -> Slot | None:
    rows = _rows(db, _SLOT, {"name": name})
    return Slot(**rows[0]) if rows else None


def _rows(db: Connection, query: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    cursor = db.execute(query.encode(), values)
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _row(db: Connection, query: str, values: Mapping[str, Any]) -> dict[str, Any]:
    (row,) = _rows(db, query, values)
    return row
