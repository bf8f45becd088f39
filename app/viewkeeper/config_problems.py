"""What pydantic found wrong with a configuration, in plain words and with the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import ValidationError

from viewkeeper.config_text import Keys, place
from viewkeeper.errors import Problem

_WANTED = {
    "string_type": "text",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "list_type": "a list",
}
_EMPTY = {"too_short", "string_too_short"}


def nearest(name: str, known: Iterable[str]) -> str:
    """The remedy for a name that does not exist: the nearest one that does, or all of them."""
    candidates = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in candidates}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    if close:
        return f"did you mean {lowered[close[0]]}?"
    return f"use one of {', '.join(candidates)}" if candidates else ""


def problems_of(error: ValidationError, file: str, known_keys: Callable[[Keys], Iterable[str]]) -> list[Problem]:
    """One problem per finding; ``known_keys`` says which keys the mapping at a place may have."""
    return [_problem(finding, file, known_keys) for finding in error.errors(include_url=False)]


def _problem(finding: Any, file: str, known_keys: Callable[[Keys], Iterable[str]]) -> Problem:
    keys = tuple(str(part) for part in finding["loc"] if part != "[key]")
    kind, value, context = finding["type"], finding["input"], finding.get("ctx", {})
    where = place(file, keys)
    if kind == "extra_forbidden":
        return Problem(where, "this key is not known", nearest(keys[-1], known_keys(keys[:-1])))
    if kind == "missing":
        return Problem(where, "is missing", "add it")
    if kind == "value_error":
        what, _, remedy = str(context["error"]).partition("; ")
        return Problem(where, what, remedy)
    if kind in _EMPTY:
        return Problem(where, "is empty", "fill it in")
    if kind == "literal_error":
        known = [word.strip("'") for word in context["expected"].replace(" or ", ", ").split(", ")]
        return Problem(where, f"must be {' or '.join(known)}, not {_shown(value)}", _near_value(value, known))
    if kind in _WANTED:
        quotes = "put it in quotes" if kind == "string_type" and isinstance(value, int | float) else ""
        return Problem(where, f"must be {_WANTED[kind]}, not {_kind_of(value)}", quotes)
    return Problem(where, finding["msg"])


def _near_value(value: Any, known: list[str]) -> str:
    close = difflib.get_close_matches(str(value).lower(), known, n=1)
    return f"did you mean {close[0]}?" if close and len(known) > 1 else f"use {' or '.join(known)}"


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float) else _kind_of(value)


def _kind_of(value: Any) -> str:
    """What YAML made of a value, in the reader's words."""
    if value is None:
        return "empty"
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "text",
        dict: "a mapping",
        list: "a list",
    }
    return names.get(type(value), f"a {type(value).__name__}")
