"""The manager of a view whose algorithm handles one update at a time: everything in ``algorithms.registry``.

A batch goes through the algorithm in runs. The updates of a run are delivered in order; then its questions are
answered in the order in which they were asked, all as of the run's last update (``frozen_state``); then it is flushed.
So nothing is under way when a run ends, nothing is carried from one batch to the next, and a crash is just the batch
done again.

The papers' strong consistency lets a step end with one source further than another (``nested_sweep`` takes updates in
per source). Here a state is read by its number, beside other views at the same one, so such action lists are tied to
those that follow, until what they reflect is everything up to a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from viewkeeper.algebra.bag import COUNT, UPDATE, consolidate
from viewkeeper.algebra.tiny import Name, TinyView, plain
from viewkeeper.algebra.types import Catalog
from viewkeeper.algorithms.protocol import Algorithm, Compensation, Install, Op, Update
from viewkeeper.algorithms.runner import Asked, Emitted, Runner
from viewkeeper.algorithms.sweep import Queue, Sweep
from viewkeeper.managers.contents import Labelled, Stored, signed_rows
from viewkeeper.managers.frozen_state import FrozenState
from viewkeeper.managers.keeping import Keeping
from viewkeeper.managers.manager import Asking
from viewkeeper.messages import Update as Received

RUN = 50
"""Changed rows that are delivered before the first answer. All of them are concurrent to the algorithm, and what the
papers do about concurrent updates costs the square of their number."""


@dataclass
class StepwiseManager(Asking):
    """Keeps one view by an algorithm of the registry; ``stored`` gives the view as of the last cut."""

    keeping: Keeping = field(kw_only=True)
    catalog: Catalog = field(kw_only=True)
    stored: Stored = field(kw_only=True)
    run: int = field(kw_only=True)  # changed rows that the algorithm receives at a time

    @cached_property
    def tiny(self) -> TinyView:
        """The view over rows that hold just the columns it uses, so that nothing else counts as a change."""
        used: dict[Name, set[str]] = {name: set() for name in self.view.relations}
        for o in self.view.occurrences:
            used[(o.source, o.relation)].update(c.name for c in o.columns)
        keys = {name: self.catalog[name].key for name in used}
        return TinyView(self.view, {name: tuple(sorted(columns)) for name, columns in used.items()}, keys)

    def change(self, queue: Queue, received: Sequence[Received], numbers: Iterable[int]) -> Iterator[pa.Table]:
        """The view's change under these updates, whose numbers never go back.

        What is stored under a number makes the view that of the sources after exactly the updates up to it. The number
        is one of this batch in any case: states of earlier cuts stay as they were published.
        """
        labelled: list[Labelled] = []
        for run in runs(self.updates(queue, received, numbers), self.run, self.keeping.complete_n or 1):
            labelled += steps([update.number for update in run], self._installs(queue, run))
        yield signed_rows(self.view, labelled, self.stored)

    def updates(self, queue: Queue, received: Sequence[Received], numbers: Iterable[int]) -> list[Update]:
        """The batch as the algorithm receives it: every update, also one that the view cannot see.

        Updates that share a number are one transaction to the algorithm, so its promise for transactions of one
        source holds for those over several as well.
        """
        ops = self._ops(queue)
        shared: dict[int, list[Received]] = {}
        for number, update in zip(numbers, received, strict=True):
            shared.setdefault(int(number), []).append(update)
        return [_transaction(number, row, tuple(ops.get(number, ()))) for number, row in shared.items()]

    def _ops(self, queue: Queue) -> dict[int, list[Op]]:
        """What each update did in all, deletions first; the steps in between were seen by nobody outside it."""
        ops: dict[int, list[Op]] = {}
        for name, columns in self.tiny.columns.items():
            if (changes := queue.changes.get(name)) is None:
                continue
            table = consolidate(changes.select([*columns, COUNT, UPDATE]))
            values = [table[column].to_pylist() for column in table.column_names]
            for *row, count, number in zip(*values, strict=True):
                op = Op(name[1], plain(row), 1 if count > 0 else -1, name[0])
                ops.setdefault(number, []).extend([op] * abs(count))
        return {number: sorted(each, key=lambda op: op.count) for number, each in ops.items()}

    def _installs(self, queue: Queue, run: Sequence[Update]) -> Iterator[Install]:
        """Action lists in the order in which the algorithm emits them; afterwards the view reflects the whole run."""
        runner = Runner(self._algorithm())
        sweep = Sweep(self.view, queue, on_compensated=self.compensated)
        state = FrozenState(self.tiny, sweep, run[-1].number, self.ask)
        unreflected = {update.number for update in run}
        for install in _driven(runner, state, run):
            unreflected -= install.updates
            yield install
        assert runner.idle and not unreflected, f"{self.keeping.algorithm} left updates {sorted(unreflected)} behind"

    def _algorithm(self) -> Algorithm:
        algorithm = self.keeping.make(self.tiny)
        algorithm.on_compensation = self._algorithm_compensated
        return algorithm

    def _algorithm_compensated(self, compensation: Compensation) -> None:
        self.compensated(self.view.occurrences[compensation.occurrence].source)


def _transaction(number: int, row: Sequence[Received], ops: tuple[Op, ...]) -> Update:
    """The updates of one number as one."""
    if len(row) == 1:
        return Update(number, row[0].source, row[0].txn, ops)
    sources = frozenset(update.source for update in row)
    return Update(number, "+".join(sorted(sources)), "+".join(update.txn for update in row), ops, spans=sources)


def _driven(runner: Runner, state: FrozenState, run: Sequence[Update]) -> Iterator[Install]:
    """Delivers a run, then answers until nothing is asked any more, not even by a flush."""
    asked: list[Asked] = []
    for update in run:
        yield from _sorted(runner.receive(update), asked)
    while True:
        while asked:
            # The answers do not depend on each other, so all that are asked for now are found together.
            questions, asked = asked, []
            answers = state.answers([question.query for question in questions])
            for question, answer in zip(questions, answers, strict=True):
                yield from _sorted(runner.answer(question.id, answer), asked)
        yield from _sorted(runner.flush(), asked)
        if not asked:
            return


def _sorted(emitted: Iterable[Emitted], asked: list[Asked]) -> Iterator[Install]:
    """Puts questions aside and lets action lists through."""
    for item in emitted:
        if isinstance(item, Asked):
            asked.append(item)
        else:
            yield item


def steps(numbers: Sequence[int], installs: Iterable[Install]) -> Iterator[Labelled]:
    """The action lists of a run, tied together where one alone reflects an update but not all before it.

    One that reflects nothing whole (Strobe in the middle of a transaction) is tied to the next as well.
    """
    tied: list[Install] = []
    done = reflected = 0  # how many of the numbers are in steps, and how many the view reflects
    for install in installs:
        tied.append(install)
        reflected += len(install.updates)
        if reflected > done and max(max(each.updates, default=0) for each in tied) == numbers[reflected - 1]:
            done = reflected
            yield _step(numbers[done - 1], tied)
            tied = []
    if tied:
        yield _step(numbers[-1], tied)


def _step(label: int, tied: Sequence[Install]) -> Labelled:
    updates = frozenset[int]().union(*(install.updates for install in tied))
    return Labelled(label, Install(updates, tuple(action for install in tied for action in install.actions)))


def runs(updates: Sequence[Update], size: int, multiple: int = 1) -> Iterator[Sequence[Update]]:
    """The updates in runs of about ``size`` changed rows, each but the last up to a ``multiple``."""
    begin = rows = 0
    for end, update in enumerate(updates, 1):
        rows += max(1, len(update.ops))
        if rows >= size and update.number % multiple == 0:
            yield updates[begin:end]
            begin, rows = end, 0
    if begin < len(updates):
        yield updates[begin:]
