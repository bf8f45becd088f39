"""What the job says of its work: when it is up, now and then, and in the end."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from viewkeeper.counts import some
from viewkeeper.job import account
from viewkeeper.job.account import Account


def keeper(*views: str) -> Any:
    return SimpleNamespace(
        views=dict.fromkeys(views),
        sources=dict.fromkeys(("shop", "crm")),
        updates_handled=0,
        batches=0,
        cut=SimpleNamespace(cut=4, last_update=11),
    )


def advance(kept: Any, updates: int) -> None:
    kept.updates_handled += updates
    kept.batches += 1
    kept.cut = SimpleNamespace(cut=kept.cut.cut + 1, last_update=kept.cut.last_update + updates)


def test_the_job_says_that_it_is_up_and_how_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    kept = keeper("orders")
    told = Account(kept)
    with caplog.at_level(logging.INFO, "viewkeeper"):
        told.opened()
        told.up(until_idle=False)
        advance(kept, 1)
        told.ended()
        Account(keeper("a", "b", "c", "d"), "money").up(until_idle=True)
    assert caplog.messages == [
        "view orders at cut 4, update 11",
        "up, waiting for what capture sends of shop and crm; Ctrl-C ends it",
        "ended: handled 1 update in 1 cut; view orders stands at cut 5, update 12",
        "group money: up, waiting for what capture sends of shop and crm; "
        "until all that shop and crm had committed is in a cut",
    ]


def test_it_tells_what_it_did_but_not_all_the_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(account.time, "monotonic", lambda: now)
    kept = keeper("orders", "lines")
    told = Account(kept, every=10.0)
    with caplog.at_level(logging.INFO, "viewkeeper"):
        for second in range(60):
            now += 1.0
            if 5 <= second < 25:
                advance(kept, 100)
            told.now_and_then()
        told.ended()
    assert caplog.messages == [
        "100 updates in 1 cut, 17 a second; now at cut 5, update 111",
        "1,000 updates in 10 cuts, 100 a second; now at cut 15, update 1111",
        "900 updates in 9 cuts, 90 a second; now at cut 24, update 2011",
        "ended: handled 2,000 updates in 20 cuts; views orders, lines stand at cut 24, update 2011",
    ]


def test_one_is_one() -> None:
    assert [some(n, "view") for n in (0, 1, 2, 1_234)] == ["0 views", "1 view", "2 views", "1,234 views"]
