"""The page of the laboratory: the table and the plots in one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape

from viewkeeper.algorithms.registry import Scenario
from viewkeeper.commands.lab.page_style import STYLE
from viewkeeper.commands.lab.plots import Axis, Line, log_ticks, plot
from viewkeeper.commands.lab.results import BY_RATE, BY_RELATIONS, BY_SOURCES, LASTING, RUSH, SEEDS, SITES, Results
from viewkeeper.simulator.laboratory import Subject, fits
from viewkeeper.simulator.measure import RELATIONS, Stream, Tally, formula
from viewkeeper.simulator.workload import Shape


def page(results: Results, command: str) -> str:
    """The whole page; ``command`` is what makes it again."""
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>The laboratory of Viewkeeper</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>",
            *_head(results, command),
            *_table(results),
            *_plots(results),
            "</main>\n</body>\n</html>\n",
        ]
    )


def _head(results: Results, command: str) -> Iterator[str]:
    random = sum(tally.histories for tally in results.cells.values())
    small = sum(tally.small for tally in results.cells.values())
    yield "<h1>The laboratory: what each algorithm promises and what it does</h1>"
    yield (
        f"<p>Every algorithm ran in every scenario that it can be in: {random:,} random histories in all, four in ten "
        f"drawn with crashes and repeated deliveries, and {small:,} that are the interleavings of small workloads, one "
        "workload after the other. The checkers held each view state against recomputation over the sources. This is "
        "Table 1 of the SWEEP paper (1997) and Figure 2 of the Strobe paper (1996), measured.</p>"
    )
    yield "<dl>"
    for term, meaning in _TERMS:
        yield f"<dt>{term}</dt><dd>{meaning}</dd>"
    yield "</dl>"
    yield f"<p>Made by <code>{escape(command)}</code>; the same seed makes the same page.</p>"


_TERMS = (
    (
        "Scenarios",
        "what a transaction spans. <b>single</b>: one row change at one source. <b>source-local</b>: several changes "
        "at one source. <b>global</b>: changes at several sources, to be shown all or not at all.",
    ),
    ("convergent", "once the updates end and all is handled, the view is right. Until then it may show anything."),
    (
        "weak",
        "convergent, and every state of the view is one that the sources could have been in. They may come in any "
        "order, so the view may go back in time.",
    ),
    (
        "strong",
        "weak, and the states come in an order in which the sources could have gone through them. Some may be left "
        "out: several updates may be shown as one step.",
    ),
    (
        "complete-N",
        "strong, and the states after every N-th transaction and after the last are shown. Those between may "
        "be left out.",
    ),
    ("complete", "strong, and no state is left out: the view goes through one state for every transaction."),
)


# The table -----------------------------------------------------------------------------------------------------------


def _table(results: Results) -> Iterator[str]:
    yield "<h2>Levels and costs</h2>"
    yield '<div class="wide"><table class="main">'
    yield f"<thead><tr>{''.join(_headings())}</tr></thead><tbody>"
    for subject in dict.fromkeys(subject for subject, _ in results.cells):
        yield f"<tr>{''.join(_cells(results, subject))}</tr>"
    yield "</tbody></table></div>"
    yield from _notes(results)


def _headings() -> Iterator[str]:
    yield "<th>algorithm</th>"
    yield from (f"<th>{name}</th>" for name in ("single updates", "source-local", "global"))
    for name in ("questions an update", "worst", "bound", "bytes an update"):
        yield f'<th class="number">{name}</th>'
    for name in ("longest standstill", "stalest"):
        yield f'<th class="number">{name}<br><span class="paper">message times</span></th>'


def _cells(results: Results, subject: Subject) -> Iterator[str]:
    options = str(subject).partition(" ")[2]
    shown = f' <span class="option">{escape(options)}</span>' if options else ""
    paper = f'<br><span class="paper">{escape(subject.entry.paper)}</span>'
    yield f'<th scope="row">{escape(subject.name)}{shown}{paper}</th>'
    yield from (_level(results, subject, scenario) for scenario in Scenario)
    tally, said, rush = results.cells[(subject, Scenario.SINGLE)], formula(subject), results.rush(subject)
    yield _number(tally.questions_per_update, 2)
    yield f'<td class="number">{tally.worst:,}</td>'
    yield f'<td class="number">{said.bound[RELATIONS]:,.0f}<br><span class="paper">{escape(said.text)}</span></td>'
    yield _number(tally.bytes_per_update, 0)
    still = '<br><span class="quiet">needs a pause</span>' if rush.needs_quiet else ""
    yield f'<td class="number">{rush.pause:,.1f}{still}</td>'
    yield _number(rush.stalest, 1)


def _level(results: Results, subject: Subject, scenario: Scenario) -> str:
    tally = results.cells.get((subject, scenario))
    if tally is None or tally.lowest is None:
        return '<td class="none">one source only</td>'
    promised = subject.promise(scenario)
    word = f"promised {promised}" if promised else "nothing promised"
    broken = tally.lowest < promised
    tried = f"{tally.histories:,} random, {tally.small:,} small histories"
    mark = "bad" if broken else f"level{int(tally.lowest)}"
    shown = f'<span class="{mark}">{tally.lowest}</span><br><span class="paper">{word}</span>'
    return f'<td class="level" title="{tried}">{shown}</td>'


def _number(value: float | None, digits: int) -> str:
    return f'<td class="number">{"" if value is None else f"{value:,.{digits}f}"}</td>'


def _notes(results: Results) -> Iterator[str]:
    yield '<ul class="notes">'
    yield (
        f"<li>Level: the lowest that any history reached: {results.histories:,} random ones in each cell, a fifth of "
        "them over views of other shapes, and small ones. Every interleaving was tried, by every algorithm, of: "
        f"{_sizes(results.cells.values())}. Not of <code>sweep</code>: where answers have a channel of their own, "
        "there are too many orders, and its histories are random ones only.</li>"
    )
    yield (
        f"<li>Questions, bytes and bound: single updates to a view of n = {RELATIONS} relations, each in its own "
        "source (ECA: all in one), without faults. The bound counts messages; that of C-Strobe is the paper's (n−1)! "
        "queries with those that lead to them, each of one message a source. Half of the updates are deletions, which "
        "the algorithms with keys handle without a question. Worst is for one update, counted between installs; for "
        "<code>sweep</code>, <code>convergent</code> and pipelines, whose updates overlap, it is the largest average "
        "of a history, rounded up. A batch of <code>sweep</code> asks n−1 questions for each relation that it "
        "changes, and n for snapshots; its bound is for a batch of one update, and the more updates share a batch, the "
        "less each costs.</li>"
    )
    yield (
        f"<li>Standstill: the longest time that the view did not move while {RUSH.updates:,} updates came at "
        f"{RUSH.rate:g} per message time, without a pause; stalest: how old an update was at most when the view got "
        "it. A message time is the mean that a message is under way.</li>"
    )
    yield "</ul>"


def _sizes(tallies: Iterable[Tally]) -> str:
    """The sizes of which all algorithms that were tried systematically saw every interleaving."""
    seen = [set(tally.exhausted) for tally in tallies if tally.small]
    common = sorted(set.intersection(*seen)) if seen else []
    if not common:
        return "as many as there was time for"
    by_changes = {size.changes: size.relations for size in common}
    return "; ".join(
        f"{changes} row change{'s' * (changes > 1)} over up to {relations} relation{'s' * (relations > 1)}"
        for changes, relations in by_changes.items()
    )


# The plots -----------------------------------------------------------------------------------------------------------


def _plots(results: Results) -> Iterator[str]:
    subjects = list(dict.fromkeys(subject for subject, _ in results.cells))
    relations = Axis("n: relations of the view, each in its own source", tuple(s.relations for s in BY_RELATIONS))
    rates = Axis("concurrency: updates per message time", tuple(s.rate for s in BY_RATE), log=True)
    by_n = _lines(results, subjects, BY_RELATIONS, "relations", "questions")
    by_rate = _lines(results, subjects, BY_RATE, "rate", "questions")
    stale = _lines(results, subjects, BY_RATE, "rate", "stalest")
    fixed = f"n = {BY_RATE[0].relations}"
    yield from _figure("Questions an update against n", "One update per message time", by_n, relations, "questions")
    yield from _figure("Questions an update against concurrency", fixed, by_rate, rates, "questions")
    yield from _by_sources(results)
    yield from _figure(
        "Longest staleness against update rate",
        f"{fixed}, streams of {LASTING} message times without a pause. A view as stale as the stream "
        "is long never moved (Strobe and ECA, which need a pause), or fell ever further behind (whoever handles one "
        "update at a time)",
        stale,
        rates,
        "message times",
    )


def _by_sources(results: Results) -> Iterator[str]:
    lines: list[Line] = []
    for streams in BY_SOURCES:
        for line in _lines(results, SITES, streams, "sources", "questions"):
            lines.append(replace(line, name=f"{line.name}, {streams[0].rate:g} per message time", number=len(lines)))
    yield from _figure(
        "Questions an update against sources",
        f"A view of n = {BY_SOURCES[0][0].relations} relations in one source to one source each, neighbours together. "
        "<code>sweep_sites</code> asks a source for all its relations in one visit; it asks again where updates got in "
        "between, so it gains most while updates are rare",
        lines,
        Axis("sources", tuple(stream.sources or stream.relations for stream in BY_SOURCES[0])),
        "questions",
    )


def _lines(
    results: Results, subjects: Sequence[Subject], streams: Sequence[Stream], along: str, what: str
) -> list[Line]:
    lines = []
    everyone = list(dict.fromkeys(subject for subject, _ in results.cells))
    for subject in subjects:
        number = everyone.index(subject)
        measured = ((getattr(stream, along), results.mean(subject, stream, what)) for stream in streams)
        points = tuple((float(x), y) for x, y in measured if y is not None)
        if points:
            lines.append(Line(_line_name(subject), points, number))
    return lines


def _line_name(subject: Subject) -> str:
    return str(subject) if fits(subject, Shape(2, 2)) else f"{subject} (all in one source)"


def _figure(title: str, subtitle: str, lines: list[Line], x: Axis, unit: str) -> Iterator[str]:
    y = Axis(f"{unit} (log scale)", log_ticks([y for line in lines for _, y in line.points]), log=True)
    yield f"<h2>{title}</h2><p>{subtitle}. Each point is the mean of {SEEDS} streams.</p>"
    yield f'<figure class="wide">{plot(title, lines, x, y)}</figure>'
    yield "<details><summary>the numbers</summary>"
    yield '<div class="wide"><table><thead><tr><th>algorithm</th>'
    yield "".join(f'<th class="number">{tick:g}</th>' for tick in x.ticks)
    yield "</tr></thead><tbody>"
    for line in lines:
        values = "".join(f'<td class="number">{y:,.2f}</td>' for _, y in line.points)
        yield f'<tr><th scope="row">{escape(line.name)}</th>{values}</tr>'
    yield "</tbody></table></div></details>"
