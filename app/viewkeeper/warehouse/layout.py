"""Where the warehouse keeps what, and the few things beside its Delta tables: its lock, its name, its marks.

<warehouse>/changes/<view>    views/<view>    updates/<group>    cuts/<group>       Delta tables
<warehouse>/inexact/<view>    why exactness is no longer promised for the view
<warehouse>/.lock  .id        the job that lives here; a name no other warehouse has
"""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from viewkeeper.errors import UsageError, WarehouseError


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
            raise WarehouseError.at(
                str(self.root),
                f"cannot be created ({error.strerror})",
                "choose another folder for warehouse:",
            ) from None

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
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield

    def id(self) -> str:
        """A name that no other warehouse has, the same for ever."""
        file = self.root / ".id"
        if not file.exists():
            self.create()
            write_atomically(file, uuid.uuid4().hex)
        return file.read_text().strip()

    def mark_inexact(self, view: str, reason: str) -> None:
        """Notes that exactness is no longer promised for the view; the first reason stays."""
        file = self.root / "inexact" / view
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, reason)

    def clear_inexact(self, view: str) -> None:
        with suppress(FileNotFoundError):
            (self.root / "inexact" / view).unlink()

    def inexact(self) -> dict[str, str]:
        """Per view that is no longer exact, the reason."""
        folder = self.root / "inexact"
        if not folder.is_dir():
            return {}
        return {file.name: file.read_text() for file in sorted(folder.iterdir()) if not file.name.startswith(".")}


@contextmanager
def _open_lock(file: Path) -> Iterator[int]:
    try:
        # Not inherited by what the job starts: a surviving child must not keep the lock.
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise WarehouseError.at(
            str(file.parent), f"cannot be written ({error.strerror})", "check its permissions"
        ) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_atomically(file: Path, text: str) -> None:
    """The file holds either what it held or all of ``text``, whatever crashes."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(file)
