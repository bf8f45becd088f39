"""What outlives the power: files and folders are synced in the order in which they depend on each other.

delta-rs writes a commit (data files, then an entry in ``_delta_log``) and syncs nothing of it. After each commit we do:

    1. its data files    2. their folder    3. its entry, and the checkpoint that was made of it    4. the log's folder

and, once, the folders above a new table. The next commit to the table, the cut row that counts on it, the message that
announces the cut and the pruning of a source's log come only then. So of each table what follows the last step that
was whole can be torn, and nothing counts on that: ``torn`` takes it back.

Not synced, because they may be lost: Spark's checkpoint (made anew at every start), the status, logs, scratch files.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson

from viewkeeper.errors import WarehouseError

_NO_SUCH_THING = {errno.EINVAL, errno.EROFS, errno.ENOTSUP}
"""What a file system answers that does not know how to sync a folder: then there is nothing to wait for."""

LAST_CHECKPOINT = "_last_checkpoint"


class Unwritten(WarehouseError):
    """The disk did not take what was written."""


class Disk:
    """Makes what was written stay, whatever happens to the power."""

    def sync(self, path: Path) -> None:
        """The file's content, or the folder's entries, are on the disk.

        An error is final: what the system could not write it may have forgotten, and a second try would tell nothing.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno in _NO_SUCH_THING and path.is_dir():
                return
            what = f"cannot be written to the disk ({error.strerror})"
            raise Unwritten.at(str(path), what, "check the disk, then start again") from error


class Trusting(Disk):
    """Leaves that to the system, which writes within half a minute or so."""

    def sync(self, path: Path) -> None:
        pass


SAFE, FAST = Disk(), Trusting()


def disk(durability: str) -> Disk:
    """What the setting ``durability`` means."""
    return SAFE if durability == "safe" else FAST


def sync_new_folder(disk: Disk, folder: Path) -> None:
    """The folder and those above it, any of which may be new, stay."""
    for each in (folder, *folder.parents):
        if os.access(each, os.R_OK):
            disk.sync(each)


@dataclass
class DurableLog:
    """The commits of one Delta table; ``synced`` is the last version that stays."""

    folder: Path
    disk: Disk
    synced: int | None = None

    def opened_at(self, version: int) -> None:
        """A table was opened: whoever made its last commit may have been killed before it was synced."""
        self.synced = version - 1

    def sync(self, version: int) -> None:
        """Every commit up to this version stays."""
        first = version if self.synced is None else self.synced + 1
        versions = range(first, version + 1)
        if self.disk is not FAST and versions:
            self._sync(versions)
        self.synced = version

    def _sync(self, versions: range) -> None:
        log = log_of(self.folder)
        data = [self.folder / path for v in versions for path in added(entry(self.folder, v))]
        for file in data:
            self.disk.sync(file)
        if data:
            self.disk.sync(self.folder)
        for version in versions:
            self.disk.sync(entry(self.folder, version))
            for checkpoint in checkpoints_at(self.folder, version):
                self.disk.sync(checkpoint)
                if (log / LAST_CHECKPOINT).exists():  # a hint: whoever was killed before writing it leaves none
                    self.disk.sync(log / LAST_CHECKPOINT)
        self.disk.sync(log)


def log_of(table: Path) -> Path:
    return table / "_delta_log"


def entry(table: Path, version: int) -> Path:
    """The file that is a version's commit."""
    return log_of(table) / f"{version:020}.json"


def checkpoints_at(table: Path, version: int) -> list[Path]:
    """The checkpoint of a version, if one was made (what is in its way is none)."""
    file = log_of(table) / f"{version:020}.checkpoint.parquet"
    return [file] if file.is_file() else []


def actions(entry: Path) -> Iterator[dict[str, Any]]:
    """What a commit does; a ValueError if its file is not whole."""
    text = entry.read_bytes()
    if not text.strip():
        raise ValueError("it is empty")
    return map(orjson.loads, text.splitlines())


def added(entry: Path) -> list[str]:
    """The data files that a commit adds, relative to the table's folder."""
    return [unquote(action["add"]["path"]) for action in actions(entry) if "add" in action]
