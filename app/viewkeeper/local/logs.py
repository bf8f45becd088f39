"""Where logs go that nobody wants on the terminal."""

from __future__ import annotations

import os
import tempfile
import traceback
from datetime import UTC, datetime
from pathlib import Path


def log_folder() -> Path:
    """A folder for log files: ``VIEWKEEPER_LOGS``, else the user's state folder, else a temporary one."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    for folder in (
        Path(os.environ.get("VIEWKEEPER_LOGS") or Path(state, "viewkeeper")),
        Path(tempfile.gettempdir()),
    ):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="viewkeeper-"))


def write_traceback(command: str, error: BaseException) -> Path:
    """Appends the error's traceback to a log file and returns its path."""
    file = log_folder() / "errors.log"
    text = "".join(traceback.format_exception(error))
    with file.open("a", encoding="utf-8") as log:
        log.write(f"{datetime.now(UTC).isoformat()} viewkeeper {command}\n{text}\n")
    return file
