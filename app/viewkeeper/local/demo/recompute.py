"""A second opinion that shares no code with Viewkeeper: SQLite itself runs a view's SQL over all databases."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any


def recompute(sql: str, databases: Mapping[str, Path]) -> Counter[tuple[Any, ...]]:
    """The view's rows with their counts, as the databases stand; they must be at rest."""
    with closing(sqlite3.connect(":memory:", uri=True)) as db:
        for name, path in databases.items():
            db.execute(f"ATTACH ? AS {name}", (f"{path.absolute().as_uri()}?mode=ro",))
        return Counter(db.execute(sql))


def difference(one: Counter[tuple[Any, ...]], other: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """What has to be added to ``other`` to get ``one``: rows with signed counts, no zeros."""
    counts = {row: one[row] - other[row] for row in one.keys() | other.keys()}
    return Counter({row: count for row, count in counts.items() if count})
