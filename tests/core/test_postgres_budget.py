"""A row budget lets a second's worth through at once, and then no more than the rate."""

from __future__ import annotations

from viewkeeper.managers.sources.postgres_budget import Budget


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.time += seconds


def test_rows_beyond_the_first_second_come_at_the_rate() -> None:
    clock = Clock()
    budget = Budget(1000, clock.now, clock.sleep)
    for _ in range(50):
        budget.pay(200)
    assert clock.time == 100.0 + (50 * 200 - 1000) / 1000


def test_a_large_answer_is_paid_for_before_the_next() -> None:
    clock = Clock()
    budget = Budget(100, clock.now, clock.sleep)
    budget.pay(1_100)
    assert clock.time == 110.0


def test_what_is_not_used_is_kept_for_a_second_only() -> None:
    clock = Clock()
    budget = Budget(100, clock.now, clock.sleep)
    clock.time += 1000
    budget.pay(100)
    assert clock.time == 1100.0
    budget.pay(100)
    assert clock.time == 1101.0


def test_without_a_rate_nothing_waits() -> None:
    clock = Clock()
    Budget(None, clock.now, clock.sleep).pay(10**9)
    assert clock.time == 100.0
