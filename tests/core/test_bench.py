"""The benchmark's own arithmetic: what it writes, and what it calls a missed bar."""

from __future__ import annotations

from collections import Counter

from viewkeeper.bench.backlog import Shop
from viewkeeper.bench.table import rows


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
