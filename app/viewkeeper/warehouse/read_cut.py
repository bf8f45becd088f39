"""Several views at one cut: as Arrow tables, or as Spark DataFrames."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from viewkeeper.algebra.bag import COUNT, UPDATE
from viewkeeper.config_values import unusable_folder
from viewkeeper.errors import UsageError
from viewkeeper.warehouse.as_of import AsOf
from viewkeeper.warehouse.cuts import Cut
from viewkeeper.warehouse.groups import common_group
from viewkeeper.warehouse.reader import WarehouseReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

_PATTERN = re.compile(r"[{}*?]")


class CutRead(dict[str, T], Generic[T]):
    """Views by name, all as they stood at one cut of their group."""

    def __init__(self, group: str, cut: Cut, views: Iterable[tuple[str, T]]):
        super().__init__(views)
        self.group = group
        self.cut = cut.cut
        self.last_update = cut.last_update


def tables_at(warehouse: str | Path, views: str | Iterable[str], cut: int | None) -> CutRead[pa.Table]:
    """The views' columns and ``_count`` at a cut of their group, the newest unless told."""
    return _read(Path(warehouse).absolute(), views, cut, lambda as_of: as_of.reader().read_all())


def frames_at(
    warehouse: str | Path, views: str | Iterable[str], cut: int | None, spark: SparkSession
) -> CutRead[DataFrame]:
    """The same as DataFrames, which read nothing yet.

    They mean the files that hold the cut now: whatever is written later does not change them, but an hour later
    some of those files may be gone, and reading them then fails.
    """
    return _read(Path(warehouse).absolute(), views, cut, lambda as_of: _frame(spark, as_of))


def _read(root: Path, views: str | Iterable[str], number: int | None, how: Callable[[AsOf], T]) -> CutRead[T]:
    names = list(dict.fromkeys([views] if isinstance(views, str) else views))
    if not names:
        raise UsageError.at(str(root), "no view was named", "name one or more views")
    if (unusable := unusable_folder(root)) is not None:
        raise UsageError.at(str(root), unusable, "name another folder")
    if not (root / "cuts").is_dir():
        raise UsageError.at(str(root), "there is no warehouse", "name the folder that warehouse: names")
    group = common_group(root, names)
    reader = WarehouseReader(root, group)
    cut = reader.newest() if number is None else reader.cut(number)
    if cut is None:
        raise UsageError.at(str(root), "there is no cut yet", "load the views with viewkeeper init")
    return CutRead(group, cut, [(name, how(reader.as_of(name, cut))) for name in names])


def _frame(spark: SparkSession, as_of: AsOf) -> DataFrame:
    """What plain Spark SQL does: the version, plus or minus the changes between, where a row is left."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import LongType

    stored = spark.read.format("delta").option("versionAsOf", as_of.table.version()).load(str(as_of.folder))
    first, last = as_of.between
    paths = as_of.changes.paths_between(UPDATE, first, last) if as_of.changes is not None else []
    if not paths:
        return stored
    columns = [f.col(_quoted(name)) for name in stored.columns if name != COUNT]
    changes = spark.read.schema(stored.schema.add(UPDATE, LongType())).parquet(*map(_literally, paths))
    between = changes.where(f.col(UPDATE).between(first, last))
    signed = between.select(*columns, (f.col(COUNT) * as_of.sign).alias(COUNT))
    total = stored.select(*columns, COUNT).union(signed).groupBy(*columns).agg(f.sum(COUNT).alias(COUNT))
    return total.where(f.col(COUNT) > 0)


def _literally(path: str) -> str:
    """A path as the pattern that means only itself: Spark takes every path of a data file for a pattern."""
    if ":" in path and _PATTERN.search(path):
        raise UsageError.at(path, "Spark cannot read a path with both ':' and one of {}*?", "read it without Spark")
    return _PATTERN.sub(r"\\\g<0>", path)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
