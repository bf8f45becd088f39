"""Recomputing a view that no incremental rule covers: its query, run by DuckDB over its relations as of an update.

Recomputation needs no rule for how a change of a relation changes the view, so the query may be any statement whose
result depends on nothing but its relations (``recomputed_sql`` sees to that). DuckDB runs in this process, over Arrow
tables: the used columns of all used relations, mapped from files where they are large. **Whatever the query has to keep
is in memory**, half of what the machine has at most; nothing is spilled to disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from viewkeeper.algebra.bag import COUNT, consolidate
from viewkeeper.algebra.tiny import Bag, Name, add, plain
from viewkeeper.algebra.types import Catalog
from viewkeeper.algebra.view import Occurrence, View
from viewkeeper.errors import SourceError, ViewError

ROWS = 200_000
"""Rows of a result that are handed on at a time."""

_SETTINGS = {
    "temp_directory": "",
    "threads": 2,
    "memory_limit": "50%",
    "TimeZone": "UTC",
    "default_collation": "",
    "error_on_division_by_zero": False,
    "ieee_floating_point_ops": False,
    "python_enable_replacements": False,
    "allow_persistent_secrets": False,
    "allow_community_extensions": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "enable_external_access": False,
    "lock_configuration": True,  # the last: nothing can be set after it
}


def engine() -> duckdb.DuckDBPyConnection:
    """A connection to this process's DuckDB, with tables of its own; any thread may open one.

    It reaches no file, no network and no extension, its settings cannot be changed, and all connections together keep
    within one limit of memory.
    """
    return _database(os.getpid()).cursor()


@cache
def _database(process: int) -> duckdb.DuckDBPyConnection:
    """One for each process: the threads of a database do not survive a fork."""
    database = duckdb.connect(":memory:")
    for name, value in _SETTINGS.items():
        database.execute(f"SET GLOBAL {name} = {value!r}").fetchall()
    return database


def table_name(index: int) -> str:
    """What the query calls the relation of an occurrence; a name that no alias or CTE of a user can hide."""
    return f'temp.main."relation {index}"'


def recomputed(view: View, relations: Sequence[pa.Table]) -> Iterator[pa.Table]:
    """The view over relations in full, in pieces: its columns and ``_count``.

    ``relations`` are signed bags, one for each occurrence of the view; how a bag is split into rows and counts, and
    in which order its rows stand, makes no difference to any bit of the result.
    """
    with engine() as connection:
        yield from recomputed_by(connection, view, relations)


def recomputed_by(
    connection: duckdb.DuckDBPyConnection, view: View, relations: Sequence[pa.Table]
) -> Iterator[pa.Table]:
    """The same by a connection that is there already; the pieces must be used before it is used for anything else."""
    assert view.query is not None, "the view has a query"
    for occurrence, bag in zip(view.occurrences, relations, strict=True):
        connection.register(f"relation {occurrence.index}", _expanded(occurrence, bag))
    try:
        for batch in connection.sql(view.query).to_arrow_reader(ROWS):
            yield _counted(pa.Table.from_batches([batch]), view.schema)
    except duckdb.OutOfMemoryException:
        raise _failed(view, "there is not enough memory to recompute it", "use fewer columns or rows") from None
    except duckdb.Error as error:
        raise _failed(view, f"cannot be recomputed ({first_line(error)})", "guard the expression") from None
    finally:
        for occurrence in view.occurrences:
            connection.unregister(f"relation {occurrence.index}")


def recompute_bag(view: View, catalog: Catalog, relations: Mapping[Name, Bag]) -> Bag:
    """The view over plain rows, whose columns stand in the order of the catalogue."""
    bag: Bag = {}
    for piece in recomputed(view, [_table(o, catalog, relations) for o in view.occurrences]):
        columns = [piece[name].to_pylist() for name in view.schema.names]
        for row, count in zip(zip(*columns, strict=True), piece[COUNT].to_pylist(), strict=True):
            add(bag, {plain(row): count})
    return bag


def first_line(error: duckdb.Error) -> str:
    """What DuckDB says, without the kind of error before it and the statement after it."""
    return str(error).partition("\n")[0].partition("Error: ")[2] or str(error).partition("\n")[0]


def _failed(view: View, what: str, remedy: str) -> ViewError:
    return ViewError.at(f"views.{view.name}.sql", what, remedy)


def _table(occurrence: Occurrence, catalog: Catalog, relations: Mapping[Name, Bag]) -> pa.Table:
    name = (occurrence.source, occurrence.relation)
    places = [column.name for column in catalog[name].columns]
    rows = list(relations.get(name, {}).items())
    picked = [(c, places.index(c.name)) for c in occurrence.columns]
    columns = {c.name: pa.array([row[at] for row, _ in rows], c.type.arrow) for c, at in picked}
    return pa.table({**columns, COUNT: pa.array([count for _, count in rows], pa.int64())})


def _expanded(occurrence: Occurrence, bag: pa.Table) -> pa.Table:
    """The relation as SQL knows it: every row as often as it is counted."""
    bag = consolidate(bag.select([*occurrence.schema.names, COUNT]))
    count = bag[COUNT].to_numpy()
    if (count < 0).any():
        raise SourceError.at(
            f"source {occurrence.source}",
            f"{occurrence.relation} would hold a row less than zero times: a change is in no message",
            "load the views again with 'viewkeeper init --reload'",
        )
    rows = _settled(bag.drop_columns([COUNT]), occurrence.schema)
    return rows if (count == 1).all() else rows.take(pa.array(np.repeat(np.arange(len(count)), count)))


def _counted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    rows = _settled(rows, schema)
    return consolidate(rows.append_column(COUNT, pa.array(np.ones(len(rows), np.int64))))


def _settled(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """With one bit pattern for each value: no −0.0, and one NaN."""
    columns: Iterable[pa.ChunkedArray] = (column.cast(schema.field(i).type) for i, column in enumerate(rows.columns))
    return pa.table([_float(c) if pa.types.is_floating(c.type) else c for c in columns], schema=schema)


def _float(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.is_nan(column), float("nan"), pc.add(column, 0.0))
