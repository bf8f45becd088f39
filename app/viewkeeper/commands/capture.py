"""``viewkeeper capture``: sends the sources' changes to their topics until it is stopped."""

from __future__ import annotations

import argparse
import threading
from contextlib import suppress
from functools import partial

from viewkeeper.capture.side_by_side import SideBySide
from viewkeeper.capture.sqlite_capture import SqliteCapture
from viewkeeper.commands.capture_attendance import Attendance
from viewkeeper.commands.capture_print import print_connectors
from viewkeeper.commands.logs import show_log
from viewkeeper.commands.names import require_source
from viewkeeper.config import Config, load_config
from viewkeeper.errors import UsageError
from viewkeeper.job.assembly import make_capture
from viewkeeper.job.named_relations import sources_named
from viewkeeper.job.patience import Stopped
from viewkeeper.job.stopping import stoppable


def run(args: argparse.Namespace) -> int:
    """Ctrl-C and SIGTERM are the way to end it, and so a success, unless the capture of a source had failed."""
    show_log()
    config = load_config(args.conf)
    chosen = [*args.sources, *(args.remove or ()), *(args.print or ())]
    for name in chosen:
        require_source(config, name)
    if args.remove is not None:
        _remove(config, chosen)
        return 0
    if args.forget is not None:
        _forget(config, chosen, args.forget)
        return 0
    if args.print is not None:
        print_connectors(config, chosen)
        return 0

    stoppable(partial(_capture, config, chosen))
    return 0


def _remove(config: Config, chosen: list[str]) -> None:
    for name in chosen or config.sources:
        for line in make_capture(config, name).remove():
            print(f"{name}: {line}")


def _forget(config: Config, chosen: list[str], warehouse: str) -> None:
    captures = [make_capture(config, name) for name in chosen or config.sources]
    lines = [
        f"{capture.name}: {line}"
        for capture in captures
        if isinstance(capture, SqliteCapture)
        for line in capture.forget(warehouse)
    ]
    if not lines:
        what = f"no SQLite source is captured for a project of {warehouse}"
        raise UsageError.at("capture --forget", what, "give the folder as `viewkeeper status` names it")
    print("\n".join(lines))


def _capture(config: Config, chosen: list[str], stop: threading.Event) -> None:
    used = {source for section in config.views.values() for source in sources_named(section.sql, config.sources)}
    names = [name for name in config.sources if name in used and (not chosen or name in chosen)]
    with SideBySide(stop, several=len(names) > 1) as captures, suppress(Stopped):
        Attendance(config, names, captures).take()
