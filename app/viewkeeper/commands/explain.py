"""``viewkeeper explain``: how a change of each relation becomes a change of the view."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

from viewkeeper.algebra.expressions import ColumnRef, Expr, conjuncts
from viewkeeper.algebra.render import identifier, render
from viewkeeper.algebra.view import Hop, Occurrence, View
from viewkeeper.algorithms.registry import SWEEP
from viewkeeper.commands.names import require_view
from viewkeeper.config import load_config
from viewkeeper.consistency.levels import Level
from viewkeeper.counts import some
from viewkeeper.job.assembly import assemble
from viewkeeper.managers.keeping import REFRESH, Keeping


def run(args: argparse.Namespace) -> int:
    """Prints the sweep from every occurrence of the view, in the order the SQL names them."""
    config = load_config(args.conf)
    require_view(config, args.view)
    project = assemble(config)
    print("\n".join(explanation(project.views[args.view], project.keeping[args.view])))
    return 0


def explanation(view: View, keeping: Keeping) -> Iterator[str]:
    """The plan, line by line."""
    yield f"view {view.name}, algorithm {keeping.algorithm}"
    yield f"  {view.sql}"
    yield from _promise(keeping)
    if keeping.algorithm == REFRESH:
        yield ""
        yield f"is computed anew, as a load is, every {_period(keeping)}"
        yield from _read_in_full(view)
    else:
        for start in view.occurrences:
            yield ""
            yield from _sweep(view, start, keeping.algorithm == SWEEP)
    yield ""
    if view.query is not None:
        yield "the view's columns are computed by DuckDB, in memory, from all of these rows"
        yield from (f"  {identifier(output.name)} {output.expr.type}" for output in view.outputs)
        return
    yield "the view's columns are computed from what is left"
    for output in view.outputs:
        yield f"  {identifier(output.name)} {output.expr.type} = {_text(view, output.expr)}"


def _read_in_full(view: View) -> Iterator[str]:
    """The relations of a view that no sweep can compute."""
    if view.query is None:
        return
    for number, o in enumerate(view.occurrences, 1):
        yield f"  {number}. reads all rows of {o.source}.{o.relation}, as they stand with the last update"
        yield f"       columns   {', '.join(identifier(c.name) for c in o.columns)}"


def _promise(keeping: Keeping) -> Iterator[str]:
    """Where the algorithm comes from, what it promises, and what it assumes (else the view would be refused)."""
    if keeping.entry is not None:
        options = "".join(f", {name} {str(value).lower()}" for name, value in keeping.options.items())
        yield f"  from      {keeping.entry.paper}{options}"
    yield f"  promises  {_MEANING[keeping.level]}"
    for assumption in keeping.assumes:
        yield f"  assumes   {assumption.says}"


def _period(keeping: Keeping) -> str:
    every = keeping.every
    return some(every, "update") if isinstance(every, int) else f"{every.total_seconds():g} s" if every else "batch"


_MEANING = {
    Level.INCONSISTENT: "nothing: changes that meet may leave wrong rows in the view for ever",
    Level.CONVERGENT: "convergent: right whenever a cut is made; states in between may be no state of the sources",
    Level.WEAK: "weak: every state of the view is one of the sources, but not always in their order",
    Level.STRONG: "strong: the view goes through states of the sources, in order; a step may take several updates",
    Level.COMPLETE_N: "complete-N: strong, and the view shows the state after every N-th update",
    Level.COMPLETE: "complete: the view shows the state after every single update",
}


def _sweep(view: View, start: Occurrence, dated: bool) -> Iterator[str]:
    yield f"a change of {_name(start)}"
    yield from _kept(view, [*conjuncts(start.selection), *view.decided_at_start(start.index)], "  ")
    hops = view.hops(start.index)
    for number, hop in enumerate(hops, 1):
        yield from _question(view, hop, number, dated)
    if not hops:
        yield "  asks nothing: the change of the relation is the change of the view"


def _question(view: View, hop: Hop, number: int, dated: bool) -> Iterator[str]:
    o = hop.occurrence
    when = "with this update" if hop.inclusive else "before this update"
    yield f"  {number}. asks {o.source} for {_name(o)}" + (f", as it stands {when}" if dated else "")
    yield f"       columns   {', '.join(identifier(c.name) for c in o.columns)}"
    pairs = zip(hop.key, hop.probe, strict=True)
    equal = [f"{identifier(key)} = {_column(view, *probe)}" for key, probe in pairs]
    yield f"       keys      {', '.join(equal)}"
    yield from _kept(view, conjuncts(o.selection), "       ", "selection ")
    yield from _kept(view, hop.residuals, "       ")


def _kept(view: View, conditions: Iterable[Expr], indent: str, word: str = "keeps     ") -> Iterator[str]:
    for condition in conditions:
        yield f"{indent}{word}{_text(view, condition)}"


def _name(occurrence: Occurrence) -> str:
    relation = f"{occurrence.source}.{occurrence.relation}"
    return relation if occurrence.alias == occurrence.relation else f"{relation} {occurrence.alias}"


def _column(view: View, occurrence: int, column: str) -> str:
    return f"{identifier(view.occurrences[occurrence].alias)}.{identifier(column)}"


def _text(view: View, expr: Expr) -> str:
    def name(ref: ColumnRef) -> str:
        return _column(view, ref.occurrence, ref.column)

    text = render(expr, name)
    return text[1:-1] if text.startswith("(") else text  # a text that starts so is in parentheses as a whole
