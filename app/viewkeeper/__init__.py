"""Viewkeeper keeps joined tables in a Delta lakehouse exactly in step with several databases.

A change travels one way, and the folders here are its stations:
capture → queue → integrator → managers (which ask the sources) → merge → warehouse.
Under them lies the pure core: ``algebra``, ``algorithms`` and ``messages``.

For programs that read what it keeps: ``read_cut``.
"""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from viewkeeper.warehouse.read_cut import CutRead

__all__ = ["read_cut"]


@overload
def read_cut(
    warehouse: str | PathLike[str], views: str | Iterable[str], cut: int | None = None, spark: None = None
) -> CutRead[pa.Table]: ...


@overload
def read_cut(
    warehouse: str | PathLike[str], views: str | Iterable[str], cut: int | None = None, *, spark: SparkSession
) -> CutRead[DataFrame]: ...


def read_cut(
    warehouse: str | PathLike[str],
    views: str | Iterable[str],
    cut: int | None = None,
    spark: SparkSession | None = None,
) -> CutRead[pa.Table] | CutRead[DataFrame]:
    """The views of one group at one cut of it, the newest unless told, while the job goes on.

    ``warehouse`` is its folder. Gives a dict from view to Arrow table (its columns, and ``_count``, how often
    each row occurs), or, with a Spark session that knows Delta, to a DataFrame of the same rows, which is read
    when it is used: within the hour, or files that it needs may be gone. The dict has the attributes ``cut``,
    ``last_update`` and ``group``. A ``viewkeeper.errors.UsageError`` says what cannot be read so.
    """
    from viewkeeper.warehouse import read_cut as reading

    if spark is None:
        return reading.tables_at(str(warehouse), views, cut)
    return reading.frames_at(str(warehouse), views, cut, spark)
