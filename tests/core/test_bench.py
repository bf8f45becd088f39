"""The benchmark's own arithmetic: what it writes, and what it calls a missed bar."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from viewkeeper.bench.answers import Answers
from viewkeeper.bench.backlog import Shop, prepare
from viewkeeper.bench.groups import KINDS, order
from viewkeeper.bench.job_server import Step
from viewkeeper.bench.latency import Change, Heard, batch_of
from viewkeeper.bench.postgres import OURS, THEIRS, latency_figures, split
from viewkeeper.bench.postgres_world import end_of
from viewkeeper.bench.table import rows
from viewkeeper.bench.world import Written, make_world
from viewkeeper.capture.sqlite_triggers import install
from viewkeeper.managers.sources import sqlite_log
from viewkeeper.messages import Answer, Ask


def test_the_hot_customer_has_at_most_two_live_orders_at_any_time() -> None:
    writes = Shop(100).hot(1_000)
    live = 0
    for source, sql, _ in writes:
        live += {"I": 1, "D": -1}[sql[0]] if source == "shop" else 0
        assert 0 <= live <= 2
    assert Counter(source for source, _, _ in writes) == {"shop": 500, "crm": 500}
    assert len({values[-1] for source, _, values in writes if source == "crm"}) == 1


def test_no_order_is_changed_after_it_was_taken_back() -> None:
    shop = Shop(50)
    gone: set[int] = set()
    for _, sql, values in (*shop.uniform(500), *shop.hot(101), *shop.uniform(500)):
        if "orders" in sql and not sql.startswith("INSERT"):
            assert values[-1] not in gone
            gone |= {values[-1]} if sql.startswith("DELETE") else set()
    assert gone


def test_a_missed_bar_says_so_and_figures_that_were_not_taken_have_no_line() -> None:
    cuts = {"cuts": 100.0, "commit_early": 10.0, "commit_late": 20.0, "commit_ratio": 2.0}
    cuts |= {"read_early": 10.0, "read_late": 11.0, "read_ratio": 1.1}
    small, large = {"fold_share": 0.02}, {"fold_share": 0.05}
    assert [(row.item.split(":")[0], row.ok) for row in rows(small, large, cuts)] == [
        ("share of the time spent folding", True),
        ("commit", False),
        ("read", True),
    ]


def test_ten_views_and_another_group_are_held_against_one_view_and_none() -> None:
    figures = {"views_one_seconds": 2.0, "views_ten_seconds": 5.0, "views_whole_seconds": 9.0}
    figures |= {"views_one_questions": 10.0, "views_ten_questions": 12.0}
    figures |= {"groups_alone_seconds": 4.0, "groups_idle_seconds": 4.2, "groups_loaded_seconds": 4.8}
    barred = [row for row in rows(figures, figures | {"views_ten_seconds": 6.5}, {}) if row.bar]
    assert [(row.small, row.large, row.ok) for row in barred] == [
        ("2.50×", "3.25×", False),
        ("1.05×", "1.05×", True),
        ("1.20×", "1.20×", False),
    ]


def test_one_violation_is_a_missed_bar_however_many_cuts_there_were() -> None:
    test = {"consistency_payments": 1e6, "consistency_cuts": 300.0, "consistency_updates": 9e4}
    test |= {"consistency_written": 2e4, "consistency_speed": 1e4, "consistency_violations": 1.0}
    cut = {"cut_small_one": 10.0, "cut_small_ten": 30.0, "cut_large_one": 10.0, "cut_large_ten": 31.0}
    assert [row.ok for row in rows({}, {}, test | cut) if row.bar] == [True, False, False]


def test_over_three_rounds_every_kind_is_measured_at_every_place() -> None:
    places = [order(n).index(kind) for kind in KINDS for n in range(1, 4)]
    assert Counter(places) == {0: 3, 1: 3, 2: 3}
    assert order(0) == KINDS


def test_a_prepared_backlog_is_in_the_databases_before_it_is_sent(tmp_path: Path) -> None:
    world = make_world(tmp_path / "world", "nowhere", 10)
    for source, columns in (("shop", ["id", "customer_id", "product_id", "quantity"]), ("crm", ["id", "name", "city"])):
        install(source, str(world.database(source)), {world.table(source): columns})
    writes = [
        ("shop", "DELETE FROM orders WHERE id = ?", (1,)),
        ("crm", "UPDATE customers SET city = ? WHERE id = ?", ("x", 2)),
        ("shop", "DELETE FROM orders WHERE id = ?", (2,)),
    ]
    prepared = prepare(world, writes)
    assert prepared.order == ["shop", "crm", "shop"]
    for source, count in (("shop", 2), ("crm", 1)):
        with closing(world.connect(source)) as db:
            assert prepared.positions[source] == str(sqlite_log.last_id(db))
        assert len(prepared.messages[source]) == count


def test_rows_that_were_not_asked_for_or_read_twice_do_not_count_as_rows_that_join() -> None:
    class Source:
        def ask(self, ask: Ask, snapshot: Any) -> Answer:
            return Answer(pa.table({"id": [1, 2, 3], "_count": [1, 1, 1]}), snapshot)

    answers = Answers()
    source = answers.of({"s": Source()})["s"]  # type: ignore[dict-item]
    for keys in ([1, 2], [2]):
        source.ask(Ask("s", "r", ("id",), ("id",), pa.table({"id": keys})), None)
    assert answers.counted() == (6, 2)


def step(name: str, begin: float, end: float, position: int) -> Step:
    return Step(name, begin, end, {"shop": str(position)})


STEPS = [
    step("parse", 8.0, 8.1, 40),
    step("commit", 8.2, 8.3, 40),
    step("parse", 10.5, 10.6, 50),
    step("freeze", 10.6, 10.8, 50),
    step("number", 10.8, 10.9, 50),
    step("freeze", 10.9, 11.0, 50),
    step("drain", 11.0, 11.5, 60),
    step("sweep", 11.6, 11.9, 60),
    step("commit", 11.9, 12.0, 60),
]


def end(at: float, xid: int, lsn: int) -> Heard:
    return Heard("shop", {"status": "END", "id": f"{xid}:{lsn}"}, at, at)


def test_every_moment_between_a_commit_and_its_cut_belongs_to_exactly_one_part() -> None:
    change = Change(Written(7, 10.0), end(10.2, 7, 50), 50)
    barrier = end(11.4, 8, 60)
    parts = split(change, batch_of(change, STEPS), [change.sent, barrier])
    expected = {
        "debezium": 0.2,
        "batch start": 0.3,
        "parse, number": 0.2,
        "freeze": 0.3,
        "barrier by debezium": 0.4,
        "drain": 0.1,
        "sweep": 0.3,
        "commit": 0.1,
        "between": 0.1,
        "cut": 2.0,
    }
    assert parts == pytest.approx(expected)
    assert sum(parts[part] for part in (*OURS, *THEIRS)) == pytest.approx(parts["cut"])
    assert latency_figures([parts, parts])["pg_latency_ours_median"] == pytest.approx(1.1)


def test_only_an_end_ends_a_transaction() -> None:
    assert end_of({"status": "END", "id": "7:50"}) == (7, 50)
    assert end_of({"status": "BEGIN", "id": "7:50"}) is None
    assert end_of({"op": "u"}) is None


def test_a_change_that_a_drain_brought_in_belongs_to_the_batch_of_that_drain() -> None:
    change = Change(Written(9, 11.1), end(11.3, 9, 60), 60)
    batch = batch_of(change, STEPS)
    assert (batch[0], batch[-1]) == (STEPS[2], STEPS[-1])
