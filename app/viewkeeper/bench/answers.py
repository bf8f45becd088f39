"""What the sources answered: rows in all, and the different ones that join."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.managers.sources import Source
from viewkeeper.messages import Answer, Ask


@dataclass
class Answers:
    """Keeps every answer, which costs memory but no time; looks at them only when ``counted``."""

    kept: list[tuple[Ask, pa.Table]] = field(default_factory=list)

    def of(self, sources: Mapping[str, Source]) -> dict[str, Source]:
        """The sources, overheard."""
        return {name: cast(Source, _Overheard(source, self)) for name, source in sources.items()}

    def counted(self) -> tuple[int, int]:
        """Rows answered; and of each relation, by the column it was asked by, the different rows that hold a key."""
        fitting: dict[tuple[str, str, tuple[str, ...]], list[pa.Table]] = {}
        for ask, rows in self.kept:
            fitting.setdefault((ask.source, ask.relation, ask.key), []).append(_asked_for(ask, rows))
        joined = sum(_distinct(pa.concat_tables(tables)) for tables in fitting.values())
        return sum(len(rows) for _, rows in self.kept), joined


@dataclass
class _Overheard:
    source: Source
    answers: Answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def ask(self, ask: Ask, snapshot: Any) -> Answer:
        answer = self.source.ask(ask, snapshot)
        self.answers.kept.append((ask, answer.rows))
        return answer


def _asked_for(ask: Ask, rows: pa.Table) -> pa.Table:
    if ask.keys is None:
        return rows
    (key,) = ask.key  # the benchmark's views join by one column
    return rows.filter(pc.is_in(rows[key], value_set=ask.keys[key].combine_chunks()))


def _distinct(rows: pa.Table) -> int:
    return len(rows.group_by(rows.column_names).aggregate([]))
