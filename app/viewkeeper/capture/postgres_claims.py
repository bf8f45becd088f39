"""Which projects use what of a database: each writes its needs into the comment of the publication that it made.

Projects may share a slot, its topic and its publication: whoever captures serves all, and a table stays published as
long as one of them uses it. Anything else that they would share in part loses changes: a slot has one reader, and a
topic that two connectors fill from two publications lacks what one of them does not publish. That is refused by name.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field

import orjson

from viewkeeper.capture.postgres_findings import Finding, Names
from viewkeeper.capture.postgres_state import Connection
from viewkeeper.config_sources import PostgresConfig
from viewkeeper.warehouse.layout import Layout

COMMENT = "Viewkeeper: "
"""What the comments begin with of publications that we made."""


@dataclass(frozen=True)
class Claim:
    """What a project reads of a database, where it sends it, where it lives, and the tables that it needs."""

    slot: str
    publication: str
    topic: str
    kafka: str
    where: str
    tables: tuple[str, ...] = ()

    def way(self) -> tuple[str, str, str, str]:
        """How changes come from the database into the topic."""
        return self.slot, self.publication, self.topic, self.kafka

    def meets(self, other: Claim) -> bool:
        """Whether both read one slot or fill one topic, and not in the same way."""
        same = self.slot == other.slot or (self.topic, self.kafka) == (other.topic, other.kafka)
        return same and self.way() != other.way()


@dataclass(frozen=True)
class Claimant:
    """A project: its warehouse, whose name no other has, and its Kafka."""

    warehouse: Layout
    kafka: str

    def claim(self, section: PostgresConfig, tables: Collection[str]) -> Claim:
        where = f"{self.warehouse.root.resolve()} on {socket.gethostname()}"
        return Claim(section.slot, section.publication, section.topic, self.kafka, where, tuple(sorted(tables)))


@dataclass(frozen=True)
class Claims:
    """The claims of a database, by project and slot: a project may have several sources there; ``own`` is who looks."""

    own: str
    known: Mapping[tuple[str, str], Claim] = field(default_factory=dict)

    @classmethod
    def read(cls, db: Connection, own: str) -> Claims:
        rows = db.execute(_COMMENTS.encode(), (f"{COMMENT}%",)).fetchall()
        return cls(own, {key: claim for (comment,) in rows for key, claim in _parsed(comment)})

    @property
    def others(self) -> list[Claim]:
        return [claim for (project, _), claim in self.known.items() if project != self.own]

    def needed(self, publication: str) -> set[str]:
        """The tables of a publication that other projects use."""
        return {table for claim in self.others if claim.publication == publication for table in claim.tables}

    def user_of(self, slot: str | None = None, publication: str | None = None) -> str | None:
        """Where another project lives that uses this slot, or this publication."""
        return next((c.where for c in self.others if slot == c.slot or publication == c.publication), None)

    def conflicts(self, claim: Claim, names: Names) -> Iterator[Finding]:
        """Why the claim cannot be kept beside those of others."""
        for other in self.others:
            if claim.meets(other):
                what = (
                    f"another project (warehouse {other.where}) reads slot {other.slot} and publication "
                    f"{other.publication} into topic {other.topic} at {other.kafka}; this one would share that in part"
                )
                gone = f"DROP PUBLICATION {names.publication}; {names.drop_slot()}"
                remedy = f"give this source its own `slot:`, `publication:` and `topic:` (or, if that is gone: {gone})"
                yield Finding("problem", what, remedy)

    def write(self, db: Connection, section: PostgresConfig, source: str, claim: Claim | None) -> None:
        """Puts the own claim, or none, among those of the publication's comment."""
        own = self.own, section.slot
        kept = {key: c for key, c in self.known.items() if c.publication == section.publication and key != own}
        if claim is not None:
            kept[own] = claim
        if claim == self.known.get(own):
            return
        content = orjson.dumps({" ".join(key): asdict(each) for key, each in kept.items()}).decode()
        comment = f"{COMMENT}changes of source {source} {content}".replace("'", "''")
        db.execute(f"COMMENT ON PUBLICATION {Names(section).publication} IS '{comment}'".encode())


_COMMENTS = """
    SELECT d.description FROM pg_publication p JOIN pg_description d ON d.objoid = p.oid
        AND d.classoid = 'pg_publication'::regclass WHERE d.description LIKE %s
"""


def _parsed(comment: str) -> Iterator[tuple[tuple[str, str], Claim]]:
    """The claims in a comment; none in one that says nothing of projects."""
    _, brace, content = comment.partition("{")
    try:
        found = orjson.loads(brace + content) if brace else {}
        claims = [
            (key.split(" ")[0], Claim(**{**each, "tables": tuple(each["tables"])})) for key, each in found.items()
        ]
        yield from [((project, claim.slot), claim) for project, claim in claims]
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return
