"""``viewkeeper capture``: sends the sources' changes to their topics until it is stopped."""

from __future__ import annotations

import argparse
import logging
import threading
from contextlib import suppress
from functools import partial

from viewkeeper.capture.connect import Connect, Program, Supervised, reference
from viewkeeper.capture.debezium_connector import Login, connector
from viewkeeper.capture.postgres_setup import PostgresCapture
from viewkeeper.capture.sqlite_capture import Runner, SqliteCapture, run_capture
from viewkeeper.capture.topic_end import furthest_sent
from viewkeeper.commands.capture_print import print_connectors
from viewkeeper.commands.names import require_source
from viewkeeper.config import Config, load_config
from viewkeeper.job.assembly import Project, assemble, make_capture
from viewkeeper.job.patience import FIRST_START, Stopped, patiently
from viewkeeper.job.stopping import stoppable
from viewkeeper.local.jars import jar_folder, java
from viewkeeper.warehouse.topics import ensure_topics


def run(args: argparse.Namespace) -> int:
    """Ctrl-C and SIGTERM are the way to end it, and so a success."""
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO)
    config = load_config(args.conf)
    chosen = [*args.sources, *(args.remove or ()), *(args.print or ())]
    for name in chosen:
        require_source(config, name)
    if args.remove is not None:
        _remove(config, chosen)
        return 0
    if args.print is not None:
        print_connectors(config, chosen)
        return 0

    with suppress(Stopped):
        stoppable(partial(_capture, config, chosen))
    return 0


def _remove(config: Config, chosen: list[str]) -> None:
    for name in chosen or config.sources:
        for line in make_capture(config, name).remove():
            print(f"{name}: {line}")


def _capture(config: Config, chosen: list[str], stop: threading.Event) -> None:
    project = assemble(config, stop=stop)
    names = [name for name in project.sources if not chosen or name in chosen]
    topics = {config.sources[name].topic: 1 for name in names}
    patiently(lambda: ensure_topics(config.kafka.client(), topics), seconds=FIRST_START, stop=stop)
    for name in names:
        install = partial(project.captures[name].install, project.used(name))
        patiently(install, seconds=FIRST_START, stop=stop)
        for line in project.captures[name].installed():
            print(f"{name}: created {line}", flush=True)
    runners = _runners(project, names)
    print(f"capturing {', '.join(names)}; Ctrl-C ends it", flush=True)
    run_capture(runners, stop)


def _runners(project: Project, names: list[str]) -> list[Runner]:
    """The change logs each by themselves, all that Debezium reads in one Kafka Connect."""
    captures = [project.captures[name] for name in names]
    runners: list[Runner] = [capture for capture in captures if isinstance(capture, SqliteCapture)]
    if by_debezium := [capture for capture in captures if isinstance(capture, PostgresCapture)]:
        runners.append(_connect(project, by_debezium))
    return runners


def _connect(project: Project, captures: list[PostgresCapture]) -> Connect:
    config = project.config
    secrets: dict[str, str] = {}
    supervised = []
    for capture in captures:
        section = capture.section
        login = Login.parse(config.place("sources", capture.name, "url"), section.url)
        variable = f"VIEWKEEPER_PASSWORD_{capture.name.upper()}"
        if login.password:
            secrets[variable] = login.password
        made = connector(section, section.topic, login, reference(variable) if login.password else "")
        sent = partial(furthest_sent, config.kafka.client(), section.topic)
        check = partial(capture.require_same_slot, sent)
        supervised.append(Supervised(capture.name, made, check, capture.remember_slot))
    return Connect(
        # A process of its own for other sources has a folder of its own.
        config.warehouse / "connect" / min(capture.name for capture in captures),
        Program(java(), jar_folder("connect")),
        config.kafka.java(),
        supervised,
        secrets,
    )
