"""The checker of the streaming-consistency test: every cut of a warehouse against what was committed.

At every cut, all views at that same cut:

    Σ credits.amount × _count  −  Σ debits.amount × _count  =  0        (the public test's law)
    Σ balances.balance × _count  =  0                                    (its ``total``)
    credits, debits and the self-join hold exactly one row for each payment that is visible, and no other

and which payments, accounts and owners are visible is what had been committed at the positions that the cut names: no
payment is skipped, none comes before an earlier one, no half of a source transaction shows. The first laws also hold
after every single update, of the views that show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

import viewkeeper
from viewkeeper.bench.consistency_world import BANK, LEDGER, VIEWS, Books, Journal
from viewkeeper.messages import Reached
from viewkeeper.warehouse.cuts import Cut
from viewkeeper.warehouse.reader import WarehouseReader

_ONE_BY_ONE = ("credits", "debits", "transfers")
"""The views that show the state after every update."""

_KEYS = {"credits": "id", "debits": "id", "transfers": "id", "balances": "account"}
_TOLD = 20

Columns = dict[str, np.ndarray]
"""Per column its value by key; 0 where the key is not there."""


@dataclass
class Report:
    """What was looked at, and what was wrong there."""

    cuts: int = 0
    updates: int = 0
    read: list[int] = field(default_factory=list)  # the cuts that were also read in full
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        found = self.violations[:_TOLD]
        more = [f"… and {len(self.violations) - _TOLD} more"] if len(self.violations) > _TOLD else []
        return "\n".join([f"{self.cuts} cuts, {self.updates} updates", *found, *more])


def check(warehouse: Path, books: Books, reads: int = 5) -> Report:
    """Looks at every cut there is, and reads so many of them in full, the first and the newest among them."""
    reader = WarehouseReader(warehouse)
    newest = reader.newest()
    assert newest is not None, "there is no cut yet"
    cuts = reader.cuts(0, newest.cut)
    report = Report(updates=newest.last_update)
    shown, truth = _Shown.at(warehouse, cuts[0], books), _Truth(books)
    changes = {view: _Changes.of(warehouse, view, cuts, books) for view in VIEWS}
    full = {cuts[round(i)].cut for i in np.linspace(0, len(cuts) - 1, max(2, reads))}
    for cut in cuts:
        for view, change in changes.items():
            shown.add(view, change.in_cut(cut.cut))
        report.cuts += 1
        truth.go_to(cut)
        found = [*_laws(shown), *shown.differences(truth.views())]
        if cut.cut in full:
            report.read.append(cut.cut)
            found += [f"read in full: {what}" for what in _Shown.at(warehouse, cut, books).differences(shown.views)]
        report.violations += [f"cut {cut.cut}: {what}" for what in found]
    for view, change in changes.items():
        report.violations += [f"{view}: {what}" for what in change.misplaced(cuts)]
    report.violations += _laws_by_update({view: changes[view] for view in _ONE_BY_ONE}, newest.last_update)
    return report


def _laws(shown: _Shown) -> Iterable[str]:
    """What the public test looks at, of the views alone."""
    views = shown.views
    credits, debits = (int(views[name]["amount"].sum()) for name in ("credits", "debits"))
    if credits != debits:
        yield f"credits − debits = {credits - debits}"
    if total := int(views["balances"]["balance"].sum()):
        yield f"the total of all balances is {total}"
    visible = views["credits"]["_count"]
    for name in _ONE_BY_ONE:
        counts = views[name]["_count"]
        if wrong := np.flatnonzero((counts != visible) | (counts < 0) | (counts > 1)).tolist():
            yield f"{name} holds payment {wrong[0]} {counts[wrong[0]]} times, credits {visible[wrong[0]]} times"


def _laws_by_update(changes: Mapping[str, _Changes], last: int) -> list[str]:
    """The same after every update: each of them changes both sides, and the number of rows, alike."""
    amounts = {name: changes[name].by_update("amount", last) for name in ("credits", "debits")}
    rows = {name: change.by_update(None, last) for name, change in changes.items()}
    found = [f"update {k}: credits and debits differ" for k in np.flatnonzero(amounts["credits"] != amounts["debits"])]
    for name in rows:
        wrong = np.flatnonzero(rows[name] != rows["credits"])
        found += [f"update {k}: {name} and credits do not have as many rows" for k in wrong]
    return found


@dataclass
class _Shown:
    """What views show, added up by key: for one row of a key, its values."""

    views: dict[str, Columns]
    books: Books

    @classmethod
    def at(cls, warehouse: Path, cut: Cut, books: Books) -> _Shown:
        """As anybody reads the views at a cut."""
        shown = cls({}, books)
        tables = viewkeeper.read_cut(warehouse, list(VIEWS), cut.cut)
        for view, table in tables.items():
            shown.add(view, _numbers(table, books))
        return shown

    def add(self, view: str, change: Columns) -> None:
        key, count = change[_KEYS[view]], change["_count"]
        size = self.books.sizes[_KEYS[view]]
        columns = self.views.setdefault(view, {})
        for name, values in change.items():
            if name not in (_KEYS[view], "_update", "_cut"):
                total = columns.setdefault(name, np.zeros(size, np.int64))
                np.add.at(total, key, count if name == "_count" else values * count)

    def differences(self, expected: Mapping[str, Columns]) -> Iterable[str]:
        for view, columns in expected.items():
            for name, values in columns.items():
                found = self.views[view][name]
                wrong = np.flatnonzero(found != values)
                if len(wrong):
                    key = int(wrong[0])
                    what = f"{view}.{name} is wrong for {len(wrong)} {_KEYS[view]}s, the first {key}"
                    yield f"{what}: {found[key]} instead of {values[key]}"


class _Truth:
    """What the views must show, by replaying what was committed up to a cut's positions."""

    def __init__(self, books: Books):
        self._payments = _Replay(books.payments, books.sizes["id"], 3)
        self._names = _Replay(books.names, books.sizes["account"], 1)

    def go_to(self, cut: Cut) -> None:
        self._payments.go_to(Reached.parse(cut.positions[LEDGER]).furthest)
        self._names.go_to(Reached.parse(cut.positions[BANK]).furthest)

    def views(self) -> dict[str, Columns]:
        payer, payee, amount = self._payments.state.T
        (owner,) = self._names.state.T
        once = (amount > 0).astype(np.int64)
        credits, debits = (
            {"_count": once, "account": account, "owner": owner[account], "amount": amount}
            for account in (payee, payer)
        )
        transfers = {"_count": once, "payer": payer, "payer_owner": owner[payer], "sent": amount}
        transfers |= {"payee": payee, "payee_owner": owner[payee], "received": amount}
        return {"credits": credits, "debits": debits, "transfers": transfers, "balances": self._balances()}

    def _balances(self) -> Columns:
        payer, payee, amount = self._payments.state.T
        (owner,) = self._names.state.T
        balance, active = np.zeros((2, len(owner)), np.int64)
        for account, sign in ((payer, -1), (payee, 1)):
            np.add.at(balance, account, sign * amount)
            active[account] = 1
        active[0] = 0  # where payments lie that were taken back
        return {"_count": active, "owner": owner * active, "balance": balance}


