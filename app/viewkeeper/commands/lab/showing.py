"""How a run is shown: step by step, then the level it reached with the evidence, then what it cost."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from viewkeeper.algorithms.registry import Scenario
from viewkeeper.consistency.levels import Judgement, Level
from viewkeeper.errors import UsageError
from viewkeeper.simulator.diagram import WIDTH, draw, legend
from viewkeeper.simulator.diagram_svg import draw_svg
from viewkeeper.simulator.evidence import Fault, fault_of
from viewkeeper.simulator.files import dumps
from viewkeeper.simulator.history import History, Workload
from viewkeeper.simulator.laboratory import AnyWorld, Oracle, Subject, judged
from viewkeeper.simulator.measure import formula
from viewkeeper.simulator.narrative import narrate
from viewkeeper.simulator.wording import bag_text

_MAPPED = 24
"""View states whose source states are written out; of more, the first and the last."""

_TONES = {
    "name": "bold",
    "commit": "cyan",
    "update": "cyan",
    "send": "yellow",
    "evaluate": "yellow",
    "answer": "yellow",
    "compensate": "magenta",
    "install": "green",
    "begin": "green",
    "crash": "bold red",
    "wrong": "bold red",
}


_FAULTS = frozenset({"crash", "duplicate", "delay"})


class _Printer(Console):
    def on_broken_pipe(self) -> None:
        # The command line decides how a command ends whose reader is gone; rich would end it with 1.
        raise BrokenPipeError


def console() -> Console:
    """Where everything is printed: as wide as the terminal, but no narrower than a page."""
    out = _Printer(highlight=False, soft_wrap=True)
    out.width = max(out.width, WIDTH) if sys.stdout.isatty() else WIDTH
    return out


class Exhibit:
    """A run with its judgement.

    ``level`` is the one whose breaking is to be shown. Without it, only states that never were are marked: most
    algorithms leave states out, and are none the worse for it.
    """

    def __init__(self, subject: Subject, history: History, world: AnyWorld, level: Level | None = None) -> None:
        self.subject, self.history, self.world = subject, history, world
        oracle = Oracle(history.workload)
        self.judgement: Judgement = judged(world, subject.run_length, oracle)
        self.fault: Fault | None = fault_of(world, self.judgement, level or Level.COMPLETE, oracle)
        marked = self.fault is not None and (level is not None or self.fault.is_lie)
        self.steps = narrate(world, self.fault if marked else None)

    @property
    def lanes(self) -> tuple[str, ...]:
        """The sources in the order in which the view joins their relations."""
        return tuple(dict.fromkeys(relation.source for relation in self.history.workload.relations))

    def picture(self) -> str:
        """The run as SVG."""
        level = self.judgement.level
        reached = f"is {level}" if level else "reaches no level, not even convergent"
        return draw_svg(self.steps, self.lanes, f"{self.subject}: this history {reached}")

    def show_as(self, out: Console, scenario: Scenario, name: str = "") -> None:
        """Prints the run as one of a scenario: whose it is, what happened, and what was promised there."""
        self._head(out, scenario, name)
        self.show(out)
        promised = self.subject.promise(scenario)
        out.print(Text(f"promised        {promised if promised else 'nothing'}"))

    def _head(self, out: Console, scenario: Scenario, name: str) -> None:
        subject, history = self.subject, self.history
        out.print(Text(f"{name}{subject} ({subject.entry.paper})", style="bold"))
        count = len(history.workload.transactions)
        facts = [f"{count:,} transaction{'s' * (count != 1)}", f"scenario {scenario}"]
        facts += [] if history.seed is None else [f"seed {history.seed}"]
        facts += [f"by default {', '.join(defaults)}"] if (defaults := _defaults(subject)) else []
        out.print(Text(", ".join(facts)))

    def show(self, out: Console) -> None:
        """Prints the run, its level with the evidence, and its costs."""
        self.show_workload(out)
        self.show_steps(out)
        self.show_verdict(out)

    def show_workload(self, out: Console) -> None:
        workload = self.history.workload
        for line in textwrap.wrap(f"view  {workload.sql}", out.width, subsequent_indent="      "):
            out.print(Text(line))
        for relation in workload.relations:
            rows = workload.initial.get((relation.source, relation.name), ())
            columns = ",".join(c.name for c in relation.columns)
            key = f", key {','.join(relation.key)}" if relation.key else ""
            counts: dict[tuple[object, ...], int] = {row: rows.count(row) for row in rows}
            told = f"{relation.source:<4}  {relation.name}({columns}){key}: {bag_text(counts)}"
            out.print(Text(textwrap.fill(told, out.width, subsequent_indent="      ")))
        out.print()

    def show_steps(self, out: Console) -> None:
        for line in draw(self.steps, self.lanes, out.width):
            if line.tone == "name":
                out.print(Text(line.lanes, style="bold"))
            else:
                out.print(Text.assemble((line.lanes, "dim"), "  ", (line.text, _TONES.get(line.tone, ""))))
        out.print()
        out.print(Text(textwrap.fill(legend(self.steps), out.width), style="dim"))
        out.print()

    def show_verdict(self, out: Console) -> None:
        for line in self.verdict():
            out.print(Text(line))

    def verdict(self) -> Iterator[str]:
        """The level reached, why no higher one, which source states the view showed, and the costs."""
        level, verdicts = self.judgement.level, self.judgement.verdicts
        reason = f": {verdicts[level].reason}" if level in verdicts else ""
        yield from _hanging("level reached", f"{_said(level)}{reason}")
        if self.fault is not None:
            yield from _hanging(f"not {self.fault.level}", self.fault.words)
        undecided = self.judgement.undecided
        if undecided:
            names = ", ".join(map(str, undecided))
            yield from _hanging("undecided", f"{names}: too many source states to look at")
        yield from self._mapping()
        yield from self._costs()

    def _mapping(self) -> Iterator[str]:
        verdict = self.judgement.verdicts.get(self.judgement.level)
        if verdict is None or verdict.mapping is None:
            return
        sources = ",".join(self.history.workload.sources)
        pairs = [f"{i}→({','.join(map(str, vector))})" for i, vector in enumerate(verdict.mapping)]
        if len(pairs) > _MAPPED:
            pairs[_MAPPED // 2 : -_MAPPED // 2] = ["…"]
        yield from _hanging("view states", f"as transactions of ({sources}) included: {' '.join(pairs)}")

    def _costs(self) -> Iterator[str]:
        updates, costs = len(self.world.order), self.world.costs
        if not updates:
            yield from _hanging("questions", "none, there were no updates")
            return
        asked = f"{costs.questions:,} for {updates:,} update{'s' * (updates > 1)}"
        each = f"{costs.questions / updates:,.2f} each"
        yield from _hanging("questions", f"{asked}, {each}{self._snapshots()} ({self._expected()})")
        per_update = f"{costs.bytes / updates:,.0f} an update"
        yield from _hanging("bytes", f"{costs.bytes:,} carried by questions and answers, {per_update}")

    def _snapshots(self) -> str:
        freezes = sum(happened.kind == "freeze" for happened in self.world.log)
        return f", {freezes * len(self.world.workload.sources):,} of them for snapshots" if freezes else ""

    def _expected(self) -> str:
        """What the formula says; it speaks of runs without faults, after which questions are asked again."""
        if any(happened.kind in _FAULTS for happened in self.world.log):
            return "with faults, for which there is no formula"
        said = formula(self.subject)
        return f"{said.said_by} {said.text}, n = {len(self.world.tiny.view.occurrences)}"


def scenario_of(workload: Workload) -> Scenario:
    """The narrowest scenario that all transactions of a workload are in."""
    if any(len(t.parts) > 1 for t in workload.transactions):
        return Scenario.GLOBAL
    several = any(len(ops) > 1 for t in workload.transactions for ops in t.parts.values())
    return Scenario.LOCAL if several else Scenario.SINGLE


def _defaults(subject: Subject) -> list[str]:
    """The options that were not chosen, as they are then."""
    left = (name for name in subject.entry.options if name not in subject.options)
    return [f"{name}={getattr(subject.entry.make, name)}".lower() for name in left]


def _hanging(head: str, text: str) -> list[str]:
    return textwrap.wrap(f"{head:<15} {text}", WIDTH, subsequent_indent=" " * 16, break_long_words=False)


def _said(level: Level) -> str:
    return "none: not even convergent" if level is Level.INCONSISTENT else str(level)


def write(path: str, text: str) -> None:
    """Writes a file that an argument names; raises UsageError if it cannot be."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as e:
        raise _unwritable(path, e) from None


def require_writable(*paths: str | None) -> None:
    """Raises UsageError if one of the files could not be written; leaves all as they are."""
    for path in filter(None, paths):
        file = Path(path)
        try:
            there = file.exists()
            with file.open("a"):
                pass
            if not there:
                file.unlink()
        except OSError as e:
            raise _unwritable(path, e) from None


def _unwritable(path: str, error: OSError) -> UsageError:
    return UsageError.at(path, f"cannot be written: {(error.strerror or str(error)).lower()}", "name another file")


def keep(exhibit: Exhibit, save: str | None, svg: str | None, out: Console) -> None:
    """Writes the files that were asked for."""
    if save is not None:
        write(save, dumps(exhibit.history))
        out.print(Text(f"saved           {save}; see it again: viewkeeper lab replay {save}"))
    if svg is not None:
        write(svg, exhibit.picture())
        out.print(Text(f"drawn           {svg}"))
