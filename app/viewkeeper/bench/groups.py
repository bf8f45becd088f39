"""What an unrelated group costs the first: the same backlogs alone, beside an idle group, beside one with some load."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from viewkeeper.bench.backlog import Positions, Prepared, Shop, prepare, send_backlog
from viewkeeper.bench.job_process import JobProcess
from viewkeeper.bench.job_stream import Drained
from viewkeeper.bench.plan import Figures, Plan
from viewkeeper.bench.telling import Teller
from viewkeeper.bench.world import SOURCES, SQL, SqliteWorld, Write, make_world

_OTHER = "_too"
"""The other group's sources are called like the first's, with this at the end."""

_PIECES = 10
"""The other group's load comes in so many pieces, spread over the time that the first's backlog took alone."""

KINDS = ("alone", "idle", "loaded")


class _OtherWorld(SqliteWorld):
    """Three databases that a configuration has under other names."""

    def database(self, source: str) -> Path:
        return super().database(source.removesuffix(_OTHER))


@dataclass
class _Pair:
    """A job of two groups: the first is measured, the other is started beside it and ended again."""

    world: SqliteWorld
    other: SqliteWorld
    job: JobProcess
    shop: Shop
    other_shop: Shop
    runs: dict[str, list[Drained]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def run(self, kind: str, size: int) -> None:
        """One backlog of the first group; of the other's, if it has any, a tenth comes meanwhile."""
        if kind != "alone":
            self.job.join()
        load = self._prepared(size // 10) if kind == "loaded" else []
        self.job.hold()
        send_backlog(self.world, [self.shop.order_changed()])
        self.job.await_held()
        targets = send_backlog(self.world, self.shop.uniform(size))
        with ThreadPoolExecutor(1) as thread:
            sending = thread.submit(self._send, load)
            self.runs[kind].append(self.job.drain(targets))
            sending.result()
        if kind != "alone":
            reached: Positions = {source: at for piece in load for source, at in piece.positions.items()}
            self.job.leave(reached)

    def _prepared(self, size: int) -> list[Prepared]:
        made = [[_renamed(write) for write in self.other_shop.uniform(max(1, size // _PIECES))] for _ in range(_PIECES)]
        return [prepare(self.other, writes) for writes in made]

    def _send(self, load: list[Prepared]) -> None:
        begin = time.monotonic()
        for n, piece in enumerate(load):
            due = begin + n * self.runs["alone"][-1].seconds / _PIECES
            time.sleep(max(0.0, due - time.monotonic()))
            piece.send()


def bench_groups(plan: Plan, rows: int, folder: Path, bootstrap: str, teller: Teller) -> Figures:
    """Seconds of a backlog, medians over rounds in which the three take turns in one job."""
    with teller.told(f"{rows:,} rows: six databases, load of the first group, start of Spark"):
        world = make_world(folder / f"groups{rows}", bootstrap, rows)
        plain = make_world(folder / f"groups{rows}other", bootstrap, rows)
        other = _OtherWorld(plain.folder, bootstrap, rows)
        _configure(world, other)
        job = JobProcess(world.conf)
    with job:
        job.open()
        pair = _Pair(world, other, job, Shop(rows), Shop(rows, seed=2))
        for n in range(1 + plan.rounds):
            for kind in order(n):
                with teller.told(f"{rows:,} rows, {plan.backlog:,} updates: {kind}{'' if n else ', cold'}"):
                    pair.run(kind, plan.backlog)
    return {f"groups_{kind}_seconds": median(run.seconds for run in pair.runs[kind][1:]) for kind in KINDS}


def order(n: int) -> tuple[str, ...]:
    """Each kind in another place every round: whoever comes later finds a warmer job. The first round is as listed."""
    return KINDS[n % len(KINDS) :] + KINDS[: n % len(KINDS)]


def _configure(world: SqliteWorld, other: SqliteWorld) -> None:
    """Adds the other world to the first one's configuration, as a group of its own."""
    configuration = json.loads(world.conf.read_text())
    sql = SQL
    for source in SOURCES:
        name = f"{source}{_OTHER}"
        configuration["sources"][name] = {"topic": other.topic(name), **other.section(name)}
        sql = sql.replace(f"{source}.", f"{name}.")
    configuration["views"]["sales_too"] = {"sql": sql, "topic": other.view_topic}
    configuration["groups"] = "auto"
    world.conf.write_text(json.dumps(configuration, indent=1))


def _renamed(write: Write) -> Write:
    source, sql, values = write
    return f"{source}{_OTHER}", sql, values
