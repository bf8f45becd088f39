"""PostgreSQL's tables as they are declared: columns, keys, indexes, what the log tells, and what cannot be kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from psycopg import Connection

from viewkeeper.algebra.types import UNKNOWN, Column, Relation
from viewkeeper.managers.sources.postgres_values import ENUM, TYPES, declared_type

_TABLES = """
SELECT c.oid::int8 AS oid, c.relname AS name, c.relkind::text AS kind, c.relpersistence::text AS persistence,
       c.relreplident::text AS identity, c.relrowsecurity AS secured, c.relispartition AS part,
       EXISTS (SELECT FROM pg_inherits i WHERE c.oid IN (i.inhrelid, i.inhparent)) AS inherits
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %(schema)s AND c.relkind IN ('r', 'p', 'f', 'v', 'm') AND (%(names)s::text[] IS NULL
      OR c.relname = ANY(%(names)s::text[])) ORDER BY c.relname
"""

_COLUMNS = """
SELECT a.attrelid::int8 AS table, a.attnum AS number, a.attname AS name, a.atttypid::int8 AS type,
       a.atttypmod AS modifier, a.attnotnull AS required, a.attgenerated <> '' AS generated,
       EXISTS (SELECT FROM pg_collation l WHERE l.oid = a.attcollation AND NOT l.collisdeterministic) AS loose
