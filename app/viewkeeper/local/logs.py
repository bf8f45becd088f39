"""Where logs go that nobody wants on the terminal."""

from __future__ import annotations

import os
import tempfile
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path


def log_folder() -> Path:
    """A folder for log files: ``VIEWKEEPER_LOGS``, else the user's state folder, else a new one that only we can read.

    A temporary folder is everybody's: what stands there under a name that can be foreseen may be another's link.
    """
    with suppress(OSError, RuntimeError):  # a user need not have a home
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        folder = Path(os.environ.get("VIEWKEEPER_LOGS") or Path(state, "viewkeeper"))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="viewkeeper-"))


def write_traceback(command: str, error: BaseException) -> Path:
    """Appends the error's traceback to a log file, which only we can read, and returns its path."""
    file = log_folder() / "errors.log"
    text = "".join(traceback.format_exception(error))
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600), "a") as log:
        os.fchmod(log.fileno(), 0o600)  # it may be from a time when others could
        log.write(f"{datetime.now(UTC).isoformat()} viewkeeper {command}\n{text}\n")
    return file
