"""``viewkeeper explain``: how a change of each relation becomes a change of the view."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

from viewkeeper.algebra.expressions import ColumnRef, Expr, conjuncts
from viewkeeper.algebra.render import identifier, render
from viewkeeper.algebra.view import Hop, Occurrence, View
from viewkeeper.commands.names import require_view
from viewkeeper.config import load_config
from viewkeeper.job.assembly import assemble


def run(args: argparse.Namespace) -> int:
    """Prints the sweep from every occurrence of the view, in the order the SQL names them."""
    config = load_config(args.conf)
    require_view(config, args.view)
    view = assemble(config).views[args.view]
    print("\n".join(explanation(view, config.views[args.view].algorithm)))
    return 0


def explanation(view: View, algorithm: str) -> Iterator[str]:
    """The plan, line by line."""
    yield f"view {view.name}, algorithm {algorithm}"
    yield f"  {view.sql}"
    for start in view.occurrences:
        yield ""
        yield from _sweep(view, start)
    yield ""
    yield "the view's columns are then computed from what is left"
    for output in view.outputs:
        yield f"  {identifier(output.name)} {output.expr.type} = {_text(view, output.expr)}"


def _sweep(view: View, start: Occurrence) -> Iterator[str]:
    yield f"a change of {_name(start)}"
    yield from _kept(view, [*conjuncts(start.selection), *view.decided_at_start(start.index)], "  ")
    hops = view.hops(start.index)
    for number, hop in enumerate(hops, 1):
        yield from _question(view, hop, number)
    if not hops:
        yield "  asks nothing: the change of the relation is the change of the view"


def _question(view: View, hop: Hop, number: int) -> Iterator[str]:
    o = hop.occurrence
    when = "with this update" if hop.inclusive else "before this update"
    yield f"  {number}. asks {o.source} for {_name(o)}, as it stands {when}"
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
