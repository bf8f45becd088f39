"""The figures next to their bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import ge, le

from rich.box import SIMPLE_HEAD
from rich.table import Table

from viewkeeper.bench.plan import Figures

MEMORY_GROWTH = 1.25
"""What still counts as not growing: a JVM's heap is never twice the same."""


@dataclass(frozen=True)
class Row:
    """One line of the table; ``ok`` is None where there is no bar."""

    item: str
    bar: str
    small: str
    large: str
    ratio: str = ""
    ok: bool | None = None


def rows(small: Figures, large: Figures, neither: Figures) -> list[Row]:
    """Every line for which there are figures: at both table sizes, and at neither."""
    both = _Both(small, large)
    sized = (_throughput, _hot, _recompute, _wide, _latency, _folds, _memory, _simulator, _merge, _views, _groups)
    made = [row for section in (*sized, _postgres) for row in section(both)]
    return made + [row for section in (_cuts, _cut, _consistency) for row in section(neither)]


@dataclass(frozen=True)
class _Both:
    """The figures of both sizes."""

    small: Figures
    large: Figures

    def __contains__(self, key: str) -> bool:
        return key in self.small and key in self.large

    def keys(self, prefix: str) -> list[str]:
        return [key for key in self.large if key.startswith(prefix)]

    def pair(self, of: Callable[[Figures], float]) -> _Pair:
        return _Pair(of(self.small), of(self.large))

    def __getitem__(self, key: str) -> _Pair:
        return self.pair(lambda figures: figures.get(key, 0.0))


@dataclass(frozen=True)
class _Pair:
    """One figure at both sizes, on its way to become a line."""

    small: float
    large: float

    @property
    def ratio(self) -> float:
        return self.large / self.small if self.small > 0 else float("nan")

    def all(self, holds: Callable[[float, float], bool], bar: float) -> bool:
        return holds(self.small, bar) and holds(self.large, bar)

    def row(self, item: str, form: str, bar: str = "", ok: bool | None = None, ratio: bool = True) -> Row:
        shown = f"{self.ratio:.2f}×" if ratio and self.small > 0 else ""
        return Row(item, bar, form.format(self.small), form.format(self.large), shown, ok)


def _throughput(both: _Both) -> Iterator[Row]:
    if "uniform_micros" not in both:
        return
    for item, key, bar in (("sweep stage", "uniform_sweep_micros", 80_000), ("whole job", "uniform_micros", 20_000)):
        speed = both.pair(lambda f, key=key: 1e6 / f[key])  # type: ignore[misc]
        yield speed.row(f"{item}, updates/s", "{:,.0f}", f"≥ {bar:,}", speed.all(ge, bar))
    yield from _shares(both)
    yield both.pair(lambda f: 1e6 / f["first_micros"]).row("  the job's first large batch, updates/s", "{:,.0f}")
    time = both["uniform_micros"]
    yield time.row("time per update, larger against smaller tables", "{:.1f} µs", "≤ 1.3×", time.ratio <= 1.3)
    growth = both.pair(lambda f: f["uniform_micros"] / f["small_micros"])
    yield growth.row("per update, large batch against small", "{:.2f}×", "≤ 1.2×", growth.all(le, 1.2), ratio=False)
    sweep = both.pair(lambda f: f["uniform_sweep_micros"] / f["small_sweep_micros"])
    yield sweep.row("  the same, sweep stage alone", "{:.2f}×", ratio=False)


def _shares(both: _Both, prefix: str = "uniform_step_") -> Iterator[Row]:
    """Each stage's seconds, and its part of the whole."""
    keys = both.keys(prefix)
    whole = both.pair(lambda f: sum(f.get(key, 0.0) for key in keys))
    for key in keys:
        seconds = both[key]
        if seconds.large >= 0.005:
            texts = (
                f"{seconds.small:.2f} s {seconds.small / whole.small:4.0%}",
                f"{seconds.large:.2f} s {seconds.large / whole.large:4.0%}",
            )
            yield Row(f"  of it {key.removeprefix(prefix)}", "", *texts, f"{seconds.ratio:.2f}×")


def _hot(both: _Both) -> Iterator[Row]:
    if "hot_micros" in both:
        over = both.pair(lambda f: f["hot_micros"] / f["uniform_micros"])
        yield over.row("hot key against uniform, per update", "{:.2f}×", "≤ 2×", over.all(le, 2), ratio=False)


def _simulator(both: _Both) -> Iterator[Row]:
    if "simulator_sequential" in both:
        speed = both["simulator_sequential"]
        yield speed.row("simulated SWEEP over 4 sources, updates/s", "{:,.0f}", "≥ 1,000", speed.all(ge, 1_000))
        yield both["simulator_columnar"].row("  the same, columnar and batched", "{:,.0f}")


