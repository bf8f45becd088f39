"""``viewkeeper status`` as people read it: no broker, no job, a view that is not loaded."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from viewkeeper.commands import status
from viewkeeper.config import Config, load_config
from viewkeeper.errors import KafkaError
from viewkeeper.queue import consumer

CONF = """
kafka: {bootstrap: "127.0.0.1:1"}
warehouse: ./warehouse
sources:
  crm: {kind: sqlite, path: ./crm.db}
views:
  named: {sql: SELECT c.name FROM crm.customers c}
"""
DOWN = "Failed to get watermark offsets: Local: All broker connections are down"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Nothing is loaded, and the broker is down; the client's ten seconds of patience are spared."""

    def bounds(*_: object) -> None:
        raise KafkaError.at("kafka 127.0.0.1:1", DOWN, "is the broker up?")

    monkeypatch.setattr(consumer, "bounds", bounds)
    with closing(sqlite3.connect(tmp_path / "crm.db")) as db:
        db.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)")
    file = tmp_path / "conf.yaml"
    file.write_text(CONF)
    return load_config(file)


def test_what_is_not_there_is_a_dash_and_what_cannot_be_reached_one_short_line(
    config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    status._show(status.gather(config))
    said = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert "crm – unknown unknown 0 0 0 0" in lines
    assert "unknown: kafka 127.0.0.1:1: All broker connections are down" in lines
    assert "named sweep – – not loaded" in lines
    assert "None" not in said and "watermark" not in said


@pytest.mark.parametrize(("handled", "said"), [(0, "0 updates"), (1, "1 update"), (12_000, "12,000 updates")])
def test_one_update_is_one_update(handled: int, said: str) -> None:
    job = {"running": True, "pid": 7, "started": "2024-01-01T00:00:00", "updates_handled": handled, "waiting": None}
    assert status._job_line(job).endswith(f", {said} handled")
