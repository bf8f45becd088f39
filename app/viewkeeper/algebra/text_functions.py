"""PostgreSQL's functions of text, on single values: what it reports as an error is NULL (None).

Positions and lengths count code points from 1. A count that makes a text longer is a constant (``construct_text`` sees
to that), so that no row can ask for more memory than the view's SQL shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any


def substring(text: str, start: int, length: int | None = None) -> str | None:
    """The standard's: positions before 1 are empty, a negative length is an error."""
    if length is None:
        return text[max(start - 1, 0) :]
    return text[max(start - 1, 0) : max(start - 1 + length, 0)] if length >= 0 else None


def left(text: str, count: int) -> str:
    """The first characters, or all but so many last ones where the count is negative."""
    return text[:count]


def right(text: str, count: int) -> str:
    """The last characters, or all but so many first ones where the count is negative."""
    return text[-count:] if count else ""


def replaced(text: str, old: str, new: str) -> str:
    return text.replace(old, new) if old else text


def position(text: str, part: str) -> int:
    """Where the part begins, 0 if nowhere."""
    return text.find(part) + 1


def split_part(text: str, delimiter: str, number: int) -> str | None:
    """The part of that number, counted from the end where it is negative; empty beyond the last."""
    parts = text.split(delimiter) if delimiter else [text]
    if number == 0:
        return None
    at = number - 1 if number > 0 else len(parts) + number
    return parts[at] if 0 <= at < len(parts) else ""


def lpad(text: str, length: int, fill: str = " ") -> str:
    return _filling(text, length, fill) + text[: max(length, 0)]


def rpad(text: str, length: int, fill: str = " ") -> str:
    return text[: max(length, 0)] + _filling(text, length, fill)


def _filling(text: str, length: int, fill: str) -> str:
    missing = max(length - len(text), 0) if fill else 0
    return (fill * (missing // len(fill) + 1))[:missing] if missing else ""


def translated(text: str, old: str, new: str) -> str:
    """Each character of ``old`` becomes the one at its place in ``new``, or nothing; its first place counts."""
    table: dict[str, str] = {}
    for at, character in enumerate(old):
        table.setdefault(character, new[at : at + 1])
    return "".join(table.get(character, character) for character in text)


def concat_ws(separator: str | None, *texts: str | None) -> str | None:
    return None if separator is None else separator.join(text for text in texts if text is not None)


STRICT: dict[str, Callable[..., Any]] = {
    "substr": substring,
    "left": left,
    "right": right,
    "lower": str.lower,
    "upper": str.upper,
    "length": len,
    "octet_length": lambda value: len(value.encode() if isinstance(value, str) else value),
    "bit_length": lambda value: 8 * len(value.encode() if isinstance(value, str) else value),
    "trim": lambda text, characters=" ": text.strip(characters) if characters else text,
    "ltrim": lambda text, characters=" ": text.lstrip(characters) if characters else text,
    "rtrim": lambda text, characters=" ": text.rstrip(characters) if characters else text,
    "replace": replaced,
    "translate": translated,
    "reverse": lambda text: text[::-1],
    "repeat": lambda text, count: text * max(count, 0),
    "lpad": lpad,
    "rpad": rpad,
    "strpos": position,
    "split_part": split_part,
    "starts_with": str.startswith,
    "ascii": lambda text: ord(text[0]) if text else 0,
    "md5": lambda text: hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(),
}
"""By name: the value on arguments none of which is NULL."""