def _merge(both: _Both) -> Iterator[Row]:
    """Here the sizes are numbers of action lists."""
    if "merge_spa" in both:
        for name in ("spa", "pa"):
            speed = both[f"merge_{name}"]
            yield speed.row(f"merge of 20 views, {name.upper()}, lists/s", "{:,.0f}", "≥ 50,000", speed.all(ge, 50_000))
        yield both["merge_pa_behind"].row("  the same, PA, one view behind by everything", "{:,.0f}")


def _views(both: _Both) -> Iterator[Row]:
    """Ten views over the same three relations."""
    if "views_one_seconds" not in both:
        return
    ten, whole = (both.pair(lambda f, kind=kind: _against_one(f, kind, "seconds")) for kind in ("ten", "whole"))  # type: ignore[misc]
    yield ten.row("ten views against one, whole job", "{:.2f}×", "≤ 3×", ten.all(le, 3), ratio=False)
    yield whole.row("  ten that select nothing, against one", "{:.2f}×", ratio=False)
    yield both["views_one_seconds"].row("  one view", "{:.2f} s")
    yield both["views_ten_seconds"].row("  ten views", "{:.2f} s")
    asked = both.pair(lambda f: _against_one(f, "ten", "questions"))
    yield asked.row("  questions asked for ten, against one", "{:.2f}×", ratio=False)


def _against_one(figures: Figures, kind: str, what: str) -> float:
    return figures[f"views_{kind}_{what}"] / figures[f"views_one_{what}"]


def _groups(both: _Both) -> Iterator[Row]:
    """The first group's time, beside another against alone."""
    if "groups_alone_seconds" not in both:
        return
    for kind, item in (("idle", "an idle group"), ("loaded", "a group with a tenth of the load")):
        slower = both.pair(lambda f, kind=kind: f[f"groups_{kind}_seconds"] / f["groups_alone_seconds"])  # type: ignore[misc]
        yield slower.row(f"beside {item}, against alone", "{:.2f}×", "≤ 1.1×", slower.all(le, 1.1), ratio=False)
    yield both["groups_alone_seconds"].row("  alone", "{:.2f} s")


def _recompute(both: _Both) -> Iterator[Row]:
    if "recompute_seconds" not in both or "uniform_micros" not in both:
        return
    ahead = both.pair(lambda f: 1e6 * f["recompute_seconds"] / (1000 * f["uniform_micros"]))
    yield ahead.row("ahead of recomputing every 1,000 updates", "{:.0f}×", "≥ 50×", ahead.large >= 50)
    yield both["recompute_seconds"].row("  one recomputation by Spark", "{:.2f} s")


def _wide(both: _Both) -> Iterator[Row]:
    if "wide_seconds" in both:
        yield both["wide_seconds"].row("one change that moves every row of the view", "{:.1f} s", "succeeds", True)
        for kind in ("driver", "jvm", "workers"):
            if f"memory_wide_{kind}" in both:
                yield both[f"memory_wide_{kind}"].row(f"  peak memory of it, {kind}", "{:,.0f} MB")


def _latency(both: _Both) -> Iterator[Row]:
    if "cut_median" not in both:
        return
    for where, key in (("cut", "cut"), ("view topic", "topic")):
        for part in ("median", "p95"):
            over = both.pair(lambda f, key=key, part=part: f[f"{key}_{part}"] / f[f"skeleton_{part}"])  # type: ignore[misc]
            seconds = both[f"{key}_{part}"]
            yield Row(
                f"commit to {where}, {part}; × skeleton",
                "≤ 2×",
                f"{1e3 * seconds.small:.0f} ms {over.small:5.2f}×",
                f"{1e3 * seconds.large:.0f} ms {over.large:5.2f}×",
                ok=over.all(le, 2),
            )
    for key in (*both.keys("skeleton_"), *both.keys("latency_")):
        name = key.replace("skeleton_", "bare skeleton, ").replace("latency_", "of it ")
        yield both.pair(lambda f, key=key: 1e3 * f[key]).row(f"  {name}", "{:.0f} ms")  # type: ignore[misc]


def _folds(both: _Both) -> Iterator[Row]:
    if "fold_share" in both:
        share = both["fold_share"]
        yield share.row("share of the time spent folding", "{:.1%}", "≤ 10 %", share.all(le, 0.1), ratio=False)


def _memory(both: _Both) -> Iterator[Row]:
    bar = f"≤ {MEMORY_GROWTH}×"
    for kind in ("driver", "jvm", "workers"):
        if f"memory_{kind}" in both:
            peak = both[f"memory_{kind}"]
            yield peak.row(f"peak memory, {kind}", "{:,.0f} MB", bar, peak.ratio <= MEMORY_GROWTH)
    if "memory_load_driver" in both:
        yield both["memory_load_driver"].row("  of the driver, first load", "{:,.0f} MB")


