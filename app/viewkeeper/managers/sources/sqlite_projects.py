"""Which projects use a database's change log, and what each of them needs of it.

Several projects, or several sources of one, may read the same file. Each has a record in the log's state, under the
name of its warehouse and source: the columns it needs, each with the log id past which its changes are known, and how
far it has come. Law: triggers log what any record needs, and a row of the log stays until every record that needs its
relation has passed it. So nobody's history depends on what another one does.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

import orjson

KEY = "project:"
"""Begins the keys of records in the log's state."""


@dataclass(frozen=True)
class Who:
    """A source of a project; ``where`` and ``topic`` are the project's warehouse and the source's topic."""

    project: str = ""
    source: str = ""
    where: str = ""
    topic: str = ""

    @property
    def key(self) -> str:
        return f"{KEY}{self.project}/{self.source}"


NOBODY = Who()


@dataclass(frozen=True)
class Needs:
    """What one source of one project needs: relation → column → the log id past which its changes are known."""

    who: Who
    pruned: int  # rows of these relations up to here may be gone
    relations: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    spans: tuple[tuple[str, ...], ...] = ()  # the sets of sources that transactions may span
    moved: int = 0  # when ``pruned`` was noted, in milliseconds since 1970; 0 where nobody noted it

    def since(self, relation: str, columns: Iterable[str]) -> int:
        """The log id past which all changes of these columns are known; 0 if none of them is needed."""
        known = self.relations.get(relation, {})
        return max((known[column] for column in columns if column in known), default=0)

    def recaptured(self, relation: str, since: int) -> Needs:
        """The capture of a relation was interrupted: changes up to ``since`` may be in no log."""
        if relation not in self.relations:
            return self
        anew = dict.fromkeys(self.relations[relation], since)
        return replace(self, relations={**self.relations, relation: anew})

    def protects(self) -> tuple[str, list[str | int]]:
        """A condition on a row of the log, with its parameters: must it stay for this record's sake?"""
        names = list(self.relations)
        unrelated = "relation IS NULL" if self.spans else "op = 'boundary'"  # marks are for those who have spans
        related = f"relation IS NOT NULL AND relation IN ({', '.join('?' * len(names))})"
        text = f"(id > ? AND ({unrelated} OR {related}))"
        return text, [self.pruned, *names]

    @classmethod
    def load(cls, text: str) -> Needs:
        raw = orjson.loads(text)
        spans = tuple(tuple(spanned) for spanned in raw["spans"])
        return cls(Who(**raw["who"]), raw["pruned"], raw["relations"], spans, raw.get("moved", 0))

    def dump(self) -> str:
        return orjson.dumps(self).decode()


def needed(records: Iterable[Needs], relation: str) -> tuple[str, ...]:
    """The columns of a relation that any of these records needs."""
    return tuple(sorted({column for needs in records for column in needs.relations.get(relation, ())}))


def unprotected(records: Collection[Needs]) -> tuple[str, list[str | int]]:
    """A condition on a row of the log, with its parameters: does none of these records need it?"""
    conditions = [needs.protects() for needs in records]
    text = " AND ".join(f"NOT {condition}" for condition, _ in conditions) or "1"
    return text, [parameter for _, parameters in conditions for parameter in parameters]


@dataclass(frozen=True)
class Claim:
    """A neighbour for whose sake alone the log has kept rows since a moment; ``moved`` as in ``Needs``."""

    who: Who
    rows: int
    moved: int


def claims(db: sqlite3.Connection, log: str, projects: Mapping[str, Needs], mine: str) -> list[Claim]:
    """Of each other record, how many rows would go if it went."""
    found = []
    for key, needs in projects.items():
        if key == mine:
            continue
        needed, by_it = needs.protects()
        free, by_others = unprotected([other for name, other in projects.items() if name != key])
        query = f"SELECT count(*) FROM {log} WHERE relation IS NOT NULL AND {needed} AND {free}"
        (rows,) = db.execute(query, [*by_it, *by_others]).fetchone()
        found.append(Claim(needs.who, rows, needs.moved))
    return [claim for claim in found if claim.rows]
