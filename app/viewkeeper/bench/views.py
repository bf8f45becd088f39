"""Many views against one: the same backlogs through jobs that keep one view, ten, and ten that leave nothing out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from viewkeeper.bench.backlog import Shop, send_backlog
from viewkeeper.bench.job_process import JobProcess
from viewkeeper.bench.job_stream import Drained
from viewkeeper.bench.plan import Figures, Plan
from viewkeeper.bench.telling import Teller
from viewkeeper.bench.world import SQL, SqliteWorld, make_world

_JOIN = """\
FROM shop.orders o JOIN crm.customers c ON o.customer_id = c.id JOIN stock.products p ON o.product_id = p.id"""
_TEN = (
    SQL,
    f"SELECT o.id AS order_id, c.city, p.title {_JOIN} WHERE o.quantity > 4",
    f"SELECT o.id AS order_id, c.name, o.quantity {_JOIN} WHERE p.price > 100",
    f"SELECT c.id AS customer, c.name, p.title, p.price {_JOIN} WHERE o.quantity = 1",
    f"SELECT c.city, p.id AS product, o.quantity {_JOIN} WHERE p.price < 50",
    f"SELECT o.id AS order_id, o.quantity * p.price AS amount {_JOIN} WHERE c.city = 'city 7'",
    f"SELECT o.id AS order_id, c.name, c.city, p.title, p.price {_JOIN} WHERE o.quantity < 4",
    f"SELECT o.id AS order_id, c.id AS customer {_JOIN} WHERE p.price > 200",
    f"SELECT c.id AS customer, p.id AS product {_JOIN} WHERE o.quantity > 7",
    f"SELECT o.id AS order_id, p.title {_JOIN} WHERE o.quantity * p.price > 1000",
)

KINDS: dict[str, Mapping[str, str]] = {
    "one": {"v0": SQL},
    "ten": {f"v{i}": sql for i, sql in enumerate(_TEN)},
    "whole": {f"v{i}": SQL for i in range(10)},
}
"""One view; ten that select and project differently; ten that each show every row with every column."""


@dataclass
class _Contender:
    """A job that keeps some views, waiting at its gate while the others are measured."""

    kind: str
    world: SqliteWorld
    job: JobProcess
    shop: Shop
    runs: list[Drained] = field(default_factory=list)

    def wait_at_gate(self) -> None:
        """A batch of one change waits: the stream then does nothing at all."""
        self.job.hold()
        send_backlog(self.world, [self.shop.order_changed()])
        self.job.await_held()

    def run(self, size: int) -> Drained:
        """One backlog; afterwards it waits again."""
        drained = self.job.drain(send_backlog(self.world, self.shop.uniform(size)))
        self.wait_at_gate()
        return drained


def bench_views(plan: Plan, rows: int, folder: Path, bootstrap: str, teller: Teller) -> Figures:
    """Seconds of a backlog and questions asked for it, medians over rounds in which the jobs take turns."""
    with ExitStack() as stack:
        contenders = []
        for kind in KINDS:
            with teller.told(f"{rows:,} rows: databases, load of {len(KINDS[kind])} views ({kind}), start of Spark"):
                contenders.append(_started(stack, kind, rows, folder / f"views{rows}{kind}", bootstrap))
        for n in range(1 + plan.rounds):
            for contender in contenders:
                with teller.told(f"{rows:,} rows, {plan.backlog:,} updates: {contender.kind}{'' if n else ', cold'}"):
                    contender.runs.append(contender.run(plan.backlog))
    return _figures(contenders)


def _started(stack: ExitStack, kind: str, rows: int, folder: Path, bootstrap: str) -> _Contender:
    world = make_world(folder, bootstrap, rows)
    configuration = json.loads(world.conf.read_text())
    configuration["views"] = {
        view: {"sql": sql, "topic": f"{folder.name}.view.{view}"} for view, sql in KINDS[kind].items()
    }
    world.conf.write_text(json.dumps(configuration, indent=1))
    contender = _Contender(kind, world, stack.enter_context(JobProcess(world.conf)), Shop(rows))
    contender.job.open()
    contender.wait_at_gate()
    return contender


def _figures(contenders: list[_Contender]) -> Figures:
    """What the first, cold round took counts for nothing."""
    figures: Figures = {}
    for contender in contenders:
        warm = contender.runs[1:]
        figures[f"views_{contender.kind}_seconds"] = median(run.seconds for run in warm)
        figures[f"views_{contender.kind}_questions"] = median(run.questions for run in warm)
        for step in warm[0].steps:
            figures[f"views_{contender.kind}_step_{step}"] = median(run.steps.get(step, 0.0) for run in warm)
    return figures
