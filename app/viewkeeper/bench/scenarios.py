"""What is measured at one table size, step by step, as plain figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.console import Console

from viewkeeper.bench.backlog import Shop, send_backlog
from viewkeeper.bench.consistency import bench_consistency
from viewkeeper.bench.groups import bench_groups
from viewkeeper.bench.job_process import JobProcess
from viewkeeper.bench.job_stream import Drained
from viewkeeper.bench.latency import (
    Listener,
    capturing,
    fold_share,
    latency,
    skeleton_latency,
    write_singly,
    write_steadily,
)
from viewkeeper.bench.merge import bench_merge
from viewkeeper.bench.plan import Figures, Plan, per_update
from viewkeeper.bench.postgres import bench_postgres
from viewkeeper.bench.recompute import recompute_seconds
from viewkeeper.bench.simulator import bench_simulator
from viewkeeper.bench.telling import Teller
from viewkeeper.bench.views import bench_views
from viewkeeper.bench.views_cut import bench_cut
from viewkeeper.bench.warehouse import bench_cuts
from viewkeeper.bench.world import SqliteWorld, Write, make_world


class Bench:
    """Runs the items asked for; every one tells what it does and how long it took."""

    def __init__(self, plan: Plan, items: Iterable[str], folder: Path, bootstrap: str, console: Console):
        self.plan = plan
        self.items = frozenset(items)
        self.folder = folder
        self.bootstrap = bootstrap
        self.teller = Teller(console)

    def at_size(self, rows: int) -> Figures:
        """Everything that is measured at tables of that many rows."""
        figures: Figures = {}
        if self.items & {"backlog", "hot", "latency", "fold", "recompute"}:
            with self.teller.told(f"{rows:,} rows: three databases"):
                world = make_world(self.folder / f"rows{rows}", self.bootstrap, rows)
            figures |= self._job(world)
            if "recompute" in self.items:
                with self.teller.told(f"{rows:,} rows: Spark recomputes the view"):
                    figures["recompute_seconds"] = recompute_seconds(world)
        if "wide" in self.items:
            figures |= self._wide(rows)
        if "simulator" in self.items:
            simulated = rows // 100
            with self.teller.told(f"{simulated:,} updates through simulated worlds"):
                figures |= bench_simulator(simulated)
        if "merge" in self.items:
            with self.teller.told(f"{rows:,} action lists through the merge process"):
                figures |= bench_merge(rows)
        if "views" in self.items:
            figures |= bench_views(self.plan, rows, self.folder, self.bootstrap, self.teller)
        if "groups" in self.items:
            figures |= bench_groups(self.plan, rows, self.folder, self.bootstrap, self.teller)
        if "postgres" in self.items:
            folder = self.folder / f"postgres{rows}"
            figures |= bench_postgres(self.plan, rows, folder, self.bootstrap, self.teller)
        return figures

    def at_no_size(self) -> Figures:
        """What does not depend on the table size."""
        plan, figures = self.plan, Figures()
        if "cuts" in self.items:
            with self.teller.told(f"{plan.cuts:,} cuts of a warehouse alone"):
                figures |= bench_cuts(self.folder / "cuts", plan.cuts)
        if "cut" in self.items:
            with self.teller.told(f"{plan.commits} cuts of one view and of ten, on a warehouse alone"):
                figures |= bench_cut(self.folder / "cut", plan.commits)
        if "consistency" in self.items:
            folder = self.folder / "consistency"
            figures |= bench_consistency(folder, self.bootstrap, plan.payments, self.teller)
        return figures

    # ---- one job

    def _job(self, world: SqliteWorld) -> Figures:
        figures: Figures = {}
        shop = Shop(world.rows)
        with JobProcess(world.conf) as job:
            with self.teller.told(f"{world.rows:,} rows: load of the view, start of Spark"):
                figures["load_seconds"] = job.open()
            figures |= {f"memory_load_{kind}": size for kind, size in job.memory.peaks().items()}
            if self.items & {"backlog", "hot", "recompute"}:
                figures |= self._backlogs(world, job, shop)
            if self.items & {"latency", "fold"}:
                figures |= self._live(world, job, shop)
        return figures

    def _backlogs(self, world: SqliteWorld, job: JobProcess, shop: Shop) -> Figures:
        size, rounds = self.plan.backlog, self.plan.rounds
        self._drain(world, job, shop, lambda: shop.uniform(size // 10), "warming up")
        job.memory.reset()
        small = [self._drain(world, job, shop, lambda: shop.uniform(size // 10)) for _ in range(rounds)]
        large = [self._drain(world, job, shop, lambda: shop.uniform(size)) for _ in range(1 + rounds)]
        figures = per_update("small", size // 10, small)
        figures |= per_update("first", size, large[:1])
        figures |= per_update("uniform", size, large[1:])
        if "hot" in self.items:
            hot = [self._drain(world, job, shop, lambda: shop.hot(size), "one hot key") for _ in range(rounds)]
            figures |= per_update("hot", size, hot)
        return figures | {f"memory_{kind}": size for kind, size in job.memory.peaks().items()}

    def _drain(
        self, world: SqliteWorld, job: JobProcess, shop: Shop, make: Callable[[], list[Write]], what: str = ""
    ) -> Drained:
        """A backlog that gathers while the job is busy with one change before it."""
        begin = time.perf_counter()
        job.hold()
        send_backlog(world, [shop.order_changed()])
        job.await_held()
        writes = make()
        drained = job.drain(send_backlog(world, writes))
        speed = f"{drained.seconds:.2f} s, {len(writes) / drained.seconds:,.0f} updates/s"
        self.teller.tell(begin, f"{world.rows:,} rows: {len(writes):,} updates{', ' if what else ''}{what}: {speed}")
        return drained

    def _live(self, world: SqliteWorld, job: JobProcess, shop: Shop) -> Figures:
        """The job as it runs all day: capture, small batches, folds."""
        plan, figures = self.plan, Figures()
        with self.teller.told(f"{world.rows:,} rows: the bare skeleton, {plan.changes} messages one by one"):
            skeleton = skeleton_latency(world, job, plan.changes, plan.warm_up)
        figures |= {"skeleton_median": skeleton.median, "skeleton_p95": skeleton.p95}
        listener = Listener(self.bootstrap, [world.topic("shop"), world.view_topic])
        try:
            with capturing(world), job.keeping() as steps:
                with self.teller.told(f"{world.rows:,} rows: {plan.changes} changes one by one"):
                    written = write_singly(world, listener, shop, plan.warm_up + plan.changes)[plan.warm_up :]
                begin = end = 0.0
                if "fold" in self.items:
                    with self.teller.told(f"{world.rows:,} rows: a steady load of {plan.steady_rate} transactions/s"):
                        begin, end = write_steadily(world, shop, plan.steady_seconds, plan.steady_rate)
        finally:
            listener.close()
        one = latency(world, written, listener.heard, steps)
        figures |= {"cut_median": one.to_cut.median, "cut_p95": one.to_cut.p95}
        figures |= {"topic_median": one.to_topic.median, "topic_p95": one.to_topic.p95}
        figures |= {f"latency_{stage}": seconds for stage, seconds in one.stages.items()}
        if end > begin:
            figures["fold_share"] = fold_share(steps, begin, end)
        return figures

    def _wide(self, rows: int) -> Figures:
        """One change of a product that every order is for."""
        with self.teller.told(f"{rows:,} rows: databases with one product in every order, load of the view"):
            world = make_world(self.folder / f"wide{rows}", self.bootstrap, rows, one_product=True)
            job = JobProcess(world.conf)
        with job:
            job.open()
            shop = Shop(rows)
            self._drain(world, job, shop, lambda: [shop.order_changed()], "warming up")
            job.memory.reset()
            change: Write = ("stock", "UPDATE products SET price = price + 1 WHERE id = ?", (1,))
            drained = self._drain(world, job, shop, lambda: [change], f"moving {rows:,} rows of the view")
            peaks = job.memory.peaks()
        return {"wide_seconds": drained.seconds, **{f"memory_wide_{kind}": size for kind, size in peaks.items()}}
