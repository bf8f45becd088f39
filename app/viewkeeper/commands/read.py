"""``viewkeeper read``: views as they stand, at a cut, or after any update; several of them at one and the same."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from viewkeeper.commands import read_table
from viewkeeper.commands import status_text as say
from viewkeeper.commands.names import require_views
from viewkeeper.config import Config, load_config
from viewkeeper.counts import some
from viewkeeper.errors import Problem, UsageError
from viewkeeper.warehouse.groups import common_group
from viewkeeper.warehouse.reader import WarehouseReader
from viewkeeper.warehouse.rendering import json_values

TABLE_ROWS, SCREEN_ROWS, SCREEN_RECORDS = 1_000, 50, 10
"""More rows than this are no longer read by eye, on a screen, or one below the other; other formats print them all."""

Row = tuple[Any, ...]


def run(args: argparse.Namespace) -> int:
    """Prints the views' rows with their counts, all of them at one cut."""
    config = load_config(args.conf)
    require_views(config, args.views)
    views = list(dict.fromkeys(args.views))
    if args.limit is not None and args.format != "table":
        raise UsageError.at("read", f"--limit is for tables; {args.format} has all rows", "leave one of them out")
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

    @property
    def numbers(self) -> set[str]:
        kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
        return {field.name for field in self.reader.schema if any(is_kind(field.type) for is_kind in kinds)}

    def rows(self) -> Iterator[Row]:
        """The rows with their values as JSON has them."""
        for batch in self.reader:
            yield from _rows(batch)

    def first(self, most: int) -> tuple[list[Row], int]:
        """The first rows, and how many there are besides."""
        found: list[Row] = []
        left = 0
        for batch in self.reader:
            taken = batch.slice(0, most - len(found))
            found += _rows(taken)
            left += len(batch) - len(taken)
        return found, left


def _rows(batch: pa.RecordBatch) -> Iterator[Row]:
    columns = [json_values(column) for column in pa.Table.from_batches([batch]).columns]
    yield from zip(*columns, strict=True)


def _readers(config: Config, views: list[str], number: int | None, update: int | None) -> list[_View]:
    """The views at one cut of their group: taken once, whatever the job writes meanwhile."""
    group = common_group(config.warehouse, views)
    warehouse = WarehouseReader(config.warehouse, group, keep=config.keep)
    cut = warehouse.newest() if number is None else warehouse.cut(number)
    stands = None if cut is None or update is not None else f"at cut {cut.cut}, update {cut.last_update}"
    at = stands or f"after update {update}"
    if update is not None:
        for view in views:
            warehouse.require_own_number(view, update)
    return [_View(view, at, warehouse.read(view, cut, update)) for view in views]


def _print(args: argparse.Namespace, views: list[_View]) -> None:
    match args.format, views:
        case "csv", [view]:
            _print_csv(view.columns, view.rows())
        case "json", [view]:
            _print_json(view.columns, view.rows())
        case "json", _:
            _print_json_object(views)
        case _:
            for view in views:
                _print_table(view, args.limit)


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
    text = read_table.shown(value, null="")
    if value == "" or any(character in text for character in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _print_table(view: _View, limit: int | None) -> None:
    """What the view is at, and as many rows as somebody reads; how many there are besides is told."""
    console = say.console()
    rows, left = view.first(limit if limit is not None else SCREEN_ROWS if console.is_terminal else TABLE_ROWS)
    told = rows
    if limit is None and console.is_terminal and not read_table.fits(view.columns, rows, console.width):
        told = rows[:SCREEN_RECORDS]
    left += len(rows) - len(told)
    print(f"{view.name} {view.at}")
    if told:
        print(*read_table.lines(view.columns, told, console.width, view.numbers), sep="\n")
    if left:
        print(read_table.more(left))
    print(some(len(told) + left, "row"), flush=True)
