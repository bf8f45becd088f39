"""ECA, the eager compensating algorithm ([ZGMHW95], as sweep-1997 section 3 and strobe-1996 sum it up).

Promises strong consistency, also for transactions and for rows that are there several times. Assumes that all
relations are in one source, and pauses between updates: the view moves when no query is unanswered.

For each update one query is sent, in which errors of the queries before it are made up for in advance:

    Q_i  =  V⟨U_i⟩ − Σ_{Q_j ∈ UQS} Q_j⟨U_i⟩

Why it is right: let S be the source's state after all updates received. Then always

    V(S)  =  MV + COLLECT + Σ_{Q ∈ UQS} Q(S)

An answer arrives after exactly the updates that it reflects, so moving it to COLLECT keeps this. An update changes
V(S) and each Q(S), and Q_i is the difference that this makes. The difference of an expression E under an update
that changes several of its open occurrences, in terms of the state after it, is by inclusion and exclusion

    E(new) − E(old)  =  Σ_{A ≠ ∅} (−1)^{|A|+1} E⟨ΔR_a for each a in A⟩

over the sets A of changed occurrences: R_old is R_new − ΔR in every factor. A term with nothing left open is a
constant, and is collected without asking.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations

from viewkeeper.algebra.tiny import Bag, Part, TinyView, add
from viewkeeper.algorithms.protocol import Algorithm, Change, Compensation, Install, Process, Update
from viewkeeper.algorithms.source_evaluate import Expressions, merged


@dataclass(eq=False)
class Unanswered:
    """A query Q_i without its answer: its terms, signed."""

    update: int
    terms: list[Part]


@dataclass
class Eca(Algorithm):
    """``unanswered`` is UQS; ``collect`` is COLLECT and makes the view reflect ``received`` once UQS is empty."""

    unanswered: list[Unanswered] = field(default_factory=list, init=False)
    collect: Bag = field(default_factory=dict, init=False)
    received: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self.expressions = Expressions(self.tiny)

    def receive(self, update: Update) -> Process:
        """Sends Q_i, collects its answer, and moves the view if that was the last one."""
        self.received.add(update.number)
        changes = self.expressions.changes(update)
        query = Unanswered(update.number, merged((*self.view_change(changes), *self.compensation(update, changes))))
        self.unanswered.append(query)
        answer = yield from self.expressions.evaluate(query.terms)
        self.unanswered.remove(query)
        add(self.collect, self.tiny.output(answer))
        if not self.unanswered:
            yield self.applied()

    def view_change(self, changes: Mapping[int, Bag]) -> Iterator[Part]:
        """V⟨U_i⟩."""
        for chosen in _subsets(changes):
            first, *others = chosen
            yield self.substituted(self.expressions.view_with(first, changes[first]), others, changes, len(chosen))

    def compensation(self, update: Update, changes: Mapping[int, Bag]) -> Iterator[Part]:
        """− Σ Q_j⟨U_i⟩ over the unanswered queries."""
        for query in self.unanswered:
            for term in query.terms:
                for chosen in _subsets(sorted(self.expressions.open(term) & changes.keys())):
                    error = self.substituted(term, chosen, changes, len(chosen))
                    if error:
                        self.on_compensation(Compensation(query.update, (update.number,), chosen[0], error))
                        yield {combination: -count for combination, count in error.items()}

    def substituted(self, part: Part, occurrences: Iterable[int], changes: Mapping[int, Bag], among: int) -> Part:
        """A term of the sum by inclusion and exclusion, for ``among`` substitutions in all."""
        for at in occurrences:
            part = self.expressions.substitute(part, at, changes[at])
        return part if among % 2 else {combination: -count for combination, count in part.items()}

    def applied(self) -> Install:
        """MV ← MV + COLLECT."""
        install = Install(frozenset(self.received), (Change(dict(self.collect)),))
        self.received.clear()
        self.collect.clear()
        return install


def several_sources(tiny: TinyView) -> str | None:
    """That a view's relations are not all in one source, in words."""
    sources = sorted(tiny.view.sources)
    return f"its relations are in {len(sources)} sources ({', '.join(sources)})" if len(sources) > 1 else None


def _subsets(occurrences: Iterable[int]) -> Iterator[tuple[int, ...]]:
    """Every set of at least one of the occurrences."""
    known = tuple(occurrences)
    for many in range(1, len(known) + 1):
        yield from combinations(known, many)
