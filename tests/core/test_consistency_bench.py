"""The checker of the streaming-consistency test sees what it is there to see: small histories, right and wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from viewkeeper.bench.consistency_check import check
from viewkeeper.bench.consistency_world import Books
from viewkeeper.warehouse.cuts import UpdateRow, WarehouseTransaction, update_table
from viewkeeper.warehouse.warehouse import Warehouse

INTEGER, TEXT = pa.int64(), pa.string()
SIDE = pa.schema([("id", INTEGER), ("account", INTEGER), ("owner", TEXT), ("amount", INTEGER)])
SCHEMAS = {
    "credits": SIDE,
    "debits": SIDE,
    "transfers": pa.schema(
        {"id": INTEGER, "payer": INTEGER, "payer_owner": TEXT, "payee": INTEGER, "payee_owner": TEXT}
        | {"sent": INTEGER, "received": INTEGER}
    ),
    "balances": pa.schema([("account", INTEGER), ("owner", TEXT), ("balance", INTEGER)]),
}
VIEWS = tuple(SCHEMAS)

Rows = dict[str, list[tuple[Any, ...]]]
"""Per view rows, each with its count at its end."""

# Ada (1) pays Grace (2) 5, then 3; then the first payment is corrected to 4; then account 2 is Hopper's.
FIRST: Rows = {
    "credits": [(1, 2, "Grace", 5, 1)],
    "debits": [(1, 1, "Ada", 5, 1)],
    "transfers": [(1, 1, "Ada", 2, "Grace", 5, 5, 1)],
    "balances": [(1, "Ada", -5, 1), (2, "Grace", 5, 1)],
}
SECOND: Rows = {
    "credits": [(2, 2, "Grace", 3, 1)],
    "debits": [(2, 1, "Ada", 3, 1)],
    "transfers": [(2, 1, "Ada", 2, "Grace", 3, 3, 1)],
    "balances": [(1, "Ada", -5, -1), (1, "Ada", -8, 1), (2, "Grace", 5, -1), (2, "Grace", 8, 1)],
}
CORRECTED: Rows = {
    "credits": [(1, 2, "Grace", 5, -1), (1, 2, "Grace", 4, 1)],
    "debits": [(1, 1, "Ada", 5, -1), (1, 1, "Ada", 4, 1)],
    "transfers": [(1, 1, "Ada", 2, "Grace", 5, 5, -1), (1, 1, "Ada", 2, "Grace", 4, 4, 1)],
    "balances": [(1, "Ada", -8, -1), (1, "Ada", -7, 1), (2, "Grace", 8, -1), (2, "Grace", 7, 1)],
}
RENAMED: Rows = {
    "credits": [(1, 2, "Grace", 4, -1), (2, 2, "Grace", 3, -1), (1, 2, "Hopper", 4, 1), (2, 2, "Hopper", 3, 1)],
    "debits": [],
    "transfers": [
        (1, 1, "Ada", 2, "Grace", 4, 4, -1),
        (1, 1, "Ada", 2, "Hopper", 4, 4, 1),
        (2, 1, "Ada", 2, "Grace", 3, 3, -1),
        (2, 1, "Ada", 2, "Hopper", 3, 3, 1),
    ],
    "balances": [(2, "Grace", 7, -1), (2, "Hopper", 7, 1)],
}
STEPS = (FIRST, SECOND, CORRECTED, RENAMED)


def books() -> Books:
    books = Books()
    books.owners += ["Ada", "Grace", "Hopper"]
    books.names.note(0, [(1, 1), (2, 2)])
    for position, payment in ((1, (1, 1, 2, 5)), (2, (2, 1, 2, 3)), (3, (1, 1, 2, 4))):
        books.payments.note(position, [payment])
    books.names.note(1, [(2, 3)])
    return books


class History:
    """A warehouse of the four views, empty at cut 0."""

    def __init__(self, root: Path):
        self.warehouse = Warehouse(root)
        self.warehouse.open()
        for view, schema in SCHEMAS.items():
            self.warehouse.load(view, schema, "SELECT", [], 0)
        self.cut(0, {})

    def cut(self, last: int, changes: dict[str, list[tuple[int, tuple[Any, ...]]]]) -> None:
        """Changes are (update, row)."""
        positions = {"ledger": str(min(last, 3)), "bank": str(max(0, last - 3))}
        transaction = WarehouseTransaction(last, positions, {"ledger": last, "bank": 0}, "strong")
        if last:
            numbers = range(self.warehouse.newest().last_update + 1, last + 1)  # type: ignore[union-attr]
            transaction.updates = update_table([UpdateRow(k, "ledger", str(k), "t", k, VIEWS) for k in numbers])
        transaction.changes = {view: [_table(view, rows)] for view, rows in changes.items() if rows}
        self.warehouse.commit(transaction)


def _table(view: str, rows: list[tuple[int, tuple[Any, ...]]]) -> pa.Table:
    schema = SCHEMAS[view].append(pa.field("_count", INTEGER)).append(pa.field("_update", INTEGER))
    return pa.Table.from_pylist([dict(zip(schema.names, (*row, k), strict=True)) for k, row in rows], schema)


def violations(root: Path, steps: tuple[Rows, ...], late: dict[tuple[int, str], int] | None = None) -> list[str]:
    """What the checker finds if steps become cuts, but for what is ``late``: (step, view) → in which cut it comes."""
    history = History(root)
    for last in range(1, len(steps) + 1):
        history.cut(last, {
            view: [
                (k, row)
                for k, step in enumerate(steps, 1)
                for row in step[view]
                if (late or {}).get((k, view), k) == last
            ]
            for view in VIEWS
        })  # fmt: skip
    return check(root, books()).violations


def test_a_history_in_which_all_views_move_together_is_right(tmp_path: Path) -> None:
    assert violations(tmp_path, STEPS) == []


@pytest.mark.parametrize(
    ("view", "first"),
    [
        ("credits", "cut 2: credits − debits = -3"),
        ("debits", "cut 2: credits − debits = 3"),
        ("transfers", "cut 2: transfers holds payment 2 0 times, credits 1 times"),
        ("balances", "cut 2: balances.balance is wrong for 2 accounts, the first 1: -5 instead of -8"),
    ],
)
def test_a_cut_in_which_one_view_is_behind_is_found(view: str, first: str, tmp_path: Path) -> None:
    found = violations(tmp_path, STEPS, {(2, view): 3})
    assert found[0] == first
    assert any(what == f"{view}: update 2 is in cut 3" for what in found)
    assert not [what for what in found if what.startswith("cut 4")], "then it had caught up"


def doubled(step: Rows) -> Rows:
    return {**step, "transfers": [(*row[:-1], 2 * row[-1]) for row in step["transfers"]]}


def half_corrected(step: Rows) -> Rows:
    """The self-join sees the correction through one of its occurrences only."""
    return {**step, "transfers": [(1, 1, "Ada", 2, "Grace", 5, 5, -1), (1, 1, "Ada", 2, "Grace", 5, 4, 1)]}


def left_out(step: Rows) -> Rows:
    return {view: [] for view in step}


def one_sided(step: Rows) -> Rows:
    return {**step, "balances": step["balances"][:2]}


@pytest.mark.parametrize(
    ("number", "wrong", "told"),
    [
        (1, doubled, "cut 1: transfers holds payment 1 2 times, credits 1 times"),
        (3, half_corrected, "cut 3: transfers.sent is wrong for 1 ids, the first 1: 5 instead of 4"),
        (2, one_sided, "cut 2: the total of all balances is -3"),
        (
            2,
            left_out,
            "cut 2: credits._count is wrong for 1 ids, the first 2: 0 instead of 1",
        ),
        (
            4,
            lambda step: {**step, "credits": []},
            "cut 4: credits.owner is wrong for 2 ids, the first 1: 2 instead of 3",
        ),
    ],
    ids=["a row twice", "half a correction", "half a payment", "a payment left out of every view", "a name left out"],
)
def test_a_wrong_step_is_found(number: int, wrong: Callable[[Rows], Rows], told: str, tmp_path: Path) -> None:
    steps = [wrong(step) if k == number else step for k, step in enumerate(STEPS, 1)]
    found = violations(tmp_path, tuple(steps))
    assert told in found
    assert found[0].startswith(f"cut {number}:")


def test_updates_of_one_cut_that_only_together_balance_are_found(tmp_path: Path) -> None:
    """Credits and debits of two payments, each under another number: right at the cut, wrong between."""
    history = History(tmp_path)
    both = {view: [(1, row) for row in FIRST[view]] + [(2, row) for row in SECOND[view]] for view in VIEWS}
    both["credits"] = [(2, FIRST["credits"][0]), (1, SECOND["credits"][0])]
    history.cut(2, both)
    assert check(tmp_path, books()).violations == [f"update {k}: credits and debits differ" for k in (1, 2)]
