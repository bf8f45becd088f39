"""The border to disk and delta-rs: what goes wrong there comes out as our errors, and nobody else's error is lost."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from viewkeeper.errors import WarehouseError, WarehouseUnreachable

_NUMBER = re.compile(r"(?:os error|errno|Os \{ code:) (\d+)", re.IGNORECASE)
_FINAL = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
"""What no patience brings back: a part of the table that is missing, or something else in its place."""


_FILE_BYTES = 32 << 20  # as stored; what is not yet in a file takes several times that in memory


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """What the disk or delta-rs complain about, as a WarehouseError that names the table.

    It is a WarehouseUnreachable if the disk is only full, busy or not permitted, so that trying again may help.
    """
    try:
        yield
    except (DeltaError, OSError, pa.ArrowException) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise kind_of(error).at(
            str(path), f"cannot be used ({reason})", "check the disk and the folder's permissions"
        ) from error


def kind_of(error: Exception) -> type[WarehouseError]:
    """The class that a complaint of the disk belongs to; delta-rs tells the system's error only in its text."""
    number = getattr(error, "errno", None)
    if number is None and (told := _NUMBER.search(str(error))):
        number = int(told[1])
    return WarehouseError if number is None or number in _FINAL else WarehouseUnreachable


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
            write_deltalake(table, reader, target_file_size=_FILE_BYTES, **options)
    except Exception:
        if failure:
            raise failure[0] from None
        raise
