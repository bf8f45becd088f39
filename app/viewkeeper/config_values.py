"""What single values of the configuration may be: durations, paths, topics, names, numbers."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, PlainValidator, ValidationInfo

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_UNUSABLE = re.compile(r"[\[\]|^\\\x00-\x1f\x7f\ud800-\udfff]|%[0-9A-Fa-f]{2}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_LONGEST = timedelta(days=36525)  # a hundred years back from now there still is a date
_LONGEST_NAME = 100  # as a part of a topic, of a file's name, of a slot
_LONGEST_PART, _LONGEST_PATH = 255, 4000
_QUOTED = 60
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def duration(value: Any) -> timedelta:
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"must be a duration such as 250ms, 30s, 5m, 2h or 7d, not {value!r}")
    try:
        duration = timedelta(**{_UNITS[match[2]]: float(match[1])})
    except OverflowError:
        raise ValueError(f"is too long a duration: {shortened(value)}") from None
    if duration <= timedelta(0):
        raise ValueError("must be longer than zero")
    if duration > _LONGEST:
        raise ValueError(f"is too long a duration: {shortened(value)}; use at most {_LONGEST.days}d")
    return duration


def located(directory: Path, path: str) -> Path:
    """An absolute path; a relative one is meant from the folder. ValueError for what can be no path."""
    try:
        found = Path(directory, Path(path).expanduser()).resolve()
    except RuntimeError:  # pathlib's word for a home folder that it cannot find, and for links that go round
        raise ValueError(f"leads nowhere: {path!r}; name a folder that is there") from None
    if any(len(os.fsencode(part)) > _LONGEST_PART for part in found.parts) or len(str(found)) > _LONGEST_PATH:
        raise ValueError(f"is longer than a path may be ({len(str(found))} letters); shorten it")
    return found


def absolute(path: str, info: ValidationInfo) -> str:
    """The path of a file, meant from the configuration file's folder."""
    return str(located((info.context or {}).get("directory", Path.cwd()), path))


def _path(value: Any, info: ValidationInfo) -> Path:
    """An absolute path; a relative one is meant from the configuration file's folder."""
    if not isinstance(value, str | Path) or not str(value).strip():
        raise ValueError("must be a path")
    if "://" in str(value):
        raise ValueError("must be a path on this machine, not an address")
    return Path(absolute(str(value), info))


def _file(path: Path) -> Path:
    if os.path.isdir(path):
        raise ValueError(f"{path} is a folder; name the database's file")
    return _below_folders(path)


def _folder(path: Path) -> Path:
    if os.path.exists(path) and not os.path.isdir(path):
        raise ValueError(f"{path} is a file; name a folder")
    return _below_folders(path)


def _below_folders(path: Path) -> Path:
    """The path, if nothing above it is a file."""
    for above in path.parents:
        if os.path.exists(above):
            if not os.path.isdir(above):
                raise ValueError(f"{above} is a file, so nothing can be below it; name another folder")
            break
    return path


def unusable_folder(path: Path) -> str | None:
    """Why a folder cannot hold a warehouse, in words; the libraries that read and write Delta tables decide that."""
    found = _UNUSABLE.search(str(path))
    return None if found is None else f"has {found[0]!r} in its path, which the path of a Delta table cannot have"


def _warehouse(path: Path) -> Path:
    if (what := unusable_folder(path)) is not None:
        raise ValueError(f"{what}; choose another folder")
    return path


def _topic(value: str) -> str:
    if not _TOPIC.fullmatch(value) or value in (".", ".."):
        what = "must be a Kafka topic name (letters, digits, '.', '_', '-', at most 249)"
        raise ValueError(f"{what}, not {shortened(value)}")
    if value.startswith("__"):
        raise ValueError(f"is one of Kafka's own topics: {value!r}; name another")
    return value


def shortened(value: str) -> str:
    """A value as an error quotes it."""
    return repr(value) if len(value) <= _QUOTED else f"{value[:_QUOTED]!r}…"


def _name(value: str) -> str:
    """A name that can be used in SQL, as a folder and in a topic alike."""
    if not _NAME.fullmatch(value):
        raise ValueError("cannot be a name; use a letter, then letters, digits and '_'")
    if len(value) > _LONGEST_NAME:
        raise ValueError(f"is {len(value)} letters long; use at most {_LONGEST_NAME}")
    return value


def at_least_one(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"must be a whole number of at least 1, not {value!r}")
    if value > MOST:
        raise ValueError(f"is too large; use at most {MOST}")
    return value


MOST = 2**31 - 1

Duration = Annotated[timedelta, PlainValidator(duration)]
AtLeastOne = Annotated[int, PlainValidator(at_least_one)]
FilePath = Annotated[Path, PlainValidator(_path), AfterValidator(_file)]
FolderPath = Annotated[Path, PlainValidator(_path), AfterValidator(_folder)]
WarehousePath = Annotated[FolderPath, AfterValidator(_warehouse)]
Topic = Annotated[str, AfterValidator(_topic)]
Name = Annotated[str, AfterValidator(_name)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
