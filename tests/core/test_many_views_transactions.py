"""The order in which warehouse transactions commit (multiple-view-consistency-1997, section 4.3)."""

from __future__ import annotations

import random

from tests.scale import scaled
from viewkeeper.merge.painting import Applied, SimplePainting
from viewkeeper.merge.view_update_table import Told
from viewkeeper.simulator.many_views_transactions import Sequencer, Submitted, batched, depends


def wt(number: int, *views: str) -> Applied[str]:
    return Applied((number,), tuple(Told(view, number, "") for view in views))


def rows(started: list[Submitted[str]]) -> list[tuple[int, ...]]:
    return [submitted.transaction.rows for submitted in started]


def test_example_3_the_third_transaction_waits_for_the_first_and_the_second_for_none() -> None:
    """WT_2 is applied first, then WT_1 and WT_3: if WT_3 committed before WT_1, V2 would reflect U3 without U1."""
    painter = SimplePainting[str](("V1", "V2", "V3"))
    for number, views in enumerate((("V1", "V2"), ("V3",), ("V2",)), 1):
        painter.relevant(number, views)
    sequencer = Sequencer[str]()
    for view, number in (("V2", 1), ("V3", 2), ("V2", 3), ("V1", 1)):
        for applied in painter.actions(view, number, ""):
            sequencer.submit(applied)
    second, first = sequencer.start()
    assert rows([second, first]) == [(2,), (1,)]
    assert sequencer.start() == []
    sequencer.committed(second)
    assert sequencer.start() == [], "it does not depend on WT_2"
    sequencer.committed(first)
    assert rows(sequencer.start()) == [(3,)]


WT1, WT2, WT3 = wt(1, "V1", "V2"), wt(2, "V1"), wt(3, "V2")
"""Section 4.3: WT2 and WT3 depend on WT1."""


def submitted() -> Sequencer[str]:
    sequencer = Sequencer[str]()
    for transaction in (WT1, WT2, WT3):
        sequencer.submit(transaction)
    return sequencer


def test_wt2_and_wt3_depend_on_wt1_and_may_then_commit_at_the_same_time() -> None:
    assert depends(WT2, WT1)
    assert depends(WT3, WT1)
    assert not depends(WT3, WT2)
    sequencer = submitted()
    (first,) = sequencer.start()
    assert first.transaction == WT1
    sequencer.committed(first)
    assert rows(sequencer.start()) == [(2,), (3,)]


def test_batching_wt1_and_wt2_makes_wt3_wait_for_both() -> None:
    sequencer = submitted()
    batch = sequencer.start_batch(most=2)
    assert batch is not None
    assert batch.transaction.rows == (1, 2)
    assert [str(told) for told in batch.transaction.actions] == ["AL_1^V1", "AL_1^V2", "AL_2^V1"]
    assert sequencer.start() == []
    assert sequencer.start_batch() is None
    sequencer.committed(batch)
    assert rows(sequencer.start()) == [(3,)]


def test_a_batch_leaves_out_what_depends_on_something_under_way() -> None:
    sequencer = Sequencer[str]()
    sequencer.submit(wt(1, "V1"))
    (first,) = sequencer.start()
    for transaction in (wt(2, "V1", "V2"), wt(3, "V2"), wt(4, "V3"), wt(5, "V3")):
        sequencer.submit(transaction)
    batch = sequencer.start_batch()
    assert batch is not None
    assert batch.transaction.rows == (4, 5), "U3 depends on U2, which depends on what is under way"
    sequencer.committed(first)
    again = sequencer.start_batch()
    assert again is not None
    assert again.transaction.rows == (2, 3)


def test_a_batch_has_the_action_lists_of_each_transaction_before_those_that_depend_on_it() -> None:
    assert batched([WT1, WT3, WT2]).actions == WT1.actions + WT3.actions + WT2.actions
    assert batched([wt(3, "V1"), wt(2, "V2")]).rows == (2, 3)


def test_dependent_transactions_commit_in_order_and_others_never_wait() -> None:
    for seed in range(scaled(300, 10_000)):
        rng = random.Random(seed)
        sequencer = Sequencer[str]()
        unborn = [wt(i, *rng.sample("ABCD", rng.randint(1, 3))) for i in range(1, rng.randint(2, 9))]
        alive: list[Applied[str]] = []  # submitted, not committed
        started: list[Submitted[str]] = []
        while unborn or alive:
            if unborn and (not started or rng.random() < 0.5):
                alive.append(unborn.pop(0))
                sequencer.submit(alive[-1])
            if rng.random() < 0.3:
                batch = sequencer.start_batch(rng.choice((None, 2)))
                started += [batch] if batch else []
            else:
                started += sequencer.start()
                busy = {row for s in started for row in s.transaction.rows}
                for place, transaction in enumerate(alive):
                    free = not any(depends(transaction, earlier) for earlier in alive[:place])
                    assert (not free) or transaction.rows[0] in busy, f"seed {seed}: {transaction} waits for nothing"
            if started and rng.random() < 0.7:
                done = started.pop(rng.randrange(len(started)))
                sequencer.committed(done)
                for row in done.transaction.rows:
                    before = [t for t in alive if t.rows[0] < row and t.rows[0] not in done.transaction.rows]
                    (mine,) = (t for t in alive if t.rows == (row,))
                    assert not any(depends(mine, earlier) for earlier in before), f"seed {seed}: {row} overtook"
                alive = [t for t in alive if t.rows[0] not in done.transaction.rows]
