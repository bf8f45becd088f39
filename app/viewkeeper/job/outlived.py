"""Why a loaded view cannot be kept as the configuration says now: it means something else, or holds other types."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from viewkeeper.algebra.view import View
from viewkeeper.job.assembly import Project
from viewkeeper.managers.keeping import CONVERGENT
from viewkeeper.warehouse.reader import WarehouseReader

_BEFORE, _SHOWN = 15, 60
_SINCE = "where nobody changed it, this version reads it otherwise than the one before"


def outlived(project: Project, warehouse: WarehouseReader, view: View) -> Iterator[tuple[str, str]]:
    """Where and why a loaded view cannot go on."""
    place, name = project.config.place, view.name
    loaded = warehouse.definition(name)
    if loaded is not None and loaded != view.sql:
        yield place("views", name, "sql"), other_sql(loaded, view.sql)
    elif told := other_types(warehouse.view_table(name).schema, view.schema):
        yield place("views", name, "sql"), told
    if project.keeping[name].algorithm != CONVERGENT and name in warehouse.uncompensated():
        what = f"was {CONVERGENT} since the load, which may have left wrong rows in the view"
        yield place("views", name, "algorithm"), what


def other_sql(loaded: str, now: str) -> str:
    """That a view's SQL is another than it was loaded with, from where on, and why that may be."""
    same = next((i for i, (a, b) in enumerate(zip(loaded, now, strict=False)) if a != b), min(len(loaded), len(now)))
    start = now.rfind(" ", 0, max(0, same - _BEFORE)) + 1
    was, is_ = (_excerpt(sql, start) for sql in (loaded, now))
    return f"differs from the SQL that the view was loaded with: it was {was} and is {is_} ({_SINCE})"


def other_types(loaded: pa.Schema, now: pa.Schema) -> str:
    """That a view's columns have other types than it was loaded with; empty if they have not."""
    kept = {field.name: field.type for field in loaded}
    other = [f"{f.name} was {kept[f.name]} and is {f.type}" for f in now if kept.get(f.name, f.type) != f.type]
    return f"gives other types than the view was loaded with: {', '.join(other)} ({_SINCE})" if other else ""


def _excerpt(sql: str, start: int) -> str:
    plain = " ".join(sql[start : start + _SHOWN].split())
    return f"'{'…' if start else ''}{plain}{'…' if len(sql) > start + _SHOWN else ''}'"
