"""``viewkeeper lab anomaly``: the smallest history in which an algorithm breaks a level that it does not promise."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from viewkeeper.algorithms.registry import Scenario
from viewkeeper.commands.lab.choosing import chosen_level, chosen_subject
from viewkeeper.commands.lab.showing import Exhibit, console, keep, require_writable
from viewkeeper.commands.lab.workers import each
from viewkeeper.consistency.levels import Level
from viewkeeper.errors import UsageError
from viewkeeper.simulator.anomaly import Effort, Search, possible, search, smallest
from viewkeeper.simulator.examples import EXAMPLES
from viewkeeper.simulator.files import dumps, loads
from viewkeeper.simulator.laboratory import Subject, replayed, subjects, unpromised
from viewkeeper.simulator.smallest import Size

_ONE = Effort(systematic=3_000, at_random=300)
_MANY = Effort(systematic=800, at_random=100)
"""A search among all algorithms takes less time for each."""


def run(args: argparse.Namespace) -> int:
    """Draws the anomaly of one algorithm, or lists those of all."""
    level = None if args.level is None else chosen_level("lab anomaly", args.level)
    scenarios = list(Scenario) if args.scenario is None else [Scenario(args.scenario)]
    if args.algorithm is None:
        if args.option:
            raise UsageError.at("lab anomaly", "--option needs an algorithm", "name one")
        if args.save or args.svg:
            raise UsageError.at("lab anomaly", "only one history can be written", "name an algorithm")
        return _list(scenarios, level)
    subject = chosen_subject("lab anomaly", args.algorithm, args.option)
    if level is Level.COMPLETE_N and subject.run_length is None:
        raise UsageError.at("lab anomaly", f"{subject} knows no N", "ask for strong or complete")
    require_writable(args.save, args.svg)
    return _one(subject, scenarios, level, args)


# One algorithm -------------------------------------------------------------------------------------------------------


def _one(subject: Subject, scenarios: list[Scenario], level: Level | None, args: argparse.Namespace) -> int:
    out = console()
    out.print(Text(f"{subject} ({subject.entry.paper})", style="bold"))
    searches = [_searched(subject, scenario, level, _ONE) for scenario in scenarios]
    for found in searches:
        out.print(Text(textwrap.fill(f"{found.scenario:<8}{_summary(found)}", out.width, subsequent_indent=" " * 8)))
    worst = _worst(searches)
    if worst is None or worst.lowest is None:
        if args.save or args.svg:
            out.print(Text("no anomaly was found, so nothing is written"))
        return 0
    history = smallest(worst, worst.lowest)
    exhibit = Exhibit(subject, history, replayed(history), worst.lowest)
    out.print()
    title = f"the smallest found that is not {worst.lowest}, scenario {worst.scenario}"
    out.print(Text(title, style="bold"))
    exhibit.show(out)
    keep(exhibit, args.save, args.svg, out)
    return 0


def _searched(subject: Subject, scenario: Scenario, level: Level | None, effort: Effort) -> Search:
    """A search for a level, or for all that are not promised; for the highest one where all are."""
    levels = [level] if level is not None else unpromised(subject, scenario) or [Level.COMPLETE]
    return search(subject, scenario, levels, effort)


def _worst(searches: Iterable[Search]) -> Search | None:
    """The search that broke the lowest level; of several the one in the simplest scenario."""
    return min((s for s in searches if s.broken), key=lambda s: min(s.broken), default=None)


def _summary(found: Search) -> str:
    """What a search found, or what it tried."""
    subject, scenario = found.subject, found.scenario
    if possible(subject, scenario, 2) is None:
        return "cannot be: its views have one source, and global transactions several"
    promise = f"promises {_promise(subject, scenario)}"
    if found.lowest is None:
        return f"{promise}; nothing was broken in {_tried(found)}"
    broken = f"breaks {found.lowest}" + (", and so what is above it" if found.lowest < Level.COMPLETE else "")
    return f"{promise}; {'THE PROMISE IS BROKEN: ' if found.lowest <= subject.promise(scenario) else ''}{broken}"


def _promise(subject: Subject, scenario: Scenario) -> str:
    return str(subject.promise(scenario)) if subject.promise(scenario) else "nothing"


def _tried(found: Search) -> str:
    parts = []
    if found.histories:
        parts.append(f"{found.histories:,} small histories ({_sizes(found.exhausted)})")
    if found.at_random:
        parts.append(f"{found.at_random:,} random ones")
    return " and ".join(parts) or "no history"


def _sizes(exhausted: list[Size]) -> str:
    """The sizes of which every interleaving was tried, in words."""
    if not exhausted:
        return "not all interleavings of any size"
    by_changes = {size.changes: size.relations for size in exhausted}
    words = [f"{changes} over {relations}" for changes, relations in by_changes.items()]
    return f"all interleavings of {', '.join(words)} relations"


# All algorithms ------------------------------------------------------------------------------------------------------


def _list(scenarios: list[Scenario], level: Level | None) -> int:
    out = console()
    jobs = [(subject, tuple(scenarios), level) for subject in subjects() if level_known(subject, level)]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, width=out.width)
    table.add_column("algorithm", max_width=16)
    for name in ("scenario", "promises", "breaks"):
        table.add_column(name, no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("what is wrong with the view", ratio=1)
    for row in each(_line, jobs, "looking for anomalies"):
        table.add_row(*map(Text, row))
    out.print(table)
    _footer(out)
    return 0


def level_known(subject: Subject, level: Level | None) -> bool:
    """Whether an algorithm can be asked for a level: complete-N needs an N."""
    return level is not Level.COMPLETE_N or subject.run_length is not None


def _line(job: tuple[Subject, tuple[Scenario, ...], Level | None]) -> list[str]:
    subject, scenarios, level = job
    searches = [_searched(subject, scenario, level, _MANY) for scenario in scenarios]
    worst = _worst(searches)
    if worst is None or worst.lowest is None:
        tried = sum(s.histories + s.at_random for s in searches)
        words = f"nothing, in {tried:,} histories" if tried else "(it cannot be in such a scenario)"
        return [str(subject), "", _promise(subject, scenarios[0]), "nothing", "", words]
    history = loads(dumps(smallest(worst, worst.lowest)), "found")
    exhibit = Exhibit(subject, history, replayed(history), worst.lowest)
    words = exhibit.fault.words if exhibit.fault is not None else ""
    size = f"{len(history.workload.transactions):,}"
    return [str(subject), worst.scenario, _promise(subject, worst.scenario), str(worst.lowest), size, words]


def _footer(out: Console) -> None:
    out.print(Text("size: transactions of the smallest history that was found"))
    out.print(Text("one in full: viewkeeper lab anomaly ALGORITHM [--option NAME=VALUE]"))
    out.print(Text("examples of the papers: viewkeeper lab replay NAME, where NAME is one of"))
    for name, history in EXAMPLES.items():
        out.print(Text(f"  {name:<22}  {Subject.of(history.algorithm, history.options)}"))
