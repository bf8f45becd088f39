"""SQLite's tables as they are declared: columns, identity, and everything that can make two rows conflict."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from viewkeeper.algebra.types import Column, Relation, Type
from viewkeeper.managers.sources.sqlite_values import ONE_FORM, declared_type

OWN = "_viewkeeper_"
"""Everything this program creates in a database has a name that starts like this."""

_ROWID_NAMES = ("rowid", "_rowid_", "oid")
_GENERATED = (2, 3)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class TableColumn:
    name: str
    declared: str
    not_null: bool = False
    default: str | None = None
    key: int = 0  # its place in the primary key, from 1
    generated: bool = False

    @property
    def type(self) -> Type:
        return declared_type(self.declared)


@dataclass(frozen=True)
class UniqueKey:
    """A primary key or unique index: column positions with their collations; ``where`` if it is partial."""

    positions: tuple[int, ...]
    collations: tuple[str, ...]
    where: str | None = None


@dataclass(frozen=True)
class Index:
    name: str
    unique: bool
    primary: bool
    positions: tuple[int | None, ...]  # None: an expression
    collations: tuple[str, ...]
    where: str | None
    descends: bool = False  # by any of its columns


@dataclass(frozen=True)
class Table:
    """A table of the database; ``kind`` is SQLite's word: table, view, virtual or shadow."""

    name: str
    kind: str
    columns: tuple[TableColumn, ...]
    without_rowid: bool
    indexes: tuple[Index, ...]
    triggers: tuple[tuple[str, str], ...]  # (name, SQL), oldest first, ours included
    referenced: bool  # by a foreign key that acts on this table's changes
    foreign: frozenset[str] = frozenset()  # the columns that refer to rows of the table itself
    nulls_itself: bool = False  # such a column is set to NULL when its row is deleted
    left_out: frozenset[str] = frozenset()  # the names, in small letters, of columns that ``narrowed`` took out

    @property
    def primary_key(self) -> tuple[int, ...]:
        places = [(c.key, i) for i, c in enumerate(self.columns) if c.key]
        return tuple(i for _, i in sorted(places))

    @cached_property
    def rowid_column(self) -> int | None:
        """The column that is the rowid itself (INTEGER PRIMARY KEY), if there is one."""
        if self.without_rowid or len(self.primary_key) != 1 or any(i.primary for i in self.indexes):
            return None
        (position,) = self.primary_key
        return position if self.columns[position].declared.upper() == "INTEGER" else None

    @cached_property
    def rowid_name(self) -> str | None:
        """A name by which SQL can say this table's rowid; None if there is none."""
        if self.without_rowid:
            return None
        if self.rowid_column is not None:
            return self.columns[self.rowid_column].name
        taken = {c.name.lower() for c in self.columns} | self.left_out
        return next((name for name in _ROWID_NAMES if name not in taken), None)

    @property
    def is_divisible(self) -> bool:
        """Can it be read piece by piece, in the order of its rowids or keys?"""
        return not (self.without_rowid and any(index.descends for index in self.indexes if index.primary))

    @property
    def unique_keys(self) -> tuple[UniqueKey, ...]:
        """What may conflict, besides the rowid; indexes on expressions are left out."""
        return tuple(
            UniqueKey(tuple(p for p in i.positions if p is not None), i.collations, i.where)
            for i in self.indexes
            if i.unique and None not in i.positions
        )

    @property
    def unique_expressions(self) -> tuple[str, ...]:
        return tuple(i.name for i in self.indexes if i.unique and None in i.positions)

    @property
    def user_triggers(self) -> tuple[tuple[str, str], ...]:
        return tuple(t for t in self.triggers if not t[0].startswith(OWN))

    def narrowed(self, names: Collection[str]) -> Table:
        """The table as if it had only these columns, and those by which statements on it touch other rows.

        These are in unique keys and foreign keys, so SQLite lets nobody drop them. All others the owner may drop.
        """
        in_keys = {position for key in self.unique_keys for position in key.positions}
        needed = {*names, *self.foreign}
        kept = [i for i, c in enumerate(self.columns) if c.name in needed or c.key or i in in_keys]
        if any(self.columns[i].generated for i in kept):
            # SQLite computes it wrongly in a trigger that does not name what it is computed from.
            kept = list(range(len(self.columns)))
        place: dict[int | None, int | None] = {position: i for i, position in enumerate(kept)}
        indexes = [replace(index, positions=tuple(place.get(p) for p in index.positions)) for index in self.indexes]
        return replace(
            self,
            columns=tuple(self.columns[i] for i in kept),
            indexes=tuple(index for index in indexes if index.unique),
            left_out=frozenset(c.name.lower() for i, c in enumerate(self.columns) if i not in place),
        )

    def called(self, names: Mapping[str, str]) -> Table:
        """The same table with other names for some columns."""
        return replace(self, columns=tuple(replace(c, name=names.get(c.name, c.name)) for c in self.columns))

    def position(self, column: str) -> int | None:
        return next((i for i, c in enumerate(self.columns) if c.name == column), None)

    def relation(self, source: str) -> Relation:
        """The table as views see it."""
        columns = tuple(Column(c.name, c.type) for c in self.columns)
        leading = {i.positions[0] for i in self.indexes if i.where is None and i.positions[0] is not None}
        if self.rowid_column is not None:
            leading.add(self.rowid_column)
        key = [self.columns[i] for i in self.primary_key]
        return Relation(
            source,
            self.name,
            columns,
            key=tuple(c.name for c in key),
            indexed=frozenset(self.columns[i].name for i in leading if i is not None),
            nullable=self._nullable_key,
            blurred=frozenset(c.name for c in key if c.type.kind not in ONE_FORM),
        )

    @property
    def _nullable_key(self) -> frozenset[str]:
        """The columns of the primary key that SQLite lets be NULL, and then does not keep unique.

        Only an ordinary table has such columns: WITHOUT ROWID and STRICT make them NOT NULL, and a rowid is a number.
        """
        return frozenset(
            self.columns[i].name for i in self.primary_key if not self.columns[i].not_null and i != self.rowid_column
        )


