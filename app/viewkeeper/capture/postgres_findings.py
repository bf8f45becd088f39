"""What is fine with a PostgreSQL source, what is not, and the exact statement that changes it; pure judgement."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from viewkeeper.capture.postgres_state import Slot, State, Table
from viewkeeper.config_sources import PostgresConfig
from viewkeeper.errors import Problem
from viewkeeper.managers.sources.postgres_catalog import quoted

_OR_OWNER = "or as the owner of the tables, if it may also create in the database"

HELD_WARNING = 1 << 30
"""Bytes of log behind a slot from which on a reader wants to know."""


@dataclass(frozen=True)
class Script:
    """Statements that mend something, and who may execute them."""

    role: Literal["a superuser", "the owner of the tables"]
    statements: tuple[str, ...]
    then: str = ""  # what is left to do


def superuser(*statements: str, then: str = "") -> Script:
    return Script("a superuser", statements, then)


def owner(*statements: str) -> Script:
    return Script("the owner of the tables", statements)


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; ``remedy`` is for the user, mostly a statement to execute.

    Where statements are all it takes, ``script`` has them.
    """

    verdict: Literal["ok", "warning", "problem"]
    what: str
    remedy: str = ""
    script: Script | None = None

    def __str__(self) -> str:
        return self.what + (f"; {self.remedy}" if self.remedy else "")

    def problem(self, place: str) -> Problem:
        return Problem(place, self.what, self.remedy)


def findings(state: State, section: PostgresConfig, used: Mapping[str, Collection[str]]) -> list[Finding]:
    """Everything about the source that decides whether these relations (→ used columns) can be captured."""
    names = Names(section)
    return [
        *_server(state),
        *fatal_types(state),
        *_role(state, names, used),
        *(finding for relation in used for finding in _table(state, names, relation, used[relation])),
        *_publication(state, names, used),
        *_slot(state, names),
    ]


@dataclass(frozen=True)
class Names:
    """Statements about the section's publication, slot and tables, with names quoted as SQL wants them."""

    section: PostgresConfig

    def table(self, relation: str) -> str:
        return quoted(self.section.schema_name, relation)

    def tables(self, relations: Collection[str]) -> str:
        return ", ".join(map(self.table, sorted(relations)))

    @property
    def publication(self) -> str:
        return quoted(self.section.publication)

    @property
    def slot(self) -> str:
        return _literal(self.section.slot)

    def create_publication(self, relations: Collection[str]) -> str:
        return f"CREATE PUBLICATION {self.publication} FOR TABLE {self.tables(relations)}"

    def add_tables(self, relations: Collection[str]) -> str:
        return f"ALTER PUBLICATION {self.publication} ADD TABLE {self.tables(relations)}"

    def drop_table(self, relation: str) -> str:
        return f"ALTER PUBLICATION {self.publication} DROP TABLE {self.table(relation)}"

    def create_slot(self) -> str:
        return f"SELECT pg_create_logical_replication_slot({self.slot}, 'pgoutput')"

    def drop_slot(self) -> str:
        return f"SELECT pg_drop_replication_slot({self.slot})"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _server(state: State) -> Iterator[Finding]:
    if state.standby:
        remedy = "name the primary in the source's URL"
        yield Finding("problem", "the server is a standby, which cannot tell what its snapshots contain", remedy)
    if state.wal_level != "logical":
        remedy = "ALTER SYSTEM SET wal_level = 'logical', then restart the server"
        what = f"wal_level is {state.wal_level}, so changes cannot be read from its log"
        script = superuser("ALTER SYSTEM SET wal_level = 'logical'", then="restart the server")
        yield Finding("problem", what, remedy, script)
    if not state.standby and state.wal_level == "logical":
        yield Finding("ok", f"PostgreSQL {state.version}, a primary with wal_level logical")


def fatal_types(state: State) -> Iterator[Finding]:
    """Types of the database, used or not, with which Debezium cannot start."""
    if state.fatal:
        names = ", ".join(state.fatal)
        what = (
            f"Debezium cannot start in a database that has a domain over an enumeration, or one without labels: {names}"
        )
        yield Finding("problem", what, "make it a domain over text, give the enumeration a label, or drop it")


def _role(state: State, names: Names, used: Mapping[str, Collection[str]]) -> Iterator[Finding]:
    role = quoted(state.role)
    wrong = False
    if not state.replicates:
        wrong = True
        statement = f"ALTER ROLE {role} REPLICATION"
        yield Finding("problem", f"role {state.role} may not replicate", statement, superuser(statement))
    if not state.usage:
        wrong = True
        schema = quoted(names.section.schema_name)
        what = f"role {state.role} may not use schema {names.section.schema_name}"
        statement = f"GRANT USAGE ON SCHEMA {schema} TO {role}"
        yield Finding("problem", what, statement, superuser(statement))
    if hidden := [r for r in used if r in state.tables and not state.tables[r].readable]:
        wrong = True
        what = f"role {state.role} may not read {', '.join(sorted(hidden))}"
        statement = f"GRANT SELECT ON {names.tables(hidden)} TO {role}"
        yield Finding("problem", what, statement, owner(statement))
    if not wrong:
        yield Finding("ok", f"role {state.role} may read the used tables and replicate")


