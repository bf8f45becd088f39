"""``viewkeeper read``: views as they stand, at a cut, or after any update; several of them at one and the same."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson
import pyarrow as pa

from viewkeeper.commands.names import require_views
from viewkeeper.config import Config, load_config
from viewkeeper.errors import Problem, UsageError
from viewkeeper.warehouse.groups import common_group
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.rendering import json_values

TABLE_ROWS = 1_000
"""More rows than this are no longer read by eye; the other formats print them all."""

Row = tuple[Any, ...]


def run(args: argparse.Namespace) -> int:
    """Prints the views' rows with their counts, all of them at one cut."""
    config = load_config(args.conf)
    require_views(config, args.views)
    views = list(dict.fromkeys(args.views))
    if len(views) > 1 and args.format == "csv":
        raise UsageError.at("read", "csv has room for one view only", "name one view, or use --format json")
    try:
        _print(args, _readers(config, views, args.cut, args.update))
    except UsageError as e:
        raise UsageError([Problem(f"{config.file}: {p.place}", p.what, p.remedy) for p in e.problems]) from None
    return 0


@dataclass(frozen=True)
class _View:
    """A view as it will be printed: at which cut, or after which update."""

    name: str
    at: str
    reader: pa.RecordBatchReader

    @property
    def columns(self) -> list[str]:
        return list(self.reader.schema.names)

    def rows(self) -> Iterator[Row]:
        """The rows with their values as JSON has them."""
        for batch in self.reader:
            columns = [json_values(column) for column in pa.Table.from_batches([batch]).columns]
            yield from zip(*columns, strict=True)


def _readers(config: Config, views: list[str], number: int | None, update: int | None) -> list[_View]:
    """The views at one cut of their group: taken once, whatever the job writes meanwhile."""
    group = common_group(config.warehouse, views)
    warehouse = WarehouseReader(config.warehouse, group, keep=config.keep)
    cut = warehouse.newest() if number is None else warehouse.cut(number)
    at = f"after update {update}" if cut is None or update is not None else f"at cut {cut.cut}"
    return [_View(view, at, warehouse.read(view, cut, update)) for view in views]


def _print(args: argparse.Namespace, views: list[_View]) -> None:
    match args.format, views:
        case "csv", [view]:
            _print_csv(view.columns, view.rows())
        case "json", [view]:
            _print_json(view.columns, view.rows())
        case "json", _:
            _print_json_object(views)
        case "table", [view]:
            _print_table(view.columns, view.rows())
        case _:
            for view in views:
                print(f"{view.name} {view.at}", flush=True)
                _print_table(view.columns, view.rows())


def _print_json_object(views: list[_View]) -> None:
    """An object with the views' names, each view as it is printed alone."""
    separator = "{"
    for view in views:
        sys.stdout.write(f"{separator}\n{orjson.dumps(view.name).decode()}: ")
        _print_json(view.columns, view.rows(), end="")
        separator = ","
    sys.stdout.write("\n}\n")


def _print_json(names: list[str], rows: Iterator[Row], end: str = "\n") -> None:
    """An array of objects, one a line."""
    separator = "["
    for row in rows:
        sys.stdout.write(separator + "\n" + orjson.dumps(dict(zip(names, row, strict=True))).decode())
        separator = ","
    sys.stdout.write(("[]" if separator == "[" else "\n]") + end)


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
