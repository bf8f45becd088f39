"""What triggers did not know of when they were written: changes that were made before they knew may be missing.

A unique key: REPLACE deletes a row by it that nobody noted. Company, that is, a user's trigger that is newer than ours,
or a foreign key that refers to the table: it acts in the midst of a statement, may write to the table itself, and ours
were written for a table that is alone. And a newer trigger fires before ours, and may end the statement: its row is
written, and ours never fire. (Where the statement itself says OR FAIL, any newer trigger that fails does so; that case
stays open.)
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from viewkeeper.managers.sources.sqlite_log import Captured, has_rows, is_installed, put_state, read_state
from viewkeeper.managers.sources.sqlite_schema import OWN, TOKEN, Table, acts_on, read_table


def note_missed(db: sqlite3.Connection, place: str, relations: Iterable[str], sent: int | None = None) -> bool:
    """Notes, for good, of which active relations changes past ``sent`` (or past what is gone) may be in no log."""
    if not is_installed(db):
        return False
    state, noted = read_state(db, place), False
    for relation in relations:
        captured, table = state.tables.get(relation), read_table(db, relation)
        if captured is None or table is None or not captured.active or captured.missed:
            continue
        since = state.pruned_of(relation) if sent is None else sent
        if what := missed(db, relation, captured, table, since):
            put_state(db, f"table:{relation}", replace(captured, missed=what).dump())
            noted = True
    return noted


def missed(db: sqlite3.Connection, relation: str, captured: Captured, table: Table, since: int) -> str | None:
    """Why changes past ``since`` may not be in the log; None if they are."""
    if _may_end(db, table):
        return f"{relation}: a trigger was added that may end a statement after a row is written; rows may be missing"
    if not has_rows(db, relation, since):
        return None
    if not _knows_keys(captured, table):
        return f"{relation}: a unique index was added while changes were made; REPLACE may have deleted rows unseen"
    if _is_joined(captured, table) and _is_disturbed(db, table):
        return (
            f"{relation}: a trigger, or a foreign key, was added by which statements on {relation} may write to it "
            "again, while changes were made; REPLACE may have deleted rows unseen"
        )
    return None


def unique_keys(table: Table) -> set[str]:
    """By names, which stay while other columns come and go."""
    names = [(tuple(table.columns[i].name for i in key.positions), key) for key in table.unique_keys]
    return {repr((columns, key.collations, key.where)) for columns, key in names}


def is_outrun(table: Table) -> bool:
    """Is a user's trigger newer than ours? SQLite fires it first."""
    return bool(_newer(table))


def _newer(table: Table) -> tuple[tuple[str, str], ...]:
    """The user's triggers that are newer than ours, with their SQL."""
    own = [place for place, (name, _) in enumerate(table.triggers) if name.startswith(OWN)]
    return table.triggers[max(own, default=-1) + 1 :]


def _knows_keys(captured: Captured, table: Table) -> bool:
    """Did the triggers know every unique key? Their positions were noted before their names were."""
    by_position = {repr((key.positions, key.collations, key.where)) for key in table.unique_keys}
    return unique_keys(table) <= set(captured.keys) or by_position <= set(captured.keys)


def _is_joined(captured: Captured, table: Table) -> bool:
    """Has the table got company that the triggers were not written for?"""
    return is_outrun(table) or (table.referenced and not captured.referenced)


def _is_disturbed(db: sqlite3.Connection, table: Table) -> bool:
    """May a user's trigger, or a foreign key's action, write to the table, by itself or by what it sets off?

    One that only tells of changes elsewhere, as most do, may not: no trigger of the database names the table.
    """
    if acts_on(db, table.name):
        return True
    return any(table.name.lower() in trigger.names for trigger in _user_triggers(db))


def _may_end(db: sqlite3.Connection, table: Table) -> bool:
    """May a statement end, and leave its row, before our triggers fire?"""
    first = [_Trigger.parse(sql) for _, sql in _newer(table)]
    if not any(trigger.after for trigger in first):
        return False
    return any(t.after and t.ignores for t in first) or any(trigger.fails for trigger in _user_triggers(db))


def _user_triggers(db: sqlite3.Connection) -> Iterator[_Trigger]:
    for name, sql in db.execute("SELECT name, sql FROM main.sqlite_schema WHERE type = 'trigger'").fetchall():
        if not name.startswith(OWN):
            yield _Trigger.parse(sql)


@dataclass(frozen=True)
class _Trigger:
    """A user's trigger, as far as its words tell: ``names`` are all that may be names in its body."""

    after: bool  # it fires when the row is written
    names: frozenset[str]
    ignores: bool
    fails: bool

    @classmethod
    def parse(cls, sql: str) -> _Trigger:
        tokens = [token.group().lower() for token in TOKEN.finditer(sql)]
        tokens = [token for token in tokens if not token.isspace() and not token.startswith(("--", "/*"))]
        begin = tokens.index("begin")
        head, body = tokens[:begin], tokens[begin:]
        ignores = any(body[i : i + 3] == ["raise", "(", "ignore"] for i in range(len(body)))
        return cls("after" in head, frozenset(map(_unquoted, body)), ignores, "fail" in body)


def _unquoted(token: str) -> str:
    """A name without its quotes; SQLite lets a string be one, too."""
    if token[0] in "\"`'":
        return token[1:-1].replace(token[0] * 2, token[0])
    return token[1:-1] if token[0] == "[" else token