def _table(state: State, names: Names, relation: str, used: Collection[str]) -> Iterator[Finding]:
    table = state.tables.get(relation)
    if table is None:
        yield Finding("problem", f"there is no table {relation} in schema {names.section.schema_name}")
        return
    if unlogged := _unlogged(table, used):
        what = f"the log does not tell old values of {relation} ({', '.join(unlogged)})"
        statement = f"ALTER TABLE {names.table(relation)} REPLICA IDENTITY FULL"
        yield Finding("problem", what, statement, owner(statement))
    elif not table.keyed:
        what = f"{relation} has no primary key; its changes are kept exactly, but an UPDATE of it reads the whole row"
        yield Finding("warning", what)
    else:
        yield Finding("ok", f"{relation} has a primary key, and its log tells old values")


def _unlogged(table: Table, used: Collection[str]) -> list[str]:
    return [] if table.logged is None else sorted(set(used) - table.logged)


def unpublished(state: State, used: Collection[str]) -> list[str]:
    """The used relations that exist and that the publication lacks."""
    marks = state.publication.marks if state.publication else {}
    return sorted(relation for relation in used if relation in state.tables and state.tables[relation].oid not in marks)


def _publication(state: State, names: Names, used: Mapping[str, Collection[str]]) -> Iterator[Finding]:
    name = names.section.publication
    missing = unpublished(state, used)
    if not used:
        return
    if state.publication is None:
        by = f"their owner, who needs CREATE on database {state.database}"
        allowed = state.creates and _owns(state, used)
        yield _to_do(allowed, f"publication {name} is not there yet", names.create_publication(used), by)
        return
    if state.publication.lacking:
        what = f"publication {name} leaves out {', '.join(state.publication.lacking)}"
        remedy = f"ALTER PUBLICATION {names.publication} SET (publish = 'insert, update, delete, truncate')"
        yield Finding("problem", what, remedy, superuser(remedy, then=_OR_OWNER))
    by_oid = {table.oid: relation for relation, table in state.tables.items()}
    if filtered := sorted(by_oid[oid] for oid in state.publication.filtered):
        what = f"publication {name} filters rows or columns of {', '.join(filtered)}"
        statements = [*map(names.drop_table, filtered), names.add_tables(filtered)]
        yield Finding("problem", what, "; ".join(statements), superuser(*statements, then=_OR_OWNER))
    if missing:
        what = f"publication {name} lacks {', '.join(missing)}"
        allowed = state.publication.owned and _owns(state, missing)
        yield _to_do(allowed, what, names.add_tables(missing), "their owner and the publication's")
    elif not filtered and not state.publication.lacking:
        yield Finding("ok", f"publication {name} has {', '.join(sorted(used))}")


def _owns(state: State, relations: Collection[str]) -> bool:
    return all(state.tables[relation].owned for relation in relations if relation in state.tables)


def _to_do(allowed: bool, what: str, statement: str, by: str) -> Finding:
    """Something that ``init`` does if it may; otherwise the owner of tables or database must."""
    if allowed:
        return Finding("ok", f"{what}: init does it")
    return Finding("problem", what, f"{statement}, as {by}", superuser(statement, then=_OR_OWNER))


def _slot(state: State, names: Names) -> Iterator[Finding]:
    name = names.section.slot
    if state.slot is not None:
        yield from _existing_slot(state, state.slot, names)
    elif state.slots_free <= 0:
        remedy = "ALTER SYSTEM SET max_replication_slots = …, then restart the server; or drop one nobody uses"
        yield Finding("problem", "the server has no replication slot left", remedy)
    else:
        yield Finding("ok", f"slot {name} is not there yet: init does it")
    if (state.slot is None or state.slot.active_pid is None) and state.senders_free <= 0:
        remedy = "ALTER SYSTEM SET max_wal_senders = …, then restart the server"
        yield Finding("problem", "the server has no connection left for replication (max_wal_senders)", remedy)
    if state.unlimited:
        what = (
            "the server keeps its log for a capture that is away until its disk is full (max_slot_wal_keep_size is -1)"
        )
        yield Finding("warning", what, "ALTER SYSTEM SET max_slot_wal_keep_size = '…GB'")


def _existing_slot(state: State, slot: Slot, names: Names) -> Iterator[Finding]:
    name = names.section.slot
    if slot.database != state.database or slot.plugin != "pgoutput" or slot.temporary:
        owner = f"database {slot.database}, plugin {slot.plugin}" if slot.database else "physical replication"
        what = f"slot {name} is somebody else's ({owner})"
        yield Finding("problem", what, "name another one: `slot:` in the source's section")
    elif slot.lost:
        what = f"the server has thrown away the log that slot {name} needs, so changes are missing"
        yield Finding("problem", what, "run `viewkeeper init --reload`, which makes the slot anew")
    elif slot.at_risk or slot.held >= HELD_WARNING:
        soon = ", and is about to throw it away" if slot.at_risk else ""
        what = f"the server keeps {size(slot.held)} of its log for slot {name}{soon}"
        yield Finding("warning", what, "run capture, or drop the slot if nobody needs it: " + names.drop_slot())
    else:
        reader = "is being read" if slot.active_pid else "nobody reads it now"
        yield Finding("ok", f"slot {name}: {reader}, it keeps {size(slot.held)} of log")


def size(bytes_: int) -> str:
    """A number of bytes as people read it."""
    amount = float(bytes_)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "bytes" or amount >= 10 else f"{amount:.1f} {unit}"
