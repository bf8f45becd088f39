"""``viewkeeper lab table``: Table 1 of sweep-1997 and Figure 2 of strobe-1996, measured."""

from __future__ import annotations

import argparse
import csv
import io
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from viewkeeper.algorithms.registry import Scenario
from viewkeeper.commands.lab.page import page
from viewkeeper.commands.lab.results import RUSH, Results, measure
from viewkeeper.commands.lab.showing import console, require_writable, write
from viewkeeper.consistency.levels import Level
from viewkeeper.errors import UsageError
from viewkeeper.simulator.laboratory import Subject
from viewkeeper.simulator.measure import RELATIONS, Flow, Tally, formula

PAGE = "laboratory.html"


def run(args: argparse.Namespace) -> int:
    """Measures, prints, writes; 1 if a promise was broken."""
    file = None if args.html is None else str(Path(args.html) / PAGE)
    if args.html is not None:
        _require_folder(args.html)
    require_writable(args.csv, file)
    results = measure(args.histories, args.seed, plots=args.html is not None)
    out = console()
    _print(results, out)
    if args.csv is not None:
        write(args.csv, csv_text(results))
        out.print(Text(f"written  {args.csv}"))
    if file is not None:
        write(file, page(results, _command(args)))
        out.print(Text(f"written  {file}"))
    return _report_broken(results, out)


def _require_folder(path: str) -> None:
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as e:
        what = f"cannot be a folder: {(e.strerror or str(e)).lower()}"
        raise UsageError.at(path, what, "name another folder") from None


def _command(args: argparse.Namespace) -> str:
    """The command that makes the same page again."""
    csv_file = f" --csv {args.csv}" if args.csv else ""
    return f"viewkeeper lab table --histories {args.histories} --seed {args.seed} --html {args.html}{csv_file}"


def _report_broken(results: Results, out: Console) -> int:
    broken = list(results.broken())
    for (subject, scenario), history in broken:
        file = f"lab-{subject.name}-{scenario}.json"
        write(file, history)
        out.print(Text(f"{subject}, {scenario}: THE PROMISE IS BROKEN; see: viewkeeper lab replay {file}", "bold red"))
    return 1 if broken else 0


# The terminal --------------------------------------------------------------------------------------------------------


def _print(results: Results, out: Console) -> None:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in ("algorithm", "scenario", "promised", "reached"):
        table.add_column(name, no_wrap=True)
    for name in ("asked", "worst", "bound", "bytes", "still", "stale"):
        table.add_column(name, justify="right", no_wrap=True)
    before: Subject | None = None
    for (subject, scenario), tally in results.cells.items():
        if before is not None and subject != before:
            table.add_section()
        table.add_row(*_row(subject, scenario, tally, results.rush(subject)))
        before = subject
    out.print(table)
    for line in legend(results):
        out.print(Text(line))


def _row(subject: Subject, scenario: Scenario, tally: Tally, rush: Flow) -> list[Text]:
    single = scenario is Scenario.SINGLE
    name = subject.name if single else str(subject).partition(" ")[2] if scenario is Scenario.LOCAL else ""
    promised = subject.promise(scenario)
    return [
        Text(f"  {name}" if not single else name),
        Text(str(scenario)),
        Text(str(promised) if promised else "nothing"),
        reached(tally, promised),
        Text(_number(tally.questions_per_update, 2)),
        Text(f"{tally.worst:,}"),
        Text(f"{formula(subject).bound[RELATIONS]:,.0f}" if single else ""),
        Text(_number(tally.bytes_per_update, 0)),
        Text(f"{rush.pause:,.0f}{'*' if rush.needs_quiet else ' '}" if single else ""),
        Text(f"{rush.stalest:,.0f}" if single else ""),
    ]


def reached(tally: Tally, promised: Level) -> Text:
    """The lowest level of all histories, marked if it is below the promise."""
    assert tally.lowest is not None
    if tally.lowest < promised:
        return Text(f"{tally.lowest} ✗", style="bold red")
    return Text(str(tally.lowest), style="green" if promised else "")


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def legend(results: Results) -> list[str]:
    """What the columns mean, and how they were measured."""
    small = sum(tally.small for tally in results.cells.values())
    return [
        f"reached  the lowest level in {results.histories:,} random histories a line, four in ten with crashes and",
        f"         repeated deliveries, and in {small:,} in all that are the interleavings of small workloads,",
        "         one workload after the other (not of sweep, whose world has too many orders)",
        f"asked    questions an update, on average; worst: for one update; bound: what the papers say, n = {RELATIONS}",
        "         (worst of sweep, convergent and pipelines, whose updates overlap: the average of a history;",
        "         sweep asks every source for a snapshot too, once a batch: its bound is for a batch of one)",
        "bytes    carried by questions and answers, an update",
        f"still    the longest that the view stood still, in message times, while {RUSH.updates:,} updates came at",
        f"         {RUSH.rate:.0f} per message time, {RUSH.updates / RUSH.rate:.0f} message times in all"
        " (*: it needs a pause to move)",
        "stale    how old an update was at most, in that stream, when the view got it",
    ]


# CSV -----------------------------------------------------------------------------------------------------------------

COLUMNS = (
    *("algorithm", "paper", "scenario", "promised", "reached", "random_histories", "small_histories", "undecided"),
    *("questions_per_update", "worst_questions", "formula", "bound", "bytes_per_update"),
    *("longest_standstill", "longest_staleness", "stream_length", "needs_quiet"),
)


def csv_text(results: Results) -> str:
    """The table as CSV, a line for each algorithm and scenario."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for (subject, scenario), tally in results.cells.items():
        said, rush = formula(subject), results.rush(subject)
        bound = said.bound[RELATIONS] if scenario is Scenario.SINGLE else ""
        promised = subject.promise(scenario)
        writer.writerow(
            [
                *(subject, subject.entry.paper, scenario, promised if promised else "", tally.lowest),
                *(tally.histories, tally.small, tally.undecided),
                *(_number(tally.questions_per_update, 4).replace(",", ""), tally.worst, said.text, bound),
                _number(tally.bytes_per_update, 1).replace(",", ""),
                *(f"{rush.pause:.2f}", f"{rush.stalest:.2f}", f"{rush.length:.2f}"),
                "yes" if rush.needs_quiet else "no",
            ]
        )
    return text.getvalue()
