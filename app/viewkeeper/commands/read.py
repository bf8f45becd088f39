"""``viewkeeper read``: a view as it stands, at a cut, or after any update."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import orjson
import pyarrow as pa

from viewkeeper.commands.names import require_view
from viewkeeper.config import load_config
from viewkeeper.errors import Problem, UsageError
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.rendering import json_values

TABLE_ROWS = 1_000
"""More rows than this are no longer read by eye; the other formats print them all."""

Row = tuple[Any, ...]


def run(args: argparse.Namespace) -> int:
    """Prints the view's rows with their counts."""
    config = load_config(args.conf)
    require_view(config, args.view)
    warehouse = WarehouseReader(config.warehouse, keep=config.keep)
    try:
        cut = None if args.cut is None else warehouse.cut(args.cut)
        reader = warehouse.read(args.view, cut, args.update)
    except UsageError as e:
        raise UsageError([Problem(f"{config.file}: {p.place}", p.what, p.remedy) for p in e.problems]) from None
    _PRINT[args.format](reader.schema.names, _rows(reader))
    return 0


def _rows(reader: pa.RecordBatchReader) -> Iterator[Row]:
    """The rows with their values as JSON has them."""
    for batch in reader:
        columns = [json_values(column) for column in pa.Table.from_batches([batch]).columns]
        yield from zip(*columns, strict=True)


def _print_json(names: list[str], rows: Iterator[Row]) -> None:
    """An array of objects, one a line."""
    separator = "["
    for row in rows:
        sys.stdout.write(separator + "\n" + orjson.dumps(dict(zip(names, row, strict=True))).decode())
        separator = ","
    sys.stdout.write("[]\n" if separator == "[" else "\n]\n")


def _print_csv(names: list[str], rows: Iterator[Row]) -> None:
    """A header and a line a row; NULL is an empty field, an empty text a quoted one."""
    sys.stdout.write(",".join(map(_field, names)) + "\n")
    for row in rows:
        sys.stdout.write(",".join(map(_field, row)) + "\n")


def _field(value: Any) -> str:
    text = _shown(value, null="")
    if value == "" or any(character in text for character in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _print_table(names: list[str], rows: Iterator[Row]) -> None:
    """A table no wider than the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = list(islice(rows, TABLE_ROWS))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for i, name in enumerate(names):
        number = any(isinstance(row[i], int | float) and not isinstance(row[i], bool) for row in shown)
        table.add_column(Text(name), justify="right" if number else "left", overflow="fold")
    for row in shown:
        table.add_row(*(Text(_shown(value, null="NULL")) for value in row))
    console = Console(highlight=False)
    console.print(table)
    more = sum(1 for _ in rows)
    console.print(f"{len(shown) + more:,} rows" + (f", {more:,} not shown; --format csv prints all" if more else ""))


def _shown(value: Any, null: str) -> str:
    match value:
        case None:
            return null
        case bool():
            return "true" if value else "false"
    return str(value)


_PRINT = {"json": _print_json, "csv": _print_csv, "table": _print_table}
