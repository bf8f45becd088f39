"""Since when watched tables have had the names they have: the log names a table as it was called at the time.

A change of a watched table under another name comes as one of a stranger. Whatever renames or moves a table writes its
row type, or the row of its schema; what was written by the same transaction (``xmin``) at two looks was not renamed
between them. So a stranger's changes after the first such look are not the table's. Other commands write these rows
too (GRANT on a schema, a new owner): then a stranger is still none of ours if it is a table of that name, and has been
since before. Only where neither can be said may changes be missing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from viewkeeper.errors import SourceError, SourceUnreachable
from viewkeeper.managers.sources.postgres_session import RELOAD, Control
from viewkeeper.managers.sources.postgres_state import ServerState, TableState
from viewkeeper.messages import Strangers

# A commit is logged before it can be seen, but holds its locks until it can. A schema that is being renamed is known by
# the lock on the catalog, which other commands on schemas let go of at once.
_RENAMING = """
SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
    WHERE l.granted AND (l.relation = 'pg_namespace'::regclass AND l.mode = 'RowExclusiveLock'
        OR l.relation = ANY(%(tables)s::oid[]) AND l.mode = 'AccessExclusiveLock'))
"""

# Told of by the publication, and named as it is since before the transaction that first changed it.
_OTHERS = """
SELECT coalesce(json_agg(json_build_array(s.schema, s.name)), '[]')
FROM unnest(%(schemas)s::text[], %(names)s::text[], %(xids)s::text[]) AS s(schema, name, writer)
JOIN pg_namespace n ON n.nspname = s.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = s.name AND c.oid <> ALL (%(tables)s::oid[])
JOIN pg_type t ON t.oid = c.reltype AND age(t.xmin) >= age(s.writer::xid)
JOIN pg_publication p ON p.pubname = %(publication)s
WHERE p.puballtables OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid)
    OR EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = n.oid)
"""

KEY = "named"
"""Of a source's identity: what ``Names`` remembers."""


@dataclass
class Names:
    """Per watched table and what names it: which transaction wrote that, and where the first look stands that shows it.

    The position is 0 where no earlier look is known: whatever was before is in no update that counts.
    """

    since: dict[str, dict[str, tuple[str, int]]] = field(default_factory=dict)
    recalled: bool = False

    def see(self, state: ServerState) -> None:
        """Takes a look into account."""
        for table, found in state.tables.items():
            self.since[table] = _since(found, self.since.get(table), state.lsn)

    def recall(self, known: Mapping[str, str], state: ServerState) -> None:
        """Takes into account, once, what an earlier process remembered, and the look that was just taken.

        Of a table that is not known, all views are being loaded again: its past does not matter.
        """
        remembered = {} if self.recalled else orjson.loads(known.get(KEY, "{}"))
        self.recalled = True
        for table, since in remembered.items():
            if table in state.tables and f"table {table}" in known:
                self.since[table] = _since(state.tables[table], since, state.lsn)

    def identity(self) -> dict[str, str]:
        return {KEY: orjson.dumps(self.since).decode()}

    def suspects(self, strangers: Strangers, relations: Collection[str]) -> dict[tuple[str, str], list[str]]:
        """The strangers that may have been one of these relations, going by the relations alone, and which."""
        found = {}
        for stranger, (position, _) in strangers.items():
            if may_be := [table for table in sorted(relations) if self._may_be(stranger, table, position)]:
                found[stranger] = may_be
        return found

    def _may_be(self, stranger: tuple[str, str], table: str, position: int) -> bool:
        """Whether something that names the table was written since; a schema's name leaves the table its own."""
        written = {what for what, (_, first) in self.since.get(table, {}).items() if first > position}
        return bool(written - {"schema"}) or ("schema" in written and stranger[1] == table)


def _since(table: TableState, before: Mapping[str, Sequence[Any]] | None, lsn: int) -> dict[str, tuple[str, int]]:
    known = before or {}
    writers = {what: table.written[what][0] for what in ("name", "schema", "place") if what in table.written}
    first = dict.fromkeys(writers, 0 if before is None else lsn)
    first |= {what: known[what][1] for what, writer in writers.items() if what in known and known[what][0] == writer}
    return {what: (writer, first[what]) for what, writer in writers.items()}


def require_settled(control: Control, tables: Collection[TableState]) -> None:
    """Raises SourceUnreachable while a watched table or a schema may be about to have another name."""
    if control.row(_RENAMING, tables=[table.oid for table in tables])[0]:
        raise SourceUnreachable.at(control.access.place, "a table or a schema is being altered")


def require_strangers(
    control: Control, publication: str, strangers: Strangers, suspects: Mapping[tuple[str, str], list[str]],
    tables: Collection[TableState],
) -> None:  # fmt: skip
    """Raises SourceError unless every suspect is another table."""
    order = sorted(suspects)
    others = control.row(
        _OTHERS,
        schemas=[schema for schema, _ in order],
        names=[name for _, name in order],
        xids=[strangers[stranger][1] for stranger in order],
        tables=[table.oid for table in tables],
        publication=publication,
    )[0]
    for schema, name in order:
        if [schema, name] not in others:
            which = " or ".join(suspects[schema, name])
            what = (
                f"the log tells of a table {schema}.{name}, which may have been {which} for a while: "
                "changes of it may be missing"
            )
            raise SourceError.at(control.access.place, what, RELOAD)