def read_table(db: sqlite3.Connection, name: str) -> Table | None:
    """The table (or view) of that name, None if there is none; names are taken as written, case included."""
    found = db.execute("SELECT type, wr FROM pragma_table_list WHERE schema = 'main' AND name = ?", (name,)).fetchone()
    if found is None:
        return None
    kind, without_rowid = found
    columns = _columns(db, name)
    is_table = kind == "table"
    return Table(
        name=name,
        kind=kind,
        columns=columns,
        without_rowid=bool(without_rowid),
        indexes=_indexes(db, name) if is_table else (),
        triggers=tuple(
            db.execute(
                "SELECT name, sql FROM main.sqlite_schema WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE "
                "ORDER BY rowid",
                (name,),
            ).fetchall()
        ),
        referenced=is_table and _referenced(db, name),
        foreign=_self_references(db, name, columns) if is_table else frozenset(),
        nulls_itself=is_table and _nulls_itself(db, name),
    )


def table_names(db: sqlite3.Connection) -> list[str]:
    """Every ordinary table, SQLite's and our own left out."""
    rows = db.execute("SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' ORDER BY name")
    return [name for (name,) in rows if not name.startswith(("sqlite_", OWN))]


def _columns(db: sqlite3.Connection, name: str) -> tuple[TableColumn, ...]:
    rows = db.execute(
        'SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?) WHERE hidden <> 1', (name,)
    )
    return tuple(
        TableColumn(n, t or "", bool(nn), default, pk, hidden in _GENERATED) for n, t, nn, default, pk, hidden in rows
    )


def _indexes(db: sqlite3.Connection, table: str) -> tuple[Index, ...]:
    listed = db.execute('SELECT name, "unique", origin, partial FROM pragma_index_list(?)', (table,)).fetchall()
    return tuple(
        _index(db, name, bool(unique), origin == "pk", bool(partial)) for name, unique, origin, partial in listed
    )


def _index(db: sqlite3.Connection, name: str, unique: bool, primary: bool, partial: bool) -> Index:
    query = 'SELECT cid, coll, "desc" FROM pragma_index_xinfo(?) WHERE key = 1 ORDER BY seqno'
    parts = db.execute(query, (name,)).fetchall()
    sql = db.execute("SELECT sql FROM main.sqlite_schema WHERE type = 'index' AND name = ?", (name,)).fetchone()
    return Index(
        name=name,
        unique=unique,
        primary=primary,
        positions=tuple(cid if cid >= 0 else None for cid, _, _ in parts),
        collations=tuple(coll for _, coll, _ in parts),
        where=_partial_condition(sql[0]) if partial else None,
        descends=any(descends for _, _, descends in parts),
    )


TOKEN = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^\]]*\] | --[^\n]* | /\*.*?\*/ | \w+ | .""",
    re.VERBOSE | re.DOTALL,
)
"""A piece of SQL: a literal, a quoted name, a comment, a word, or one other character."""


def _partial_condition(sql: str) -> str:
    """What stands behind the WHERE of a CREATE INDEX statement."""
    depth = 0
    for token in TOKEN.finditer(sql):
        text = token.group()
        depth += (text == "(") - (text == ")")
        if depth == 0 and text.upper() == "WHERE":
            return sql[token.end() :].strip()
    raise ValueError(f"no WHERE in {sql!r}")


def _self_references(db: sqlite3.Connection, table: str, columns: tuple[TableColumn, ...]) -> frozenset[str]:
    rows = db.execute('SELECT "from" FROM pragma_foreign_key_list(?1) WHERE "table" = ?1 COLLATE NOCASE', (table,))
    referring = {name.lower() for (name,) in rows}
    return frozenset(c.name for c in columns if c.name.lower() in referring)


def _nulls_itself(db: sqlite3.Connection, table: str) -> bool:
    query = "SELECT 1 FROM pragma_foreign_key_list(?1) WHERE \"table\" = ?1 COLLATE NOCASE AND on_delete = 'SET NULL'"
    return db.execute(query, (table,)).fetchone() is not None


def _referenced(db: sqlite3.Connection, table: str) -> bool:
    """Does any foreign key refer to the table?"""
    row = db.execute(
        "SELECT 1 FROM pragma_table_list l JOIN pragma_foreign_key_list(l.name) f "
        "WHERE l.schema = 'main' AND l.type = 'table' AND f.\"table\" = ? COLLATE NOCASE LIMIT 1",
        (table,),
    ).fetchone()
    return row is not None


def acts_on(db: sqlite3.Connection, table: str) -> bool:
    """May a foreign key of the table change its rows when those it refers to change?"""
    idle = "('NO ACTION', 'RESTRICT')"
    query = f"SELECT 1 FROM pragma_foreign_key_list(?) WHERE on_update NOT IN {idle} OR on_delete NOT IN {idle}"
    return db.execute(query, (table,)).fetchone() is not None
