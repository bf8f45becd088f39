"""What projects need of a SQLite database, as the installation of its change log notes it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from viewkeeper.capture.part_marks import part_marks
from viewkeeper.errors import SourceError
from viewkeeper.managers.sources.sqlite_log import LogState, put_state, read_state, write_boundary
from viewkeeper.managers.sources.sqlite_projects import Needs, Who


def note_needs(db: sqlite3.Connection, state: LogState, relations: Mapping[str, Collection[str]], who: Who) -> Needs:
    """Records what ``who`` needs from now on; gives what it needed before, as far as that is captured."""
    before = state.needs(who)
    if before is None and not state.projects:
        # A log of one project, from before there were records: it had all columns of what was active.
        captured = {n: c for n, c in state.tables.items() if c.active}
        before = Needs(
            who, state.pruned, {n: {column: c.since for column, _ in c.layout.columns} for n, c in captured.items()}
        )
    if before is None:
        before = Needs(who, write_boundary(db), moved=int(time.time() * 1000))
    known = {n: {c: before.relations.get(n, {}).get(c, 0) for c in sorted(used)} for n, used in relations.items()}
    put_state(db, who.key, replace(before, who=who, relations=known).dump())
    return before


def is_outlived(old: Who, new: Who) -> bool:
    """Was the warehouse deleted and made anew? No two have one folder; and if they had, the older would notice."""
    return bool(new.where) and (old.where, old.source, old.topic) == (new.where, new.source, new.topic)


def note_beginnings(db: sqlite3.Connection, state: LogState, before: Needs, who: Who) -> bool:
    """Records since when the changes of each column are known; is there one that is only from now on?"""
    needs = state.projects[who.key]
    now = write_boundary(db) if any(0 in columns.values() for columns in needs.relations.values()) else 0
    relations = {n: {c: since or now for c, since in columns.items()} for n, columns in needs.relations.items()}
    if relations != needs.relations:
        put_state(db, who.key, replace(needs, relations=relations).dump())
    return relations.keys() != before.relations.keys() & relations.keys() or any(
        since > before.relations[relation].get(column, 0)
        for relation, columns in relations.items()
        for column, since in columns.items()
    )


def agreed_marks(db: sqlite3.Connection, name: str, spans: Iterable[Collection[str]], who: Who) -> dict[str, str]:
    """The marks that programs may make; SourceError if another project has declared other ones."""
    place = f"source {name}"
    state = read_state(db, place)
    mine = tuple(sorted({tuple(sorted(set(spanned))) for spanned in spans if name in spanned}))
    if (needs := state.needs(who)) is not None and needs.spans != mine:
        put_state(db, who.key, replace(needs, spans=mine).dump())
    for key, other in state.projects.items():
        if key == who.key or not other.spans:
            continue
        if mine and (other.who.source, other.spans) != (name, mine):
            what = f"the project of {other.who.where} declares other transactions over several sources for it"
            raise SourceError.at(place, what, "name the source, and write global_txn, alike in both")
        return part_marks(other.who.source, other.spans)
    return part_marks(name, mine)
