"""How a run is shown: step by step, then the level it reached with the evidence, then what it cost."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from viewkeeper.consistency.levels import Judgement, Level
from viewkeeper.errors import UsageError
from viewkeeper.simulator.diagram import WIDTH, draw
from viewkeeper.simulator.diagram_svg import draw_svg
from viewkeeper.simulator.evidence import Fault, fault_of
from viewkeeper.simulator.files import dumps
from viewkeeper.simulator.history import History
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


def console() -> Console:
    """Where everything is printed: as wide as the terminal, or as a page where there is none."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDTH)


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
        title = f"{self.subject}: this history is {_said(self.judgement.level)}"
        return draw_svg(self.steps, self.lanes, title)

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
            text = Text(f"{line.lanes}  ", style="dim")
            text.append(line.text, style=_TONES.get(line.tone, ""))
            if line.tone == "name":
                text = Text(line.lanes, style="bold")
            out.print(text)
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
        said = formula(self.subject)
        paper = f"the papers say {said.text}, n = {len(self.world.tiny.view.occurrences)}"
        asked = f"{costs.questions} for {updates} update{'s' * (updates > 1)}, {costs.questions / updates:.2f} each"
        yield from _hanging("questions", f"{asked} ({paper})")
        per_update = f"{costs.bytes / updates:.0f} an update"
        yield from _hanging("bytes", f"{costs.bytes:,} carried by questions and answers, {per_update}")


def _hanging(head: str, text: str) -> list[str]:
    return textwrap.wrap(f"{head:<15} {text}", WIDTH, subsequent_indent=" " * 16, break_long_words=False)


def _said(level: Level) -> str:
    return "none: not even convergent" if level is Level.INCONSISTENT else str(level)


def write(path: str, text: str) -> None:
    """Writes a file that an argument names; raises UsageError if it cannot be."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as e:
        raise UsageError.at(path, f"cannot be written: {(e.strerror or str(e)).lower()}", "name another file") from None


def keep(exhibit: Exhibit, save: str | None, svg: str | None, out: Console) -> None:
    """Writes the files that were asked for."""
    if save is not None:
        write(save, dumps(exhibit.history))
        out.print(Text(f"saved           {save}; see it again: viewkeeper lab replay {save}"))
    if svg is not None:
        write(svg, exhibit.picture())
        out.print(Text(f"drawn           {svg}"))
