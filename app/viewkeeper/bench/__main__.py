"""``make bench``: measures speed, growth and memory next to their bars, on this machine, in one run."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import signal
import sys
import tempfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import orjson
from rich.console import Console

from viewkeeper.bench.plan import ITEMS, QUICK, QUICK_ITEMS, Figures, Plan
from viewkeeper.bench.scenarios import Bench
from viewkeeper.bench.table import Row, render, rows
from viewkeeper.local.broker import Broker
from viewkeeper.local.demo.children import Household

RESULTS = Path("bench-results")
WIDTH = 110  # of a table that goes to a file


def main() -> None:
    arguments = _arguments()
    plan = QUICK if arguments.quick else Plan()
    items = arguments.only or (QUICK_ITEMS if arguments.quick else ITEMS)
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is put away then, too
    household = Household()
    folder = Path(tempfile.mkdtemp(prefix="viewkeeper-bench-"))
    try:
        with Broker(folder / "broker") as broker:
            bench = Bench(plan, items, folder, broker.bootstrap, console)
            small, large = (bench.at_size(size) for size in plan.sizes)
            neither = bench.at_no_size()
    finally:
        household.end(grace=10)
        shutil.rmtree(folder, ignore_errors=True)
    made = rows(small, large, neither)
    console.print(render(made, plan.sizes))
    file = _write(plan, made, {"small": small, "large": large, "neither": neither})
    console.print(f"all figures: {file}", highlight=False)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="viewkeeper.bench", description="The benchmark: every bar, on this machine.")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, to see that it works: the figures mean little"
    )
    parser.add_argument(
        "--only", action="append", choices=ITEMS, metavar="ITEM", help=f"one of {', '.join(ITEMS)}; may be repeated"
    )
    return parser.parse_args()


def _write(plan: Plan, made: list[Row], figures: dict[str, Figures]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    now = datetime.now(UTC)
    result = {
        "at": now,
        "machine": {
            "cores": os.cpu_count(),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "load": os.getloadavg(),
        },
        "plan": asdict(plan),
        "table": [asdict(row) for row in made],
        "figures": figures,
    }
    file = RESULTS / f"{now:%Y%m%d-%H%M%S}.json"
    file.write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2))
    return file


if __name__ == "__main__":
    main()
