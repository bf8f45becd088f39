"""``viewkeeper capture``: sends the sources' changes to their topics until it is stopped."""

from __future__ import annotations

import argparse
import logging
import signal
import threading

from viewkeeper.capture.sqlite_capture import run_capture
from viewkeeper.commands.names import require_source
from viewkeeper.config import Config, load_config
from viewkeeper.job.assembly import assemble, make_capture
from viewkeeper.job.patience import FIRST_START, Stopped, patiently
from viewkeeper.warehouse.topics import ensure_topics


def run(args: argparse.Namespace) -> int:
    """Ctrl-C and SIGTERM are the way to end it, and so a success."""
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    config = load_config(args.conf)
    for name in args.sources:
        require_source(config, name)
    if args.remove:
        for name in args.sources or config.sources:
            make_capture(config, name).remove()
            print(f"{name}: triggers and change log removed")
        return 0

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        _capture(config, args.sources, stop)
    except Stopped:
        return 0
    return 0


def _capture(config: Config, chosen: list[str], stop: threading.Event) -> None:
    project = assemble(config, stop=stop)
    names = [name for name in project.sources if not chosen or name in chosen]
    topics = {config.sources[name].topic: 1 for name in names}
    patiently(lambda: ensure_topics(config.kafka.client(), topics), seconds=FIRST_START, stop=stop)
    for name in names:
        project.captures[name].install(project.used(name))
    print(f"capturing {', '.join(names)}; Ctrl-C ends it", flush=True)
    run_capture([project.captures[name] for name in names], stop)
