"""Cuts: committed warehouse states, and the transactions that lead from one to the next."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa

CUT = "_cut"

CUT_SCHEMA = pa.schema(
    [
        ("cut", pa.int64()),
        ("last_update", pa.int64()),
        ("positions", pa.map_(pa.string(), pa.string())),
        ("offsets", pa.map_(pa.string(), pa.int64())),
        ("versions", pa.map_(pa.string(), pa.int64())),
        ("folded", pa.map_(pa.string(), pa.int64())),
        ("committed_at", pa.timestamp("us", tz="UTC")),
        ("level", pa.string()),
        ("sealed", pa.int64()),
    ]
)

UPDATE_SCHEMA = pa.schema(
    [
        ("_update", pa.int64()),
        ("source", pa.string()),
        ("txn", pa.string()),
        ("topic", pa.string()),
        ("offset", pa.int64()),
        ("views", pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True)
class Cut:
    """One committed warehouse state.

    V as of k is ``views/<view>`` at ``versions[view]`` plus its changes with ``folded[view] < _update ≤ k``.
    ``offsets`` is where a restart must read each topic from; ``sealed`` the last cut known to be in the view
    topics, -1 for none.
    """

    cut: int
    last_update: int
    positions: dict[str, str]
    offsets: dict[str, int]
    versions: dict[str, int]
    folded: dict[str, int]
    committed_at: datetime
    level: str
    sealed: int = -1

    def table(self) -> pa.Table:
        row = {name: getattr(self, name) for name in CUT_SCHEMA.names}
        maps = {name: list(value.items()) for name, value in row.items() if isinstance(value, dict)}
        return pa.Table.from_pylist([{**row, **maps}], schema=CUT_SCHEMA)

    @classmethod
    def from_row(cls, row: Mapping[str, object]) -> Cut:
        values = dict(row)
        for name in ("positions", "offsets", "versions", "folded"):
            values[name] = dict(values[name] or ())  # type: ignore[call-overload]
        return cls(**values)  # type: ignore[arg-type]


@dataclass(frozen=True)
class UpdateRow:
    """One numbered update: what it was, where it came from, and the views it may change."""

    update: int
    source: str
    txn: str
    topic: str
    offset: int
    views: tuple[str, ...] = ()


def update_table(rows: Iterable[UpdateRow]) -> pa.Table:
    """The rows as a table of ``UPDATE_SCHEMA``."""
    listed = [(r.update, r.source, r.txn, r.topic, r.offset, list(r.views)) for r in rows]
    columns = list(zip(*listed, strict=True)) or [()] * len(UPDATE_SCHEMA)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, UPDATE_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=UPDATE_SCHEMA)


@dataclass
class WarehouseTransaction:
    """What the next cut adds.

    ``changes`` holds per view tables of its columns, ``_count`` and ``_update``; an iterable may be lazy and
    larger than memory, and may be consumed in another thread. ``updates`` has the columns of
    ``UPDATE_SCHEMA``. ``views`` are the views of the group: others leave the cut. None keeps those of the
    last cut. ``asked`` tells per source what was asked of it; it becomes metadata of the commits to ``changes``.
    """

    last_update: int
    positions: dict[str, str]
    offsets: dict[str, int]
    level: str
    updates: pa.Table = field(default_factory=lambda: update_table([]))
    changes: dict[str, Iterable[pa.Table]] = field(default_factory=dict)
    views: Collection[str] | None = None
    asked: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


def cut_rows(table: pa.Table, schema: pa.Schema, cut: int) -> pa.Table:
    """The rows with their cut in the last column, exactly as ``schema`` has it."""
    numbers = pa.repeat(pa.scalar(cut, pa.int64()), len(table))
    return table.select(schema.names[:-1]).append_column(CUT, numbers).cast(schema)


def now() -> datetime:
    return datetime.now(UTC)
