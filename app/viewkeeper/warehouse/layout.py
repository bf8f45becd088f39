"""Where the warehouse keeps what, and the few things beside its Delta tables: its lock, its name, its marks.

<warehouse>/changes/<view>    views/<view>    updates/<group>    cuts/<group>       Delta tables
<warehouse>/inexact/<view>    the load of the view that is no longer promised to be exact, and why
<warehouse>/uncompensated/<view>    the load of the view since which it was kept by an algorithm that promises nothing
<warehouse>/.lock  .id        the job that lives here; a name no other warehouse has

Cuts and updates are a group's, all else is the warehouse's: a view may move from one group to another. Its changes are
then another load's, which the table's property ``viewkeeper.load`` names, so that no group meets numbers of another.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from viewkeeper.errors import UsageError, WarehouseError
from viewkeeper.warehouse.durability import SAFE, Disk
from viewkeeper.warehouse.streams import kind_of, storage

INEXACT, UNCOMPENSATED = "inexact", "uncompensated"
"""The kinds of marks."""

_FOLDERS = (
    "cuts", "updates", "changes", "views", INEXACT, UNCOMPENSATED,
    "captures", "connect", "checkpoints", "scratch", "logs", "status",
)  # fmt: skip
_FILES = (".lock", ".id", "sources.json", "topics.json")
_LEAST_SPACE = 1_000_000  # bytes: the tables of a view take that soon


@dataclass(frozen=True)
class Mark:
    """Says something of one load of a view; it means nothing to any other load."""

    load: str
    reason: str


@dataclass(frozen=True)
class Layout:
    """The folders of a warehouse for one group of views."""

    root: Path
    group: str

    @property
    def cuts(self) -> Path:
        return self.root / "cuts" / self.group

    @property
    def updates(self) -> Path:
        return self.root / "updates" / self.group

    def changes(self, view: str) -> Path:
        return self.root / "changes" / view

    def view(self, view: str) -> Path:
        return self.root / "views" / view

    def create(self) -> None:
        """Makes the root folder, or says why it cannot be used."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise kind_of(error).at(
                str(self.root),
                f"cannot be created ({error.strerror})",
                "choose another folder for warehouse:",
            ) from None

    def require_writable(self) -> None:
        """Raises what ``create``, ``lock`` and a load would find, and leaves nothing behind."""
        for name in _FOLDERS:
            if os.path.exists(self.root / name) and not os.path.isdir(self.root / name):
                raise UsageError.at(str(self.root), f"{name} in it is a file of others", "choose another folder")
        for name in _FILES:
            if os.path.isdir(self.root / name):
                raise UsageError.at(str(self.root), f"{name} in it is a folder of others", "choose another folder")
        above = next((p for p in (self.root, *self.root.parents) if os.path.exists(p)), self.root)
        try:
            # Rights alone do not tell of /proc, or of a full disk.
            with tempfile.TemporaryFile(dir=above) as probe:
                probe.write(bytes(_LEAST_SPACE))
        except OSError as error:
            where = "" if above == self.root else f" in {above}"
            what, remedy = f"cannot be written ({error.strerror}{where})", "give this user the right to"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                remedy = "make room"
            raise kind_of(error).at(str(self.root), what, f"{remedy}, or choose another folder") from None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the warehouse for one job; the kernel frees it however the process ends."""
        self.create()
        with _open_lock(self.root / ".lock") as descriptor:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
                raise UsageError.at(
                    str(self.root), f"another job (process {holder}) is using it", "stop that job first"
                ) from None
            with storage(self.root):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield

    def id(self) -> str:
        """A name that no other warehouse has, the same for ever."""
        known = self.known_id()
        if known:
            return known
        self.create()
        name_once(self.root / ".id", uuid.uuid4().hex)
        return self.known_id()

    def known_id(self) -> str:
        """Its name, or nothing if it has none yet."""
        file = self.root / ".id"
        with storage(file):
            return file.read_text().strip() if file.exists() else ""

    def require_id(self, id: str) -> None:
        """Raises a WarehouseError if the folder is not the one that had this name: it was moved away, or made anew."""
        if id and self.known_id() != id:
            what = "was moved away, or made anew, while the job was running"
            raise WarehouseError.at(str(self.root), what, "start the job again where the warehouse is")

    def mark(self, view: str, mark: Mark, kind: str = INEXACT) -> None:
        file = self.root / kind / view
        with storage(file):
            file.parent.mkdir(parents=True, exist_ok=True)
        SAFE.sync(self.root)
        write_atomically(file, f"{mark.load}\n{mark.reason}")

    def unmark(self, view: str, kind: str = INEXACT) -> None:
        file = self.root / kind / view
        with storage(file), suppress(FileNotFoundError):
            file.unlink()

    def marks(self, kind: str = INEXACT) -> dict[str, Mark]:
        """Per view that was marked, the mark, whichever load of the view it means."""
        folder = self.root / kind
        with storage(folder):
            files = sorted(folder.iterdir()) if folder.is_dir() else []
            return {file.name: _mark(file.read_text()) for file in files if not file.name.startswith(".")}


def _mark(text: str) -> Mark:
    load, _, reason = text.partition("\n")
    return Mark(load, reason)


@contextmanager
def _open_lock(file: Path) -> Iterator[int]:
    try:
        # Not inherited by what the job starts: a surviving child must not keep the lock.
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise kind_of(error).at(
            str(file.parent), f"cannot be written ({error.strerror})", "check its permissions"
        ) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def name_once(file: Path, text: str) -> None:
    """The file holds all of ``text``, unless there was one already; several processes may do it at the same time."""
    draft = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    with storage(file):
        try:
            draft.write_text(text)
            SAFE.sync(draft)
            with suppress(FileExistsError):
                os.link(draft, file)
            SAFE.sync(file.parent)
        finally:
            draft.unlink(missing_ok=True)


def write_atomically(file: Path, text: str, disk: Disk = SAFE) -> None:
    """The file holds either what it held or all of ``text``, whatever crashes; and then it stays so.

    Such files are few and small, and what they say is asked for after a power failure: they are synced in any case.
    """
    draft = file.with_name(f".{file.name}.{os.getpid()}.{threading.get_ident()}")
    with storage(file):
        try:
            draft.write_text(text)
            disk.sync(draft)
            draft.replace(file)
            disk.sync(file.parent)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
