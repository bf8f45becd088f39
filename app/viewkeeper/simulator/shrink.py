"""Makes a failing history small: drops one thing at a time for as long as it still fails.

Every list of events means something (see ``History``), so anything may be left out as long as the sources could have
done what remains: no row is deleted that is not there, and no key is there twice. Deterministic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from viewkeeper.algebra.tiny import Name, Row
from viewkeeper.simulator.history import Commit, Event, History, Transaction, Workload

Initial = Mapping[Name, tuple[Row, ...]]


def shrink(history: History, fails: Callable[[History], bool]) -> History:
    """A history that fails too, and of which nothing can be left out. ``history`` itself must fail."""
    assert fails(history), "a history that does not fail cannot be shrunk"
    while smaller := next((h for h in _smaller(history) if feasible(h.workload) and fails(h)), None):
        history = smaller
    return history


def feasible(workload: Workload) -> bool:
    """Whether the sources could do this: only rows that are there are deleted, and keys stay unique."""
    return first_impossible(workload) is None


def first_impossible(workload: Workload) -> int | None:
    """The index of the first transaction that no source could do, −1 for the initial rows, None if all could be."""
    counts: dict[Name, Counter[Row]] = {name: Counter(workload.initial.get(name, ())) for name in workload.catalog}
    if any(not _unique(workload, name, rows) for name, rows in counts.items()):
        return -1
    for index, transaction in enumerate(workload.transactions):
        for name, op in ((name, op) for name, ops in transaction.parts.items() for op in ops):
            rows = counts[(name, op.relation)]
            rows[op.row] += op.count
            if rows[op.row] < 0 or not _unique(workload, (name, op.relation), rows):
                return index
    return None


def _unique(workload: Workload, name: Name, rows: Counter[Row]) -> bool:
    relation = workload.catalog[name]
    if not relation.key:
        return True
    places = [i for i, column in enumerate(relation.columns) if column.name in relation.key]
    keys = [tuple(row[i] for i in places) for row in rows.elements()]
    return len(keys) == len(set(keys))


def _smaller(history: History) -> Iterator[History]:
    """Every way to leave something out, the largest things first."""
    yield from _with_fewer_transactions(history)
    yield from _without_all_of_a_row(history)
    yield from _with_smaller_transactions(history)
    yield from _with_fewer_rows(history)
    yield from _with_fewer_events(history)


def _with_fewer_transactions(history: History) -> Iterator[History]:
    workload = history.workload
    for size in _halves(len(workload.transactions)):
        for start in range(0, len(workload.transactions), size):
            gone = range(start, start + size)
            left = [None if i in gone else t for i, t in enumerate(workload.transactions)]
            yield _having(history, workload.initial, left)


def _without_all_of_a_row(history: History) -> Iterator[History]:
    """Leaves out everything that ever happened to a row: its insertion alone, or its deletion, could not be."""
    workload = history.workload
    first = [(name, row) for name, rows in workload.initial.items() for row in rows]
    later = [
        ((source, op.relation), op.row)
        for transaction in workload.transactions
        for source, ops in transaction.parts.items()
        for op in ops
    ]
    for name, row in dict.fromkeys([*first, *later]):
        initial = {n: tuple(r for r in rows if (n, r) != (name, row)) for n, rows in workload.initial.items()}
        yield _having(history, initial, [_sparing(transaction, name, row) for transaction in workload.transactions])


def _sparing(transaction: Transaction, name: Name, row: Row) -> Transaction | None:
    """The transaction without its changes of a row; None if there is nothing else in it."""
    kept = {
        source: tuple(op for op in ops if ((source, op.relation), op.row) != (name, row))
        for source, ops in transaction.parts.items()
    }
    parts = {source: ops for source, ops in kept.items() if ops}
    return replace(transaction, parts=parts) if parts else None


def _having(history: History, initial: Initial, transactions: Sequence[Transaction | None]) -> History:
    """The history with these rows at first and these transactions; None is one that is not there any more."""
    numbers: dict[int, int] = {}
    for index, transaction in enumerate(transactions):
        if transaction is not None:
            numbers[index] = len(numbers)
    moved = (_moved(event, numbers) for event in history.events)
    left = tuple(t for t in transactions if t is not None)
    workload = replace(history.workload, initial=initial, transactions=left)
    return replace(history, workload=workload, events=tuple(event for event in moved if event is not None))


def _moved(event: Event, numbers: Mapping[int, int]) -> Event | None:
    """The event when the transactions have these numbers."""
    if not isinstance(event, Commit):
        return event
    return Commit(numbers[event.index]) if event.index in numbers else None


def _with_smaller_transactions(history: History) -> Iterator[History]:
    transactions = history.workload.transactions
    for i, transaction in enumerate(transactions):
        for less in _less(transaction):
            changed = (*transactions[:i], less, *transactions[i + 1 :])
            yield replace(history, workload=replace(history.workload, transactions=changed))


def _less(transaction: Transaction) -> Iterator[Transaction]:
    """The transaction without one of its sources, or without one of its changes."""
    parts = transaction.parts
    if len(parts) > 1:
        for source in parts:
            yield replace(transaction, parts={name: ops for name, ops in parts.items() if name != source})
    for source, ops in parts.items():
        for i in range(len(ops) if len(ops) > 1 else 0):
            yield replace(transaction, parts={**parts, source: (*ops[:i], *ops[i + 1 :])})


def _with_fewer_rows(history: History) -> Iterator[History]:
    initial = history.workload.initial
    for name, rows in initial.items():
        for i in range(len(rows)):
            left = {**initial, name: (*rows[:i], *rows[i + 1 :])}
            yield replace(history, workload=replace(history.workload, initial=left))


def _with_fewer_events(history: History) -> Iterator[History]:
    events = history.events
    for size in _halves(len(events)):
        for start in range(0, len(events), size):
            yield replace(history, events=(*events[:start], *events[start + size :]))


def _halves(length: int) -> Iterator[int]:
    """Sizes of what to leave out at once: all, a half, a quarter … one."""
    while length:
        yield length
        length //= 2
