"""Random statements that a view can only recompute, in words that DuckDB and SQLite understand alike."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from viewkeeper.algebra.types import INTEGER, TEXT, Catalog, Relation

from .worlds import Row, State


@dataclass
class Statements:
    """Makes statements over a catalogue; every column they name is an integer or a text."""

    rng: random.Random
    catalog: Catalog

    def statement(self) -> str:
        """A statement with names for all of its outputs."""
        make = self.rng.choice((self.grouped, self.grouped, self.plain, self.total, self.set_operation, self.with_cte))
        return make()

    def plain(self, distinct: str | None = None) -> str:
        aliases, tables = self.tables()
        outputs = self.outputs(aliases, self.rng.randint(1, 3))
        distinct = self.rng.choice(("", "DISTINCT ")) if distinct is None else distinct
        return f"SELECT {distinct}{outputs} FROM {tables}{self.where(aliases)}"

    def grouped(self) -> str:
        aliases, tables = self.tables()
        keys = [self.any(aliases) for _ in range(self.rng.randint(1, 2))]
        named = [f"{key} AS k{i}" for i, key in enumerate(keys)]
        aggregates = [f"{self.aggregate(aliases)} AS a{i}" for i in range(self.rng.randint(1, 3))]
        having = f" HAVING {self.aggregate(aliases, 'count')} > 1" if self.rng.random() < 0.3 else ""
        shown = ", ".join([*named, *aggregates])
        return f"SELECT {shown} FROM {tables}{self.where(aliases)} GROUP BY {', '.join(keys)}{having}"

    def total(self) -> str:
        """Aggregates without GROUP BY: one row, whatever is there."""
        aliases, tables = self.tables()
        shown = ", ".join(f"{self.aggregate(aliases)} AS a{i}" for i in range(self.rng.randint(1, 3)))
        return f"SELECT {shown} FROM {tables}{self.where(aliases)}"

    def set_operation(self) -> str:
        kinds = [self.rng.choice((INTEGER, TEXT)) for _ in range(self.rng.randint(1, 2))]
        sides = [self.of_types(kinds) for _ in range(2)]
        operation = self.rng.choice(("UNION", "UNION ALL", "EXCEPT", "INTERSECT"))
        return f" {operation} ".join(sides)

    def with_cte(self) -> str:
        inner = self.grouped()
        return (
            f"WITH g AS ({inner}) SELECT g.k0, g.a0, count(*) AS n FROM g LEFT JOIN g AS h ON g.k0 = h.k0 GROUP BY 1, 2"
        )

    def of_types(self, kinds: Sequence[object]) -> str:
        aliases, tables = self.tables()
        makers = {INTEGER: self.integer, TEXT: self.text}
        shown = ", ".join(f"{makers[kind](aliases)} AS o{i}" for i, kind in enumerate(kinds))  # type: ignore[index]
        return f"SELECT {shown} FROM {tables}{self.where(aliases)}"

    def tables(self) -> tuple[dict[str, Relation], str]:
        """A FROM clause, and what is in it."""
        chosen = [self.rng.choice(list(self.catalog.values())) for _ in range(self.rng.randint(1, 3))]
        aliases: dict[str, Relation] = {}
        text = ""
        for i, relation in enumerate(chosen):
            alias = f"t{i}"
            if i:
                join = self.rng.choice(("JOIN", "LEFT JOIN", "FULL JOIN", "RIGHT JOIN"))
                left = self.rng.choice(list(aliases))
                text += f" {join} {relation.source}.{relation.name} AS {alias} ON {left}.c0 = {alias}.c0"
            else:
                text = f"{relation.source}.{relation.name} AS {alias}"
            aliases[alias] = relation
        return aliases, text

    def outputs(self, aliases: dict[str, Relation], many: int) -> str:
        return ", ".join(f"{self.any(aliases)} AS o{i}" for i in range(many))

    def any(self, aliases: dict[str, Relation]) -> str:
        return self.rng.choice((self.integer, self.text))(aliases)

    def integer(self, aliases: dict[str, Relation]) -> str:
        column = self.column(aliases, INTEGER)
        choices = [
            column,
            f"({column} + {self.rng.randint(-2, 2)})",
            f"COALESCE({column}, {self.rng.randint(0, 3)})",
            f"CASE WHEN {self.condition(aliases)} THEN {column} ELSE {self.rng.randint(0, 2)} END",
            f"({column} % 3)",
            f"length({self.text_column(aliases)})",
        ]
        if self.rng.random() < 0.15:
            return self.scalar_subquery(aliases)
        return self.rng.choice(choices)

    def scalar_subquery(self, aliases: dict[str, Relation]) -> str:
        relation = self.rng.choice(list(self.catalog.values()))
        outer = self.column(aliases, INTEGER)
        aggregate = self.rng.choice(("count(*)", "max(s.c0)", "count(DISTINCT s.c0)"))
        return f"(SELECT {aggregate} FROM {relation.source}.{relation.name} AS s WHERE s.c0 = {outer})"

    def text(self, aliases: dict[str, Relation]) -> str:
        column = self.text_column(aliases)
        return self.rng.choice(
            (column, f"({column} || 'x')", f"COALESCE({column}, 'none')", f"replace({column}, 'a', 'bc')")
        )

    def text_column(self, aliases: dict[str, Relation]) -> str:
        found = [f"{a}.{c.name}" for a, r in aliases.items() for c in r.columns if c.type == TEXT]
        return self.rng.choice(found) if found else f"CAST({self.column(aliases, INTEGER)} AS TEXT)"

    def column(self, aliases: dict[str, Relation], kind: object) -> str:
        return self.rng.choice([f"{a}.{c.name}" for a, r in aliases.items() for c in r.columns if c.type == kind])

    def aggregate(self, aliases: dict[str, Relation], which: str | None = None) -> str:
        column, small = self.column(aliases, INTEGER), f"({self.column(aliases, INTEGER)} % 100)"
        choices = {
            "count": "count(*)",
            "counted": f"count({column})",
            "distinct": f"count(DISTINCT {self.any_column(aliases)})",
            "sum": f"sum({small})",
            "sum distinct": f"sum(DISTINCT {small})",
            "avg": f"avg({small})",
            "min": f"min({self.any_column(aliases)})",
            "max": f"max({self.any_column(aliases)})",
            "filter": f"count(*) FILTER (WHERE {self.condition(aliases)})",
        }
        return choices[which or self.rng.choice(list(choices))]

    def any_column(self, aliases: dict[str, Relation]) -> str:
        return self.rng.choice((self.column(aliases, INTEGER), self.text_column(aliases)))

    def where(self, aliases: dict[str, Relation]) -> str:
        return f" WHERE {self.condition(aliases)}" if self.rng.random() < 0.5 else ""

    def condition(self, aliases: dict[str, Relation]) -> str:
        column, relation = self.column(aliases, INTEGER), self.rng.choice(list(self.catalog.values()))
        return self.rng.choice(
            (
                f"{column} >= {self.rng.randint(0, 2)}",
                f"{column} IS NULL",
                f"({column} = 1 OR {self.text_column(aliases)} < 'b')",
                f"{column} IN (0, 2)",
                f"NOT {column} BETWEEN 0 AND 1",
                f"{column} IN (SELECT s.c0 FROM {relation.source}.{relation.name} AS s WHERE s.c0 IS NOT NULL)",
                f"EXISTS (SELECT 1 FROM {relation.source}.{relation.name} AS s WHERE s.c0 = {column})",
            )
        )


def by_sqlite(sql: str, catalog: Catalog, state: State) -> Counter[Row]:
    """What SQLite makes of the statement over a state."""
    db = sqlite3.connect(":memory:")
    for source in sorted({source for source, _ in catalog}):
        db.execute(f"ATTACH ':memory:' AS {source}")
    types = {INTEGER: "INTEGER", TEXT: "TEXT"}
    for (source, name), relation in catalog.items():
        db.execute(f"CREATE TABLE {source}.{name} ({', '.join(f'{c.name} {types[c.type]}' for c in relation.columns)})")
        for row, count in state[source, name].items():
            db.executemany(f"INSERT INTO {source}.{name} VALUES ({', '.join('?' * len(row))})", [row] * count)
    return Counter(map(tuple, db.execute(sql).fetchall()))
