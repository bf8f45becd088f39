"""Messages of a view topic for people: what an update did, row by row, and where the view stands after a cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from rich.text import Text

from viewkeeper.commands.read_table import one_line
from viewkeeper.counts import some

ROWS = 20
"""Rows of one message that are shown; the others are counted."""


def lines(value: bytes) -> Iterator[Text]:
    """A message in lines; what is none of ours is shown as it is."""
    try:
        content = orjson.loads(value)
        yield from list(_seal(content) if "sealed" in content else _update(content))
    except (AttributeError, KeyError, TypeError, ValueError):
        yield Text(one_line(value.decode("utf-8", "replace")))


def _seal(content: Mapping[str, Any]) -> Iterator[Text]:
    yield Text(f"cut {content['sealed']}: the view stands at update {content['last_update']}", style="bold")


def _update(content: Mapping[str, Any]) -> Iterator[Text]:
    changes = content["changes"]
    part = f", part {content['part']} of {content['parts']}" if content.get("parts") else ""
    yield Text(f"update {content['update']} ({content['source']}.{content['txn']}{part})")
    for change in changes[:ROWS]:
        yield _row(change["row"], change["count"])
    if len(changes) > ROWS:
        yield Text(f"  … {some(len(changes) - ROWS, 'more row')}; --format json has them all")


def _row(row: Mapping[str, Any], count: int) -> Text:
    sign, style = ("+", "green") if count > 0 else ("-", "red")
    times = "" if abs(count) == 1 else f"{abs(count)} × "
    cells = ", ".join(f"{name}={one_line(value)}" for name, value in row.items())
    return Text(f"  {sign} {times}{cells}", style=style)