class _Replay:
    """A table by key, as of ever later positions."""

    def __init__(self, journal: Journal, size: int, width: int):
        self._positions = np.array(journal.positions, np.int64)
        self._rows = np.array(journal.rows, np.int64)
        self._done = 0
        self.state = np.zeros((size, width), np.int64)

    def go_to(self, position: int) -> None:
        until = int(np.searchsorted(self._positions, position, side="right"))
        for key, *values in self._rows[self._done : until].tolist():  # one after the other: the last of a key counts
            self.state[key] = values
        self._done = until


class _Changes:
    """All published changes of a view, as any Delta reader sees them, cut after cut."""

    def __init__(self, columns: Columns):
        order = np.argsort(columns["_cut"], kind="stable")
        self._columns = {name: values[order] for name, values in columns.items()}

    @classmethod
    def of(cls, warehouse: Path, view: str, cuts: list[Cut], books: Books) -> _Changes:
        table = DeltaTable(warehouse / "changes" / view).to_pyarrow_dataset()
        return cls(_numbers(table.to_table(filter=pc.field("_cut") <= cuts[-1].cut), books))

    def in_cut(self, cut: int) -> Columns:
        first, last = np.searchsorted(self._columns["_cut"], [cut, cut + 1])
        return {name: values[first:last] for name, values in self._columns.items()}

    def misplaced(self, cuts: list[Cut]) -> Iterable[str]:
        """Changes of updates that are not those of their cut."""
        lasts = np.array([cut.last_update for cut in cuts])
        cut, update = self._columns["_cut"], self._columns["_update"]
        wrong = np.flatnonzero((update <= lasts[cut - 1]) | (update > lasts[cut]))
        yield from (f"update {update[i]} is in cut {cut[i]}" for i in wrong)

    def by_update(self, column: str | None, last: int) -> np.ndarray:
        """Per update 0 … last the sum of a column; without a column, of the rows."""
        total, count = np.zeros(1 + last, np.int64), self._columns["_count"]
        np.add.at(total, self._columns["_update"], count if column is None else count * self._columns[column])
        return total


def _numbers(table: pa.Table, books: Books) -> Columns:
    """The columns as integers: an owner is its place among all owners, one that never was is −1."""
    known = pa.array(books.owners)
    columns = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = pc.fill_null(pc.index_in(column.cast(pa.string()), known), -1)
        columns[name] = column.cast(pa.int64()).to_numpy()
    return columns