def _postgres(both: _Both) -> Iterator[Row]:
    if "pg_micros" not in both:
        return
    for item, key, bar in (("sweep stage", "pg_sweep_micros", 40_000), ("whole job", "pg_micros", 15_000)):
        speed = both.pair(lambda f, key=key: 1e6 / f[key])  # type: ignore[misc]
        yield speed.row(f"PostgreSQL, {item}, updates/s", "{:,.0f}", f"≥ {bar:,}", speed.all(ge, bar))
    yield from _shares(both, "pg_step_")
    yield both["pg_again_seconds"].row("  after it: reading again what was drained", "{:.2f} s")
    yield both.pair(lambda f: 1e6 / f["pg_first_micros"]).row("  the job's first batch, updates/s", "{:,.0f}")
    ahead = both.pair(lambda f: 1e6 / f["pg_micros"] / f["pg_debezium_transactions"])
    yield ahead.row("whole job against Debezium alone", "{:.1f}×", "≥ 1×", ahead.all(ge, 1), ratio=False)
    yield both["pg_debezium_events"].row("  Debezium, messages/s", "{:,.0f}")
    yield both["pg_debezium_transactions"].row("  Debezium, transactions/s", "{:,.0f}")
    read = both["pg_rows_ratio"]
    yield read.row("rows read against rows that join", "{:.2f}×", "≤ 1.2×", read.all(le, 1.2), ratio=False)
    yield from _postgres_latency(both)


def _postgres_latency(both: _Both) -> Iterator[Row]:
    """The median, and what 95 of 100 stay below."""

    def text(part: str, figures: Figures) -> str:
        middle, most = (1e3 * figures[f"pg_latency_{part}_{which}"] for which in ("median", "p95"))
        return f"{middle:,.0f} / {most:,.0f} ms"

    def line(item: str, part: str, bar: str = "", ok: bool | None = None) -> Row:
        return Row(item, bar, text(part, both.small), text(part, both.large), ok=ok)

    share = both.pair(lambda f: f["pg_latency_ours_median"] / f["pg_latency_theirs_median"])
    yield line("commit to cut, median / 95 %", "cut")
    yield share.row("  ours against Debezium's and Spark's", "{:.2f}×", "≤ 1×", share.all(le, 1), ratio=False)
    prefix = "pg_latency_"
    for part in (
        key.removeprefix(prefix).removesuffix("_median") for key in both.keys(prefix) if key.endswith("_median")
    ):
        if part != "cut":
            yield line(f"  of it {part}", part)


def _cuts(cuts: Figures) -> Iterator[Row]:
    """Here the two columns are not table sizes: after ten cuts, and after many."""
    for item in ("commit", "read") if "cuts" in cuts else ():
        early, late, ratio = (cuts[f"{item}_{part}"] for part in ("early", "late", "ratio"))
        name = f"{item}: after 10 cuts, after {cuts['cuts']:,.0f}"
        yield Row(name, "≤ 1.5×", f"{early:.1f} ms", f"{late:.1f} ms", f"{ratio:.2f}×", ratio <= 1.5)


def _cut(cut: Figures) -> Iterator[Row]:
    """Here the two columns are a cut of one view, and of ten."""
    for size, rows in (("small", "2"), ("large", "1,000")) if "cut_small_one" in cut else ():
        one, ten = cut[f"cut_{size}_one"], cut[f"cut_{size}_ten"]
        name = f"commit of a cut: 1 view, 10 views, {rows} rows each"
        yield Row(name, "≤ 3×", f"{one:.1f} ms", f"{ten:.1f} ms", f"{ten / one:.2f}×", ten / one <= 3)


def _consistency(test: Figures) -> Iterator[Row]:
    """Here the two columns are what was looked at, and what was wrong there; then two speeds."""
    if "consistency_cuts" not in test:
        return
    payments, cuts, updates, wrong = (
        test[f"consistency_{what}"] for what in ("payments", "cuts", "updates", "violations")
    )
    name = f"{payments:,.0f} payments: cuts checked, violations"
    yield Row(name, "0", f"{cuts:,.0f}", f"{wrong:,.0f}", ok=wrong == 0)
    yield Row("  updates checked", "", f"{updates:,.0f}", "")
    written, speed = (f"{test[f'consistency_{what}']:,.0f}" for what in ("written", "speed"))
    yield Row("  payments/s written, and kept in cuts", "", written, speed)


def render(made: list[Row], sizes: tuple[int, int]) -> Table:
    """The table for the terminal."""
    table = Table(title="viewkeeper bench", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("item", no_wrap=True)
    table.add_column("bar", no_wrap=True)
    for size in sizes:
        table.add_column(f"{size:,} rows", justify="right", no_wrap=True)
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for row in made:
        verdict = {True: "[green]ok", False: "[red]missed", None: ""}[row.ok]
        table.add_row(row.item, row.bar, row.small, row.large, row.ratio, verdict, style="" if row.bar else "dim")
    return table
