"""Commits that a power failure has torn: an entry is empty or half there, data files are missing or not whole.

They are taken back where nothing counts on them, and the work is done again. Where a cut counts on one (which
``durability: safe`` never lets happen, unless a disk breaks its word), that is said.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import orjson

from viewkeeper.errors import WarehouseError
from viewkeeper.warehouse.durability import LAST_CHECKPOINT, actions, checkpoints_at, entry, log_of
from viewkeeper.warehouse.streams import storage

HOLDS = "holds"
"""What the commit of a cut says of the tables it counts on: per table the version that holds its rows."""

UPDATES = "updates"
"""The group's updates among them; a view's changes are ``changes_of``."""

_FAR = 20  # versions to look back at most: more are never made without being synced
_MAGIC = b"PAR1"

log = logging.getLogger("viewkeeper")


def repair(table: Path, needed: int = -1) -> None:
    """Takes back what is torn after version ``needed``; a WarehouseError if that one is, or is missing."""
    with storage(table):
        _drop_torn_checkpoints(table)
        while (last := newest_version(table)) is not None and (found := _first_torn(table, needed, last)) is not None:
            version, torn = found
            if version <= needed:
                raise _lost(table, version, torn)
            log.warning(
                "%s: version %d is not whole (%s) and is taken back; its work is done again", table, version, torn
            )
            _take_back(table, version, last)
        _drop_torn_checkpoints(table)
        if (-1 if last is None else last) < needed:
            raise _lost(table, needed, f"{entry(table, needed).name} is missing")


def require(table: Path, needed: int) -> None:
    """Raises what ``repair`` would, and takes nothing back: for those who only read."""
    with storage(table):
        last = newest_version(table)
        found = _first_torn(table, needed, last) if last is not None else None
        if found is not None and found[0] <= needed:
            raise _lost(table, *found)
        if (-1 if last is None else last) < needed:
            raise _lost(table, needed, f"{entry(table, needed).name} is missing")


def require_files(table: Path, sizes: Mapping[str, int]) -> None:
    """Raises the same if a data file is missing or not all there; ``sizes`` has the bytes of each."""
    with storage(table):
        for path, size in sizes.items():
            if (torn := _not_whole(table, path, size)) is not None:
                raise _damaged(table, f"a file that the cut counts on is not whole ({torn})")


def _lost(table: Path, version: int, torn: str) -> WarehouseError:
    return _damaged(table, f"version {version}, which the newest cut counts on, is not whole ({torn})")


def _damaged(table: Path, what: str) -> WarehouseError:
    """Nothing can be opened then, nor loaded again beside it: what the cut says of the other tables may be as wrong."""
    return WarehouseError.at(
        str(table),
        f"{what}: was the power cut?",
        "restore the warehouse from a backup, or move its folder away and load it anew with 'viewkeeper init'",
    )


def changes_of(view: str) -> str:
    return f"changes/{view}"


def held(cuts: Path) -> Mapping[str, int]:
    """Per table the version that the newest cut counts on, as its commit says; empty where none does."""
    with storage(cuts):
        last = newest_version(cuts)
        for version in range(-1 if last is None else last, -1, -1):
            file = entry(cuts, version)
            if not file.exists():
                break
            for action in actions(file):
                if told := action.get("commitInfo", {}).get(HOLDS):
                    found: dict[str, int] = orjson.loads(told)
                    return found
    return {}


def newest_version(table: Path) -> int | None:
    """The newest version that has an entry in the log."""
    entries = log_of(table).glob("[0-9]*.json")
    return max((int(file.stem) for file in entries if file.stem.isdigit()), default=None)


def _first_torn(table: Path, needed: int, last: int) -> tuple[int, str] | None:
    """The first version from ``needed`` on that is not whole, and why."""
    first = last
    while entry(table, first - 1).exists():
        first -= 1
    # Entries from before a checkpoint may be missing: the log is cut off there, and a deletion may not have lasted.
    if first > 0 and not any(_version(file) >= first - 1 for file in _checkpoints(table)):
        return first - 1, f"{entry(table, first - 1).name} is missing"
    for version in range(max(needed, last - _FAR, first), last + 1):
        if (torn := _torn(table, version, last)) is not None:
            return version, torn
    return None


def _torn(table: Path, version: int, last: int) -> str | None:
    """What is wrong with a commit, in words; files that later ones have removed may be gone."""
    file = entry(table, version)
    removed = {path for later in range(version + 1, last + 1) for path in _removed(entry(table, later))}
    try:
        for action in actions(file):
            add = action.get("add")
            if add is None or add["path"] in removed:
                continue
            if (wrong := _not_whole(table, add["path"], add["size"])) is not None:
                return wrong
    except FileNotFoundError:
        return f"{file.name} is missing"
    except (ValueError, AttributeError, TypeError):
        return f"{file.name} cannot be read"
    return None


def _removed(entry: Path) -> list[str]:
    with suppress(FileNotFoundError, ValueError, AttributeError, TypeError, KeyError):
        return [action["remove"]["path"] for action in actions(entry) if "remove" in action]
    return []


def _not_whole(table: Path, path: str, size: int) -> str | None:
    file = table / path
    if not file.exists():
        return f"{file.name} is missing"
    if file.stat().st_size != size or not _is_parquet(file):
        return f"{file.name} is not all there"
    return None


def _is_parquet(file: Path) -> bool:
    """Whether a file begins and ends as Parquet does: what was never written reads as zeros."""
    with file.open("rb") as content:
        head = content.read(4)
        content.seek(max(0, file.stat().st_size - 4))
        return head == _MAGIC == content.read(4)


def _take_back(table: Path, first: int, last: int) -> None:
    """Deletes the log from a version on, the newest first: what is left is a table at every moment."""
    for version in range(last, first - 1, -1):
        for file in checkpoints_at(table, version):
            file.unlink()
        entry(table, version).unlink(missing_ok=True)


def _drop_torn_checkpoints(table: Path) -> None:
    """A checkpoint only saves reading: without the last one, the one before it serves."""
    last = newest_version(table)
    for file in _checkpoints(table)[-2:]:
        # One without its entry came to the disk before it, and perhaps before the data.
        if not _is_parquet(file) or last is None or _version(file) > last:
            file.unlink()
    hint = log_of(table) / LAST_CHECKPOINT
    if hint.exists() and not _is_right(table, hint):
        hint.unlink()


def _checkpoints(table: Path) -> list[Path]:
    return sorted(log_of(table).glob("[0-9]*.checkpoint*.parquet"))


def _version(file: Path) -> int:
    return int(file.name.split(".")[0])


def _is_right(table: Path, hint: Path) -> bool:
    try:
        return bool(checkpoints_at(table, int(orjson.loads(hint.read_bytes())["version"])))
    except (ValueError, KeyError, TypeError):
        return False