FROM pg_attribute a WHERE a.attrelid = ANY(%(tables)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""

_TYPES = """
WITH RECURSIVE used AS (
    SELECT t.* FROM pg_type t WHERE t.oid = ANY(%(types)s::oid[])
    UNION SELECT b.* FROM used u JOIN pg_type b ON b.oid = u.typbasetype AND u.typtype = 'd'
)
SELECT u.oid::int8 AS oid, u.typname AS name, u.typtype::text AS kind, u.typbasetype::int8 AS base,
       u.typtypmod AS modifier, format_type(u.oid, NULL) AS sql, n.nspname = 'pg_catalog' AS built_in
FROM used u JOIN pg_namespace n ON n.oid = u.typnamespace
"""

_INDEXES = """
SELECT i.indrelid::int8 AS table, m.amname AS method, i.indisprimary AS primary, i.indisreplident AS replica,
       i.indkey[0:i.indnkeyatts - 1]::int2[] AS columns, i.indpred IS NOT NULL AS partial
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
WHERE i.indrelid = ANY(%(tables)s::oid[]) AND i.indisvalid
"""

_NO_TABLE = {
    "p": "is partitioned, and its log tells of its partitions",
    "f": "is a foreign table, of which no log tells",
    "v": "is a view, of which no log tells",
    "m": "is a materialized view, of which no log tells",
}


@dataclass(frozen=True)
class PgTable:
    """A table as views may use it, and what questions need to know besides.

    ``lookups`` are the columns that lead a usable index, with its method; ``equated`` the SQL of types by whose
    equality keys are compared, where it is not the one that ``postgres_values`` names; ``loose`` the columns whose
    collation takes different texts for equal.
    """

    relation: Relation
    lookups: Mapping[str, str] = field(default_factory=dict)
    equated: Mapping[str, str] = field(default_factory=dict)
    loose: frozenset[str] = frozenset()

    def column(self, name: str) -> Column:
        found = self.relation.column(name)
        assert found is not None, f"{self.relation.name} has no column {name}"
        return found


@dataclass(frozen=True)
class _Base:
    """A type without the domains around it: our name for it, its modifier, its name in SQL."""

    declared: str
    modifier: int
    sql: str


Row = dict[str, Any]


def read_tables(db: Connection[Any], source: str, schema: str, names: Iterable[str] | None = None) -> list[PgTable]:
    """The tables of a schema: all, or just the named ones that exist."""
    wanted = None if names is None else sorted(names)
    tables = _rows(db, _TABLES, schema=schema, names=wanted)
    oids = [table["oid"] for table in tables]
    columns = _by_table(_rows(db, _COLUMNS, tables=oids))
    indexes = _by_table(_rows(db, _INDEXES, tables=oids))
    used = {column["type"] for found in columns.values() for column in found}
    types = {row["oid"]: row for row in _rows(db, _TYPES, types=sorted(used))}
    return [
        _table(source, schema, table, columns.get(table["oid"], []), indexes.get(table["oid"], []), types)
        for table in tables
    ]


def _rows(db: Connection[Any], sql: str, **parameters: Any) -> list[Row]:
    cursor = db.execute(sql.encode(), parameters)
    assert cursor.description is not None
    names = [column.name for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _by_table(rows: Iterable[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["table"], []).append(row)
    return found


def _table(
    source: str, schema: str, table: Row, columns: list[Row], indexes: list[Row], types: Mapping[int, Row]
) -> PgTable:
    bases = {column["name"]: _base(column["type"], column["modifier"], types) for column in columns}
    described = tuple(_column(column, bases[column["name"]]) for column in columns)
    names = {column["number"]: column["name"] for column in columns}
    key = next((tuple(names[n] for n in index["columns"]) for index in indexes if index["primary"]), ())
    lookups = _lookups(indexes, names, bases)
    relation = Relation(
        source,
        table["name"],
        described,
        key=key,
        indexed=frozenset(lookups),
        nullable=frozenset(column["name"] for column in columns if not column["required"]),
        required=frozenset(column["name"] for column in columns if column["required"]),
        blurred=frozenset(name for name, base in bases.items() if base.declared.startswith("_")),
        logged=_logged(table["identity"], key, indexes, names),
        refused=_refused(schema, table),
    )
    equated = {name: base.sql for name, base in bases.items() if base.declared == "citext"}
    return PgTable(relation, lookups, equated, frozenset(column["name"] for column in columns if column["loose"]))


def _base(oid: int, modifier: int, types: Mapping[int, Row]) -> _Base:
    """The base type of a domain has the modifier of the innermost domain that states one."""
    found = types[oid]
    while found["kind"] == "d":
        modifier = found["modifier"] if modifier < 0 else modifier
        found = types[found["base"]]
    if found["kind"] == "e":
        return _Base(ENUM, modifier, found["sql"])
    known = found["built_in"] or found["name"] == "citext"
    return _Base(found["name"] if known else found["sql"], modifier, found["sql"])


def _column(column: Row, base: _Base) -> Column:
    type, refused = declared_type(base.declared, base.modifier)
    if column["generated"]:
        type, refused = UNKNOWN, "is generated, and the log does not tell its value; write its expression in the view"
    return Column(column["name"], type, base.declared, refused)


def _lookups(indexes: list[Row], names: Mapping[int, str], bases: Mapping[str, _Base]) -> dict[str, str]:
    """Columns by which keys are looked up: btree where there is one."""
    found: dict[str, str] = {}
    for index in sorted(indexes, key=lambda index: str(index["method"]), reverse=True):
        name = names.get(index["columns"][0])  # none where an index begins with an expression
        if index["partial"] or name is None or index["method"] not in ("btree", "hash"):
            continue
        known = TYPES.get(bases[name].declared)
        if known and known.equated and not known.by_text:
            found[name] = index["method"]
    return found


def _logged(
    identity: str, key: tuple[str, ...], indexes: list[Row], names: Mapping[int, str]
) -> frozenset[str] | None:  # fmt: skip
    """The columns of which the log tells the old values, by the table's REPLICA IDENTITY; None for all."""
    if identity == "f":
        return None
    if identity == "d":
        return frozenset(key)
    if identity == "i":
        told: Collection[int] = next((index["columns"] for index in indexes if index["replica"]), ())
        return frozenset(names[number] for number in told)
    return frozenset()


def _refused(schema: str, table: Row) -> str:
    if table["part"]:
        return "is a partition of another table; it cannot be kept"
    if table["kind"] in _NO_TABLE:
        return f"{_NO_TABLE[table['kind']]}; name the tables that hold its rows"
    if table["persistence"] == "u":
        return f"is unlogged, and no log tells of it; ALTER TABLE {quoted(schema, table['name'])} SET LOGGED"
    if table["persistence"] == "t":
        return "is temporary, and no log tells of it; it cannot be kept"
    if table["inherits"]:
        return "inherits from a table, or is inherited from, and its log tells of each table alone; it cannot be kept"
    if table["secured"]:
        disable = f"ALTER TABLE {quoted(schema, table['name'])} DISABLE ROW LEVEL SECURITY"
        return f"has row-level security, which hides rows from questions and not from the log; {disable}"
    return ""


def quoted(*names: str) -> str:
    """A name, or a qualified one, as an identifier of SQL."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)
