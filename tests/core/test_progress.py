"""What long work tells of itself, and how a cut tells what was asked for it."""

from __future__ import annotations

import logging
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from viewkeeper.job import progress
from viewkeeper.job.progress import CatchingUp, Progress
from viewkeeper.warehouse.log_table import LogTable


def test_progress_tells_amount_rate_share_and_time_left(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    with caplog.at_level(logging.INFO, "viewkeeper"):
        Progress("view sales").at(1_500, 0.5)
        CatchingUp(lambda: 60_000).batch(20_000, 9_000)
    first, second = caplog.messages
    assert first.startswith("view sales: 1,500 rows, ") and "a second, 50% done, about " in first
    assert first.endswith(" left") and second.startswith("catching up: 9,000 updates, ") and "25% done" in second


def test_a_commit_to_changes_carries_what_was_asked(tmp_path: Path) -> None:
    table = LogTable(tmp_path / "t", ("k",))
    table.create(pa.schema([("k", pa.int64())]))
    asked = {"shop": {"questions": 2, "keys": 10, "rows": 7, "compensated": 0}}
    table.append(pa.table({"k": [1]}), {"cut": "1", "asked": orjson.dumps(asked).decode()})
    assert orjson.loads(DeltaTable(tmp_path / "t").history(1)[0]["asked"]) == asked
