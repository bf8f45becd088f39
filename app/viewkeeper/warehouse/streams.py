"""Writing lazily produced rows through delta-rs without losing what went wrong, whoever's fault it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from viewkeeper.errors import WarehouseError


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """What the disk or delta-rs complain about, as a WarehouseError that names the table."""
    try:
        yield
    except (DeltaError, OSError, pa.ArrowException) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise WarehouseError.at(
            str(path), f"cannot be used ({reason})", "check the disk and the folder's permissions"
        ) from error


def write_stream(
    table: DeltaTable, schema: pa.Schema, tables: Iterable[pa.Table], path: Path, **options: object
) -> None:
    """Writes the tables in one commit, holding few of them in memory.

    An error of whoever makes the tables comes out as it is: delta-rs would only keep its text.
    """
    failure: list[BaseException] = []

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for rows in tables:
                yield from rows.to_batches()
        except BaseException as error:
            failure.append(error)
            raise

    try:
        reader = pa.RecordBatchReader.from_batches(schema, batches())
        with storage(path):
            write_deltalake(table, reader, **options)
    except Exception:
        if failure:
            raise failure[0] from None
        raise
