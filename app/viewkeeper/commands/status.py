"""``viewkeeper status``: how far the views are, what the job does and what it has asked of the sources."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import orjson
from rich.console import Console
from rich.table import Table

from viewkeeper.config import Config, load_config
from viewkeeper.consistency.levels import Level
from viewkeeper.errors import KafkaError, ViewkeeperError
from viewkeeper.job.assembly import keeping_of, make_source
from viewkeeper.job.status import StatusFile
from viewkeeper.queue import consumer
from viewkeeper.warehouse.reader import WarehouseReader

UNKNOWN = "unknown"
"""Begins what is said in place of something that cannot be reached."""

T = TypeVar("T")


def run(args: argparse.Namespace) -> int:
    config = load_config(args.conf)
    state = gather(config)
    if args.json:
        print(orjson.dumps(state, option=orjson.OPT_INDENT_2).decode())
    else:
        _show(state)
    return 0


def gather(config: Config) -> dict[str, Any]:
    """Everything there is to know now; what cannot be reached says why instead."""
    warehouse = WarehouseReader(config.warehouse, keep=config.keep)
    cut = warehouse.newest()
    job = StatusFile.of(config.warehouse).read()
    alive = job is not None and job["pid"] is not None and _alive(job["pid"])
    asked = {} if job is None else job["asked"]
    sources = {}
    for name, section in config.sources.items():
        lag = partial(_lag, config, section.topic, None if cut is None else cut.offsets.get(name))
        sources[name] = {
            "topic": section.topic,
            "position": None if cut is None else cut.positions.get(name),
            "last_change": _or_reason(make_source(name, section).last_change),
            "messages_behind": _or_reason(lag),
            "asked": asked.get(name, {"questions": 0, "keys": 0, "rows": 0, "compensated": 0}),
        }
    inexact = warehouse.inexact()
    return {
        "job": {"running": alive, **({} if job is None else {k: job[k] for k in job if k != "asked"})},
        "cut": None
        if cut is None
        else {
            "cut": cut.cut,
            "last_update": cut.last_update,
            "committed_at": cut.committed_at,
            "level": cut.level,
        },
        "sources": sources,
        "views": {
            name: {
                "loaded": cut is not None and name in cut.versions,
                "folded": None if cut is None else cut.folded.get(name),
                "version": None if cut is None else cut.versions.get(name),
                "exact": name not in inexact,
                "reason": inexact.get(name),
                "algorithm": section.algorithm,
                "level": str(keeping_of(section).level),
            }
            for name, section in config.views.items()
        },
    }


def _lag(config: Config, topic: str, offset: int | None) -> int:
    """Messages in a topic that no cut holds yet (control records of Kafka's transactions counted in)."""
    low, high = consumer.bounds(config.kafka.client(), [topic])[topic]
    return high - max(low, offset or 0)


def _or_reason(look: Callable[[], T]) -> T | str:
    try:
        return look()
    except ViewkeeperError as error:
        problem = error.problems[0]
        # Kafka's client says the cause last, after what it was about to do.
        what = problem.what.rpartition(": ")[2] if isinstance(error, KafkaError) else problem.what
        return f"{UNKNOWN}: {problem.place}: {what}"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _show(state: dict[str, Any]) -> None:
    console = Console(width=min(Console().width, 110))
    job, cut = state["job"], state["cut"]
    console.print(_job_line(job), highlight=False)
    if cut is None:
        console.print("no cut yet: run 'viewkeeper init' or 'viewkeeper run'")
    else:
        age = (datetime.now(UTC) - cut["committed_at"]).total_seconds()
        console.print(
            f"cut {cut['cut']}, update {cut['last_update']}, {_ago(age)}, level {cut['level']}",
            highlight=False,
        )
    _show_sources(console, state["sources"])
    _show_views(console, state["views"])


def _show_sources(console: Console, sources: dict[str, dict[str, Any]]) -> None:
    columns = ("source", "position", "last change", "messages behind", "questions", "keys", "rows", "compensated")
    table = Table(*columns, box=None)
    reasons: dict[str, None] = {}  # each told once, in order
    for name, source in sources.items():
        asked = source["asked"]
        cells = [source["position"], source["last_change"], source["messages_behind"]]
        reasons |= {cell: None for cell in cells if _is_unknown(cell)}
        table.add_row(
            name,
            *(UNKNOWN if _is_unknown(cell) else _or_dash(cell) for cell in cells),
            *(f"{asked[key]:,}" for key in ("questions", "keys", "rows", "compensated")),
        )
    console.print(table)
    for reason in reasons:
        console.print(reason, highlight=False, markup=False)


def _show_views(console: Console, views: dict[str, dict[str, Any]]) -> None:
    table = Table("view", "algorithm", "folded to", "version", "promise", box=None)
    for name, view in views.items():
        promise = _promise(view) if view["loaded"] else "not loaded"
        table.add_row(name, view["algorithm"], _or_dash(view["folded"]), _or_dash(view["version"]), promise)
    console.print(table)


def _is_unknown(cell: object) -> bool:
    return isinstance(cell, str) and cell.startswith(f"{UNKNOWN}: ")


def _or_dash(cell: object) -> str:
    return "–" if cell is None else str(cell)


def _promise(view: dict[str, Any]) -> str:
    if not view["exact"]:
        return f"not exact: {view['reason']}"
    return "none" if view["level"] == str(Level.INCONSISTENT) else f"exact, {view['level']}"


def _job_line(job: dict[str, Any]) -> str:
    if not job["running"]:
        return "no job is running"
    updates = "1 update" if job["updates_handled"] == 1 else f"{job['updates_handled']:,} updates"
    line = f"job {job['pid']} is running since {job['started'][:19]}Z, {updates} handled"
    return f"{line}\n[bold red]waiting[/]: {job['waiting']}" if job["waiting"] else line


def _ago(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s ago"
    return f"{seconds / 60:.0f} min ago" if seconds < 5400 else f"{seconds / 3600:.1f} h ago"
