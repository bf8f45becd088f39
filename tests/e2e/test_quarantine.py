"""Setting messages aside on a real broker: whatever their size the job goes on; a broker that is away is an error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import SharedBroker, unique
from tests.core import worlds
from tests.e2e.test_topics import loaded
from viewkeeper.config import load_config
from viewkeeper.errors import KafkaError
from viewkeeper.job import quarantine
from viewkeeper.job.quarantine import Quarantine
from viewkeeper.messages import Rejected
from viewkeeper.warehouse.warehouse import Warehouse

pytestmark = pytest.mark.e2e


def quarantine_for(warehouse: Warehouse, bootstrap: str, source: str) -> Quarantine:
    conf = warehouse.layout.root / "conf.yaml"
    conf.write_text(
        f"kafka: {{bootstrap: '{bootstrap}'}}\nwarehouse: .\nbad_messages: quarantine\n"
        f"sources: {{{source}: {{kind: sqlite, path: shop.db}}}}\nviews: {{v: {{sql: SELECT a FROM {source}.R}}}}\n"
    )
    relations = worlds.catalog(worlds.relation(source, "R", "a"))
    return Quarantine(
        load_config(conf), warehouse, {"v": worlds.parse_view("v", f"SELECT a FROM {source}.R", relations)}
    )


def rejected(source: str, offset: int, value: bytes, reason: str = "not JSON") -> Rejected:
    return Rejected(source, f"{source}.updates", offset, value, reason)


def test_large_messages_are_set_aside_with_short_reasons_and_those_too_large_are_left(
    broker: SharedBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, warehouse = unique("shop").replace("-", "_"), loaded(tmp_path)
    broker.create(f"{source}.rejected")
    values = [b"small", os.urandom(700_000), os.urandom(3_000_000), b"last", b"x" * 1_500_000]
    messages = [rejected(source, i, value, f"a\udc80 {value!r}") for i, value in enumerate(values)]
    quarantine_for(warehouse, broker.bootstrap, source).set_aside(messages)

    kept = {int(dict(m.headers())["offset"]): m for m in broker.messages(f"{source}.rejected")}
    assert sorted(kept) == [0, 1, 3, 4]  # the last fits once it is compressed
    assert all(kept[i].value() == values[i] for i in kept)
    assert all(len(dict(m.headers())["reason"]) < 2_000 for m in kept.values())
    assert "offset 2: is too large" in caplog.text and len(caplog.text) < 5_000
    reason = warehouse.inexact()["v"]
    assert reason.startswith(f"offset 0 of topic {source}.updates") and len(reason) < 500


def test_what_cannot_be_delivered_is_an_error_to_be_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse = loaded(tmp_path)
    monkeypatch.setattr(quarantine, "PATIENCE", 0.5)
    away = quarantine_for(warehouse, "127.0.0.1:1", "shop")
    with pytest.raises(KafkaError, match="1 message is still on the way"):
        away.set_aside([rejected("shop", 0, b"x")])
    assert "v" in warehouse.inexact()  # marked before it is sent

    monkeypatch.setattr(quarantine, "_SETTINGS", {"message.timeout.ms": 50})
    monkeypatch.setattr(quarantine, "PATIENCE", 10.0)
    with pytest.raises(KafkaError, match=r"could not be set aside.*[Tt]imed out"):
        away.set_aside([rejected("shop", 0, b"x")])
