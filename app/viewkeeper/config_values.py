"""What single values of the configuration may be: durations, paths, topics, names, numbers."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, PlainValidator, ValidationInfo

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def duration(value: Any) -> timedelta:
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"must be a duration such as 250ms, 30s, 5m, 2h or 7d, not {value!r}")
    try:
        duration = timedelta(**{_UNITS[match[2]]: float(match[1])})
    except OverflowError:
        raise ValueError(f"is too long a duration: {value!r}") from None
    if duration <= timedelta(0):
        raise ValueError("must be longer than zero")
    return duration


def _path(value: Any, info: ValidationInfo) -> Path:
    """An absolute path; a relative one is meant from the configuration file's folder."""
    if not isinstance(value, str | Path) or not str(value).strip():
        raise ValueError("must be a path")
    if "://" in str(value):
        raise ValueError("must be a path on this machine, not an address")
    directory = (info.context or {}).get("directory", Path.cwd())
    return Path(directory, Path(value).expanduser()).resolve()


def _topic(value: str) -> str:
    if not _TOPIC.fullmatch(value) or value in (".", ".."):
        raise ValueError(f"must be a Kafka topic name (letters, digits, '.', '_', '-'), not {value!r}")
    return value


def _name(value: str) -> str:
    """A name that can be used in SQL, as a folder and in a topic alike."""
    if not _NAME.fullmatch(value):
        raise ValueError("cannot be a name; use a letter, then letters, digits and '_'")
    return value


def at_least_one(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"must be a whole number of at least 1, not {value!r}")
    return value


Duration = Annotated[timedelta, PlainValidator(duration)]
AtLeastOne = Annotated[int, PlainValidator(at_least_one)]
AbsolutePath = Annotated[Path, PlainValidator(_path)]
Topic = Annotated[str, AfterValidator(_topic)]
Name = Annotated[str, AfterValidator(_name)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
